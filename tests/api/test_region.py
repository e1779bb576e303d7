"""tdbg.region: nesting, recursion, threads, tasks, decorators, traces, and the time told with each step."""

import asyncio
import json
import math
import threading
import time

import pytest
import torch

import tdbg
from tdbg.core.events import Observation
from tdbg.probes.regions import MAX_NAMES, REST, TOTALS

from .conftest import train_model


def take_totals() -> dict[str, tuple[float, int]]:
    return TOTALS.drain()


def test_nested_and_again():
    outer = tdbg.region("outer")
    for _ in range(3):
        with outer, tdbg.region("in/ner"):
            time.sleep(0.002)
    found = take_totals()
    assert {name: calls for name, (_, calls) in found.items()} == {"outer/in_ner": 3, "outer": 3}
    assert 0.006 <= found["outer/in_ner"][0] <= found["outer"][0] < 1.0
    assert take_totals() == {}


def test_recursion_counts_its_time_once():
    @tdbg.region("walk")
    def recurse_in_region(depth: int) -> int:
        time.sleep(0.002)
        return depth if depth == 0 else recurse_in_region(depth - 1)

    begun = time.perf_counter()
    recurse_in_region(5)
    elapsed = time.perf_counter() - begun
    found = take_totals()
    assert list(found) == ["walk"] and found["walk"][1] == 6
    assert 0.012 <= found["walk"][0] <= elapsed


def test_one_object_in_several_threads():
    shared, barrier = tdbg.region("shared"), threading.Barrier(3)

    def work() -> None:
        for _ in range(100):
            with shared, tdbg.region("inner"):
                pass
        barrier.wait()

    threads = [threading.Thread(target=work) for _ in range(3)]
    with tdbg.region("main"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {name: calls for name, (_, calls) in take_totals().items()} == {
        "shared/inner": 300,
        "shared": 300,
        "main": 1,
    }


def test_asyncio_tasks_do_not_mix():
    @tdbg.region("task")
    async def task(number: int) -> int:
        with tdbg.region(f"t{number}"):
            await asyncio.sleep(0.001)
        return number

    async def main() -> list[int]:
        return await asyncio.gather(*(task(number) for number in range(3)))

    assert asyncio.run(main()) == [0, 1, 2]
    assert set(take_totals()) == {"task", "task/t0", "task/t1", "task/t2"}


def test_an_exception_passes_and_is_timed():
    with pytest.raises(KeyError), tdbg.region("a"):
        raise KeyError("x")
    with tdbg.region("b"):
        pass
    assert list(take_totals()) == ["a", "b"]


def test_left_in_another_order():
    first, second = tdbg.region("first"), tdbg.region("second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    with tdbg.region("third"):
        pass
    second.__exit__(None, None, None)
    second.__exit__(None, None, None)  # once too often: nothing
    with tdbg.region("fourth"):
        pass
    assert list(take_totals()) == ["first", "first/second/third", "first/second", "fourth"]


def test_the_decorator_keeps_the_function():
    @tdbg.region("f")
    def f(a: int, *, b: int = 2) -> int:
        """Doc."""
        return a + b

    assert (f(1, b=3), f.__name__, f.__doc__) == (4, "f", "Doc.")
    with pytest.raises(TypeError, match="generator"):

        @tdbg.region("g")
        def g():
            yield 1


def test_names_are_bounded():
    for index in range(MAX_NAMES + 50):
        with tdbg.region(f"r{index}"):
            pass
    found = take_totals()
    assert len(found) == MAX_NAMES + 1 and found[REST][1] == 50


def test_it_stands_in_a_trace(tmp_path):
    with torch.profiler.profile() as profile, tdbg.region("outer"), tdbg.region("inner"):
        torch.ones(2).sum()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    assert {"outer", "outer/inner"} <= set(spans)


def test_told_with_the_step_records():
    with tdbg.debug_context("basic") as debugger:
        model = train_model(1)
        for _ in range(3):
            with tdbg.region("augment"):
                time.sleep(0.003)
            train_model(1, model=model)
        with tdbg.region("last"):
            pass
    told = [e for e in debugger.session.collect_events() if isinstance(e, Observation) and e.probe == "regions"]
    assert [event.step for event in told] == [2, 3, 4, 4]
    assert told[0].values["names"] == ["augment"] and told[0].values["ms"][0] >= 3.0
    assert told[-1].values["names"] == ["last"], "what came after the last step is told at the end"
    assert told[0].text.startswith("augment ") and told[0].text.endswith(" ms a step")


def test_in_a_run(program_runner):
    done = program_runner(
        """
        def after(step):
            with tdbg.region("report"):
                pass
        train(5, after)
        with tdbg.region("saving"):
            pass
        """,
        [],
    )
    assert done.code == 0, done.stderr
    told = [event for event in done.read_events("observation") if event["probe"] == "regions"]
    assert [event["values"]["names"] for event in told] == [["report"]] * 4 + [["report", "saving"]]
    assert sum(event["values"]["steps"] * event["values"]["calls"][0] for event in told) == 5
    assert any(line.startswith("[regions] report") for line in done.log_lines)


def test_it_is_cheap():
    best = math.inf
    for _ in range(5):
        begun = time.perf_counter()
        for _ in range(1_000):
            with tdbg.region("x"):
                pass
        best = min(best, (time.perf_counter() - begun) / 1_000)
    assert best < 60e-6, "2.4 us were measured"


def test_a_handler_of_a_signal_may_have_regions(signal_sender):
    """As one that saves a checkpoint, at the moment when a region of the program ends."""

    def enter_regions() -> None:
        for name in ("save", "step"):
            with tdbg.region(name):
                pass

    send = signal_sender(enter_regions)

    class Found(dict):
        def get(self, name):
            send()
            return super().get(name)

    TOTALS._found = Found()
    with tdbg.region("step"):
        pass
    assert {name: calls for name, (_, calls) in take_totals().items()} == {"save": 1, "step": 2}
    TOTALS.clear()
    TOTALS._found = Found()
    send = signal_sender(enter_regions)  # the lock of a forked child is another one
    with tdbg.region("step"):
        pass
    assert {name: calls for name, (_, calls) in take_totals().items()} == {"save": 1, "step": 2}
