"""Five lines for a trainer or evaluator of one's own: which epochs are kept, and where their pages go."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tdbg.core.urls import Url, parse_location
from tdbg.debuggers.sequential import SequentialDebugger, checkpoint_indices


class ValidationDebugging:
    """For a trainer: datapoints of the validation passes of chosen epochs, in ``epoch_N/debugger`` each.

    Call `debug_validation` once, `on_val_start` and `on_val_end` around each validation pass, and `on_val_step` with
    every datapoint. Between passes, and in other epochs, no hook is in place.
    """

    _debugger: SequentialDebugger | None = None
    _debugged_epochs: frozenset[int] = frozenset()
    _debug_dir: Path | Url

    def debug_validation(
        self,
        debugger: SequentialDebugger,
        epochs: int,
        output_dir: str | os.PathLike[str],
        checkpoint_method: str | int = "latest",
    ) -> None:
        """Keep the epochs that ``checkpoint_method`` chooses of so many: ``'all'``, ``'latest'``, or every Nth and the last."""
        self._debugger, self._debug_dir = debugger, parse_location(output_dir)
        self._debugged_epochs = frozenset(checkpoint_indices(checkpoint_method, epochs))

    def on_val_start(self, epoch: int) -> None:
        """A validation pass begins. epoch: from 0."""
        if self._debugger is not None:
            self._debugger.reset_buffer()
            self._debugger.enabled = epoch in self._debugged_epochs

    def on_val_step(self, datapoint: Mapping[str, object]) -> dict[str, object]:
        """The model has worked on a datapoint; returns what the debuggers gave."""
        return {} if self._debugger is None else self._debugger(datapoint)

    def on_val_end(self, epoch: int) -> None:
        """It has ended: what it gave is saved, and the hooks are gone."""
        _save_pass(self._debugger, lambda: self._debug_dir / f"epoch_{epoch}" / "debugger")


class EvaluationDebugging:
    """For an evaluator: every datapoint, in ``debugger``."""

    _eval_debugger: SequentialDebugger | None = None
    _eval_debug_dir: Path | Url

    def debug_evaluation(self, debugger: SequentialDebugger, output_dir: str | os.PathLike[str]) -> None:
        """Keep every datapoint of an evaluation in ``output_dir/debugger``."""
        self._eval_debugger, self._eval_debug_dir = debugger, parse_location(output_dir)

    def on_eval_start(self) -> None:
        """An evaluation begins."""
        if self._eval_debugger is not None:
            self._eval_debugger.reset_buffer()
            self._eval_debugger.enabled = True

    def on_eval_step(self, datapoint: Mapping[str, object]) -> dict[str, object]:
        """The model has worked on a datapoint; returns what the debuggers gave."""
        return {} if self._eval_debugger is None else self._eval_debugger(datapoint)

    def on_eval_end(self) -> None:
        """It has ended: what it gave is saved, and the hooks are gone."""
        _save_pass(self._eval_debugger, lambda: self._eval_debug_dir / "debugger")


def _save_pass(debugger: SequentialDebugger | None, place: Any) -> None:
    if debugger is None or not debugger.enabled:
        return
    debugger.enabled = False
    debugger.save_all(place())
