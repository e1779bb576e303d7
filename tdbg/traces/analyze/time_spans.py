"""Sets of time spans: union, intersection, difference. Exact, in whole nanoseconds."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]


class Spans:
    """A set of time as sorted spans that do not touch: ``starts[i] <= t < ends[i]``."""

    __slots__ = ("_sums", "ends", "starts")

    def __init__(self, starts: Times, ends: Times) -> None:
        self.starts = starts
        self.ends = ends
        self._sums: Times | None = None  # of all spans before each

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def total_ns(self) -> int:
        """Nanoseconds in all."""
        return int((self.ends - self.starts).sum())

    def measure_before(self, times: Any) -> Times:
        """For each time, how many nanoseconds of the set lie before it."""
        times = np.asarray(times, np.int64)
        if self._sums is None:
            self._sums = np.concatenate(([0], np.cumsum(self.ends - self.starts)))
        sums = self._sums
        at = np.searchsorted(self.starts, times, "right")
        if not len(self):
            return np.zeros(times.shape, np.int64)
        last = np.maximum(at - 1, 0)
        beyond = np.maximum(self.ends[last] - np.maximum(times, self.starts[last]), 0)
        found: Times = sums[at] - np.where(at > 0, beyond, 0)
        return found

    def measure_within(self, start: int, end: int) -> int:
        """Nanoseconds of the set from ``start`` to ``end``."""
        first, last = self.measure_before([start, end])
        return int(last - first)

    def contains_times(self, times: Any) -> npt.NDArray[np.bool_]:
        """For each time, whether it is in the set."""
        found: npt.NDArray[np.bool_] = np.searchsorted(self.starts, times, "right") > np.searchsorted(
            self.ends, times, "right"
        )
        return found

    def __or__(self, other: "Spans") -> "Spans":
        return _merge_spans(np.concatenate((self.starts, other.starts)), np.concatenate((self.ends, other.ends)))

    def __and__(self, other: "Spans") -> "Spans":
        return _clip_spans(self, other, True)

    def __sub__(self, other: "Spans") -> "Spans":
        return _clip_spans(self, other, False)


def union_spans(pairs: Any) -> Spans:
    """The union of spans given as start, end, start, end, ...; those that end before they begin are empty."""
    flat = np.asarray(pairs, np.int64)
    return _merge_spans(flat[0::2], flat[1::2])


def union_sets(sets: Iterable[Spans]) -> Spans:
    """The union of all these sets."""
    every = list(sets)
    none = np.zeros(0, np.int64)
    return _merge_spans(
        np.concatenate([none, *(one.starts for one in every)]), np.concatenate([none, *(one.ends for one in every)])
    )


def _merge_spans(starts: Times, ends: Times) -> Spans:
    keep = ends > starts
    starts, ends = starts[keep], ends[keep]
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    if not len(starts):
        return Spans(starts, ends)
    reach = np.maximum.accumulate(ends)
    new = np.concatenate(([True], starts[1:] > reach[:-1]))  # begins behind all that went before
    last = np.concatenate((new[1:], [True]))
    return Spans(starts[new], reach[last])


def _clip_spans(one: Spans, other: Spans, inside: bool) -> Spans:
    """The part of ``one`` that is inside ``other``, or outside of it."""
    edges = np.sort(np.concatenate((one.starts, one.ends, other.starts, other.ends)), kind="stable")
    new = np.ones(len(edges), bool)
    new[1:] = edges[1:] != edges[:-1]  # np.unique would hash them: ten times as slow
    edges = edges[new]
    begins = edges[:-1]
    mask = one.contains_times(begins) & (other.contains_times(begins) == inside)
    return _merge_spans(begins[mask], edges[1:][mask])
