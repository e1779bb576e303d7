"""What a process did over time, in constant memory: of each bin of a lane the share of time of each activity.

What comes out is plain data, which ``web/charts.js`` draws as lanes, one beside the other.
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import TypedDict

LATEST_T = 1e11  # seconds since 1970: what is beyond is no time
LEAST_SHARE = 0.02  # of a bin that is drawn
FULL_SHARE = 0.985  # of a bin that is drawn as all of it
SURE_ACTIVITIES = 5  # with a step in a bin, from which on their shares stand for what is unknown in it


class LaneBar(TypedDict):
    """A rectangle of a lane: from and until (seconds since 1970), from which to which share of its height."""

    kind: int
    start: float
    end: float
    low: float
    high: float
    first_step: int | None
    last_step: int | None


class TimeLane:
    """The activities of one process; a bin becomes twice as long whenever there are too many.

    kinds: how many activities are told apart. width_s: of the first bins. unknown: the kind of what is not known; in a
    bin with enough shares of the known kinds its time is divided as theirs is.
    """

    def __init__(
        self, kinds: int, bins: int = 400, width_s: float = 0.001, unknown: int | None = None, known: Sequence[int] = ()
    ) -> None:
        self._kinds, self._bins, self._width_s = kinds, max(bins, 2) & ~1, width_s
        self._start: float | None = None
        self._end = 0.0
        self._unknown, self._known = unknown, known
        self._times = [array("d") for _ in range(kinds)]
        self._counts = array("q")  # calls of add_shares
        self._first_steps, self._last_steps = array("q"), array("q")  # -1: none

    def add_activity(self, kind: int, start: float, end: float, step: int | None = None) -> None:
        """An activity between two times; what is no time is passed over."""
        self._add_time(kind, 1.0, start, end, step)

    def _add_time(self, kind: int, share: float, start: float, end: float, step: int | None) -> None:
        if not 0 < start <= end < LATEST_T:
            return
        if self._start is None:
            self._start = start
        start = max(start, self._start)
        if end < start:
            return
        self._end = max(self._end, end)
        while end - self._start >= self._bins * self._width_s:
            self._join_bins()
        first, last = self._find_bin(start), self._find_bin(end)
        self._extend_bins(last + 1)
        for at in range(first, last + 1):
            begin = self._start + at * self._width_s
            self._times[kind][at] += share * max(min(end, begin + self._width_s) - max(start, begin), 0.0)
        if step is not None and 0 <= step < 1 << 53:
            if self._first_steps[last] < 0:
                self._first_steps[last] = step
            self._last_steps[last] = step

    def add_shares(self, shares: Mapping[int, float], start: float, end: float, step: int | None = None) -> None:
        """Several activities at once, in any order, with the share of the time of each."""
        for kind, share in shares.items():
            self._add_time(kind, share, start, end, step)
        if self._start is not None and self._start <= end <= self._end:
            self._counts[self._find_bin(end)] += 1

    def _find_bin(self, t: float) -> int:
        assert self._start is not None
        return min(int((t - self._start) / self._width_s), self._bins - 1)

    def _extend_bins(self, count: int) -> None:
        more = count - len(self._first_steps)
        if more > 0:
            for times in self._times:
                times.extend([0.0] * more)
            self._counts.extend([0] * more)
            self._first_steps.extend([-1] * more)
            self._last_steps.extend([-1] * more)

    def _join_bins(self) -> None:
        """Make one bin of each two neighbours."""
        self._width_s *= 2
        self._extend_bins(len(self._first_steps) + len(self._first_steps) % 2)
        pairs = range(0, len(self._first_steps), 2)
        for times in self._times:
            times[:] = array("d", [times[at] + times[at + 1] for at in pairs])
        self._counts[:] = array("q", [self._counts[at] + self._counts[at + 1] for at in pairs])
        first, last = self._first_steps, self._last_steps
        first[:] = array("q", [first[at] if first[at] >= 0 else first[at + 1] for at in pairs])
        last[:] = array("q", [last[at + 1] if last[at + 1] >= 0 else last[at] for at in pairs])

    def build_bars(self) -> list[LaneBar]:
        """The rectangles, in the order of time; equal neighbours are one."""
        found: list[LaneBar] = []
        open_bars: list[LaneBar] = []  # of the bin before
        for at in range(len(self._first_steps)):
            bars = self._build_bin_bars(at)
            if bars and _has_same_shape(open_bars, bars):
                for old, new in zip(open_bars, bars, strict=True):
                    old["end"] = new["end"]
                    old["last_step"] = old["last_step"] if new["last_step"] is None else new["last_step"]
                    if old["first_step"] is None:
                        old["first_step"] = new["first_step"]
                continue
            found += bars
            open_bars = bars
        return found

    def _estimate_times(self, at: int) -> list[float]:
        """The time of each kind in a bin; what is unknown goes to the known kinds where enough is known."""
        found = [times[at] for times in self._times]
        known_s = sum(found[kind] for kind in self._known)
        if self._unknown is not None and self._counts[at] >= SURE_ACTIVITIES and known_s > 0:
            unknown_s, found[self._unknown] = found[self._unknown], 0.0
            for kind in self._known:
                found[kind] += unknown_s * found[kind] / known_s
        return found

    def _build_bin_bars(self, at: int) -> list[LaneBar]:
        assert self._start is not None
        begin = self._start + at * self._width_s
        width_s = min(self._width_s, self._end - begin) or self._width_s  # the last one ends with what was done
        shares = [min(times / width_s, 1.0) for times in self._estimate_times(at)]
        if max(shares) >= FULL_SHARE:
            shares = [float(share == max(shares)) for share in shares]
        bars: list[LaneBar] = []
        low = 0.0
        for kind, share in enumerate(shares):
            if share < LEAST_SHARE or not math.isfinite(share):
                continue
            share = min(round(share, 2), 1.0 - low)
            bars.append(
                LaneBar(
                    kind=kind,
                    start=begin,
                    end=begin + width_s,
                    low=round(low, 2),
                    high=round(low + share, 2),
                    first_step=None if self._first_steps[at] < 0 else self._first_steps[at],
                    last_step=None if self._last_steps[at] < 0 else self._last_steps[at],
                )
            )
            low += share
        return bars


def _has_same_shape(before: Sequence[LaneBar], after: Sequence[LaneBar]) -> bool:
    return [(bar["kind"], bar["low"], bar["high"]) for bar in before] == [
        (bar["kind"], bar["low"], bar["high"]) for bar in after
    ]
