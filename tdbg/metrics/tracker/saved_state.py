"""The saved state of a tracker: written as plain data, and loaded only if all of it is valid."""

import functools
from collections import deque
from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from tdbg.core.errors import TdbgError
from tdbg.metrics.keys import Key
from tdbg.metrics.tracker import state_fields
from tdbg.metrics.tracker.last_values import STORES, LastValues, Stamped
from tdbg.metrics.tracker.metric import Metric, Point
from tdbg.metrics.tracker.partial import Partial
from tdbg.metrics.tracker.phase import Phase, Slot
from tdbg.metrics.tracker.state_fields import StateError

if TYPE_CHECKING:
    from tdbg.metrics.tracker.tracker_state import TrackerState

T = TypeVar("T")
VERSION = 1
KIND = "tdbg.metrics"
MAX_SHIFT = 1100  # the smallest float is 2**-1074
MAX_DIGITS = 700  # hexadecimal, of a sum


def build_state_dict(tracker: "TrackerState") -> dict[str, Any]:
    """All of a tracker as plain data (JSON, and `torch.load` with ``weights_only``, take it)."""
    begun = {} if tracker.val_phase == "val" else {"val_phase": tracker.val_phase}
    return {
        **begun,
        "kind": KIND,
        "version": VERSION,
        "epoch": tracker.epoch,
        "step": tracker.step,
        "phases": {name: phase.state() for name, phase in sorted(tracker.phases.items())},
        "stores": {name: store.state() for name, store in tracker.stores.items()},
        "best_epochs": tracker.best_epochs.state(),
        "findings": [dict(finding) for finding in tracker.findings],
    }


def load_state(tracker: "TrackerState", state: Mapping[str, Any]) -> None:
    """Put a saved state in the place of a tracker's own. Raises StateError, and then changes nothing.

    The criterion of the best epochs stays the tracker's; if the state had another, they are made anew of its history.
    """
    data = _validate_header(state)
    epoch, step = state_fields.validate_epoch(data, "epoch", "state"), state_fields.whole_or_none(data, "step", "state")
    phases = phases_of(data, tracker.make_metric, tracker.directions)
    stores = stores_of(data, tracker.history)
    best = _best_of(data, tracker, phases)
    findings = [
        dict(found) for found in state_fields.require_list(data, "findings", "state") if isinstance(found, Mapping)
    ]
    begun = data.get("val_phase", "val")
    tracker.val_phase = begun if begun in phases else "val"
    tracker.epoch, tracker.step = epoch, step
    tracker.phases, tracker.stores, tracker.findings = phases, stores, findings
    tracker.best_epochs.epochs = best


def phases_of(
    state: Mapping[str, object], make: Callable[[str], Metric], declared: Container[str] = ()
) -> dict[str, Phase]:
    """The phases of a saved state. declared: metrics whose direction was declared, and is not the state's to say."""
    found = {}
    for name, data in state_fields.require_table(state, "phases", "state").items():
        where = f"phases.{name}"
        phase = found[name] = _build_or_raise(where, functools.partial(Phase, name, make))
        phase.epoch, phase.step = (
            state_fields.validate_epoch(data, "epoch", where),
            state_fields.whole_or_none(data, "step", where),
        )
        phase.finished, phase.samples = (
            state_fields.require_whole(data, "finished", where),
            state_fields.require_whole(data, "samples", where),
        )
        phase.batches = state_fields.require_whole(data, "batches", where)
        phase.reduced, phase.of_all_ranks = (
            state_fields.require_flag(data, "reduced", where),
            state_fields.require_flag(data, "of_all_ranks", where),
        )
        phase.empty = [str(key) for key in state_fields.require_list(data, "empty", where)]
        for key, value in state_fields.require_table(data, "snapshot", where).items():
            phase.snapshot[_build_or_raise(where, functools.partial(Key.parse, key))] = state_fields.require_finite(
                value, f"{where}.snapshot.{key}"
            )
        for at, entry in enumerate(state_fields.require_list(data, "metrics", where)):
            _put_metric(phase, entry, f"{where}.metrics[{at}]", make, declared)
    return found


def stores_of(state: Mapping[str, Any], history: int) -> dict[str, LastValues]:
    """The stores of a saved state."""
    saved = state_fields.require_table(state, "stores", "state")
    found = {}
    for name, prefix in STORES.items():
        store = found[name] = LastValues(prefix, history)
        for text, rows in state_fields.require_table(saved, name, "stores").items() if name in saved else ():
            where = f"stores.{name}.{text}"
            key = _build_or_raise(where, functools.partial(Key.parse, text))
            if not isinstance(rows, list | tuple) or not rows:
                raise StateError(where, "has no values")
            store.history[key] = deque((_parse_stamped(row, where) for row in rows), maxlen=history)
    return found


def _put_metric(phase: Phase, entry: Any, where: str, make: Callable[[str], Metric], declared: Container[str]) -> None:
    slot = Slot(
        state_fields.require_text(entry, "metric", where),
        state_fields.require_text(entry, "task", where),
        state_fields.require_text(entry, "subset", where),
    )
    _build_or_raise(where, functools.partial(phase.build_key, slot))
    if slot in phase.metrics:
        raise StateError(where, f"appears twice: {phase.build_key(slot)}")
    phase.metrics[slot] = _parse_metric(entry, where, make(slot.metric), slot.metric in declared)


def _parse_metric(entry: Mapping[str, object], where: str, metric: Metric, declared: bool) -> Metric:
    """One metric: its value is that of the last finished pass, which the state must agree with."""
    direction = state_fields.require_field(entry, "higher_is_better", where)
    if direction is not None and not isinstance(direction, bool):
        raise StateError(f"{where}.higher_is_better", f"is {direction!r}, not true, false or null")
    if not declared:
        metric.higher_is_better = direction
    if metric.unit and state_fields.require_text(entry, "unit", where) not in ("", metric.unit):
        raise StateError(f"{where}.unit", f"is {entry['unit']!r}, and {metric.unit!r} here")
    metric.unit = metric.unit or state_fields.require_text(entry, "unit", where)
    metric.partial = partial_of(state_fields.require_field(entry, "partial", where), f"{where}.partial")
    metric.add_left_out(
        state_fields.require_whole(entry, "nan", where), state_fields.require_whole(entry, "inf", where)
    )
    for at, row in enumerate(state_fields.require_list(entry, "history", where)):
        metric.history.append(_parse_point(row, f"{where}.history[{at}]"))
    metric.finished = state_fields.require_whole(entry, "finished", where)
    if metric.history:
        metric.epoch, metric.step, metric.value, metric.done = metric.history[-1]
    if metric.finished < len(metric.history) or bool(metric.finished) != bool(metric.history):
        raise StateError(f"{where}.finished", f"is {metric.finished}, and its history has {len(metric.history)}")
    if (
        state_fields.require_field(entry, "value", where) != metric.value
        or state_fields.require_whole(entry, "count", where) != metric.count
    ):
        raise StateError(f"{where}.value", f"is {entry['value']!r}, and its sums say {metric.value!r}")
    metric.best = state_fields.number_or_none(entry, "best", where)
    metric.best_epoch, metric.best_step = (
        state_fields.validate_epoch(entry, "best_epoch", where),
        state_fields.whole_or_none(entry, "best_step", where),
    )
    if direction != metric.higher_is_better:  # told otherwise since: the best is that of the history
        metric.best_of_history()
    elif metric.finished and direction is not None and metric.best is None:
        raise StateError(f"{where}.best", "is missing")
    return metric


def _parse_point(row: object, where: str) -> Point:
    row = state_fields.require_row(row, 3, where, "(epoch, step, sums)")
    data = {"epoch": row[0], "step": row[1]}
    sums = partial_of(row[2], where)
    value = sums.compute_mean()
    if value is None:
        raise StateError(where, "has no samples")
    return Point(
        state_fields.validate_epoch(data, "epoch", where), state_fields.whole_or_none(data, "step", where), value, sums
    )


def partial_of(row: object, where: str) -> Partial:
    """Sums; long numbers are refused before they are read."""
    row = state_fields.require_row(row, 6, where, "sums")
    if not isinstance(row[0], str) or len(row[0]) > MAX_DIGITS:
        raise StateError(where, "has a sum that is not text or is too long")
    try:
        numerator = int(row[0], 16)
    except ValueError:
        raise StateError(where, f"has the sum {row[0]!r}, which is not a number") from None
    names = ("shift", "count", "batches", "nan", "inf")
    counts = [
        state_fields.require_whole({name: value}, name, where) for name, value in zip(names, row[1:], strict=True)
    ]
    if counts[0] > MAX_SHIFT:
        raise StateError(f"{where}.shift", f"is {counts[0]}")
    sums = Partial(numerator, *counts)
    try:
        sums.compute_mean()
    except OverflowError:
        raise StateError(where, "has a mean that is too large for a float") from None
    return sums


def _parse_stamped(row: object, where: str) -> Stamped:
    row = state_fields.require_row(row, 3, where, "(value, epoch, step)")
    if not isinstance(row[0], str) and (isinstance(row[0], bool) or not isinstance(row[0], int | float)):
        raise StateError(where, f"is {row[0]!r}, neither a number nor a text")
    data = {"epoch": row[1], "step": row[2]}
    return row[0], state_fields.validate_epoch(data, "epoch", where), state_fields.whole_or_none(data, "step", where)


def _best_of(state: Mapping[str, Any], tracker: "TrackerState", phases: Mapping[str, Phase]) -> list[Any]:
    from tdbg.metrics.tracker.best_epochs import BestEpochs

    own = tracker.best_epochs
    found = BestEpochs(own.criterion, own.size, own.higher_is_better)
    saved = state_fields.require_table(state, "best_epochs", "state")
    if saved.get("criterion") == str(own.criterion) and saved.get("higher_is_better") == own.higher_is_better:
        for at, row in enumerate(state_fields.require_list(saved, "epochs", "best_epochs")):
            value, epoch, step = _parse_stamped(row, f"best_epochs.epochs[{at}]")
            found.add_if_best(state_fields.require_finite(value, f"best_epochs.epochs[{at}]"), epoch, step)
    elif (phase := phases.get(own.criterion.phase)) is not None:
        slot = Slot(own.criterion.metric, own.criterion.task, own.criterion.subset)
        for point in phase.metrics[slot].history if slot in phase.metrics else ():
            found.add_if_best(point.value, point.epoch, point.step)
    return found.epochs


def _validate_header(state: object) -> Mapping[str, object]:
    if not isinstance(state, Mapping) or state.get("kind") != KIND:
        raise StateError("it", "is not the state of a MetricsTracker")
    version = state.get("version")
    if isinstance(version, int) and version > VERSION:
        raise StateError("version", f"is {version}, newer than this tdbg knows ({VERSION})")
    if version != VERSION:
        raise StateError("version", f"is {version!r}, which is not supported")
    return state


def _build_or_raise(where: str, make: Callable[[], T]) -> T:
    """What ``make`` gives; a name that the grammar does not have is an unsound state."""
    try:
        return make()
    except (TdbgError, TypeError) as error:
        raise StateError(where, f"has an invalid name: {error}") from None
