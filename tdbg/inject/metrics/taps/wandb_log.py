"""What the program sends to Weights & Biases with ``log``."""

from collections.abc import Mapping

from tdbg.core.sink_files import WANDB
from tdbg.inject.metrics.own_wandb_run import OwnRun, is_disabled, read_step
from tdbg.inject.metrics.taps import Tap, get_argument


def arrive(module: object, tap: Tap) -> None:
    """The program has imported wandb."""
    run = getattr(module, "Run", None)
    if run is None:  # a folder of that name, in a program whose environment has no wandb
        return

    def record_logs(args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        data = get_argument(args, kwargs, 1, "data")
        if not isinstance(data, Mapping) or is_disabled(args[0]):
            return
        given = get_argument(args, kwargs, 2, "step")
        tap.feed.record_logged("wandb", data, own_step=given if isinstance(given, int) else read_step(args[0]))

    name = "_log" if hasattr(run, "_log") else "log"
    if WANDB in tap.feed.me.settings.to:
        OwnRun(tap.feed).patch_run_class(
            run, name, tap.patches
        )  # first: the feed hears what the program logs, and no more
    tap.add_listeners(run, name, before=record_logs)
