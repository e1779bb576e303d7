"""Merge saved states of several ranks offline; `tdbg.metrics.tracker.rank_reduction` does it in a process group."""

from collections.abc import Mapping, Sequence
from typing import Any

from tdbg.core.directions import direction_of
from tdbg.core.errors import TdbgError
from tdbg.metrics.tracker.metric import Metric, Point
from tdbg.metrics.tracker.metrics_tracker import MetricsTracker
from tdbg.metrics.tracker.phase import Phase
from tdbg.metrics.tracker.rank_reduction import check_units
from tdbg.metrics.tracker.state_fields import StateError


def merge_states(states: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """One state of the states of all ranks (`MetricsTracker.state_dict`), lowest rank first.

    Sums of passes under way, and of every remembered pass of the same epoch and step, are added; values and bests are
    made of them anew, so bests older than the histories are not known. A phase that was reduced over the ranks is
    taken once. Last values (learning rates, ...) are those of the first. Raises StateError for an unsound state.
    """
    if not states:
        raise TdbgError("no state was given to merge", "pass the state_dict of every rank")
    trackers = []
    for state in states:
        best = state.get("best_epochs") if isinstance(state, Mapping) else None
        criterion = best.get("criterion") if isinstance(best, Mapping) else None
        try:
            trackers.append(MetricsTracker(best=criterion) if isinstance(criterion, str) else MetricsTracker())
        except TdbgError as error:
            raise StateError("best_epochs.criterion", f"is not a metric key: {error}") from None
        trackers[-1].load_state_dict(state)
    first = trackers[0]
    for name in sorted({name for tracker in trackers for name in tracker.phases}):
        first.phases[name] = _merge_phase(name, [one.phases[name] for one in trackers if name in one.phases])
    best = first.best_epochs
    if (phase := first.phases.get(best.criterion.phase)) is not None:
        best.epochs = []
        for key, metric in phase:
            for point in metric.history if key == best.criterion else ():
                best.add_if_best(point.value, point.epoch, point.step)
    return first.state_dict()


def _merge_phase(name: str, phases: Sequence[Phase]) -> Phase:
    """The same phase of several ranks."""
    merged = Phase(name, lambda metric: Metric(metric, higher_is_better=direction_of(metric)))
    last = max(phases, key=lambda phase: (phase.finished, phase.step or 0))
    merged.epoch, merged.step, merged.finished = last.epoch, last.step, last.finished
    merged.samples, merged.batches = sum(one.samples for one in phases), sum(one.batches for one in phases)
    merged.of_all_ranks = True
    finished = phases[:1] if all(phase.of_all_ranks for phase in phases) else phases
    check_units(name, [(slot, metric.unit) for phase in phases for slot, metric in phase.metrics.items()])
    for slot in sorted({slot for phase in phases for slot in phase.metrics}):
        own = merged.metrics[slot] = _create_empty_metric(
            next(one.metrics[slot] for one in phases if slot in one.metrics)
        )
        for phase in phases:
            if slot in phase.metrics:
                own.partial.merge_partial(phase.metrics[slot].partial)
                if phase in finished:
                    own.add_left_out(*phase.metrics[slot].left_out())
        for point in _merge_points([one.metrics[slot] for one in finished if slot in one.metrics]):
            own.append(point)
    merged.snapshot = {
        key: metric.value
        for key, metric in merged
        if metric.value is not None and (metric.epoch, metric.step) == (merged.epoch, merged.step)
    }
    merged.empty = [str(key) for key, _ in merged if key not in merged.snapshot] if merged.finished else []
    return merged


def _create_empty_metric(metric: Metric) -> Metric:
    size = metric.history.maxlen or 1
    return Metric(metric.name, higher_is_better=metric.higher_is_better, unit=metric.unit, history=size)


def _merge_points(metrics: Sequence[Metric]) -> list[Point]:
    """The remembered passes of all ranks, those of the same epoch and step added up, in their order."""
    found: dict[tuple[Any, Any], Point] = {}
    for metric in metrics:
        for point in metric.history:
            sums = point.sums.copy_all()
            if (before := found.get((point.epoch, point.step))) is not None:
                sums.merge_partial(before.sums)
            found[point.epoch, point.step] = Point(point.epoch, point.step, sums.compute_mean() or 0.0, sums)
    return sorted(found.values(), key=_build_sort_key)


def _build_sort_key(point: Point) -> tuple[float, float]:
    """Passes without an epoch or step come first."""
    return -1.0 if point.epoch is None else point.epoch, -1.0 if point.step is None else point.step


def find_differing(states: Mapping[int, Mapping[str, object]]) -> list[dict[str, object]]:
    """The metrics whose last values differ between ranks: key, and the value of each rank (None: it never got one).

    states: rank -> `MetricsTracker.state_dict`.
    """
    values: dict[int, dict[str, float]] = {}
    for rank, state in states.items():
        tracker = MetricsTracker()
        tracker.load_state_dict(state)
        known = tracker.get_wandb_metrics(core=False)
        values[rank] = {key: value for key, value in known.items() if not isinstance(value, str)}
    keys = sorted({key for found in values.values() for key in found})
    by_key = {key: {rank: found.get(key) for rank, found in values.items()} for key in keys}
    return [{"key": key, "values": found} for key, found in by_key.items() if len(set(found.values())) > 1]
