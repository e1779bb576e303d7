"""Metrics of subsets of the data (region, source, difficulty, ...), from per-sample values."""

from collections.abc import Mapping
from typing import Any

from tdbg.core.errors import TdbgError
from tdbg.core.tables import format_count
from tdbg.metrics.keys import Key
from tdbg.metrics.tracker.metric_values import MetricValueError, as_float, as_list
from tdbg.metrics.tracker.metrics_tracker import MetricsTracker

MAX_SUBSETS = 1000


class SubsetMetricWrapper:
    """Takes one value a sample and its subset, and keeps each subset's mean in a phase of a tracker.

    Sums and counts, like every other metric: a subset that is not in the last batch keeps what earlier ones said.
    """

    def __init__(self, tracker: MetricsTracker, phase: str = "val") -> None:
        self.tracker = tracker
        self.phase = phase

    def update(self, values: Mapping[str, object], subsets: object, *, task: str = "") -> None:
        """Add a batch. values: metric -> one value a sample (N). subsets: the subset of each sample (N), None for none.

        N: samples. Raises MetricValueError for lengths that do not fit; then nothing is added. Cost: one copy to the
        host for each metric, and 1 us a sample.
        """
        names = [None if name is None else str(name) for name in as_list(subsets, "subsets")]
        phase = self.tracker.open_for(self.phase)
        found: list[tuple[Any, list[float]]] = []
        for metric, vector in values.items():
            numbers = as_list(vector, metric)
            if len(numbers) != len(names):
                raise MetricValueError(
                    f"metric {metric!r} has {format_count(len(numbers), 'value')} for {format_count(len(names), 'sample')}",
                    "pass one value per sample",
                )
            by_subset: dict[str, list[float]] = {}
            for name, number in zip(names, numbers, strict=True):
                if name is not None:
                    by_subset.setdefault(name, []).append(as_float(number, metric))
            found += [(phase.resolve_slot(metric, task, subset), group) for subset, group in by_subset.items()]
        known = {slot.subset for slot in phase.metrics} | {slot.subset for slot, _ in found}
        if len(known) > MAX_SUBSETS:
            raise TdbgError(f"there are more than {MAX_SUBSETS} subsets", "pass the name of a subset, not of a sample")
        self.tracker.keep(phase)
        for slot, group in found:
            sums = phase.get_or_create_at(slot).partial
            batches = sums.batches
            for value in group:
                sums.add_mean(value)
            sums.batches = batches + 1

    def compute(self) -> dict[str, dict[str, float | None]]:
        """The means of the pass under way: subset, then metric (with its task, as in the key); None without a sample."""
        phase = self.tracker.phase(self.phase)
        return {
            subset: {name: metric.partial.compute_mean() for name, metric in inner.items()}
            for subset, inner in phase.by_subset().items()
        }

    def keys(self) -> list[Key]:
        """The keys of all subsets of the phase."""
        return sorted(key for key, _ in self.tracker.phase(self.phase) if key.subset)
