"""A thread that notices when a process has gone quiet."""

import threading
import time
from collections.abc import Callable

from tdbg.core.guard import Guard

MAX_TOLD = 12  # the time doubles each time: 30 s becomes 17 hours


class Watchdog:
    """Calls ``quiet`` once nothing has happened for a while, again at twice that time and so on, ``stirred`` after.

    pulse: a value that changes with every sign of life. quiet: (seconds, how often told so far). stirred: called
    with the seconds that were quiet, from the thread, or from whoever calls `look` first. The two take turns: a look
    that comes while `quiet` still writes is left to the next one.
    """

    def __init__(
        self,
        quiet_s: float,
        pulse: Callable[[], object],
        quiet: Callable[[float, int], None],
        stirred: Callable[[float], None],
    ) -> None:
        self.quiet_s = quiet_s
        self.told = 0
        self._guard = Guard("watchdog")
        self._pulse, self._quiet, self._stirred = pulse, quiet, stirred
        self._last: object = None
        self._since = time.monotonic()
        self._turn = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch_pulse, name="tdbg-watchdog", daemon=True)

    def start_watching(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop_watching(self) -> None:
        """Watch no longer."""
        self._end.set()

    def _watch_pulse(self) -> None:
        while not self._end.wait(min(self.quiet_s / 8, 2.0)) and self._guard.on:
            self._guard.call_guarded(self.check_pulse, time.monotonic())

    def check_pulse(self, now: float, wait_s: float = 0.0) -> None:
        """Compare the pulse with the last one, unless another thread is at it for ``wait_s`` more. Cost: 2 us."""
        if not self._turn.acquire(timeout=wait_s):
            return
        try:
            self._compare_pulse(now)
        finally:
            self._turn.release()

    def _compare_pulse(self, now: float) -> None:
        pulse = self._pulse()
        if pulse != self._last:
            told, since, self.told = self.told, self._since, 0
            self._last, self._since = pulse, now
            if told:
                self._stirred(now - since)
        elif now - self._since >= self.quiet_s * 2**self.told and self.told < MAX_TOLD:
            self.told += 1
            self._quiet(now - self._since, self.told)
