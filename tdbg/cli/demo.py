"""`tdbg demo`: the main job, on a program that needs nothing but Python's own library to train on."""

from tdbg.core.command_spec import Args, Command, Option, Options

# The faults of tdbg/launch/demo_train.py, which has its own copy: it is a program, not a part of tdbg.
FAULTS = ("none", "forward-inf", "backward-nan", "inf-grad", "bad-batch", "lr-spike")

HELP = """Train a small model under tdbg, optionally with a fault.

        tdbg demo
        tdbg demo --fault backward-nan

    A character-level transformer learns from the source code of Python's own library, on the CPU, in well
    under a minute. It is started as `tdbg run -- python demo_train.py` would start it; the line that begins
    with "command:" can be typed as it stands.
    """
OPTIONS: Options = {
    "fault": Option(("--fault",), "FAULT", "The fault to plant, at three fifths of the steps."),
    "steps": Option(("--train-steps",), "N", "Optimizer steps.", least=1, old_names=("--steps",)),
    "seed": Option(("--seed",), "SEED", "Seed of weights, batches and dropout."),
    "run_dir": Option(("--run-dir",), "DIR", "Where the run is kept; must not hold another run."),
}


class DemoArgs(Args):
    """What `demo` can be given."""

    fault: str = "none"
    steps: int = 200
    seed: int = 0
    run_dir: str | None = None


def run_demo(args: DemoArgs) -> int:
    """Train it; the exit code is the program's."""
    import shlex
    import sys
    from pathlib import Path

    import tdbg.launch
    from tdbg.core.config import resolve_settings
    from tdbg.core.output import print_messages
    from tdbg.launch.start import launch_command

    script = Path(tdbg.launch.__file__).with_name("demo_train.py")
    words = [
        sys.executable,
        str(script),
        "--steps",
        str(args.steps),
        "--seed",
        str(args.seed),
        "--fault",
        check_fault(args.fault),
    ]
    typed = {"run_dir": args.run_dir} if args.run_dir else {"name": "demo"}
    settings, origin = resolve_settings({**typed, "progress_every": 5.0})
    print_messages(f"command: tdbg run -- {shlex.join(words)}")
    code = launch_command(settings, origin, words)
    if args.fault == "none" and not code:
        print_messages("next: `tdbg demo --fault backward-nan` plants a fault; then read its verdict")
    return code


def check_fault(fault: str) -> str:
    """The fault, if there is such a one; TdbgError with the nearest name if not."""
    from tdbg.core.errors import TdbgError, suggest_name

    if fault in FAULTS:
        return fault
    hint = f"{suggest_name(fault, FAULTS, '')} choose from: {', '.join(FAULTS)}".lstrip()
    raise TdbgError(f"--fault cannot be {fault!r}", hint)


COMMAND = Command(run_demo, DemoArgs, HELP, OPTIONS)
