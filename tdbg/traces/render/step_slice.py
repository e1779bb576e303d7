"""Select the events of a trace that belong to some of its steps, with all that their summary needs.

An event is kept whole or not at all: what began before a step and reaches into it is kept. So are the launches of the
kernels that ran in it, wherever they stand, with the operators around them; they tell what part of a step a kernel is
of. Arrows (flows) are kept where both ends are. Memory: the steps that are kept, whatever the size of the trace.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tdbg.core.errors import TdbgError
from tdbg.traces.parse import event_names, merged_traces
from tdbg.traces.parse.event_stream import Event, Number
from tdbg.traces.parse.raw_events import RawEvent, RawEventTrace
from tdbg.traces.summary import Step, Summary

ON_DEVICE = frozenset((*event_names.KERNELS, event_names.COPIES, event_names.FILLS))
CALLS = frozenset(event_names.RUNTIMES)
HOSTS = frozenset((event_names.OPERATOR, event_names.ANNOTATION, *event_names.RUNTIMES))
FLOWS = frozenset("stf")
Place = tuple[int | str, int | str, float]  # pid, tid, ts: where a span begins, and so an arrow's end


class SliceSpans:
    """Some spans of time that are looked up one by one."""

    def __init__(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        for start, end in sorted(pairs):
            if self.ends and start <= self.ends[-1]:
                self.ends[-1] = max(self.ends[-1], end)
            else:
                self.starts.append(start)
                self.ends.append(end)

    def has_overlap(self, start: int, end: int) -> bool:
        """True if the time from start to end, or the instant that it is, has to do with one of them."""
        at = bisect_right(self.starts, start) - 1
        if at >= 0 and start < self.ends[at]:
            return True
        return at + 1 < len(self.starts) and self.starts[at + 1] < end


class StepSlice:
    """Some steps of one trace, and which of its events belong to them.

    steps: empty for the whole of it. part: of a file that holds several traces, which. ``head``: what stands beside
    the events. Making one reads the trace, twice where kernels ran in the steps that were launched before them.
    """

    def __init__(self, read: Summary, steps: Sequence[Step], part: int | None = None) -> None:
        self.read = read
        self.part = part
        self.head: dict[str, Any] = {}
        self.steps = list(steps)
        self.numbers = {step.number for step in steps if step.number is not None}
        self.has_end = not steps or max(read.steps, key=lambda step: step.end) in self.steps
        self._times = SliceSpans(_join_spans(read.steps, self.steps))
        self._around = SliceSpans([])  # launches outside of the steps
        self._begun: set[Place] = set()  # spans that are kept and begin outside
        self._wait: tuple[int, str] | None = None  # the profiler's own, at the end
        self._survey_events()

    def iter_events(self) -> Iterator[RawEvent]:
        """The events in the order of the file, metadata with them. Reads the trace once more."""
        arrows = _Arrows()
        for event in self._iter_unfiltered_events():
            if event.ph in FLOWS:
                if self._keeps_end_of(event):
                    yield from arrows.add_flow_event(event)
            elif event.ph == "M" or self._should_keep(event):
                yield event

    def _iter_unfiltered_events(self) -> Iterator[RawEvent]:
        trace = RawEventTrace(self.read.path)
        for batch in trace:
            for event in batch:
                if isinstance(event, RawEvent) and (
                    self.part is None or merged_traces.is_pid_of_rank_trace(self.part, event.pid)
                ):
                    yield event
        self.head = merged_traces.head_of(trace.head, self.part)

    def _get_span(self, event: Event) -> tuple[int, int]:
        start = round((event.ts - self.read.base_us) * 1000)  # as in `summary_builder`, to the nanosecond
        return start, start + round(event.dur * 1000)

    def _survey_events(self) -> None:
        """What must be known before the first event can be kept."""
        kernels: set[Number] = set()
        launches: set[Number] = set()
        last_launch = 0
        waits: list[tuple[int, str]] = []
        for event in self._iter_unfiltered_events():
            if event.ph != "X" or not _is_sound(event):
                continue
            start, end = self._get_span(event)
            inside = self._times.has_overlap(start, end)
            if inside and not self._times.has_overlap(start, start):
                self._begun.add((event.pid, event.tid, event.ts))
            if event.cat in CALLS:
                if event_names.LAUNCH.search(event.name):
                    last_launch = max(last_launch, start)
                if event.name.endswith(event_names.DEVICE_WAIT):
                    waits = [max([*waits, (start, event.name)])]
            tied = event.args.correlation if event.args is not None else None
            if inside and tied is not None:
                (kernels if event.cat in ON_DEVICE else launches).add(tied)
        last = max([last_launch, *(step.end for step in self.read.steps if step.number is not None)])
        self._wait = waits[0] if waits and waits[0][0] >= last else None
        if kernels - launches:
            self._find_launches(kernels - launches)

    def _find_launches(self, wanted: set[Number]) -> None:
        spans = []
        for event in self._iter_unfiltered_events():
            if event.cat in CALLS and event.args is not None and event.args.correlation in wanted:
                spans.append(self._get_span(event))
                self._begun.add((event.pid, event.tid, event.ts))
        self._around = SliceSpans(spans)

    def _should_keep(self, event: Event) -> bool:
        if not self.steps:
            return True
        if not _is_sound(event):
            return False
        start, end = self._get_span(event)
        if event.cat == event_names.ANNOTATION:
            step = event_names.STEP.fullmatch(event.name)
            if step:
                return int(step[1]) in self.numbers and self._times.has_overlap(start, end)
        if self._times.has_overlap(start, end):
            return True
        if self._wait == (start, event.name):
            return self.has_end
        return event.ph == "X" and event.cat in HOSTS and self._around.has_overlap(start, end)

    def _keeps_end_of(self, event: Event) -> bool:
        """Whether the span that an arrow begins or ends at is kept."""
        if not self.steps or (event.pid, event.tid, event.ts) in self._begun:
            return True
        start, _ = self._get_span(event)
        return self._times.has_overlap(start, start)


class _Arrows:
    """Flows are held back until both ends have been seen."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, bytes], list[RawEvent]] = {}
        self._whole: set[tuple[str, bytes]] = set()

    def add_flow_event(self, event: RawEvent) -> list[RawEvent]:
        """What can be written now."""
        key = (event.cat, bytes(event.id))
        if key in self._whole:
            return [event]
        event.text, event.id = event.text.copy(), event.id.copy()  # what they are parts of is large
        held = self._held.setdefault(key, [])
        held.append(event)
        if not {"s", "f"} <= {one.ph for one in held}:
            return []
        self._whole.add(key)
        return self._held.pop(key)


def _is_sound(event: Event) -> bool:
    return 0 <= event.ts < event_names.FAR and 0 <= event.dur < event_names.FAR


def _join_spans(every: Sequence[Step], chosen: Sequence[Step]) -> list[tuple[int, int]]:
    """The time of some steps; what lies between two that follow each other belongs to them."""
    found: list[tuple[int, int]] = []
    order = sorted(every, key=lambda step: step.start)
    wanted = {(step.number, step.start, step.end) for step in chosen}
    before = None
    for at, step in enumerate(order):
        if (step.number, step.start, step.end) not in wanted:
            continue
        start = found.pop()[0] if before == at - 1 and found else step.start
        found.append((start, max(step.end, start)))
        before = at
    return found


def select_steps(read: Summary, wanted: Callable[[int], bool] | None) -> list[Step]:
    """The steps of a trace that are meant, all without a wish. TdbgError where it marks none and some are wanted."""
    marked = [step for step in read.steps if step.number is not None]
    if wanted is None:
        return marked
    if not marked:
        raise TdbgError(f"{read.path} marks no steps", "leave --steps out to keep all of it")
    return [step for step in marked if wanted(step.number or 0)]
