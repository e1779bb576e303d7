"""What train.py uses of tdbg's metrics, in its simplest form, for where tdbg is not installed.

The same names and calls, but: nothing is written to a file, and only means and accuracies are kept.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

print("taxa: tdbg is not installed: no diagnostics, and metrics go to the console alone", file=sys.stderr)


class MetricsTracker:
    """Means by phase, weighted by samples."""

    def __init__(self, *, hierarchy: Iterable[str] = (), null_label: int | None = None, **_: Any) -> None:
        self.hierarchy, self.null_label = tuple(hierarchy), null_label
        self.sums: dict[str, dict[str, list[float]]] = {}

    def _add_value(self, phase: str, name: str, total: float, count: float) -> None:
        own = self.sums.setdefault(phase, {}).setdefault(name, [0.0, 0.0])
        own[0] += total
        own[1] += count

    def update_train_batch(
        self, values: Mapping[str, Any], samples: int, *, phase: str = "train", tasks: Any = None, **_: Any
    ) -> None:
        for name, value in values.items():
            self._add_value(phase, f"{phase}/{name}", float(value) * samples, samples)
        for task, inner in (tasks or {}).items():
            for name, value in inner.items():
                self._add_value(phase, f"{phase}/{name}_{task}", float(value) * samples, samples)

    def update_val_metrics(self, values: Mapping[str, Any], samples: int, *, phase: str = "val", **more: Any) -> None:
        self.update_train_batch(values, samples, phase=phase, **more)

    def update_predictions(self, predictions: Any, targets: Any, *, phase: str = "val") -> None:
        whole = partial = labelled = None
        for task in self.hierarchy:
            right, null = predictions[task].argmax(1) == targets[task], targets[task] == self.null_label
            self._add_value(phase, f"{phase}/acc1_{task}", float((right & ~null).sum()), float((~null).sum()))
            whole = right if whole is None else whole & right
            partial = right | null if partial is None else partial & (right | null)
            labelled = ~null if labelled is None else labelled | ~null
        if whole is not None and partial is not None and labelled is not None:
            self._add_value(phase, f"{phase}/chain_accuracy", float(whole.sum()), len(whole))
            self._add_value(
                phase, f"{phase}/partial_chain_accuracy", float((partial & labelled).sum()), float(labelled.sum())
            )

    def start_val_phase(self, phase: str = "val") -> None:
        self.sums.pop(phase, None)

    def finalize_val_phase(self, phase: str = "val", *_: Any, reduce: bool = False, **__: Any) -> dict[str, float]:
        own = self.sums.pop(phase, {})
        table = torch.tensor(list(own.values()), dtype=torch.float64).reshape(-1, 2)
        if reduce and dist.is_initialized():
            dist.all_reduce(table)
        means = (table[:, 0] / table[:, 1]).tolist()
        self.last = {name: mean for name, mean in zip(own, means, strict=True) if mean == mean}
        return self.last

    def finalize_train_epoch(self, *_: Any, **more: Any) -> dict[str, float]:
        return self.finalize_val_phase("train", **more)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class OpsSchedule:
    """Intervals in steps or epochs."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def due(self, operation: str, step: int) -> bool:
        every = (self.settings.get(operation) or {}).get("steps", 0)
        return bool(every) and step > 0 and step % every == 0

    def due_after_epoch(self, operation: str, done: int) -> bool:
        every = (self.settings.get(operation) or {}).get("epochs", 0)
        return bool(every) and done % every == 0


class StepMetricsLogger:
    """Prints on rank 0."""

    def __init__(self, tracker: MetricsTracker, schedule: OpsSchedule, *, rank: int = 0, **_: Any) -> None:
        self.tracker, self.schedule, self.rank = tracker, schedule, rank

    def log_step_metrics(self, values: Mapping[str, Any], *, step: int, epoch: Any = None, **_: Any) -> None:
        if self.rank == 0 and self.schedule.due("console", step):
            print(f"step {step} epoch {epoch}", *(f"{name} {float(value):.4g}" for name, value in values.items()))

    def log_validation_summary(self, phase: str = "val", *, step: int = 0, **_: Any) -> None:
        if self.rank == 0:
            print(f"step {step}", *(f"{name} {value:.4g}" for name, value in self.tracker.last.items()))

    def log_epoch_summary(self, *_: Any, **more: Any) -> None:
        self.log_validation_summary("train", **more)

    def __getattr__(self, name: str) -> Any:
        """Every other call of the real one does nothing here."""
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_, **__: {}


class NoDiagnostics:
    """Takes every call of `tdbg.probes.loss` and says nothing."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: Any, **__: Any) -> "NoDiagnostics":
        return self

    def is_on(self, flag: str) -> bool:
        return False

    def __enter__(self) -> "NoDiagnostics":
        return self

    def __exit__(self, *_: object) -> None:
        return None


NO_DIAGNOSTICS = NoDiagnostics()
