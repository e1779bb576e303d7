"""Imports in the middle of training, out of reach of signal handlers."""

import threading
from collections.abc import Callable

PATIENCE_S = 5.0  # the importing thread may wait for an import that this thread is in the middle of


def import_off_main_thread(work: Callable[[], object]) -> None:
    """Run ``work``, which only imports, in a thread of its own, and wait for it.

    Handlers run in the main thread alone. Python drops an exception that one raises while an import lets go of its
    lock (a weak reference's callback), so that the ``sys.exit`` of a program's SIGTERM handler would be lost, and the
    program live on. Waiting can be interrupted. What could not be imported is imported by whoever needs it.
    """
    if threading.current_thread() is not threading.main_thread():
        work()
        return
    thread = threading.Thread(target=work, name="tdbg-import", daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
