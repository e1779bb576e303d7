"""Where one thread spends its time: a short sampling of its stack from a thread beside it."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from types import FrameType

from tdbg.core.guard import Guard
from tdbg.runtime.thread_stacks import get_frame

EVERY_S = 0.005
SAMPLES = 64  # some 0.3 s
LONGEST_S = 5.0  # a thread that is busy so little is not worth more samples
JOIN_S = 1.0

Place = tuple[str, ...]


class StackSampler:
    """Samples the stack of one thread between `resume` and `pause`, until it has enough samples.

    locate: what a stack stands for, by its innermost frame; None for one that does not count. guard: of the part of
    tdbg that asks. A sample counts for the time since the one before, so that a call that lets no other thread run
    counts for as long as it took. It ends after so many samples, or longest_s. Cost: 20 us a sample; the thread ends by
    itself.
    """

    def __init__(
        self,
        guard: Guard,
        locate: Callable[[FrameType], Place | None],
        *,
        samples: int = SAMPLES,
        every_s: float = EVERY_S,
        longest_s: float = LONGEST_S,
    ) -> None:
        self._guard = guard
        self._enough, self._every_s, self._longest_s = samples, every_s, longest_s
        self._locate = locate
        self.seconds: defaultdict[Place, float] = defaultdict(float)
        self.samples = 0
        self._target = 0
        self._since = self._last_at = 0.0  # when what is sampled began, 0 while it does not run; the last sample
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_done(self) -> bool:
        """True if no more samples will be taken."""
        return self._end.is_set()

    def resume(self, thread: int = 0) -> None:
        """A thread (0: the calling one) begins with what is to be sampled."""
        self._since = time.perf_counter()
        if self._thread is None:
            self._target = thread or threading.get_ident()
            sampling = threading.Thread(target=self._sample_stacks, name="tdbg-sampler", daemon=True)
            sampling.start()
            self._thread = sampling  # after start(): another thread may stop it, and join only one that has started

    def pause(self) -> None:
        """The thread goes on to something else."""
        self._since = 0.0

    def stop_sampling(self) -> None:
        """End the thread beside it, and wait for that."""
        self._end.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def _sample_stacks(self) -> None:
        until = time.perf_counter() + self._longest_s
        while not self._end.wait(self._every_s) and self._guard.on:
            self._guard.call_guarded(self.take_sample, time.perf_counter())
            if self.samples >= self._enough or time.perf_counter() >= until:
                break
        self._end.set()

    def take_sample(self, now: float) -> None:
        """One look at the thread."""
        since, last_at, self._last_at = self._since, self._last_at, now
        frame = get_frame(self._target) if since else None
        place = self._locate(frame) if frame is not None else None
        if place is not None:
            self.samples += 1
            self.seconds[place] += max(now - max(since, last_at), 0.0)
