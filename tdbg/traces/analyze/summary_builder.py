"""Build the summary of a trace in one pass.

Memory is that of the summary, and 24 bytes for each outermost operator, 40 and more for each kernel of the trace.
"""

import gc
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from tdbg.core.tables import format_count
from tdbg.traces.analyze.cpu_timeline import Threads
from tdbg.traces.analyze.device_timeline import Devices
from tdbg.traces.analyze.memory_timeline import MemoryTimeline
from tdbg.traces.parse import event_names, merged_traces
from tdbg.traces.parse.event_sorting import in_order
from tdbg.traces.parse.event_stream import Event, Trace
from tdbg.traces.summary import Summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Follow = Callable[[Sequence[Event], int, int], object]

QUICK = 3  # readings: all events fit into one stretch, and nobody need know that they were sorted
DISORDER = 0.001  # share of operators that may come late before all events are sorted
NEVER = 1 << 62
MOST_HEAPS = 256  # devices whose memory is followed
HEAD_KEYS = {"record_shapes": "shapes", "with_stack": "stacks", "profile_memory": "memory", "with_flops": "flops"}
DEVICE_TYPES = {0: "cpu", 1: "cuda", 6: "hip", 12: "xpu", 13: "mps", 20: "privateuse"}


class Builder:
    """What is gathered while the events pass by."""

    def __init__(self, trees: bool) -> None:
        self.threads = Threads(trees)
        self.devices = Devices()
        self.heaps: dict[str, MemoryTimeline] = {}
        self.base = -1  # microseconds, from which all times are counted
        self.first = 1 << 62
        self.last = 0
        self.strange = 0
        self.homeless = 0  # events of memory
        self._of: dict[str, Callable[[Event, int, int], None]] = {
            event_names.ANNOTATION: self.threads.add_annotation,
            event_names.FRAMES: self.threads.add_frame,
            event_names.COPIES: self.devices.add_copy,
            event_names.FILLS: self.devices.add_memset,
            **dict.fromkeys(event_names.KERNELS, self.devices.add_kernel),
            **dict.fromkeys(event_names.RUNTIMES, self.devices.add_runtime_call),
        }

    def add_events(self, batch: "Sequence[Event]") -> None:
        """See some events, in the order of the file; of a batch spans first, then operators, then all others."""
        if self.base < 0:
            first = (event.ts for event in batch if event.ph == "X" and 0 <= event.ts < event_names.FAR)
            self.base = int(next(first, -1))
        spans = [event for event in batch if event.cat == event_names.ANNOTATION]
        if spans:
            self._add_others(spans)
        operators = [event for event in batch if event.cat == event_names.OPERATOR and event.ph == "X"]
        if operators:
            self._add_operators(operators)
        if len(operators) + len(spans) < len(batch):
            seen = (event_names.OPERATOR, event_names.ANNOTATION)
            self._add_others([event for event in batch if event.cat not in seen])

    def _add_operators(self, operators: "list[Event]") -> None:
        times = np.array([event.ts for event in operators])
        lengths = np.array([event.dur for event in operators])
        good = (times >= 0) & (times < event_names.FAR) & (lengths >= 0) & (lengths < event_names.FAR)
        if not good.all():
            self.strange += len(good) - int(good.sum())
            operators = [event for event, fits in zip(operators, good, strict=True) if fits]
            times, lengths = times[good], lengths[good]
            if not operators:
                return
        if self.base < 0:
            self.base = int(times[0])
        starts = np.rint((times - self.base) * 1000).astype(np.int64)  # what is left has few enough digits to be exact
        durs = np.rint(lengths * 1000).astype(np.int64)
        self.threads.add_operators(operators, starts, durs)
        self.first = min(self.first, int(starts.min()))
        self.last = max(self.last, int((starts + durs).max()))

    def _add_others(self, events: "list[Event]") -> None:
        of = self._of
        base, first, last = self.base, self.first, self.last
        for event in events:
            ts = event.ts
            if event.ph == "X":
                see = of.get(event.cat)
                if see is None:
                    continue
                if not (0 <= ts < event_names.FAR and 0 <= event.dur < event_names.FAR):
                    self.strange += 1
                    continue
                if base < 0:
                    base = self.base = int(ts)
                start = round((ts - base) * 1000)
                dur = round(event.dur * 1000)
                see(event, start, dur)
                if start < first:
                    first = start
                if start + dur > last:
                    last = start + dur
            elif event.name == event_names.MEMORY and 0 <= ts < event_names.FAR:
                if base < 0:
                    base = self.base = int(ts)
                self._add_memory_event(event, round((ts - base) * 1000))
        self.first, self.last = first, last

    def _add_memory_event(self, event: Event, time: int) -> None:
        args = event.args
        if args is None:
            return
        kind = DEVICE_TYPES.get(args.device_type) if isinstance(args.device_type, int) else None
        device = kind or f"device type {args.device_type}"
        device = device if device == "cpu" else f"{device}:{args.device_id}"
        heap = self.heaps.get(device)
        if heap is None:
            if len(self.heaps) >= MOST_HEAPS:
                self.homeless += 1
                return
            heap = self.heaps[device] = MemoryTimeline(device)
        heap.add_event(event, time, self.threads.find_outermost_operator(self.threads.get_thread(event), time))


def summarize_trace(
    path: str | os.PathLike[str],
    size: int = 1 << 20,
    part: int | None = None,
    *,
    trees: bool = True,
    follow: "Follow | None" = None,
) -> Summary:
    """The summary of a trace. Raises TdbgError for a file that cannot be read or is no trace.

    part: which of the traces that a slice of several ranks holds. trees: also which operator called which, which takes
    a fifth longer. follow: called with each batch of events, the microsecond that times are counted from (-1 as long as
    there is none), and how many bytes of the file were read; with no events while the file is read again to sort them.
    """
    collecting = gc.isenabled()
    gc.disable()  # nothing here is circular, and a million events would set it off again and again
    try:
        return _summarize_trace(path, size, part, trees, follow or _ignore_batch)
    finally:
        if collecting:
            gc.enable()


def _ignore_batch(events: "Sequence[Event]", base_us: int, read_bytes: int) -> None:
    """Follow nothing."""


def _summarize_trace(
    path: str | os.PathLike[str], size: int, part: int | None, trees: bool, follow: "Follow"
) -> Summary:
    trace, built = Trace(path, size), Builder(trees)
    for batch in _of_part(trace, part):
        built.threads.last_step = _last_step(merged_traces.head_of(trace.head, part))
        built.add_events(batch)
        follow(batch, built.base, trace.blocks.read)
    if built.threads.disorder > DISORDER * built.threads.seen:
        built, times = Builder(trees), 1

        def reopen_trace() -> "Iterator[list[Event]]":
            nonlocal trace, times
            trace, times = Trace(path, size), times + 1
            for batch in _of_part(trace, part):
                follow((), built.base, trace.blocks.read)
                yield batch

        for batch in in_order(reopen_trace):
            built.threads.last_step = _last_step(merged_traces.head_of(trace.head, part))
            built.add_events(batch)
        if times > QUICK:
            trace.problems.append(
                f"its events are not in time order: the file was read {format_count(times, 'time')} to sort them"
            )
    return _build_summary(trace, built, merged_traces.head_of(trace.head, part))


def _of_part(trace: Trace, number: int | None) -> "Iterator[list[Event]]":
    """The events, or those of one of several traces in a file."""
    kept = 0
    for batch in trace:
        part = (
            batch
            if number is None
            else [event for event in batch if merged_traces.is_pid_of_rank_trace(number, event.pid)]
        )
        kept += len(part)
        yield part
    trace.events = kept


def _build_summary(trace: Trace, built: Builder, head: dict[str, Any]) -> Summary:
    from tdbg.traces.analyze.step_breakdown import break_down_steps

    threads, devices = built.threads, built.devices
    if merged_traces.without_end(head):
        devices.last_launch = NEVER  # what looks like the profiler's wait at its end is the program's own
    threads.finalize_totals()
    found = Summary(path=trace.path, events=trace.events, problems=trace.problems)
    found.start, found.end = min(built.first, built.last), built.last
    found.base_us = max(built.base, 0)
    if built.strange:
        verbs = "has an impossible time" if built.strange == 1 else "have impossible times"
        kept = "was" if built.strange == 1 else "were"
        found.problems.append(f"{format_count(built.strange, 'event')} {verbs} and {kept} left out")
    if built.homeless:
        found.problems.append(
            f"memory of only {MOST_HEAPS} devices is shown: {format_count(built.homeless, 'event')} of others left out"
        )
    if threads.marked > len(threads.steps):
        found.problems.append(
            f"{format_count(threads.marked, 'step', 'is')} marked: only the first {len(threads.steps):,} are shown"
        )
    found.operators = sorted((one for one in threads.operators if one.calls), key=lambda one: -one.own)
    for name, works in (("kernels", devices.kernels), ("copies", devices.copies)):
        setattr(found, name, sorted(works.values(), key=lambda one: -one.total))
    for name in ("regions", "modules", "saves", "loads"):
        setattr(found, name, sorted(getattr(threads, name).values(), key=lambda one: -one.total))
    found.updates = sorted(threads.collect_updates(), key=lambda one: -one.total)
    found.memory = [heap.finish_timeline() for heap in built.heaps.values()]
    threads.steps = _whole_steps(threads.steps, _get_dict(head, "tdbg"))
    break_down_steps(found, threads, devices)
    trees = {
        "operators": threads.nested if threads.trees else None,
        "python": threads.stacked if threads.framed else None,
    }
    found.flames = [tree.build_flame(kind) for kind, tree in trees.items() if tree is not None]
    _add_head(found, head, is_torn=trace.is_torn)
    seen = {
        "shapes": threads.shaped,
        "stacks": threads.framed,
        "memory": bool(found.memory),
        "modules": bool(found.modules),
        "device": bool(devices.kernels or devices.launches),
        "steps": bool(threads.steps),
    }
    found.recorded += [name for name, there in seen.items() if there and name not in found.recorded]
    return found


def _last_step(head: dict[str, Any]) -> int | None:
    """The step that the window of a trace of tdbg's own, or a slice of one, ends with; None where nobody knows."""
    ours, cut_out = _get_dict(head, "tdbg"), merged_traces.get_slice_info(head).get("steps")
    first, wanted, partial = (ours.get(name) for name in ("first_step", "wanted", "partial_step"))
    if isinstance(cut_out, list) and cut_out:
        return event_names.whole_number(cut_out[-1])
    if not isinstance(first, int):
        return None
    if isinstance(partial, int):
        return partial - 1
    return first + wanted - 1 if isinstance(wanted, int) else None


def _whole_steps(steps: list[Any], ours: dict[str, Any]) -> list[Any]:
    """Of a trace of tdbg's own the steps of its window: not the one it ended in, none that the program marked itself."""
    first, wanted, partial = (ours.get(name) for name in ("first_step", "wanted", "partial_step"))
    if not (isinstance(first, int) and isinstance(wanted, int)):
        return steps
    kept: dict[int, Any] = {}
    for step in steps:
        if first <= step[0] < first + wanted and step[0] != partial:
            kept.setdefault(step[0], step)
    return list(kept.values()) or [step for step in steps if step[0] != partial]


def _add_head(found: Summary, head: dict[str, Any], *, is_torn: bool) -> None:
    """What the trace tells of itself; what has another type than torch writes is left out."""
    info, ours = _get_dict(head, "distributedInfo"), _get_dict(head, "tdbg")
    for source in (ours, info):
        rank, world_size = (
            event_names.whole_number(source.get("rank")),
            event_names.whole_number(source.get("world_size")),
        )
        found.rank = found.rank if rank is None else rank
        found.world_size = found.world_size if world_size is None else world_size
    precision = ours.get("float32_matmul_precision")
    found.matmul_precision = precision if isinstance(precision, str) else ""
    found.backend = str(info.get("backend", ""))
    wanted = ours.get("wanted")
    held = sum(step.number is not None for step in found.steps)
    if isinstance(wanted, int) and held < wanted and not is_torn:
        found.problems.append(f"its window holds {held} of {format_count(wanted, 'step')}: the program ended early")
    elif isinstance(wanted, int) and held < wanted:
        found.problems.append(f"the file holds {held} of the {format_count(wanted, 'step')} of its window")
    properties = head.get("deviceProperties")
    devices = [one for one in properties if isinstance(one, dict)] if isinstance(properties, list) else []
    found.devices = [str(one.get("name", "")) for one in devices]
    if devices:
        major, minor, size = (
            event_names.whole_number(devices[0].get(key)) for key in ("computeMajor", "computeMinor", "totalGlobalMem")
        )
        found.capability = (major, minor) if major is not None and minor is not None else None
        found.device_bytes = size or 0
    found.recorded = [name for key, name in HEAD_KEYS.items() if head.get(key)]


def _get_dict(head: dict[str, Any], key: str) -> dict[str, Any]:
    found = head.get(key)
    return found if isinstance(found, dict) else {}
