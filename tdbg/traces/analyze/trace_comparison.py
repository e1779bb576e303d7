"""Compare two sides of traces: whether they differ beyond their spread, and what changed. Standard library alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tdbg.core.tables import format_count
from tdbg.traces.analyze.significance import Shift, estimate_ratio, estimate_shift
from tdbg.traces.analyze.summary_figures import median_or_zero
from tdbg.traces.analyze.trace_baseline import Baseline, OpStats
from tdbg.traces.parse import event_names

TOLERANCE = 0.05
NOTABLE = 0.01  # of a step of A: smaller changes are not reported


@dataclass(frozen=True, slots=True)
class PartChange:
    """A part of the bar: median nanoseconds of a step on both sides, and the shift between them."""

    name: str
    a: float
    b: float
    change: Shift


@dataclass(frozen=True, slots=True)
class OpChange:
    """An operator or kernel on both sides; 0 where it is absent."""

    name: str
    a_time: float
    b_time: float
    a_calls: float
    b_calls: float

    @property
    def grown(self) -> float:
        """Nanoseconds more per step in B."""
        return self.b_time - self.a_time


@dataclass(slots=True)
class TraceComparison:
    """The result. ``verdict``: slower, faster, no difference, or too few steps."""

    a: Baseline
    b: Baseline
    change: Shift
    tolerance: float
    verdict: str = ""
    parts: list[PartChange] = field(default_factory=list)
    operators: list[OpChange] = field(default_factory=list)
    kernels: list[OpChange] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_regression(self) -> bool:
        """B is slower, beyond the spread of both and beyond the tolerance."""
        return self.verdict == "slower" and self.change.guess > self.tolerance


def compare_traces(a: Baseline, b: Baseline, tolerance: float = TOLERANCE) -> TraceComparison:
    """Compare B with A."""
    found = TraceComparison(a, b, estimate_ratio(a.lengths, b.lengths), tolerance)
    words = {1: "slower", -1: "faster", 0: "no difference"}
    sign = found.change.sign
    if sign and not _exceeds_runs(a, b, sign):
        sign = 0
        found.notes.append("the steps of A and B differ by more than their spread, but so do those of runs of one side")
    found.verdict = words[sign] if found.change.is_known else "too few steps"
    if sign and len(a.medians) == len(b.medians) == 1:
        found.notes.append("the difference between runs of A is unknown: --save combines several into one baseline")
    floor = NOTABLE * (sum(a.lengths) / len(a.lengths) if a.lengths else sum(one.time for one in a.operators))
    found.parts = _compare_parts(a, b)
    found.operators = _compare_ops(a.operators, b.operators, floor)
    found.kernels = _compare_ops(a.kernels, b.kernels, floor)
    found.notes += _list_caveats(a, b)
    return found


def _exceeds_runs(a: Baseline, b: Baseline, sign: int) -> bool:
    """Whether every run of one side is slower (sign > 0), or faster, than every run of the other."""
    low, high = (a, b) if sign > 0 else (b, a)
    return max(low.medians) < min(high.medians)


def is_notable(part: PartChange, found: TraceComparison) -> bool:
    """Whether a part changed beyond its spread, and by a notable share of a step."""
    if not part.change.sign:
        return False  # one side may have no steps
    whole = sum(found.a.lengths) / len(found.a.lengths)
    return abs(part.change.guess) >= NOTABLE * whole


def _compare_parts(a: Baseline, b: Baseline) -> list[PartChange]:
    found = []
    for name in event_names.BAR:
        ours, theirs = ([step.bar.get(name, 0.0) for step in one.steps] for one in (a, b))
        if any(ours) or any(theirs):
            found.append(PartChange(name, median_or_zero(ours), median_or_zero(theirs), estimate_shift(ours, theirs)))
    return found


def _compare_ops(a: Sequence[OpStats], b: Sequence[OpStats], floor: float) -> list[OpChange]:
    """Changes by name, largest first; changes smaller than the floor are left out."""
    none = OpStats("", 0.0, 0.0)
    ours, theirs = ({one.name: one for one in every} for every in (a, b))
    found = []
    for name in {**ours, **theirs}:
        one, other = ours.get(name, none), theirs.get(name, none)
        change = OpChange(name, one.time, other.time, one.calls, other.calls)
        if abs(change.grown) >= floor and change.grown:
            found.append(change)
    return sorted(found, key=lambda change: -abs(change.grown))


def _list_caveats(a: Baseline, b: Baseline) -> list[str]:
    """What makes the two sides hard to compare."""
    found = []
    if a.devices != b.devices and a.devices and b.devices:
        found.append(f"A ran on {', '.join(a.devices)}, B on {', '.join(b.devices)}")
    ours, theirs = (max(len(one.ranks), 1) for one in (a, b))
    if ours != theirs:
        found.append(f"A has the traces of {format_count(ours, 'rank')}, B of {format_count(theirs, 'rank')}")
    costly = ("shapes", "stacks", "memory", "flops", "modules")
    for name, one, other in (("A", a, b), ("B", b, a)):
        more = [what for what in costly if what in one.recorded and what not in other.recorded]
        if more:
            found.append(f"only {name} recorded {', '.join(more)}, which slows its steps")
        if one.left_out:
            found.append(f"steps of {name} that took three times its median or more are left out: {one.left_out}")
        if not one.steps:
            found.append(f"{name} has no step marks, so the spread of its steps is unknown")
    return found
