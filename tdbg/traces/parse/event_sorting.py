"""Sort the events of an unordered trace by time, without ever holding all of them."""

import math
from array import array
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Raw

from tdbg.traces.parse import event_names
from tdbg.traces.parse.event_stream import Event

SORTED = 1 << 18  # events at a time: some 100 MB
AT_ONCE = 1 << 13  # of these in a batch


def in_order(read: Callable[[], Iterator[list[Event]]]) -> Iterator[list[Event]]:
    """Spans and events of memory in the order of time, in batches. read: begins to read the trace anew.

    It is read once for the times, and once for each stretch of time that holds `SORTED` events. Memory: these (twice
    as many where more begin at one moment, and then in an order of their own), and 8 bytes for each event of the trace.
    """
    times = array("d")
    for batch in read():
        times.extend(event.ts for event in batch if _is_kept(event))
    moments = np.sort(np.frombuffer(times)) if times else np.zeros(0)
    edges = [-math.inf, *np.unique(moments[SORTED::SORTED]).tolist(), math.inf]
    del times, moments
    for low, high in pairwise(edges):
        held: list[Event] = []
        shared: dict[Any, Any] = {}
        for batch in read():
            held += [_detach_event(event, shared) for event in batch if low <= event.ts < high and _is_kept(event)]
            if len(held) >= 2 * SORTED:
                yield from _iter_sorted_batches(held)
                held, shared = [], {}
        yield from _iter_sorted_batches(held)


def _iter_sorted_batches(events: list[Event]) -> Iterator[list[Event]]:
    events.sort(key=lambda event: (event.ts, -event.dur))
    for at in range(0, len(events), AT_ONCE):
        yield events[at : at + AT_ONCE]


def _is_kept(event: Event) -> bool:
    return event.ph == "X" or event.name == event_names.MEMORY


def _detach_event(event: Event, shared: dict[Any, Any]) -> Event:
    """The event without the block of the file that its raw values are parts of, and with what others have too shared."""
    event.name = shared.setdefault(event.name, event.name)
    event.tid, event.pid = shared.setdefault(event.tid, event.tid), shared.setdefault(event.pid, event.pid)
    args = event.args
    if args is None:
        return event
    if event.cat != event_names.OPERATOR:
        args.dims, args.concrete = Raw(), Raw()
        return event
    key = (bytes(args.dims), bytes(args.concrete))  # of an operator nobody asks for more
    known = shared.get(key)
    if known is None:
        args.dims, args.concrete = args.dims.copy(), args.concrete.copy()
        known = shared[key] = args
    event.args = known
    return event
