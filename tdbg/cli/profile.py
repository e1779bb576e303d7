"""`tdbg profile`: any training or evaluation command, with torch.profiler around some of its steps."""

from tdbg.cli import run as watched
from tdbg.core.command_spec import Command, Option, Options

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Sequence

HELP = """Run a command with torch.profiler around some of its steps.

        tdbg profile -- python train.py --epochs 3
        tdbg profile --kind memory --window 100:102 -- torchrun --nproc-per-node=2 train.py
        tdbg profile --window-on TD-P -- python -m my.package

    As `tdbg run -f PROFILER`, whose options it takes too. By default the first step is left alone, the second warms
    up, and the next three are recorded, on every rank (--ranks 0 for one). A step is an update of the first optimizer;
    in a program that only evaluates, a call of the model. Traces are in rank0000/traces of the run, under names that
    TensorBoard knows; `tdbg trace show RUN` reads them without torch. A profiler that the program runs itself comes
    first: tdbg stands aside and takes its trace over.

    Exit code: as `tdbg run`.
    """
WINDOW = "What is recorded"
OWN_OPTIONS: Options = {
    "kind": Option(
        ("--kind", "-k"), "KIND", "What is recorded: light, memory, shapes, stacks, flops, full.", group=WINDOW
    ),
    "wait": Option(("--wait",), "N", "Steps before each window; 1 if left out.", group=WINDOW, value=int),
    "warmup": Option(("--warmup",), "N", "Warm-up steps after --wait; 1 if left out.", group=WINDOW, value=int),
    "active": Option(("--active",), "N", "Steps that are recorded; 3 if left out.", group=WINDOW, value=int),
    "repeat": Option(("--repeat",), "N", "How many windows; 1 if left out, 0: until the end.", group=WINDOW, value=int),
    "skip_first": Option(("--skip-first",), "N", "Steps before the first wait.", group=WINDOW, value=int),
    "window": Option(("--window",), "RANGE", "Record these steps instead: 100:102,500:502.", group=WINDOW),
    "window_on": Option(
        ("--window-on",),
        "CODE|SEVERITY",
        "Record a window after each such finding only; repeatable.",
        group=WINDOW,
    ),
}
REFUSED = ("preflight",)  # options of `run` that end the program before there is anything to profile
OPTIONS: Options = {**OWN_OPTIONS, **{name: one for name, one in watched.OPTIONS.items() if name not in REFUSED}}


class ProfileArgs(watched.RunArgs):
    """What `profile` can be given beside the options of `run`."""

    kind: str | None = None
    wait: int | None = None
    warmup: int | None = None
    active: int | None = None
    repeat: int | None = None
    skip_first: int | None = None
    window: str | None = None
    window_on: "Sequence[str]" = ()


def profile_command(args: ProfileArgs) -> int:
    """Run the command with PROFILER on; the exit code is its own."""
    args.flag = ["PROFILER", *args.flag]
    settings = {f"profile_{name.removeprefix('window_')}": getattr(args, name) for name in OWN_OPTIONS}
    return watched.run_with_settings(args, settings)


COMMAND = Command(profile_command, ProfileArgs, HELP, OPTIONS, watched.WRAPPED, wraps=True)
