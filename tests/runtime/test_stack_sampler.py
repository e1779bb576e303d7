"""The stack of one thread, sampled from a thread beside it."""

import threading
import time
from typing import Any

import pytest

from tdbg.core.guard import Guard
from tdbg.runtime import stack_sampler
from tdbg.runtime.stack_sampler import StackSampler


def test_it_may_be_stopped_by_another_thread_while_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch of hangs begins to sample in its own thread; the training thread may end the watch at that moment."""
    sampler = StackSampler(Guard("sampler"), lambda frame: None)
    stopped: list[BaseException | None] = []

    class LateThread(threading.Thread):
        """Somebody stops the sampler between the making of the thread and its start."""

        def start(self) -> None:
            try:
                sampler.stop_sampling()
                stopped.append(None)
            except BaseException as error:
                stopped.append(error)
            super().start()

    monkeypatch.setattr(stack_sampler.threading, "Thread", LateThread)
    sampler.resume()
    assert stopped == [None]
    until = time.monotonic() + 10
    while any(thread.name == "tdbg-sampler" for thread in threading.enumerate()) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(thread.name == "tdbg-sampler" for thread in threading.enumerate())
    assert sampler.samples == 0


def test_a_sample_counts_for_the_time_since_the_one_before() -> None:
    def locate(frame: Any) -> tuple[str, ...]:
        return (frame.f_code.co_name,)

    sampler = StackSampler(Guard("sampler"), locate, samples=10, every_s=0.01)
    began = time.perf_counter()
    sampler.resume()
    while not sampler.is_done and time.perf_counter() < began + 10:
        time.sleep(0.002)
    passed = time.perf_counter() - began
    sampler.stop_sampling()
    assert sampler.samples == 10
    assert 0.05 < sum(sampler.seconds.values()) <= passed
