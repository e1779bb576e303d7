"""A handler for PyTorch-Ignite's engines."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ignite.engine import Engine, Events

from tdbg.api.callbacks.watch import Watch
from tdbg.api.levels import DebugLevel

if TYPE_CHECKING:
    from torch import nn


class TdbgCallback:
    """``TdbgCallback("runs/a").attach(trainer, model)``: the record of `tdbg run`, without the wrapper.

    run_dir: where to record, one directory for all ranks; in memory if empty. level, flags: as in `tdbg run`.
    From the start of the engine's run to its end (or `Engine.terminate`); inside `tdbg run` it does nothing. After
    the training ``findings()`` tells what was wrong, and ``tdbg report RUN_DIR`` everything. A handler for
    exceptions would keep them from being raised, so there is none: then the watch ends with the process, or with
    the engine's next run.
    Raises TdbgError for an unknown level or flag, and at the start for a directory with other files.
    Cost: that of the level, within its budget.
    """

    def __init__(self, run_dir: str = "", level: DebugLevel | str = "basic", flags: Iterable[str] = ()) -> None:
        self.watch = Watch(run_dir, level, flags)

    def attach(self, engine: Engine, model: "nn.Module") -> None:
        """Watch every run of ``engine``, which trains ``model``."""
        engine.add_event_handler(Events.STARTED, self._on_started, model)
        engine.add_event_handler(Events.COMPLETED, self._on_completed)

    def _on_started(self, engine: Engine, model: "nn.Module") -> None:
        state = engine.state
        steps = state.max_iters
        if steps is None and state.max_epochs and state.epoch_length:
            steps = state.max_epochs * state.epoch_length
        self.watch.begin_training(model)
        self.watch.record_plan("ignite.Engine", steps, state.iteration, state.max_epochs)

    def _on_completed(self, engine: Engine) -> None:
        self.watch.end_training()

    def findings(self) -> list[dict[str, Any]]:
        """What the rules conclude, worst first, as plain data."""
        return self.watch.findings()
