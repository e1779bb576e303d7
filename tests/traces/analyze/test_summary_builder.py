"""A trace's summary, held against small computations of another kind."""

import json
import random
import statistics
import time
from collections import defaultdict

import numpy as np
import pytest
from traces.material import dense, gpu, launch, loaded, memory, note, op, real, span, step, write

from tdbg.traces.analyze import cpu_timeline, device_timeline, summary_builder, summary_figures
from tdbg.traces.analyze.cpu_timeline import Threads
from tdbg.traces.analyze.summary_builder import summarize
from tdbg.traces.parse import event_names, event_sorting
from tdbg.traces.parse.event_stream import Event
from tdbg.traces.parse.trace_files import TraceFile
from tdbg.traces.render import flame_rows
from tdbg.traces.render.summary_text import print_summary


def us(value):
    return value * 1000


def covered(pairs):
    """The length of a union of spans, by one sweep in whole numbers."""
    total, reach = 0, float("-inf")
    for start, end in sorted(pairs):
        total += max(0, end - max(start, reach))
        reach = max(reach, end)
    return total


def both(one, other):
    """What two unions have in common: by inclusion and exclusion."""
    return covered(one) + covered(other) - covered([*one, *other])


def on_device(events):
    kernels, copies = defaultdict(list), []
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memset", "gpu_memcpy"):
            pair = (event["ts"], event["ts"] + event["dur"])
            if event["cat"] == "gpu_memcpy":
                copies.append(pair)
            else:
                kernels["nccl" in event["name"].lower()].append(pair)
    return kernels[False], kernels[True], copies


@pytest.mark.parametrize(
    ("name", "busy", "overlap"), [("control.json.gz", 83.64, 46.64), ("sampled_rank-0.json.gz", 44.79, 14.95)]
)
def test_the_share_that_a_real_gpu_is_busy_and_what_it_hides(name, busy, overlap):
    path = real(name)
    device = summarize(path).device
    compute, collective, copies = on_device(loaded(path)["traceEvents"])
    every = [*compute, *collective, *copies]
    span = max(end for _, end in every) - min(start for start, _ in every)
    assert (device.end - device.start, device.busy) == (us(span), us(covered(every)))
    assert (device.compute, device.communication) == (us(covered(compute)), us(covered(collective)))
    assert device.overlap == us(both(compute, collective))
    assert round(100 * device.busy / (device.end - device.start), 2) == busy
    assert round(100 * device.overlap / device.communication, 2) == overlap


@pytest.mark.parametrize(
    ("name", "median", "p90", "bound"),
    [("control.json.gz", 585, 9133.6, 14.05), ("sampled_rank-0.json.gz", 10802, 55396.3, 23.15)],
)
def test_how_long_real_kernels_wait_after_their_launch_and_the_gpu_for_one(name, median, p90, bound):
    path = real(name)
    calls, work, delays = {}, defaultdict(list), []
    for event in loaded(path)["traceEvents"]:
        if event.get("cat") == "cuda_runtime" and event["name"].startswith(("cudaLaunch", "cudaMemcpy", "cudaMemset")):
            calls[event["args"]["correlation"]] = event["ts"] + event["dur"]
    for event in loaded(path)["traceEvents"]:
        if event.get("cat") in ("kernel", "gpu_memset", "gpu_memcpy"):
            call = calls.get(event["args"]["correlation"])
            work[event["ts"]].append((event["ts"] + event["dur"], call))
            if event["cat"] == "kernel" and call is not None:
                delays.append(max(event["ts"] - call, 0))
    reach, late = min(work), 0
    for begin in sorted(work):
        known = [call for _, call in work[begin] if call is not None]
        if begin > reach and known:
            late += min(max(min(known), reach), begin) - reach
        reach = max(reach, *(end for end, _ in work[begin]))
    device = summarize(path).device
    assert device.launched == len(delays) > 1000
    assert (device.delay, device.delay_p90) == (
        us(statistics.median(delays)),
        round(us(statistics.quantiles(delays, n=10, method="inclusive")[8])),
    )
    assert device.unlaunched == us(late)
    assert (device.delay / 1000, device.delay_p90 / 1000) == (median, p90)
    assert round(100 * device.unlaunched / (device.end - device.start), 2) == bound


@pytest.mark.parametrize("behind", [True, False])
def test_the_time_from_launch_to_start_and_the_time_without_a_launch(tmp_path, behind):
    events = [
        step(1, 0, 200),
        launch(0, 5, 1),
        launch(5, 5, 2),
        launch(60, 10, 3),
        launch(75, 30, 4, name="cudaMemcpyAsync"),
        launch(110, 50, 5),
        gpu("a", 10, 20, 1),  # 5 us after its launch
        gpu("b", 30, 20, 2),  # queued for 20
        gpu("ncclDevKernel_AllReduce", 80, 10, 3),  # 10 after its launch; nothing ran from 50 on, no launch until 70
        gpu("Memcpy HtoD (Pinned -> Device)", 100, 10, 4, cat="gpu_memcpy", bytes=8),  # before its call returned
        gpu("c", 120, 10, 5),  # so too
        gpu("unknown", 150, 10, 77),
    ]
    if behind:
        events.sort(key=lambda event: event["cat"] == "cuda_runtime")
    device = summarize(write(tmp_path / "t.json", events)).device
    assert (device.launches, device.launched) == (5, 4)
    assert (device.delay, device.delay_p90) == (us(7.5), us(17))  # of 0, 5, 10 and 20
    assert device.unlaunched == us(20 + 10 + 10)


def test_names_of_tensor_cores_on_a_real_gpu():
    found = defaultdict(int)
    for work in summarize(real("control.json.gz")).kernels:
        found[work.kind] += work.total
    assert found["tensor"] == 66_811_000
    assert found["matrix"] == 11_002_000  # without fbgemm: its permutations multiply nothing


@pytest.mark.parametrize("name", ["control.json.gz", "sampled_rank-0.json.gz"])
def test_the_bar_of_each_real_step_adds_up(name):
    path = real(name)
    events = loaded(path)["traceEvents"]
    compute, collective, _ = on_device(events)
    steps = {event["name"]: event for event in events if str(event.get("name")).startswith("ProfilerStep#")}
    found = summarize(path)
    assert [step.number for step in found.steps] == sorted(int(name.partition("#")[2]) for name in steps)
    for one in found.steps:
        event = steps[f"ProfilerStep#{one.number}"]
        low, high = event["ts"], event["ts"] + event["dur"]
        inside = [
            [(max(a, low), max(min(b, high), low)) for a, b in pairs if b > low] for pairs in (compute, collective)
        ]
        assert one.length == us(event["dur"]) == sum(one.bar.values())
        assert min(one.bar.values()) >= 0
        assert one.spent["compute"] == us(covered(inside[0]))
        assert one.bar[event_names.COMMUNICATION] == us(covered(inside[1]) - both(*inside))


@pytest.mark.parametrize("name", ["control.json.gz", "sampled_rank-0.json.gz"])
def test_own_time_of_real_operators(name):
    """Held against a computation that looks for the parent of every operator in all of its thread."""
    path = real(name)
    threads = defaultdict(list)
    for event in loaded(path)["traceEvents"]:
        if event.get("cat") == "cpu_op":
            threads[event["tid"]].append((event["ts"], -event["dur"], event["name"]))
    own, total, calls = defaultdict(int), defaultdict(int), defaultdict(int)
    for events in threads.values():
        stack = []
        for ts, negative, called in sorted(events, key=lambda event: event[:2]):
            dur = round(-negative)
            while stack and stack[-1][0] <= ts:
                stack.pop()
            if stack:
                own[stack[-1][1]] -= min(dur, stack[-1][0] - ts)
            own[called] += dur
            total[called] += dur
            calls[called] += 1
            stack.append((ts + dur, called))
    found = defaultdict(lambda: [0, 0, 0])
    for one in summarize(path).operators:
        for place, value in enumerate((one.own, one.total, one.calls)):
            found[one.name][place] += value
    assert set(found) == set(own)
    for called, (own_ns, total_ns, count) in found.items():
        assert (total_ns, count) == (us(total[called]), calls[called])
        assert abs(own_ns - us(own[called])) <= us(1) * count  # spans of equal start have no order


def test_a_step_on_the_cpu(tmp_path):
    events = [
        step(7, 1000, 100),
        note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1000, 20),
        op("aten::stack", 1005, 10),
        op("aten::linear", 1025, 10),
        op("aten::addmm", 1026, 8),
        op("autograd::engine::evaluate_function: AddmmBackward0", 1040, 30),
        op("aten::mm", 1045, 20),
        note("Optimizer.step#SGD.step", 1075, 20),
        op("aten::_foreach_add_", 1080, 10),
        step(8, 1100, 50),
        op("aten::linear", 1110, 10),
    ]
    found = summarize(write(tmp_path / "t.json", events))
    first, second = found.steps
    assert (first.number, first.length, second.number) == (7, us(100), 8)
    assert first.bar == {
        "input": us(20),
        "forward": us(10),
        "backward": us(30),
        "optimizer": us(20),
        "communication": 0,
        "other": us(20),
    }
    assert second.bar["forward"] == us(10) and second.bar["other"] == us(40)
    assert first.spent["forward"] == us(30)  # with what runs inside input and optimizer
    by_name = {one.name: one for one in found.operators}
    assert (by_name["aten::linear"].calls, by_name["aten::linear"].total, by_name["aten::linear"].own) == (
        2,
        us(20),
        us(12),
    )
    assert found.recorded == ["steps"] and found.device is None and not found.problems


def test_collectives_inside_of_an_optimizer_are_communication(tmp_path):
    events = [
        step(1, 0, 100),
        note("Optimizer.step#ZeroRedundancyOptimizer.step", 10, 80),
        op("aten::_foreach_add_", 20, 20),
        op("c10d::broadcast_", 40, 5),
        note("gloo:broadcast", 30, 40, tid=2),  # from 20 to 40 the optimizer computes
    ]
    found = summarize(write(tmp_path / "t.json", events)).steps[0]
    assert (found.bar["optimizer"], found.bar["communication"], found.bar["other"]) == (us(50), us(30), us(20))
    assert found.spent["optimizer"] == us(80)


def test_a_step_on_an_accelerator(tmp_path):
    """Kernels belong to what launched them; the loader counts only while the device has nothing to do."""
    events = [
        step(1, 0, 100),
        note("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 10),
        op("aten::linear", 10, 10),
        launch(12, 2, 1),
        op("autograd::engine::evaluate_function: A", 20, 20, tid=2),
        launch(22, 2, 2, tid=2),
        launch(24, 2, 3, tid=2),
        note("Optimizer.step#Adam.step", 40, 20),
        launch(45, 2, 4),
        gpu("old", 0, 4, 99),
        gpu("linear", 15, 15, 1),
        gpu("grad", 30, 20, 2),
        gpu("ncclKernel_AllReduce", 40, 20, 3, stream=9),
        gpu("adam", 62, 8, 4),
        gpu("Memcpy HtoD (Pageable -> Device)", 68, 12, 5, cat="gpu_memcpy", bytes=64),
        span("cudaDeviceSynchronize", 100, 40, "cuda_runtime"),
    ]
    found = summarize(write(tmp_path / "t.json", events))
    assert found.steps[0].bar == {
        "input": us(6),
        "h2d": us(10),
        "forward": us(15),
        "backward": us(20),
        "optimizer": us(8),
        "communication": us(10),
        "copy": 0,
        "idle": us(100 - 6 - 10 - 15 - 20 - 8 - 10 - 4),
        "other": us(4),
    }
    assert (found.device.overlap, found.device.communication) == (us(10), us(20))
    assert [(one.name, one.kind, one.nbytes) for one in found.copies] == [
        ("Memcpy HtoD (Pageable -> Device)", "HtoD", 64)
    ]
    assert found.closing_wait == us(40) and found.waits == []
    assert found.recorded == ["device", "steps"]


def test_several_accelerators_of_one_process_are_told_as_one_and_it_is_said(tmp_path):
    events = [step(1, 0, 100), op("aten::mm", 0, 10), gpu("k", 10, 40, 1)]
    other = gpu("k", 30, 40, 2)
    other["args"]["device"] = 1
    assert (one := summarize(write(tmp_path / "t.json", events))).device.count == 1 and one.problems == []
    found = summarize(write(tmp_path / "t.json", [*events, other]))
    assert found.device.count == 2 and found.steps[0].spent["busy"] == us(60)
    assert found.problems == [
        "2 accelerators ran its kernels and are told of as one: busy while any is, idle while none is"
    ]


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (3, 1, 0, 4, 2), (2, 4, 3, 1, 0)])
def test_each_of_several_accelerators_has_its_busy_time(tmp_path, order, capsys):
    ran = [
        gpu("k", 0, 40, 1),
        gpu("ncclDevKernel_AllReduce", 30, 20, 2, stream=9),
        gpu("Memcpy HtoD", 60, 10, 3, cat="gpu_memcpy", bytes=1),
        gpu("k", 20, 30, 4),
        gpu("Memset", 90, 10, 5, cat="gpu_memset"),
    ]
    for one, device in zip(ran, (0, 0, 0, 1, 1), strict=True):
        one["args"]["device"] = device
    found = summarize(write(tmp_path / "t.json", [step(1, 0, 100), *(ran[at] for at in order)]))
    assert found.device.busy_of == {"0": us(60), "1": us(40)} and found.device.busy == us(70)
    print_summary([(TraceFile(tmp_path / "t.json", None), found)], 10, False)
    assert "device 0: busy 60.0%; device 1: busy 40.0%" in capsys.readouterr().out
    alone = summarize(write(tmp_path / "t.json", [one for one in ran if not one["args"]["device"]]))
    assert alone.device.busy_of == {}


def test_any_number_of_accelerators_is_told_of_up_to_a_limit(tmp_path):
    ran = [gpu("k", at, 1, at) for at in range(200)]
    for at, one in enumerate(ran):
        one["args"]["device"] = at
    found = summarize(write(tmp_path / "t.json", ran)).device
    assert len(found.busy_of) == found.count == 64 and list(found.busy_of)[:3] == ["0", "1", "2"]


def test_a_wait_before_the_last_launch_is_the_programs(tmp_path):
    wait = span("cudaDeviceSynchronize", 5, 10, "cuda_runtime")
    events = [step(1, 0, 100), wait, launch(50, 1, 1), gpu("k", 60, 5, 1)]
    found = summarize(write(tmp_path / "t.json", events))
    assert found.closing_wait == 0 and found.waits[0].total == us(10)
    assert found.steps[0].spent["wait"] == us(10)


def test_a_wait_within_the_last_step_is_the_programs(tmp_path):
    """Many a loop synchronises at the end of a step, to take the time."""
    events = [
        step(1, 0, 100),
        launch(5, 1, 1),
        gpu("k", 10, 5, 1),
        span("cudaDeviceSynchronize", 60, 30, "cuda_runtime"),
    ]
    found = summarize(write(tmp_path / "t.json", events))
    assert found.closing_wait == 0 and found.steps[0].spent["wait"] == us(30)
    closing = span("cudaDeviceSynchronize", 101, 9, "cuda_runtime")
    found = summarize(write(tmp_path / "t.json", [*events, closing]))
    assert found.closing_wait == us(9) and found.steps[0].spent["wait"] == us(30)


def test_a_trace_of_kernels_alone_has_a_verdict(tmp_path):
    found = summarize(write(tmp_path / "t.json", [gpu("k", 10, 5, 1), gpu("k", 30, 5, 2)]))
    assert summary_figures.verdict(found) == "most of a step is an idle accelerator: 60%"


def test_a_kernel_of_unknown_launch_is_of_no_span_that_begins_before_the_first_event(tmp_path):
    events = [op("aten::mm", 1000, 10), note("Optimizer.step#A.step", 990, 300), step(1, 980, 400)]
    found = summarize(write(tmp_path / "t.json", [*events, gpu("k", 1300, 50, 7)]))
    assert (found.steps[0].bar["optimizer"], found.steps[0].bar["other"]) == (0, us(50))


def test_without_steps_the_whole_is_one(tmp_path):
    found = summarize(write(tmp_path / "t.json", [op("aten::mm", 5, 10), op("aten::mm", 20, 10)]))
    assert [(one.number, one.length, one.bar["forward"]) for one in found.steps] == [(None, us(25), us(20))]


def test_a_step_that_the_program_ended_in_is_none(tmp_path):
    events = [step(3, 0, 100), op("aten::mm", 5, 10)]
    head = {"tdbg": {"first_step": 3, "wanted": 2, "partial_step": 3}}
    found = summarize(write(tmp_path / "t.json", events, head=head))
    assert [one.number for one in found.steps] == [None] and "steps" not in found.recorded
    assert found.problems == ["its window holds 0 of 2 steps: the program ended before"]


def test_what_the_window_of_a_profile_ends_in_is_not_counted(tmp_path):
    """The step that a program broke off in, and the closing of the window within the last ``Optimizer.step``."""
    broken = {"Input Dims": [[2]]}
    events = [
        step(3, 0, 100),
        op("aten::mm", 5, 10),
        note("Optimizer.step#SGD.step", 90, 900),
        op("aten::add_", 92, 5),
        step(4, 100, 5000),
        op("aten::mm", 105, 10),
        op("aten::item", 120, 9, **broken),
        op("aten::_local_scalar_dense", 121, 7),
        note("region", 130, 5),
        memory(121, 64, 64, address=1),
        span("train.py(3): main", 4, 90, "python_function"),
        span("train.py(9): broken", 104, 4000, "python_function"),
    ]
    ours = {"first_step": 3, "wanted": 3}
    broke_off = {"tdbg": {**ours, "partial_step": 4}}
    cut_out = {"tdbg": {**ours, "slice": {"steps": [3], "end": False}}}
    whole = {"tdbg": {"first_step": 3, "wanted": 1}}
    for head in (broke_off, cut_out, whole):
        for order in (1, -1):  # as kineto writes them, and sorted here
            found = summarize(write(tmp_path / "t.json", events[::order], head=head))
            assert found.steps[0].number == 3
            told = {one.name: (one.calls, one.own) for one in found.operators}
            assert told == {"aten::mm": (1, us(10)), "aten::add_": (1, us(5))}
            assert [(one.name, one.total) for one in found.regions] == [("Optimizer.step#SGD.step", us(10))]
            assert found.memory[0].holders == {"aten::item": 64}, "of memory all of it is told"
            rows = {
                row.name: (row.calls, row.total)
                for row in flame_rows.sort_rows(flame_rows.build_tree(found, "operator"))
            }
            assert rows["Optimizer.step#SGD.step"] == (1, us(10)) and rows["aten::mm"] == (1, us(10))
            assert not {"aten::item", "region"} & set(rows)
            lines = {row.name for row in flame_rows.sort_rows(flame_rows.build_tree(found, "stack"))}
            assert "train.py(3): main" in lines and not {"train.py(9): broken", "aten::item"} & lines


def test_steps_that_a_cut_copy_lacks_are_not_laid_on_the_program(tmp_path):
    events = [one for at in range(3) for one in (step(at, at * 100, 100), op("aten::mm", at * 100 + 5, 10))]
    path = write(tmp_path / "t.json", events, head={"tdbg": {"first_step": 0, "wanted": 3}})
    text = path.read_text()
    path.write_text(text[: text.index("ProfilerStep#2")])
    torn = "the file ends in the middle: the last events are missing"
    assert summarize(path).problems == [torn, "the file holds 2 of the 3 steps of its window"]


def test_an_empty_trace_has_a_summary(tmp_path):
    found = summarize(write(tmp_path / "t.json", []))
    assert found.steps[0].length == 0 and found.operators == []


@pytest.mark.parametrize("behind", [True, False])
def test_memory_its_peak_and_its_holders(tmp_path, behind):
    events = [
        op("aten::conv2d", 0, 10),
        memory(1, 600, 1600, address=1),
        op("autograd::engine::evaluate_function: ConvBackward", 20, 10),
        memory(21, 300, 1900, address=2),
        memory(22, 50, 1950, address=3),
        memory(40, -600, 1350, address=1),
        memory(41, 100, 1450, address=4, reserved=5000),
        memory(42, 7, 7, device_type=1),
    ]
    if behind:  # torch writes them behind all operators
        events.sort(key=lambda event: event["name"] == "[memory]")
    cpu, cuda = summarize(write(tmp_path / "t.json", events)).memory
    assert (cpu.device, cpu.peak, cpu.peak_at, cpu.first, cpu.last, cpu.reserved) == (
        "cpu",
        1950,
        us(22),
        1000,
        1450,
        5000,
    )
    assert cpu.holders == {"aten::conv2d": 600, "ConvBackward": 350}
    assert (max(most for _, most, _ in cpu.line), min(least for _, _, least in cpu.line)) == (1950, 1000)
    assert (cuda.device, cuda.holders) == ("cuda:0", {"outside of any operator": 7})


def test_a_line_of_memory_keeps_its_peak_whatever_its_length(tmp_path):
    events = [memory(number * 30, 0, 500 if number == 4321 else number % 300, address=number) for number in range(9000)]
    found = summarize(write(tmp_path / "t.json", events)).memory[0]
    assert 200 < len(found.line) <= 1024
    assert max(found.line, key=lambda point: point[1])[0] <= us(4321 * 30)
    assert found.peak == 500 == max(most for _, most, _ in found.line)
    assert min(least for _, _, least in found.line) == 0


def test_events_out_of_order_are_sorted(tmp_path):
    events = [op("outer", 0, 100), op("inner", 10, 50), op("leaf", 20, 10)]
    straight = summarize(write(tmp_path / "a.json", events))
    turned = summarize(write(tmp_path / "b.json", events[::-1]))
    assert {one.name: one.own for one in turned.operators} == {one.name: one.own for one in straight.operators}
    assert {one.name: one.own for one in straight.operators} == {"outer": us(50), "inner": us(40), "leaf": us(10)}
    assert turned.problems == []


def test_events_in_no_order_are_sorted_a_few_at_a_time(tmp_path, monkeypatch):
    events = []
    for at in range(60):
        begin = at * 100
        events += [
            step(at, begin, 100),
            op("outer", begin, 60, **{"Input Dims": [[at % 3]]}),
            op("inner", begin + 10, 20),
            launch(begin + 12, 2, at + 1),
            gpu("k", begin + 20, 30, at + 1),
            memory(begin + 15, 8, 8 * at, address=at),
            span("train.py(3): main", begin + 1, 90, "python_function"),
        ]
    straight = summarize(write(tmp_path / "a.json.gz", events))
    random.Random(3).shuffle(events)
    path = write(tmp_path / "b.json.gz", events)
    held = []
    feed = summary_builder.Builder.feed
    monkeypatch.setattr(event_sorting, "SORTED", 50)
    monkeypatch.setattr(
        summary_builder.Builder, "feed", lambda built, batch: (held.append(len(batch)), feed(built, batch))[1]
    )
    turned = summarize(path, 1 << 12)
    assert sum(held[-9:]) == 420 and max(held[-9:]) <= 60, "nine stretches of about as many"
    (problem,) = turned.problems
    assert problem.startswith("its events are not in the order of time") and problem.endswith("read 11 times for that")
    for name in ("steps", "operators", "device", "memory", "kernels", "start", "end"):
        mine, theirs = getattr(turned, name), getattr(straight, name)
        if isinstance(mine, list):
            mine, theirs = (sorted(map(str, one)) for one in (mine, theirs))
        assert mine == theirs, name


def test_of_any_number_of_events_at_one_moment_no_more_are_held(tmp_path, monkeypatch):
    """Such a file is nobody's trace: it is read, and that is all."""
    held = []
    feed = summary_builder.Builder.feed
    monkeypatch.setattr(event_sorting, "SORTED", 50)
    monkeypatch.setattr(
        summary_builder.Builder, "feed", lambda built, batch: (held.append(len(batch)), feed(built, batch))[1]
    )
    events = [op("a", at % 2 * 10, 5) for at in range(1000)]
    found = summarize(write(tmp_path / "t.json", events, dense), 1 << 10)
    assert sum(one.calls for one in found.operators) == 1000 and max(held) <= 2 * 50 + 20


def test_any_number_of_threads_is_read_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_timeline, "MOST_THREADS", 50)
    events = [op("aten::mm", at * 10, 10, tid=f"thread {at % 4000}") for at in range(20_000)]
    path = write(tmp_path / "t.json", events, dense)
    begun = time.monotonic()
    found = summarize(path)
    assert time.monotonic() - begun < 5
    assert sum(one.own for one in found.operators) == us(200_000)
    threads = Threads()
    threads.add_operators([Event("X", "cpu_op", "a", 1, at) for at in range(200)], np.arange(200), np.ones(200, int))
    assert len(threads.of) == 51 and sum(len(one.starts) for one in threads.of.values()) == 200


def test_times_that_cannot_be_are_left_out(tmp_path):
    assert summarize(write(tmp_path / "t.json", [op("good", 5, 10), op("far", 1e300, 1)])).problems == [
        "1 event has a time that cannot be, and was left out"
    ]
    events = [op("good", 5, 10), op("far", 1e300, 1), op("long", 6, 1e200), op("back", -5, 1), op("minus", 7, -1)]
    found = summarize(write(tmp_path / "t.json", events))
    assert [one.name for one in found.operators] == ["good"]
    assert found.problems == ["4 events have times that cannot be, and were left out"]


def test_a_step_whose_number_cannot_be_is_a_span_like_others(tmp_path):
    name = f"ProfilerStep#{'7' * 5000}"
    found = summarize(write(tmp_path / "t.json", [note(name, 0, 50), step(2, 0, 50), op("a", 1, 2)]))
    assert ([one.number for one in found.steps], [one.name for one in found.regions]) == ([2], [name])


def test_numbers_that_cannot_be_are_left_out(tmp_path, capsys):
    huge = 10**400
    head = {
        "tdbg": {"rank": huge, "world_size": 2},
        "deviceProperties": [{"computeMajor": huge, "computeMinor": 0, "totalGlobalMem": huge}],
    }
    events = [op("aten::mm", 0, 9), gpu("Memcpy HtoD", 1, 5, cat="gpu_memcpy", bytes=huge), memory(3, huge, huge)]
    found = summarize(write(tmp_path / "t.json", [*events, memory(4, 8, 8, reserved=huge)], head=head))
    assert (found.rank, found.world_size, found.capability, found.device_bytes) == (None, 2, None, 0)
    assert (found.copies[0].nbytes, found.memory[0].peak, found.memory[0].reserved) == (0, 8, 0)
    print_summary([(TraceFile(tmp_path / "t.json", None), found)], 10, False)
    assert "memory of cpu: peak 8 B" in capsys.readouterr().out


def test_any_number_of_names_steps_and_devices_has_a_summary_of_bounded_size(tmp_path, monkeypatch):
    for module, name in (
        (cpu_timeline, "MOST"),
        (cpu_timeline, "MOST_STEPS"),
        (device_timeline, "MOST"),
        (summary_builder, "MOST_HEAPS"),
    ):
        monkeypatch.setattr(module, name, 10)
    events = []
    for at in range(50):
        events += [step(at, at * 10, 10), op(f"aten::{at}", at * 10, 5), op("aten::0", at * 10 + 6, 1)]
        events += [
            gpu(f"Memcpy HtoD {at}", at * 10, 3, cat="gpu_memcpy", bytes=1),
            memory(at * 10, 1, 1, device_type=at),
        ]
    found = summarize(write(tmp_path / "t.json", events))
    assert (len(found.operators), sum(one.calls for one in found.operators)) == (21, 100)
    assert max((one.calls, one.name) for one in found.operators) == (51, "aten::0")
    assert (len(found.copies), sum(one.nbytes for one in found.copies)) == (11, 50)
    assert (len(found.steps), len(found.memory)) == (10, 10)
    assert found.problems == [
        "memory of 10 devices is told of: 40 events of others left out",
        "50 steps are marked: only 10 of them are told of",
    ]
    kernels = [gpu(f"{name} {at}", at * 100, 50) for at in range(20) for name in ("nccl", "sgemm")]
    found = summarize(write(tmp_path / "t.json", kernels))
    assert (len(found.kernels), found.device.communication, found.steps[0].spent["matrix"]) == (11, us(1000), us(1000))


def test_times_are_exact_where_the_trace_counts_from_1970(tmp_path):
    begin = 1_661_203_462_584_767
    found = summarize(write(tmp_path / "t.json", [op("a", begin, 3), op("b", begin + 3, 4), step(1, begin - 9, 20)]))
    assert (found.start, found.end, found.steps[0].start) == (us(-9), us(11), us(-9))
    assert found.base_us == begin


@pytest.mark.parametrize("behind", [True, False])
def test_lines_of_the_program_are_those_of_its_own_files(tmp_path, behind):
    """torch writes Python's calls behind all operators of the trace, or among them."""
    frames = [
        span("train.py(10): main", 0, 100, "python_function"),
        span("nn.Module: Linear_0", 5, 20, "python_function"),
        span("torch/nn/modules/linear.py(114): forward", 6, 18, "python_function"),
        op("aten::linear", 8, 10),
        span("train.py(48): log", 40, 20, "python_function"),
        span("<built-in method item>", 41, 18, "python_function"),
        op("aten::item", 42, 10),
        op("aten::_local_scalar_dense", 43, 8),
        op("aten::item", 70, 10),
    ]
    if behind:
        frames.sort(key=lambda event: event["cat"] == "python_function")
    found = summarize(write(tmp_path / "t.json", frames))
    by_name = {one.name: one.frames for one in found.operators}
    assert by_name["aten::linear"] == {"train.py(10): main": 1}
    assert by_name["aten::item"] == {"train.py(48): log": 1, "train.py(10): main": 1}
    assert [(one.name, one.total) for one in found.modules] == [("Linear_0", us(20))]


def test_shapes_part_calls_of_one_name(tmp_path):
    shapes = {"Input Dims": [[2, 3], [3, 4]]}
    events = [op("aten::mm", 0, 1, **shapes), op("aten::mm", 2, 1, **shapes), op("aten::mm", 4, 1)]
    found = summarize(write(tmp_path / "t.json", events)).operators
    assert {(json.dumps(json.loads(one.shapes)) if one.shapes else "", one.calls) for one in found} == {
        ("[[2, 3], [3, 4]]", 2),
        ("", 1),
    }


def test_what_the_trace_tells_of_itself(tmp_path):
    ours = {"tdbg": {"rank": 2, "world_size": 4, "wanted": 3}, "with_stack": 1, "profile_memory": 0}
    found = summarize(write(tmp_path / "t.json", [step(1, 0, 10), op("a", 1, 2)], head=ours))
    assert (found.rank, found.world_size, found.recorded) == (2, 4, ["stacks", "steps"])
    assert found.problems == ["its window holds 1 of 3 steps: the program ended before"]
    wrong = {"distributedInfo": [1], "tdbg": "x", "deviceProperties": {"a": 1}, "wanted": "many"}
    found = summarize(write(tmp_path / "t.json", [op("a", 1, 2)], head=wrong))
    assert (found.rank, found.problems, found.devices) == (None, [], [])
