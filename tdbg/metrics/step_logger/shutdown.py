"""The end of a process, however it comes: what is buffered is written at exit, at an exception and at SIGTERM.

Handlers are chained, never replaced: what the program had installed is called as before.
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


class Ending:
    """Calls ``close`` of who registers when the process ends; ``flush``, where the program has a handler of its own for
    SIGTERM and may go on.

    While one of them is at work (`busy` above 0) a signal waits until it is done: nothing is written half or twice.
    """

    def __init__(self) -> None:
        self._those: WeakSet[object] = WeakSet()
        self._pid = 0
        self._before: Handler = None
        self._waiting: FrameType | bool | None = False
        self.busy = 0
        self._lock = threading.RLock()  # the handler may come while this very thread holds it

    def register(self, one: object) -> None:
        """Have ``one.close()`` called at the end; held weakly."""
        if self._pid != os.getpid():  # first of all, or in a forked child: what the parent had is the parent's
            self._those = WeakSet()
            self._pid = os.getpid()
            atexit.register(self._at_exit)
            self._chain()
        self._those.add(one)

    def _chain(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # signals are the main thread's; atexit does the rest
        before = signal.getsignal(signal.SIGTERM)
        if before is None or before is signal.SIG_IGN or before == self._terminated:
            return  # not Python's, or the program wants to live on
        self._before = before
        signal.signal(signal.SIGTERM, self._terminated)

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        mine = self._pid == os.getpid()  # not in a forked child, such as a worker of a Pool, that registered nobody
        if mine and self.busy:
            self._waiting = True
            return
        if mine:
            self._each("flush" if callable(self._before) else "close")
        if callable(self._before):
            self._before(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def enter(self) -> None:
        """One of those registered begins to write."""
        with self._lock:
            self.busy += 1

    def leave(self) -> None:
        """It is done; a signal that came meanwhile comes again, to the main thread as all do."""
        with self._lock:
            self.busy = max(self.busy - 1, 0)  # it may have begun before a fork
            again, self._waiting = self._waiting and not self.busy, self._waiting and self.busy > 0
        if again:
            os.kill(os.getpid(), signal.SIGTERM)

    def forked(self) -> None:
        """In a forked child: whoever was at work there, or held the lock, is a thread of the parent."""
        self._lock = threading.RLock()
        self.busy, self._waiting = 0, False

    def _at_exit(self) -> None:
        if self._pid == os.getpid():
            self._each("close")

    def _each(self, call: str) -> None:
        for one in list(self._those):
            with guarded("the end of a program is no place for tdbg's failures"):
                getattr(one, call)()


ENDING = Ending()
os.register_at_fork(after_in_child=lambda: Guard("metrics at exit").call(ENDING.forked))
