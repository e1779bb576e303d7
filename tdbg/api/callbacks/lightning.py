"""A callback for Lightning's Trainer (``lightning`` or ``pytorch_lightning``)."""

from collections.abc import Iterable
from typing import Any

from tdbg.api.callbacks.watch import Watch
from tdbg.api.levels import DebugLevel

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback  # type: ignore[assignment]


class TdbgCallback(Callback):
    """``Trainer(callbacks=[TdbgCallback("runs/a")])``: the record of `tdbg run`, without the wrapper.

    run_dir: where to record, one directory for all ranks; in memory if empty. level, flags: as in `tdbg run`.
    From the start of ``fit`` to its end; inside `tdbg run` it does nothing. After the training ``findings()`` tells
    what was wrong, and ``tdbg report RUN_DIR`` everything.
    Raises TdbgError for an unknown level or flag, and at the start for a directory with other files.
    Cost: that of the level, within its budget.
    """

    def __init__(self, run_dir: str = "", level: DebugLevel | str = "basic", flags: Iterable[str] = ()) -> None:
        super().__init__()
        self.watch = Watch(run_dir, level, flags)

    def on_fit_start(self, trainer: object, pl_module: Any) -> None:
        """Begin to watch."""
        self.watch.begin_training(pl_module)

    def on_train_start(self, trainer: Any, pl_module: object) -> None:
        """Note how many steps are planned; a checkpoint has been restored by now."""
        steps, epochs = trainer.estimated_stepping_batches, trainer.max_epochs
        self.watch.record_plan("lightning.Trainer", steps, trainer.global_step, epochs if (epochs or 0) > 0 else None)

    def on_fit_end(self, trainer: object, pl_module: object) -> None:
        """End the watch."""
        self.watch.end_training()

    def on_exception(self, trainer: object, pl_module: object, exception: BaseException) -> None:
        """End the watch with the exception on record."""
        self.watch.record_failure(exception)

    def findings(self) -> list[dict[str, Any]]:
        """What the rules conclude, worst first, as plain data."""
        return self.watch.findings()
