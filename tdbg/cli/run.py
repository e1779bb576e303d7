"""`tdbg run`: any training or evaluation command, watched."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdbg.core.command_spec import Args, Argument, Command, Option, Options
from tdbg.core.errors import TdbgError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tdbg.core.config import Settings

HELP = """Run a training or evaluation command and report what went wrong.

        tdbg run -- python train.py --epochs 3
        tdbg run -f LOSS.NULL_MASKING -- torchrun --nproc-per-node=2 train.py
        tdbg run --stop-on critical --tee -- python -m my.package

    The command runs as it would without tdbg: its output, terminal, signals and exit code are its own. What
    tdbg sees is kept in a run directory; `tdbg report` reads it. Defaults come from [tool.tdbg] in
    pyproject.toml, then tdbg.yaml, then TDBG_* variables; options win. `tdbg doctor` shows the sources.

    Exit code: the command's own, 128+N if signal N ended it, 127 command not found, 126 not executable, 125 if
    tdbg could not start it, 2 for wrong use; --fail-on and --stop-on turn a 0, and nothing else, into 1.
    """
# The groups of the help page, in its order.
WATCH = "What to watch"
AMOUNT = "How much"
CAPTURE = "Capture"
FOUND = "When something is found"
FILES = "Files and limits"
LAUNCH = "Launching"
OPTIONS: Options = {
    "flag": Option(("--flag", "-f"), "FLAG", "Switch a debug flag on: FLAG or FLAG=VALUE; repeatable.", group=WATCH),
    "no_flag": Option(("--no-flag",), "FLAG", "Switch a debug flag off that another source switches on.", group=WATCH),
    "preset": Option(("--preset",), "PRESET", "Switch on flags often wanted together.", group=WATCH),
    "threshold": Option(
        ("--threshold",), "BOUND", "A threshold of a probe: GRADIENTS.explosion=50; repeatable.", group=WATCH
    ),
    "strict_flags": Option(
        ("--strict-flags",),
        "",
        "A flag the program rejects ends the rank before its first step.",
        group=WATCH,
        value=bool,
    ),
    "forbid_flags": Option(
        ("--forbid-flags",),
        "",
        "Refuse to start while a debug flag is on, in tdbg's settings or in the program's own configuration.",
        group=WATCH,
        value=bool,
    ),
    "inject": Option(("--inject",), "MODE", "How flags reach the program's own configuration.", group=WATCH),
    "step_optimizer": Option(
        ("--step-optimizer",), "CLASS", "Count steps of this optimizer class instead of the first.", group=WATCH
    ),
    "level": Option(
        ("--level", "-l"),
        "LEVEL",
        "off, basic, advanced or extreme: how much is recorded (default basic).",
        group=AMOUNT,
    ),
    "max_overhead": Option(
        ("--max-overhead",), "PCT", "Share of the wall time tdbg may cost, in percent.", group=AMOUNT
    ),
    "allowance": Option(
        ("--allowance",),
        "SECONDS",
        "Seconds that tdbg may spend on inspecting the first steps fully, outside the budget (default 1).",
        group=AMOUNT,
        value=float,
    ),
    "baseline": Option(
        ("--measure-overhead",),
        "N",
        "Alternate blocks of N steps without and with tdbg, and compare.",
        group=AMOUNT,
        value=int,
        least=1,
        old_names=("--baseline",),
    ),
    "every": Option(
        ("--every",), "N", "Flags and levels look at every Nth step only.", group=AMOUNT, value=int, least=1
    ),
    "steps": Option(("--steps",), "RANGE", "Flags and levels look at these steps only: 100:200,500.", group=AMOUNT),
    "ranks": Option(("--ranks",), "RANGE", "Flags and levels look on these ranks only: 0,3-5.", group=AMOUNT),
    "keep_steps": Option(
        ("--keep-steps",), "N", "Step records kept for the report of a bad step.", group=AMOUNT, value=int
    ),
    "capture": Option(
        ("--capture",),
        "LAYERS",
        "Capture tensors of layers ('layers.*.attn:output,input,grad'), batch or prediction; repeatable.",
        group=CAPTURE,
    ),
    "debugger": Option(
        ("--debugger",),
        "DEBUGGER",
        "Run a debugger on captured datapoints: gradcam:layer4, 'attention:layers.*'; repeatable.",
        group=CAPTURE,
    ),
    "capture_stats": Option(
        ("--capture-stats",), "", "Keep statistics of captured tensors, not the tensors.", group=CAPTURE, value=bool
    ),
    "capture_every": Option(("--capture-every",), "N", "Capture every Nth step.", group=CAPTURE, value=int),
    "capture_steps": Option(("--capture-steps",), "RANGE", "Capture these steps only: 100:200,500.", group=CAPTURE),
    "capture_epochs": Option(
        ("--capture-epochs",), "EPOCHS", "Epochs to capture: N (each Nth and the last), latest, all.", group=CAPTURE
    ),
    "capture_phase": Option(
        ("--capture-phase",), "PHASE", "Capture in this phase only: train, val or eval; repeatable.", group=CAPTURE
    ),
    "capture_samples": Option(
        ("--capture-samples",),
        "SAMPLES",
        "Keep only some samples of a batch: worst, worst:4 (largest loss), wrong, or N (every Nth).",
        group=CAPTURE,
    ),
    "capture_on": Option(
        ("--capture-on",),
        "CODE|SEVERITY",
        "Capture 20 steps after each such finding, and only then; repeatable.",
        group=CAPTURE,
    ),
    "capture_budget": Option(
        ("--capture-budget",), "SIZE", "Bytes that a rank may capture, such as 2GB.", group=CAPTURE
    ),
    "capture_policy": Option(
        ("--capture-policy",), "POLICY", "What to do when the disk is too slow: block, drop or sample.", group=CAPTURE
    ),
    "capture_upload": Option(
        ("--capture-upload",),
        "URL",
        "Copy sealed pages below this URL while the run goes on: s3://bucket/runs.",
        group=CAPTURE,
    ),
    "stop_on": Option(
        ("--stop-on",), "CODE|SEVERITY", "End the command at the first such finding; repeatable.", group=FOUND
    ),
    "stack_signal": Option(
        ("--stack-signal",),
        "SIGNAL",
        "Signal that `tdbg stacks` sends to ranks; none turns it off.",
        group=FOUND,
    ),
    "stop_before_update": Option(
        ("--stop-before-update",),
        "",
        "Stop before the optimizer uses a non-finite gradient; looks before each update, whatever that costs (syncs a GPU).",
        group=FOUND,
        value=bool,
    ),
    "fail_on": Option(
        ("--fail-on",), "SEVERITY", "Exit with 1 instead of 0 after a finding of this severity or worse.", group=FOUND
    ),
    "on_finding": Option(
        ("--on-finding",),
        "COMMAND",
        "Run a command once for each finding, with the finding as JSON on its stdin.",
        group=FOUND,
    ),
    "notify": Option(
        ("--notify",), "URL", "Send each finding and the verdict to this URL, of Slack or any webhook.", group=FOUND
    ),
    "to": Option(
        ("--to",),
        "SINK",
        "Send step records, findings and the report to wandb, tensorboard or a sink of another package; repeatable.",
        group=FOUND,
    ),
    "when": Option(
        ("--when",), "CONDITION", "A condition on step records, such as 'loss > 10 or skipped'.", group=FOUND
    ),
    "then": Option(
        ("--then",), "ACTION", "What to do when --when becomes true: 'level=extreme for 20', 'dump'.", group=FOUND
    ),
    "run_dir": Option(
        ("--run-dir",),
        "DIR",
        "Where the run is kept; must not hold another run. Below a URL (s3://bucket/run) it is copied while the run goes on.",
        group=FILES,
    ),
    "name": Option(("--name",), "NAME", "Name of the run under ./tdbg_runs.", group=FILES),
    "share": Option(
        ("--share",), "", "Let other users of this machine read the run directory.", group=FILES, value=bool
    ),
    "tee": Option(
        ("--tee",), "", "Keep a copy of stdout and stderr in the run directory, byte for byte.", group=FILES, value=bool
    ),
    "disk_budget": Option(("--disk-budget",), "SIZE", "Bytes that a rank may write, such as 500MB.", group=FILES),
    "profile_name": Option(("--profile-name",), "NAME", "Use the settings [tool.tdbg.profiles.NAME].", group=LAUNCH),
    "log_level": Option(("--log-level",), "LOG_LEVEL", "Level of the program's own console log.", group=LAUNCH),
    "progress_every": Option(
        ("--progress-every",),
        "SECONDS",
        "Time between progress lines; with --tee, a terminal has one live line.",
        group=LAUNCH,
        value=float,
    ),
    "serve": Option(
        ("--serve",),
        "PORT",
        "Serve the viewer on 127.0.0.1 while the run goes on; default: any free port.",
        group=LAUNCH,
        value=int,
        least=0,
        bare="0",
    ),
    "preflight": Option(
        ("--preflight",),
        "",
        "Test the model on the first batch, then end before the first update; files that the program writes are discarded.",
        group=LAUNCH,
        value=bool,
    ),
    "dry_run": Option(("--dry-run",), "", "Print what would be done, and do nothing.", group=LAUNCH),
    "replace": Option(
        ("--exec",), "", "Replace the tdbg process with the command: no live findings, no verdict.", group=LAUNCH
    ),
    "quiet": Option(("--quiet", "-q"), "", "Print only errors, and one line at the end.", group=LAUNCH, value=bool),
}


class RunArgs(Args):
    """What `run` can be given; None is left to the other sources of settings."""

    words: "Sequence[str]" = ()
    flag: "Sequence[str]" = ()
    no_flag: "Sequence[str]" = ()
    preset: "Sequence[str]" = ()
    threshold: "Sequence[str]" = ()
    strict_flags: bool | None = None
    forbid_flags: bool | None = None
    inject: str | None = None
    step_optimizer: str | None = None
    level: str | None = None
    max_overhead: str | None = None
    allowance: float | None = None
    baseline: int | None = None
    every: int | None = None
    steps: str | None = None
    ranks: str | None = None
    keep_steps: int | None = None
    capture: "Sequence[str]" = ()
    debugger: "Sequence[str]" = ()
    capture_stats: bool | None = None
    capture_every: int | None = None
    capture_steps: str | None = None
    capture_epochs: str | None = None
    capture_phase: "Sequence[str]" = ()
    capture_samples: str | None = None
    capture_on: "Sequence[str]" = ()
    capture_budget: str | None = None
    capture_policy: str | None = None
    capture_upload: str | None = None
    stop_on: "Sequence[str]" = ()
    stack_signal: str | None = None
    stop_before_update: bool | None = None
    fail_on: str | None = None
    on_finding: str | None = None
    notify: str | None = None
    to: "Sequence[str]" = ()
    when: "Sequence[str]" = ()
    then: "Sequence[str]" = ()
    run_dir: str | None = None
    name: str | None = None
    share: bool | None = None
    tee: bool | None = None
    disk_budget: str | None = None
    profile_name: str | None = None
    log_level: str | None = None
    progress_every: float | None = None
    serve: int | None = None
    preflight: bool | None = None
    dry_run: bool = False
    replace: bool = False
    quiet: bool | None = None


def run_command(args: RunArgs) -> int:
    """Run the command; the exit code is its own."""
    return run_with_settings(args)


# Options that are no setting of the same name.
NO_SETTINGS = ("flag", "no_flag", "threshold", "profile_name", "serve", "dry_run", "replace")


def run_with_settings(args: RunArgs, more: "Mapping[str, Any] | None" = None) -> int:
    """Run the command with what was typed; ``more`` are further settings."""
    from tdbg.launch.start import launch_command

    if args.name is not None and args.run_dir is not None:
        raise TdbgError("--name and --run-dir both say where the run is kept", "leave one of them out")
    typed = {name: getattr(args, name) for name in OPTIONS if name not in NO_SETTINGS}
    typed["flags"] = [*args.flag, *(f"{off}=false" for off in args.no_flag)]
    typed["thresholds"] = args.threshold
    wrapped = list(args.words)
    given = {
        name: value for name, value in (typed | dict(more or {})).items() if value is not None and value not in ((), [])
    }
    settings, origin = resolve_run_settings(given, wrapped, args.profile_name or "")
    return launch_command(settings, origin, wrapped, replace=args.replace, dry_run=args.dry_run, serve=args.serve)


def resolve_run_settings(typed: dict[str, Any], words: list[str], profile: str) -> "tuple[Settings, dict[str, str]]":
    """The settings of all sources; the program's source is scanned for flags only where flags are asked for."""
    import os

    from tdbg.core.config import resolve_settings
    from tdbg.launch import boot

    environ = dict(os.environ)
    if boot.inside_run(environ):  # it names the outer run, not a wish of the user's
        environ.pop("TDBG_RUN_DIR")
    try:
        settings, origin = resolve_settings(typed, environ=environ, profile=profile)
        if not settings.flags:
            return settings, origin
    except TdbgError:  # perhaps for a flag that only the program knows
        pass
    from tdbg.core.flags import check_values
    from tdbg.launch.scan import known_flags

    known = known_flags(words, Path.cwd())
    settings, origin = resolve_settings(typed, environ=environ, profile=profile, known_flags=known)
    check_values(settings.flags, known)
    return settings, origin


WRAPPED = Argument("COMMAND", "The command and its own options, passed on untouched.", field="words")
COMMAND = Command(run_command, RunArgs, HELP, OPTIONS, WRAPPED, wraps=True)
