"""Compare several ranks: which has more work, which waits for which. Standard library alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tdbg.traces import trace_options
from tdbg.traces.analyze import summary_figures
from tdbg.traces.analyze.summary_figures import median_or_zero
from tdbg.traces.parse import event_names
from tdbg.traces.parse.trace_files import TraceFile
from tdbg.traces.summary import Step, Summary

# What a rank does itself; in communication and idleness it may wait for others.
OWN = (
    event_names.INPUT,
    event_names.H2D,
    event_names.FORWARD,
    event_names.BACKWARD,
    event_names.OPTIMIZER,
    event_names.COPY,
    event_names.OTHER,
)
COVERS = 0.8  # of what a rank has more to do: a part that makes as much of it is its cause


@dataclass(frozen=True, slots=True)
class Rank:
    """One of them: nanoseconds of a step, medians. ``exposed``: communication that nothing hides."""

    label: str
    step: float
    own: float
    exposed: float
    extra: float  # of its own work, against the median of the others: 0.1 is 10 % more


@dataclass(frozen=True, slots=True)
class Ranks:
    """All of them. ``skew``: by how much their own work differs in a step, median of the steps that all have."""

    each: tuple[Rank, ...]
    slowest: str
    longest: str  # the part that is longer on the slowest
    longer: float  # by so many nanoseconds a step
    covers: float  # the share that this has in what the slowest has more to do; 0.8 and more, and it is the cause
    skew: float
    common: int  # steps that all have


def own_time(step: Step) -> int:
    """What a rank did itself in a step."""
    return sum(step.bar.get(name, 0) for name in OWN)


def split_own_time(read: Summary) -> dict[str, float]:
    """Each part of that: the median, parted as all steps together are. Medians of the parts would not add up to it."""
    steps = summary_figures.select_steady_steps(read)
    sums = {name: sum(step.bar.get(name, 0) for step in steps) for name in OWN}
    scale = median_or_zero([own_time(step) for step in steps]) / max(sum(sums.values()), 1)
    return {name: time * scale for name, time in sums.items()}


def compare_loaded(every: Sequence[tuple[TraceFile, Summary]]) -> dict[str, Summary]:
    """The traces of several ranks by their labels; none where they are not one trace each, of one attempt."""
    known = {trace_options.format_label(one, read): read for one, read in every}
    numbers = {one.rank if one.rank is not None else read.rank for one, read in every}
    attempts = {one.attempt for one, _ in every}
    is_one_each = len(numbers) == len(every) == len(known) and None not in numbers and len(attempts) == 1
    return known if is_one_each and len(every) > 1 else {}


def compare_ranks(every: Mapping[str, Summary]) -> Ranks | None:
    """The ranks by their labels, held against each other; None for fewer than two."""
    if len(every) < 2:
        return None
    steady = {label: summary_figures.select_steady_steps(read) for label, read in every.items()}
    owned = {label: median_or_zero([own_time(step) for step in steps]) for label, steps in steady.items()}
    each = []
    for label, steps in steady.items():
        others = median(value for other, value in owned.items() if other != label)
        exposed = median_or_zero([step.bar.get(event_names.COMMUNICATION, 0) for step in steps])
        length = summary_figures.typical_length(every[label])
        each.append(Rank(label, length, owned[label], exposed, owned[label] / others - 1 if others else 0.0))
    slowest = max(owned, key=lambda label: owned[label])
    longest, longer = _find_largest_growth(slowest, {label: split_own_time(read) for label, read in every.items()})
    skews = _compute_skews(list(steady.values()))
    more = owned[slowest] - median(value for label, value in owned.items() if label != slowest)
    covers = longer / more if more > 0 else 0.0
    return Ranks(tuple(each), slowest, longest, longer, covers, median_or_zero(skews), len(skews))


def slowest_first(every: Sequence[tuple[TraceFile, Summary]]) -> list[tuple[TraceFile, Summary]]:
    """Ranks by the work of their own, since those with less wait for the others; what is no rank by the length of a step."""
    if compare_loaded(every):
        return sorted(
            every,
            key=lambda pair: -median_or_zero([own_time(step) for step in summary_figures.select_steady_steps(pair[1])]),
        )
    return sorted(every, key=lambda pair: -summary_figures.typical_length(pair[1]))


def _find_largest_growth(slowest: str, parts: Mapping[str, Mapping[str, float]]) -> tuple[str, float]:
    grown = {
        name: parts[slowest][name] - median(one[name] for label, one in parts.items() if label != slowest)
        for name in OWN
    }
    name = max(grown, key=lambda one: grown[one])
    return name, grown[name]


def _compute_skews(every: Sequence[Sequence[Step]]) -> list[int]:
    """Of each step that all ranks have, the difference between the most and the least work of their own."""
    by_number = [{step.number: own_time(step) for step in steps} for steps in every]
    common = set(by_number[0]).intersection(*by_number[1:])
    return [max(works[number] for works in by_number) - min(works[number] for works in by_number) for number in common]
