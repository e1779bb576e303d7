"""What the program sends to Weights & Biases with ``log``."""

from collections.abc import Mapping

from tdbg.core.sink_files import WANDB
from tdbg.inject.metrics.own_wandb_run import OwnRun
from tdbg.inject.metrics.taps import Tap, argument


def arrive(module: object, tap: Tap) -> None:
    """The program has imported wandb."""
    run = getattr(module, "Run", None)
    if run is None:  # a folder of that name, in a program whose environment has no wandb
        return

    def logs(args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        data = argument(args, kwargs, 1, "data")
        if not isinstance(data, Mapping) or _is_disabled(args[0]):
            return
        given = argument(args, kwargs, 2, "step")
        tap.feed.logged("wandb", data, own_step=given if isinstance(given, int) else _step_of(args[0]))

    name = "_log" if hasattr(run, "_log") else "log"
    if WANDB in tap.feed.me.settings.to:
        OwnRun(tap.feed).attach(run, name, tap.patches)  # first: the feed hears what the program logs, and no more
    tap.hear(run, name, before=logs)


def _is_disabled(run: object) -> bool:
    return getattr(getattr(run, "_settings", None), "mode", "") == "disabled"


def _step_of(run: object) -> int | None:
    """The step a run is at, as this process counts it: ``run.step`` asks wandb's service, and waits."""
    step = getattr(run, "_local_step", None)
    step = getattr(run, "_step", None) if step is None else step  # its name before wandb 0.20
    return step if isinstance(step, int) else None
