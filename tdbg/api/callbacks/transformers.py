"""A callback for Hugging Face's Trainer."""

from collections.abc import Iterable
from typing import Any

from transformers import TrainerCallback

from tdbg.api.callbacks.watch import Watch
from tdbg.api.levels import DebugLevel


class TdbgCallback(TrainerCallback):
    """``Trainer(..., callbacks=[TdbgCallback("runs/a")])``: the record of `tdbg run`, without the wrapper.

    run_dir: where to record, one directory for all ranks; in memory if empty. level, flags: as in `tdbg run`.
    From the start of ``train`` to its end; inside `tdbg run` it does nothing. After the training ``findings()``
    tells what was wrong, and ``tdbg report RUN_DIR`` everything. The Trainer tells no callback of an exception: then
    the watch ends with the process, or with the next ``train``.
    Raises TdbgError for an unknown level or flag, and at the start for a directory with other files.
    Cost: that of the level, within its budget.
    """

    def __init__(self, run_dir: str = "", level: DebugLevel | str = "basic", flags: Iterable[str] = ()) -> None:
        self.watch = Watch(run_dir, level, flags)

    def on_train_begin(self, args: Any, state: Any, control: object, **kwargs: Any) -> None:
        """Begin to watch."""
        self.watch.begin_training(kwargs["model"])
        self.watch.record_plan("transformers.Trainer", state.max_steps, state.global_step, float(args.num_train_epochs))

    def on_train_end(self, args: object, state: object, control: object, **kwargs: object) -> None:
        """End the watch."""
        self.watch.end_training()

    def findings(self) -> list[dict[str, Any]]:
        """What the rules conclude, worst first, as plain data."""
        return self.watch.findings()
