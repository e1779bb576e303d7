"""`tdbg run`: any training or evaluation command, watched."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdbg.cli import options

if TYPE_CHECKING:
    from tdbg.core.config import Settings

SETTINGS = options.WRAPS_A_COMMAND

Flags = Annotated[
    list[str] | None,
    typer.Option("--flag", "-f", metavar="FLAG", help="Switch a debug flag on: FLAG or FLAG=VALUE; repeatable."),
]
NoFlags = Annotated[
    list[str] | None,
    typer.Option("--no-flag", metavar="FLAG", help="Switch a debug flag off that another source switches on."),
]
Presets = Annotated[
    list[str] | None, typer.Option("--preset", metavar="PRESET", help="Switch on flags often wanted together.")
]
Level = Annotated[
    str | None,
    typer.Option("--level", "-l", metavar="LEVEL", help="How much is recorded: off, basic, advanced or extreme."),
]
MaxOverhead = Annotated[
    str | None, typer.Option("--max-overhead", metavar="PCT", help="Share of the wall time tdbg may cost, in percent.")
]
Inject = Annotated[
    str | None, typer.Option("--inject", metavar="MODE", help="How flags reach the program's own configuration.")
]
StrictFlags = Annotated[
    bool | None, typer.Option("--strict-flags", help="A flag the program rejects ends the rank before its first step.")
]
ForbidFlags = Annotated[
    bool | None,
    typer.Option(
        "--forbid-flags",
        help="Refuse to start while a debug flag is on, in tdbg's settings or in the program's own configuration.",
    ),
]
ProfileName = Annotated[
    str | None, typer.Option("--profile-name", metavar="NAME", help="Use the settings [tool.tdbg.profiles.NAME].")
]
RunDirectory = Annotated[
    str | None, typer.Option("--run-dir", metavar="DIR", help="Where the run is kept; must not hold another run.")
]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name of the run under ./tdbg_runs.")]
Share = Annotated[bool | None, typer.Option("--share", help="Let other users of this machine read the run directory.")]
Tee = Annotated[
    bool | None, typer.Option("--tee", help="Keep a copy of stdout and stderr in the run directory, byte for byte.")
]
StopOn = Annotated[
    list[str] | None,
    typer.Option("--stop-on", metavar="CODE|SEVERITY", help="End the command at the first such finding; repeatable."),
]
StopBeforeUpdate = Annotated[
    bool | None,
    typer.Option("--stop-before-update", help="Stop before the optimizer uses a non-finite gradient (syncs a GPU)."),
]
FailOn = Annotated[
    str | None,
    typer.Option("--fail-on", metavar="SEVERITY", help="Exit with 1 instead of 0 after a finding this severe."),
]
Baseline = Annotated[
    int | None,
    typer.Option("--baseline", metavar="N", help="Alternate blocks of N steps without and with tdbg, and compare."),
]
LogLevel = Annotated[
    str | None, typer.Option("--log-level", metavar="LOG_LEVEL", help="Level of the program's own console log.")
]
DiskBudget = Annotated[
    str | None, typer.Option("--disk-budget", metavar="SIZE", help="What a rank may write, such as 500MB.")
]
ProgressEvery = Annotated[
    float | None,
    typer.Option("--progress-every", metavar="SECONDS", help="Time between progress lines, off a terminal."),
]
StepOptimizer = Annotated[
    str | None,
    typer.Option("--step-optimizer", metavar="CLASS", help="Class of the optimizer whose step counts, not the first."),
]
KeepSteps = Annotated[
    int | None, typer.Option("--keep-steps", metavar="N", help="Step records kept for the report of a bad step.")
]
Every = Annotated[
    int | None, typer.Option("--every", metavar="N", help="Flags and levels look at every Nth step only.")
]
Steps = Annotated[
    str | None, typer.Option("--steps", metavar="RANGE", help="Flags and levels look at these steps only: 100:200,500.")
]
Ranks = Annotated[
    str | None, typer.Option("--ranks", metavar="RANGE", help="Flags and levels look on these ranks only: 0,3-5.")
]
Capture = Annotated[
    list[str] | None,
    typer.Option(
        "--capture",
        metavar="TEXT",
        help="Keep what these layers put out: 'layers.*.attn:output,input,grad'; repeatable.",
    ),
]
CaptureStats = Annotated[
    bool | None, typer.Option("--capture-stats", help="Keep figures of the captured tensors, not the tensors.")
]
CaptureEvery = Annotated[int | None, typer.Option("--capture-every", metavar="N", help="Capture every Nth step.")]
CaptureSteps = Annotated[
    str | None, typer.Option("--capture-steps", metavar="RANGE", help="Capture these steps only: 100:200,500.")
]
CaptureEpochs = Annotated[
    str | None,
    typer.Option("--capture-epochs", metavar="TEXT", help="Capture every Nth epoch and the last; latest; or all."),
]
CapturePhase = Annotated[
    list[str] | None,
    typer.Option("--capture-phase", metavar="TEXT", help="Capture in this phase only: train, val or eval; repeatable."),
]
CaptureOn = Annotated[
    list[str] | None,
    typer.Option(
        "--capture-on",
        metavar="CODE|SEVERITY",
        help="Capture 20 steps after each such finding, and only then; repeatable.",
    ),
]
CaptureBudget = Annotated[
    str | None, typer.Option("--capture-budget", metavar="SIZE", help="What a rank may capture, such as 2GB.")
]
CapturePolicy = Annotated[
    str | None,
    typer.Option("--capture-policy", metavar="TEXT", help="Where the disk is too slow: block, drop or sample."),
]
CaptureUpload = Annotated[
    str | None,
    typer.Option(
        "--capture-upload",
        metavar="URL",
        help="Copy sealed pages below this URL while the run goes on: s3://bucket/runs.",
    ),
]
When = Annotated[
    list[str] | None,
    typer.Option("--when", metavar="TEXT", help="A condition on step records, such as 'loss > 10 or skipped'."),
]
Then = Annotated[
    list[str] | None,
    typer.Option("--then", metavar="TEXT", help="What to do when it comes true: 'level=extreme for 20', 'dump'."),
]
Thresholds = Annotated[
    list[str] | None,
    typer.Option("--threshold", metavar="TEXT", help="A bound of a probe: GRADIENTS.explosion=50; repeatable."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]
Exec = Annotated[bool, typer.Option("--exec", help="Replace tdbg by the command: no live findings, no verdict.")]
Quiet = Annotated[bool | None, typer.Option("--quiet", "-q", help="Say only errors and one line at the end.")]


def command(
    words: options.Wrapped = None,
    flag: Flags = None,
    no_flag: NoFlags = None,
    preset: Presets = None,
    level: Level = None,
    max_overhead: MaxOverhead = None,
    inject: Inject = None,
    strict_flags: StrictFlags = None,
    forbid_flags: ForbidFlags = None,
    profile_name: ProfileName = None,
    run_dir: RunDirectory = None,
    name: Name = None,
    share: Share = None,
    tee: Tee = None,
    stop_on: StopOn = None,
    stop_before_update: StopBeforeUpdate = None,
    fail_on: FailOn = None,
    baseline: Baseline = None,
    log_level: LogLevel = None,
    disk_budget: DiskBudget = None,
    progress_every: ProgressEvery = None,
    step_optimizer: StepOptimizer = None,
    keep_steps: KeepSteps = None,
    every: Every = None,
    steps: Steps = None,
    ranks: Ranks = None,
    capture: Capture = None,
    capture_stats: CaptureStats = None,
    capture_every: CaptureEvery = None,
    capture_steps: CaptureSteps = None,
    capture_epochs: CaptureEpochs = None,
    capture_phase: CapturePhase = None,
    capture_on: CaptureOn = None,
    capture_budget: CaptureBudget = None,
    capture_policy: CapturePolicy = None,
    capture_upload: CaptureUpload = None,
    when: When = None,
    then: Then = None,
    threshold: Thresholds = None,
    dry_run: DryRun = False,
    replace: Exec = False,
    quiet: Quiet = None,
) -> int:
    """Run a training or evaluation command and say what went wrong in it.

        tdbg run -- python train.py --epochs 3
        tdbg run -f LOSS.NULL_MASKING -- torchrun --nproc-per-node=2 train.py
        tdbg run --stop-on critical --tee -- python -m my.package

    The command runs as it would without tdbg: its output, terminal, signals and exit code are its own. What
    tdbg sees is kept in a run directory; `tdbg report` reads it. Defaults come from [tool.tdbg] in
    pyproject.toml, then tdbg.yaml, then TDBG_* variables; options win. `tdbg doctor` shows the sources.

    Exit code: the command's own, 128+N if signal N ended it, 127 command not found, 126 not executable, 125 if
    tdbg could not start it, 2 for wrong use; --fail-on and --stop-on turn a 0, and nothing else, into 1.
    """
    return carry_out(locals())


# Options that are no setting of the same name.
_OTHERWISE = ("words", "flag", "no_flag", "threshold", "profile_name", "dry_run", "replace")


def carry_out(given: Mapping[str, Any], **more: Any) -> int:
    """Run the command with the options by their names here; ``more`` are further settings that were typed."""
    from tdbg.launch.start import launch

    flags = [*(given["flag"] or ()), *(f"{off}=false" for off in given["no_flag"] or ())]
    typed = {key: value for key, value in given.items() if key not in _OTHERWISE}
    typed |= {"flags": flags, "thresholds": given["threshold"], **more}
    wrapped = list(given["words"] or ())
    asked = {key: value for key, value in typed.items() if value is not None and value != []}
    settings, origin = settle(asked, wrapped, given["profile_name"] or "")
    return launch(settings, origin, wrapped, replace=given["replace"], dry_run=given["dry_run"])


def settle(typed: dict[str, Any], words: list[str], profile: str) -> "tuple[Settings, dict[str, str]]":
    """The settings of all sources; the program's source is scanned for flags only where flags are asked for."""
    import os

    from tdbg.core.config import resolve
    from tdbg.core.errors import TdbgError
    from tdbg.launch import boot

    environ = dict(os.environ)
    if boot.inside_run(environ):  # it names the outer run, not a wish of the user's
        environ.pop("TDBG_RUN_DIR")
    try:
        settings, origin = resolve(typed, environ=environ, profile=profile)
        if not settings.flags:
            return settings, origin
    except TdbgError:  # perhaps for a flag that only the program knows
        pass
    from tdbg.launch.scan import known_flags

    return resolve(typed, environ=environ, profile=profile, known_flags=known_flags(words, Path.cwd()))
