"""A child forked at a bad moment."""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


def fork_while_held(lock: AbstractContextManager[Any], child: Callable[[], object]) -> int:
    """Fork while another thread holds the lock; the exit status of the child, 0 if ``child()`` came back and not with False.

    A child that hangs is ended after 10 seconds.
    """
    inside, over = threading.Event(), threading.Event()

    def hold_lock() -> None:
        with lock:
            inside.set()
            over.wait()

    thread = threading.Thread(target=hold_lock)
    thread.start()
    assert inside.wait(10)
    forked = os.fork()
    if forked == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        failed = True
        try:
            failed = child() is False
        finally:
            os._exit(failed)
    over.set()
    thread.join()
    return os.waitpid(forked, 0)[1]
