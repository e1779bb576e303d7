"""Which lines of the program the training thread is at: a sample now and then, to be compared between ranks."""

from collections import defaultdict
from collections.abc import Callable
from types import FrameType

from tdbg.core.frames import get_line
from tdbg.core.guard import Guard
from tdbg.runtime.code_places import short_path
from tdbg.runtime.stack_sampler import Place, StackSampler
from tdbg.runtime.thread_stacks import is_foreign_file

FIRST_UPDATES, FIRST_S = 20, 10.0  # the first sample: after so many updates, or so long after the first
AGAIN_S = 20.0  # between the first two; then twice as long each time
SAMPLES, EVERY_S, LONGEST_S = 64, 0.025, 5.0
KEPT = 8
LEAST_SAMPLES = 16

Lines = list[tuple[str, str, float]]


class TrainingLines:
    """Samples the training thread's stack for some two seconds, seldom.

    report: called with (file:line, function, part of the samples' time), the largest first. Cost: 64 looks of 20 us in
    each sample, in a thread of its own; none in a step.
    """

    def __init__(self, guard: Guard, find_thread: Callable[[], int], report: Callable[[Lines], None]) -> None:
        self._guard, self._find_thread, self._report = guard, find_thread, report
        self._first_update_t = 0.0
        self._due_t = 0.0
        self._pause_s = AGAIN_S
        self._sampler: StackSampler | None = None

    def check_due(self, now: float, updates: int) -> None:
        """Begin a sample if it is time, or report the one that is done. Called every two seconds."""
        sampler = self._sampler
        if sampler is not None:
            if sampler.is_done:
                self._sampler = None
                self._due_t, self._pause_s = now + self._pause_s, 2 * self._pause_s
                if sampler.samples >= LEAST_SAMPLES:
                    self._report(_rank_lines(sampler.seconds))
            return
        if updates and not self._first_update_t:
            self._first_update_t = now
        begun = updates >= FIRST_UPDATES or (updates > 1 and now - self._first_update_t >= FIRST_S)
        if begun and now >= self._due_t:
            self._sampler = StackSampler(
                self._guard, locate_own_line, samples=SAMPLES, every_s=EVERY_S, longest_s=LONGEST_S
            )
            self._sampler.resume(self._find_thread())

    def stop_sampling(self) -> None:
        """End a sample that is under way."""
        if self._sampler is not None:
            self._sampler.stop_sampling()


def locate_own_line(frame: FrameType) -> Place:
    """(file:line, function) of the innermost frame of the program's own."""
    current: FrameType | None = frame
    while current is not None and is_foreign_file(current.f_code.co_filename):
        current = current.f_back
    if current is None:
        return "", ""
    return f"{short_path(current.f_code.co_filename)}:{get_line(current)}", current.f_code.co_qualname


def _rank_lines(seconds: defaultdict[Place, float]) -> Lines:
    total = sum(seconds.values()) or 1.0
    largest = sorted(seconds.items(), key=lambda item: -item[1])[:KEPT]
    return [(place[0], place[1], round(spent / total, 3)) for place, spent in largest if place[0]]
