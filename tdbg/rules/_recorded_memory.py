"""Memory as the records of steps show it: growth that goes on, without a probe that counts tensors."""

from collections import deque
from collections.abc import Sequence
from itertools import accumulate, pairwise, starmap, takewhile
from typing import NamedTuple

from tdbg.core.events import MAX_STEP, Step
from tdbg.core.steady_growth import MIN_SAMPLES, Growth, find_steady_growth, split_into_parts
from tdbg.core.window import compute_median

OPENING_STEPS = 50  # optimizer state, caches and buffers come in these
APART_STEPS = 10  # host memory is read as often; a burst of records would be a flat part of the growth
RECENT, SPREAD = 48, 96  # records kept: the last ones, and some of the whole run
LEAST_MB = 1074.0  # as MEMORY.creep_mb
LEAST_STEPS, LEAST_S = 200, 5.0
IN_ONE_PASS = 4.0  # times that, within one pass over the data: results of a pass may be kept until its end
LATER = 0.5  # of the least must come after the pass in which it began: a cache is full by then
FELL_SHARE = 0.5  # memory that fell by this part of the growth comes and goes
SLOWER = 0.7  # the pace of the second half must reach this part of that of the first
FASTER = 1.1  # and the pace before the growth must not be more than that many times that of the growth
AGAIN = 1.1  # times as much as when it was last looked into, which takes some milliseconds
KNEE = 0.03  # of the growth: up to here it had not begun
ACTIVATIONS = 0.25  # of the growth: activations that grow as much show that batches or sequences do
SAME_PEAK_MB = 1.0
TOUCHED_MS_PER_GB, TOUCHED_RATIO = 3.0, 1.1  # memory that each forward pass uses makes it longer by so much


class RecordedMemory(NamedTuple):
    """Memory at the end of one step on record."""

    t: float
    step: int
    mb: float
    epoch: int | None
    side: float  # host: milliseconds of the forward pass; device: how far the peak lies above it


class Leak(NamedTuple):
    """What the records show."""

    growth: Growth
    records: int
    has_passes: bool  # over the data, as far as is known: without them nothing tells a buffer that fills from a leak
    is_below_peak: bool  # of before, which hides what steps use

    @property
    def is_sure(self) -> bool:
        """True if it is more than what may be meant, and not what steps use."""
        return not self.is_below_peak and (self.has_passes or self.growth.mb >= IN_ONE_PASS * LEAST_MB)


class MemoryTrail:
    """The memory of one kind, host or device, over the records of one process; bounded."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._recent: deque[RecordedMemory] = deque(maxlen=RECENT)
        self._spread: list[RecordedMemory] = []
        self._stride = 1
        self._count = 0
        self._judged_mb = 0.0  # how far it had risen when this was last looked into

    def add_record(self, record: Step) -> None:
        """Take the record of a training step."""
        mb = record.host_mb if self.kind == "host" else record.device_mb
        if mb is None or not OPENING_STEPS < record.step <= MAX_STEP:
            return
        if self._recent and 0 <= record.step - self._recent[-1].step < APART_STEPS:
            return
        side = record.forward_ms if self.kind == "host" else (record.device_peak_mb or mb) - mb
        point = RecordedMemory(record.t, record.step, mb, record.epoch, side or 0.0)
        self._recent.append(point)
        if self._count % self._stride == 0:
            self._spread.append(point)
            if len(self._spread) > SPREAD:
                del self._spread[1::2]
                self._stride *= 2
        self._count += 1

    def find_leak(self) -> Leak | None:
        """The longest steady growth up to now if it is worth a word."""
        points = [point for point in self._spread if point.step < self._recent[0].step] if self._recent else []
        points += self._recent
        if len(points) < MIN_SAMPLES:
            return None
        risen_mb = min(point.mb for point in points[-3:]) - min(point.mb for point in points)
        if risen_mb < max(LEAST_MB, AGAIN * self._judged_mb):
            return None
        self._judged_mb = risen_mb
        for start in range(len(points) - MIN_SAMPLES + 1):
            if _grows_steadily(points[start:]) and not _has_slowed_down(points[:start], points[start:]):
                return self._judge_growth(points, _cut_flat_beginning(points[start:]))
        return None

    def _judge_growth(self, points: Sequence[RecordedMemory], growing: Sequence[RecordedMemory]) -> Leak | None:
        first, last = growing[0], growing[-1]
        growth = Growth(first.step, last.step, first.mb, last.mb)
        if len(growing) < MIN_SAMPLES or not _is_enough(growing, self.kind) or _slows_down(growing):
            return None
        risen = growing if self.kind == "host" else _cut_older_peak(growing)
        is_below_peak = risen[-1].mb - risen[0].mb < LATER * LEAST_MB
        if not is_below_peak and _is_used_by_steps(risen, self.kind):
            return None
        if _find_largest_fall(points) > FELL_SHARE * growth.mb:
            return None
        return Leak(growth, len(growing), last.epoch is not None, is_below_peak)


def _grows_steadily(points: Sequence[RecordedMemory]) -> bool:
    return find_steady_growth([(point.step, point.mb) for point in points], LEAST_STEPS) is not None


def _cut_flat_beginning(points: Sequence[RecordedMemory]) -> Sequence[RecordedMemory]:
    """The points from the last one on whose memory is still that of the first."""
    bound = points[0].mb + KNEE * (points[-1].mb - points[0].mb)
    return points[max(index for index, point in enumerate(points) if point.mb <= bound) :]


def _is_enough(points: Sequence[RecordedMemory], kind: str) -> bool:
    """True if memory grew by enough for the steps, the time and the passes it grew in."""
    first, last = points[0], points[-1]
    grown_mb = last.mb - first.mb
    if last.t - first.t < LEAST_S or last.step - first.step < LEAST_STEPS or grown_mb < LEAST_MB:
        return False
    later = _cut_first_pass(points)
    if last.epoch is None:
        return True
    if not later:  # caches fill in the first pass
        return grown_mb >= IN_ONE_PASS * LEAST_MB and (kind == "device" or last.epoch != 0)
    later_mb = later[-1].mb - later[0].mb
    later_pace, pace = _compute_pace(later[0][1:3], later[-1][1:3]), _compute_pace(first[1:3], last[1:3])
    return later_mb >= LATER * LEAST_MB and later_pace >= SLOWER * pace


def _cut_first_pass(points: Sequence[RecordedMemory]) -> Sequence[RecordedMemory]:
    """The points after the pass in which memory began to grow, and after each first pass: a program may train twice."""
    begun = len(list(takewhile(lambda point: point.epoch == points[0].epoch, points)))
    return points[max([begun, *(index + 1 for index, point in enumerate(points) if point.epoch == 0)]) :]


def _find_places(points: Sequence[RecordedMemory]) -> list[tuple[int, float]]:
    """Where memory was lowest in each fifth: what is in use for a moment is not memory that stays."""
    parts = split_into_parts([(point.step, point.mb) for point in points])
    return [min(part, key=lambda place: place[1]) for part in parts]


def _compute_pace(before: tuple[int, float], after: tuple[int, float]) -> float:
    """MB a step between two places."""
    return (after[1] - before[1]) / max(after[0] - before[0], 1)


def _slows_down(points: Sequence[RecordedMemory]) -> bool:
    """True for what levels off: a cache, an allocator that finds its size."""
    places = _find_places(points)
    middle = places[len(places) // 2]
    return _compute_pace(middle, places[-1]) < SLOWER * _compute_pace(places[0], middle)


def _has_slowed_down(before: Sequence[RecordedMemory], points: Sequence[RecordedMemory]) -> bool:
    """True if memory grew faster before: what levels off seems straight in its last part."""
    if not before:
        return False
    places = (
        _find_places(before) if len(before) >= MIN_SAMPLES else [(one.step, one.mb) for one in (*before, points[0])]
    )
    earlier = compute_median(starmap(_compute_pace, pairwise(places)))
    ends = _find_places(points)
    return earlier > FASTER * _compute_pace(ends[0], ends[-1])


def _cut_older_peak(points: Sequence[RecordedMemory]) -> Sequence[RecordedMemory]:
    """The points from the last one on whose peak is still that of the first: it is the highest of the whole run."""
    bound = points[0].mb + points[0].side + SAME_PEAK_MB
    return points[max(index for index, point in enumerate(points) if point.mb + point.side <= bound) :]


def _is_used_by_steps(points: Sequence[RecordedMemory], kind: str) -> bool:
    """True if batches or sequences grow: on a device activations do as well, on the host each forward pass takes longer."""
    fifth = max(len(points) // 5, 1)
    before, after = (compute_median(point.side for point in part) for part in (points[:fifth], points[-fifth:]))
    grown_mb = points[-1].mb - points[0].mb
    if kind == "device":
        return after - before > ACTIVATIONS * grown_mb
    return after - before > TOUCHED_MS_PER_GB * grown_mb / 1e3 and after > TOUCHED_RATIO * before


def _find_largest_fall(points: Sequence[RecordedMemory]) -> float:
    """How far memory fell below what it had been before."""
    values = [point.mb for point in points]
    return max(high - mb for high, mb in zip(accumulate(values, max), values, strict=True))
