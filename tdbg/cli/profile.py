"""`tdbg profile`: any training or evaluation command, with torch.profiler around some of its steps."""

import inspect
from typing import Annotated, Any

import typer

from tdbg.cli import options, run

SETTINGS = options.WRAPS_A_COMMAND

Kind = Annotated[
    str | None,
    typer.Option("--kind", "-k", metavar="KIND", help="What is recorded: light, memory, shapes, stacks, flops, full."),
]
Wait = Annotated[int | None, typer.Option("--wait", metavar="N", help="Steps before each window; 1 if left out.")]
Warmup = Annotated[
    int | None, typer.Option("--warmup", metavar="N", help="Steps after them that are not kept; 1 if left out.")
]
Active = Annotated[int | None, typer.Option("--active", metavar="N", help="Steps that are recorded; 3 if left out.")]
Repeat = Annotated[
    int | None, typer.Option("--repeat", metavar="N", help="How many windows; 1 if left out, 0: until the end.")
]
SkipFirst = Annotated[int | None, typer.Option("--skip-first", metavar="N", help="Steps before the first wait.")]
Steps = Annotated[
    str | None, typer.Option("--window", metavar="RANGE", help="Record these steps instead: 100:102,500:502.")
]
WindowOn = Annotated[
    list[str] | None,
    typer.Option(
        "--window-on", metavar="CODE|SEVERITY", help="Record a window after each such finding only; repeatable."
    ),
]


def own(
    kind: Kind = None,
    wait: Wait = None,
    warmup: Warmup = None,
    active: Active = None,
    repeat: Repeat = None,
    skip_first: SkipFirst = None,
    window: Steps = None,
    window_on: WindowOn = None,
) -> dict[str, Any]:
    """The options that are not those of `tdbg run`, as settings."""
    return {
        "profile_kind": kind,
        "profile_wait": wait,
        "profile_warmup": warmup,
        "profile_active": active,
        "profile_repeat": repeat,
        "profile_skip_first": skip_first,
        "profile_window": window,
        "profile_on": window_on,
    }


def command(**given: Any) -> int:
    """Run a command with torch.profiler around some of its steps.

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
    more = own(**{name: given.pop(name) for name in _OWN})
    return run.carry_out({**given, "flag": ["PROFILER", *(given["flag"] or ())]}, **more)


_OWN = inspect.signature(own).parameters
_FROM_RUN = inspect.signature(run.command).parameters
_PARAMETERS = [_FROM_RUN["words"], *_OWN.values(), *(it for name, it in _FROM_RUN.items() if name != "words")]
command.__signature__ = inspect.Signature(_PARAMETERS, return_annotation=int)  # type: ignore[attr-defined]
command.__annotations__ = {parameter.name: parameter.annotation for parameter in _PARAMETERS}
