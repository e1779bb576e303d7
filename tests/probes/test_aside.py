"""An exception of a signal handler comes through, even in the middle of imports."""

import signal
import threading

import pytest

from tdbg.runtime.off_thread import import_off_main_thread


def test_a_handler_s_exit_is_not_lost_and_the_work_is_done_all_the_same() -> None:
    inside, done = threading.Event(), threading.Event()

    def work() -> None:
        assert threading.current_thread() is not threading.main_thread()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        inside.set()
        done.set()

    def raise_exit(*_: object) -> None:
        raise SystemExit(3)

    before = signal.signal(signal.SIGALRM, raise_exit)
    try:
        with pytest.raises(SystemExit):
            import_off_main_thread(work)
            inside.wait(5)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert done.wait(5)


def test_from_another_thread_it_is_done_there() -> None:
    found: list[str] = []
    thread = threading.Thread(
        target=lambda: import_off_main_thread(lambda: found.append(threading.current_thread().name)), name="other"
    )
    thread.start()
    thread.join()
    assert found == ["other"]
