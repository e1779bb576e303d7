"""The states of several ranks as one: over the user's process group when asked, or offline over saved states."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tdbg.directions import direction_of
from tdbg.errors import TdbgError
from tdbg.metrics import saved
from tdbg.metrics.fields import StateError
from tdbg.metrics.metric import Metric, Point
from tdbg.metrics.partial import Partial
from tdbg.metrics.phase import Phase


def reduce(phase: Phase, group: Any = None) -> None:
    """Add up the sums of a phase's pass under way over a process group; every rank then holds the same.

    A collective: every rank of the group calls it for the same phase. A metric that a rank does not have counts there
    as no samples. Without a process group, or with one of one rank, nothing is sent. Cost: two all-gathers of a few
    kB. Raises TdbgError if this pass is reduced already, or if the ranks speak of different phases.
    """
    if phase.reduced:
        raise TdbgError(f"the sums of {phase.name!r} are those of all ranks already", "reduce a pass once")
    states = _gather(_sums_of(phase), group)
    names = sorted({str(state["phase"]) for state in states})
    if len(names) > 1:
        raise TdbgError(
            f"ranks reduce different phases: {', '.join(names)}", "call it for the same phase on every rank"
        )
    _check_units(phase.name, [(tuple(slot), unit) for state in states for slot, unit, _ in state["sums"]])
    phase.samples = phase.batches = 0
    for metric in phase.metrics.values():
        metric.partial = Partial()  # not `start`: what was left out is among everybody's
    for state in states:
        phase.samples += state["samples"]
        phase.batches += state["batches"]
        for (name, task, subset), unit, row in state["sums"]:
            own = phase.metric(name, task, subset)
            own.unit = own.unit or unit
            own.partial.merge(saved.partial_of(row, f"{phase.name}/{name}"))
    phase.reduced = True


def _sums_of(phase: Phase) -> dict[str, Any]:
    return {
        "phase": phase.name,
        "samples": phase.samples,
        "batches": phase.batches,
        "sums": [(slot, metric.unit, metric.partial.state()) for slot, metric in phase.metrics.items()],
    }


def _gather(mine: dict[str, Any], group: Any) -> list[dict[str, Any]]:
    """Everybody's, by rank: as JSON in byte tensors, since the collectives of objects would pickle them."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return [mine]
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size(group) == 1:
        return [mine]
    device = _device_of(str(dist.get_backend(group)))
    data = torch.frombuffer(bytearray(json.dumps(mine).encode()), dtype=torch.uint8).to(device)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, torch.tensor([data.numel()], dtype=torch.int64, device=device), group=group)
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8, device=device)
    padded[: data.numel()] = data
    parts = [torch.empty(longest, dtype=torch.uint8, device=device) for _ in sizes]
    dist.all_gather(parts, padded, group=group)
    return [json.loads(bytes(part[: int(size)].tolist())) for part, size in zip(parts, sizes, strict=True)]


def _device_of(backend: str) -> Any:
    """Where a backend wants its tensors: on the host for gloo and MPI, else on this rank's accelerator."""
    import torch

    kind = torch.accelerator.current_accelerator()
    if kind is None or ("gloo" in backend and "nccl" not in backend) or "mpi" in backend:
        return torch.device("cpu")
    return torch.device(kind.type, getattr(torch, kind.type).current_device())


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One state of the states of all ranks (`MetricsTracker.state_dict`), lowest rank first.

    Sums of passes under way, and of every remembered pass of the same epoch and step, are added; values and bests are
    made of them anew, so bests older than the histories are not known. A phase that was reduced over the ranks is
    taken once. Last values (learning rates, ...) are those of the first. Raises StateError for an unsound state.
    """
    from tdbg.metrics.tracker import MetricsTracker

    if not states:
        raise TdbgError("no state was given to merge", "hand over the state_dict of every rank")
    trackers = []
    for state in states:
        best = state.get("best_epochs") if isinstance(state, Mapping) else None
        criterion = best.get("criterion") if isinstance(best, Mapping) else None
        try:
            trackers.append(MetricsTracker(best=criterion) if isinstance(criterion, str) else MetricsTracker())
        except TdbgError as error:
            raise StateError("best_epochs.criterion", f"is no key: {error}") from None
        trackers[-1].load_state_dict(state)
    first = trackers[0]
    for name in sorted({name for tracker in trackers for name in tracker.phases}):
        first.phases[name] = _merge_phase(name, [one.phases[name] for one in trackers if name in one.phases])
    best = first.best_epochs
    if (phase := first.phases.get(best.criterion.phase)) is not None:
        best.epochs = []
        for key, metric in phase:
            for point in metric.history if key == best.criterion else ():
                best.offer(point.value, point.epoch, point.step)
    return first.state_dict()


def _merge_phase(name: str, phases: Sequence[Phase]) -> Phase:
    """The same phase of several ranks."""
    merged = Phase(name, lambda metric: Metric(metric, higher_is_better=direction_of(metric)))
    last = max(phases, key=lambda phase: (phase.finished, phase.step or 0))
    merged.epoch, merged.step, merged.finished = last.epoch, last.step, last.finished
    merged.samples, merged.batches = sum(one.samples for one in phases), sum(one.batches for one in phases)
    merged.of_all_ranks = True
    finished = phases[:1] if all(phase.of_all_ranks for phase in phases) else phases
    _check_units(name, [(slot, metric.unit) for phase in phases for slot, metric in phase.metrics.items()])
    for slot in sorted({slot for phase in phases for slot in phase.metrics}):
        own = merged.metrics[slot] = _like(next(one.metrics[slot] for one in phases if slot in one.metrics))
        for phase in phases:
            if slot in phase.metrics:
                own.partial.merge(phase.metrics[slot].partial)
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


def _check_units(phase: str, units: Iterable[tuple[tuple[str, ...], str]]) -> None:
    """A metric has one unit on all ranks; sums of two are never added. Raises TdbgError, naming both."""
    known: dict[tuple[str, ...], str] = {}
    for slot, unit in units:
        if unit and known.setdefault(slot, unit) != unit:
            both = " and ".join(sorted((known[slot], unit)))
            raise TdbgError(f"{phase}/{slot[0]} is in {both} on different ranks", "say the same units on every rank")


def _like(metric: Metric) -> Metric:
    size = metric.history.maxlen or 1
    return Metric(metric.name, higher_is_better=metric.higher_is_better, unit=metric.unit, history=size)


def _merge_points(metrics: Sequence[Metric]) -> list[Point]:
    """The remembered passes of all ranks, those of the same epoch and step added up, in their order."""
    found: dict[tuple[Any, Any], Point] = {}
    for metric in metrics:
        for point in metric.history:
            sums = point.sums.copy()
            if (before := found.get((point.epoch, point.step))) is not None:
                sums.merge(before.sums)
            found[point.epoch, point.step] = Point(point.epoch, point.step, sums.mean() or 0.0, sums)
    return sorted(found.values(), key=_when)


def _when(point: Point) -> tuple[float, float]:
    """Passes without an epoch or step come first."""
    return -1.0 if point.epoch is None else point.epoch, -1.0 if point.step is None else point.step


def differing(states: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The metrics whose last values differ between ranks: key, and the value of each rank (None: it never got one).

    states: rank -> `MetricsTracker.state_dict`.
    """
    from tdbg.metrics.tracker import MetricsTracker

    values: dict[int, dict[str, float]] = {}
    for rank, state in states.items():
        tracker = MetricsTracker()
        tracker.load_state_dict(state)
        known = tracker.get_wandb_metrics(core=False)
        values[rank] = {key: value for key, value in known.items() if not isinstance(value, str)}
    keys = sorted({key for found in values.values() for key in found})
    by_key = {key: {rank: found.get(key) for rank, found in values.items()} for key in keys}
    return [{"key": key, "values": found} for key, found in by_key.items() if len(set(found.values())) > 1]
