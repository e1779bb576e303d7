"""Two sides of traces against each other: by their own spread, and what changed. Standard library alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from tdbg.core.tables import counted
from tdbg.traces.analyze.significance import Shift, ratio, shift
from tdbg.traces.analyze.trace_baseline import Share, Side
from tdbg.traces.parse import event_names

TOLERANCE = 0.05
NOTABLE = 0.01  # of a step of A: what changed by less is not told


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the bar: nanoseconds of a step on both sides (medians), and by how much it grew."""

    name: str
    a: float
    b: float
    change: Shift


@dataclass(frozen=True, slots=True)
class Change:
    """An operator or kernel on both sides; 0 where it is not there."""

    name: str
    a_time: float
    b_time: float
    a_calls: float
    b_calls: float

    @property
    def grown(self) -> float:
        """Nanoseconds that a step spends more on it in B."""
        return self.b_time - self.a_time


@dataclass(slots=True)
class Comparison:
    """What came of it. ``verdict``: slower, faster, no difference, or too few steps."""

    a: Side
    b: Side
    change: Shift
    tolerance: float
    verdict: str = ""
    parts: list[Part] = field(default_factory=list)
    operators: list[Change] = field(default_factory=list)
    kernels: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_regression(self) -> bool:
        """B is slower, beyond the spread of both and beyond the tolerance."""
        return self.verdict == "slower" and self.change.guess > self.tolerance


def compare(a: Side, b: Side, tolerance: float = TOLERANCE) -> Comparison:
    """Hold B against A."""
    found = Comparison(a, b, ratio(a.lengths, b.lengths), tolerance)
    words = {1: "slower", -1: "faster", 0: "no difference"}
    sign = found.change.sign
    if sign and not _beyond_runs(a, b, sign):
        sign = 0
        found.notes.append("their steps differ by more than their spread, but so do the runs of one side")
    found.verdict = words[sign] if found.change.is_known else "too few steps"
    if sign and len(a.medians) == len(b.medians) == 1:
        found.notes.append("by how much two runs of A differ is not known: --save keeps several as one baseline")
    floor = NOTABLE * (sum(a.lengths) / len(a.lengths) if a.lengths else sum(one.time for one in a.operators))
    found.parts = _parts(a, b)
    found.operators = _changes(a.operators, b.operators, floor)
    found.kernels = _changes(a.kernels, b.kernels, floor)
    found.notes += _notes(a, b)
    return found


def _beyond_runs(a: Side, b: Side, sign: int) -> bool:
    """Whether every run of the one side is on the same hand of every run of the other."""
    low, high = (a, b) if sign > 0 else (b, a)
    return max(low.medians) < min(high.medians)


def is_notable(part: Part, found: Comparison) -> bool:
    """Whether a part changed beyond its spread, and by enough of a step to be told."""
    if not part.change.sign:
        return False  # one side may have no steps
    whole = sum(found.a.lengths) / len(found.a.lengths)
    return abs(part.change.guess) >= NOTABLE * whole


def _parts(a: Side, b: Side) -> list[Part]:
    found = []
    for name in event_names.BAR:
        ours, theirs = ([step.bar.get(name, 0.0) for step in one.steps] for one in (a, b))
        if any(ours) or any(theirs):
            found.append(Part(name, _middle(ours), _middle(theirs), shift(ours, theirs)))
    return found


def _middle(values: Sequence[float]) -> float:
    return median(values) if values else 0.0


def _changes(a: Sequence[Share], b: Sequence[Share], floor: float) -> list[Change]:
    """What is matched by its name, largest change first; what changed by less than the floor is left out."""
    none = Share("", 0.0, 0.0)
    ours, theirs = ({one.name: one for one in every} for every in (a, b))
    found = []
    for name in {**ours, **theirs}:
        one, other = ours.get(name, none), theirs.get(name, none)
        change = Change(name, one.time, other.time, one.calls, other.calls)
        if abs(change.grown) >= floor and change.grown:
            found.append(change)
    return sorted(found, key=lambda change: -abs(change.grown))


def _notes(a: Side, b: Side) -> list[str]:
    """What makes the two hard to compare."""
    found = []
    if a.devices != b.devices and a.devices and b.devices:
        found.append(f"A ran on {', '.join(a.devices)}, B on {', '.join(b.devices)}")
    ours, theirs = (max(len(one.ranks), 1) for one in (a, b))
    if ours != theirs:
        found.append(f"A has the traces of {counted(ours, 'rank')}, B of {counted(theirs, 'rank')}")
    costly = ("shapes", "stacks", "memory", "flops", "modules")
    for name, one, other in (("A", a, b), ("B", b, a)):
        more = [what for what in costly if what in one.recorded and what not in other.recorded]
        if more:
            found.append(f"{name} alone recorded {', '.join(more)}: its steps bear that cost")
        if one.left_out:
            found.append(f"steps of {name} that took three times its median or more are left out: {one.left_out}")
        if not one.steps:
            found.append(f"{name} marks no steps: there is no spread to judge by")
    return found
