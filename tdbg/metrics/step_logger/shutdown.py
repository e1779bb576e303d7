"""Write what is buffered when the process ends: at exit, at an exception and at SIGTERM.

Handlers are chained, never replaced: the one that the program installed is still called.
"""

import atexit
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any
from weakref import WeakSet

from tdbg.core.guard import Guard, guarded

Handler = Callable[[int, FrameType | None], Any] | int | None


class ShutdownHandler:
    """Calls ``close`` of each registered writer when the process ends; ``flush`` if the program has a SIGTERM handler of
    its own and may go on.

    While a writer is at work (`busy` above 0), a signal is deferred until it is done: nothing is written half or twice.
    """

    def __init__(self) -> None:
        self._writers: WeakSet[Any] = WeakSet()
        self._pid = 0
        self._previous_handler: Handler = None
        self._signal_pending: FrameType | bool | None = False
        self.busy = 0
        self._lock = threading.RLock()  # the handler may come while this very thread holds it

    def register(self, one: object) -> None:
        """Have ``one.close()`` called at the end; held weakly."""
        if self._pid != os.getpid():  # the first writer, or a forked child: the parent keeps its own
            self._writers = WeakSet()
            self._pid = os.getpid()
            atexit.register(self._at_exit)
            self._install_handler()
        self._writers.add(one)

    def _install_handler(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # signals are the main thread's; atexit does the rest
        before = signal.getsignal(signal.SIGTERM)
        if before is None or before is signal.SIG_IGN or before == self._on_sigterm:
            return  # not Python's, or the program wants to live on
        self._previous_handler = before
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        mine = self._pid == os.getpid()  # not in a forked child, such as a worker of a Pool, that registered nobody
        if mine and self.busy:
            self._signal_pending = True
            return
        if mine:
            self._call_each("flush" if callable(self._previous_handler) else "close")
        if callable(self._previous_handler):
            self._previous_handler(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def begin_write(self) -> None:
        """A registered writer begins to write."""
        with self._lock:
            self.busy += 1

    def end_write(self) -> None:
        """The writer is done; raise a signal that arrived meanwhile again."""
        with self._lock:
            self.busy = max(self.busy - 1, 0)  # it may have begun before a fork
            again, self._signal_pending = self._signal_pending and not self.busy, self._signal_pending and self.busy > 0
        if again:
            os.kill(os.getpid(), signal.SIGTERM)

    def reset_after_fork(self) -> None:
        """In a forked child: forget the parent's threads that were writing or held the lock."""
        self._lock = threading.RLock()
        self.busy, self._signal_pending = 0, False

    def _at_exit(self) -> None:
        if self._pid == os.getpid():
            self._call_each("close")

    def _call_each(self, call: str) -> None:
        for one in list(self._writers):
            with guarded("the end of a program is no place for tdbg's failures"):
                getattr(one, call)()


SHUTDOWN = ShutdownHandler()
os.register_at_fork(after_in_child=lambda: Guard("metrics at exit").call_guarded(SHUTDOWN.reset_after_fork))
