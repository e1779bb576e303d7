"""What Lightning's Trainer logs, whatever loggers it has, none included."""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from tdbg.inject.metrics.taps import Tap, get_argument

PHASES = {"train": "train", "validate": "val", "test": "test"}


def arrive(module: ModuleType, tap: Tap) -> None:
    """The program has imported Lightning's Trainer; its connector of loggers comes first, in a module of its own."""
    if module.__name__.endswith(".trainer.trainer"):
        tap.patches.wrap_attribute(
            module.Trainer, "_run_sanity_check", lambda original: _wrap_sanity_check(original, tap)
        )
        return

    def record_logs(args: tuple[Any, ...], kwargs: dict[str, object]) -> None:
        data, given = get_argument(args, kwargs, 1, "metrics"), get_argument(args, kwargs, 2, "step")
        trainer = args[0].trainer
        if not isinstance(data, Mapping) or trainer.sanity_checking:
            return
        stage = getattr(trainer.state.stage, "value", None)
        tap.feed.record_logged(
            "lightning",
            data,
            own_step=given if isinstance(given, int) else int(trainer.fit_loop.epoch_loop._batches_that_stepped),
            epoch=int(trainer.current_epoch),
            phase=PHASES.get(str(stage)),
        )

    tap.add_listeners(module._LoggerConnector, "log_metrics", before=record_logs)


def _wrap_sanity_check(original: Callable[..., object], tap: Tap) -> Callable[..., object]:
    """The try-out of validation before training begins: nobody's result."""

    def _run_sanity_check(*args: object, **kwargs: object) -> object:
        before, tap.feed.rehearses = tap.feed.rehearses, True
        try:
            return original(*args, **kwargs)
        finally:
            tap.feed.rehearses = before

    return _run_sanity_check
