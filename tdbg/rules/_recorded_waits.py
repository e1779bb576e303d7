"""Waits for batches as the records of steps show them: a sample of the steps, without a probe of the loader."""

from collections import deque
from typing import NamedTuple

from tdbg.core.events import MAX_STEP, Step

OPENING_STEPS = 50  # the opening inspection makes these steps longer than steps are
SPACING_S = 0.25  # records that follow each other sooner count as one
LEAST_RECORDS = 8
LEAST_S = 10.0  # the records that are judged together span at least this time
MOST = 0.6  # of these records must show a wait that takes the bound of its step
FLOOR_MS = 5.0  # shorter waits are nobody's trouble,
LONG_FLOOR_MS, LONG_S = 1.0, 60.0  # unless they have added up
RUN_SHARE = 0.2  # of the time since the first record


class RecordedWait(NamedTuple):
    """The wait in one step on record."""

    t: float
    step: int
    wait_ms: float
    step_ms: float


class Starvation(NamedTuple):
    """What a number of records show."""

    first_step: int
    last_step: int
    records: int
    median_ms: float
    share: float  # of the time of these steps
    run_share: float  # of the time up to here, as far as the records tell


class RecordedWaits:
    """The last records of training steps of one process, at least `LEAST_S` of them, and what was waited in all."""

    def __init__(self) -> None:
        self._window: deque[RecordedWait] = deque()
        self._first_t = self._last_t = 0.0
        self._last_step = 0
        self._waited_s = 0.0
        self.batches: int | None = None  # length of the loader that feeds the training

    def add_record(self, record: Step) -> None:
        """Take the record of a training step. The first batch of a pass waits for its workers, and is left out."""
        if not OPENING_STEPS < record.step <= MAX_STEP or not record.step_ms or record.step_ms <= 0:
            return
        since_s, steps = record.t - (self._last_t or record.t), record.step - self._last_step
        self._first_t = self._first_t or record.t
        self._last_t, self._last_step = record.t, record.step
        if record.batch == 1:
            return
        wait_ms = min(max(record.loader_ms or 0.0, 0.0), record.step_ms)
        self._waited_s += max(min(wait_ms / 1e3 * steps, wait_ms / record.step_ms * since_s), 0.0)
        self.batches = record.batches or self.batches
        window = self._window
        if not window or record.t - window[-1].t >= SPACING_S:
            window.append(RecordedWait(record.t, record.step, wait_ms, record.step_ms))
            while len(window) > LEAST_RECORDS and record.t - window[1].t >= LEAST_S:
                window.popleft()

    @property
    def run_share(self) -> float:
        """The part of the time since the first record that went into waiting, estimated."""
        elapsed_s = self._last_t - self._first_t
        return min(self._waited_s / elapsed_s, 1.0) if elapsed_s > 0 else 0.0

    def find_starvation(self, bound: float) -> Starvation | None:
        """What the last records show, if waits took ``bound`` of most of these steps and of all of them together."""
        window = self._window
        if len(window) < LEAST_RECORDS or window[-1].t - window[0].t < LEAST_S or self.run_share < RUN_SHARE:
            return None
        waits = sorted(one.wait_ms for one in window)
        median_ms = waits[len(waits) // 2]
        share = sum(waits) / sum(one.step_ms for one in window)
        waited = sum(one.wait_ms >= bound * one.step_ms for one in window)
        floor_ms = LONG_FLOOR_MS if self._waited_s >= LONG_S else FLOOR_MS
        if median_ms < floor_ms or share < bound or waited < MOST * len(window):
            return None
        return Starvation(window[0].step, window[-1].step, len(window), median_ms, share, self.run_share)
