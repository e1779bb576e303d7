"""A trace's summary, held against small computations of another kind."""

import json
import random
import statistics
import time
from collections import defaultdict

import numpy as np
import pytest
from traces.material import (
    dense,
    find_real_trace,
    load_trace,
    make_annotation,
    make_gpu_span,
    make_launch,
    make_memory_event,
    make_op,
    make_span,
    make_step,
    write_trace,
)

from tdbg.traces.analyze import cpu_timeline, device_timeline, summary_builder, summary_figures
from tdbg.traces.analyze.cpu_timeline import Threads
from tdbg.traces.analyze.summary_builder import summarize_trace
from tdbg.traces.parse import event_names, event_sorting
from tdbg.traces.parse.event_stream import Event
from tdbg.traces.parse.trace_files import TraceFile
from tdbg.traces.render import flame_rows
from tdbg.traces.render.summary_text import print_summary


def to_nanoseconds(value):
    return value * 1000


def measure_union(pairs):
    """The length of a union of spans, by one sweep in whole numbers."""
    total, reach = 0, float("-inf")
    for start, end in sorted(pairs):
        total += max(0, end - max(start, reach))
        reach = max(reach, end)
    return total


def measure_overlap(one, other):
    """What two unions have in common: by inclusion and exclusion."""
    return measure_union(one) + measure_union(other) - measure_union([*one, *other])


def measure_on_device(events):
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
    path = find_real_trace(name)
    device = summarize_trace(path).device
    compute, collective, copies = measure_on_device(load_trace(path)["traceEvents"])
    every = [*compute, *collective, *copies]
    span = max(end for _, end in every) - min(start for start, _ in every)
    assert (device.end - device.start, device.busy) == (to_nanoseconds(span), to_nanoseconds(measure_union(every)))
    assert (device.compute, device.communication) == (
        to_nanoseconds(measure_union(compute)),
        to_nanoseconds(measure_union(collective)),
    )
    assert device.overlap == to_nanoseconds(measure_overlap(compute, collective))
    assert round(100 * device.busy / (device.end - device.start), 2) == busy
    assert round(100 * device.overlap / device.communication, 2) == overlap


@pytest.mark.parametrize(
    ("name", "median", "p90", "bound"),
    [("control.json.gz", 585, 9133.6, 14.05), ("sampled_rank-0.json.gz", 10802, 55396.3, 23.15)],
)
def test_how_long_real_kernels_wait_after_their_launch_and_the_gpu_for_one(name, median, p90, bound):
    path = find_real_trace(name)
    calls, work, delays = {}, defaultdict(list), []
    for event in load_trace(path)["traceEvents"]:
        if event.get("cat") == "cuda_runtime" and event["name"].startswith(("cudaLaunch", "cudaMemcpy", "cudaMemset")):
            calls[event["args"]["correlation"]] = event["ts"] + event["dur"]
    for event in load_trace(path)["traceEvents"]:
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
    device = summarize_trace(path).device
    assert device.launched == len(delays) > 1000
    assert (device.delay, device.delay_p90) == (
        to_nanoseconds(statistics.median(delays)),
        round(to_nanoseconds(statistics.quantiles(delays, n=10, method="inclusive")[8])),
    )
    assert device.unlaunched == to_nanoseconds(late)
    assert (device.delay / 1000, device.delay_p90 / 1000) == (median, p90)
    assert round(100 * device.unlaunched / (device.end - device.start), 2) == bound


@pytest.mark.parametrize("behind", [True, False])
def test_the_time_from_launch_to_start_and_the_time_without_a_launch(tmp_path, behind):
    events = [
        make_step(1, 0, 200),
        make_launch(0, 5, 1),
        make_launch(5, 5, 2),
        make_launch(60, 10, 3),
        make_launch(75, 30, 4, name="cudaMemcpyAsync"),
        make_launch(110, 50, 5),
        make_gpu_span("a", 10, 20, 1),  # 5 us after its launch
        make_gpu_span("b", 30, 20, 2),  # queued for 20
        make_gpu_span(
            "ncclDevKernel_AllReduce", 80, 10, 3
        ),  # 10 after its launch; nothing ran from 50 on, no launch until 70
        make_gpu_span(
            "Memcpy HtoD (Pinned -> Device)", 100, 10, 4, cat="gpu_memcpy", bytes=8
        ),  # before its call returned
        make_gpu_span("c", 120, 10, 5),  # so too
        make_gpu_span("unknown", 150, 10, 77),
    ]
    if behind:
        events.sort(key=lambda event: event["cat"] == "cuda_runtime")
    device = summarize_trace(write_trace(tmp_path / "t.json", events)).device
    assert (device.launches, device.launched) == (5, 4)
    assert (device.delay, device.delay_p90) == (to_nanoseconds(7.5), to_nanoseconds(17))  # of 0, 5, 10 and 20
    assert device.unlaunched == to_nanoseconds(20 + 10 + 10)


def test_names_of_tensor_cores_on_a_real_gpu():
    found = defaultdict(int)
    for work in summarize_trace(find_real_trace("control.json.gz")).kernels:
        found[work.kind] += work.total
    assert found["tensor"] == 66_811_000
    assert found["matrix"] == 11_002_000  # without fbgemm: its permutations multiply nothing


@pytest.mark.parametrize("name", ["control.json.gz", "sampled_rank-0.json.gz"])
def test_the_bar_of_each_real_step_adds_up(name):
    path = find_real_trace(name)
    events = load_trace(path)["traceEvents"]
    compute, collective, _ = measure_on_device(events)
    steps = {event["name"]: event for event in events if str(event.get("name")).startswith("ProfilerStep#")}
    found = summarize_trace(path)
    assert [step.number for step in found.steps] == sorted(int(name.partition("#")[2]) for name in steps)
    for one in found.steps:
        event = steps[f"ProfilerStep#{one.number}"]
        low, high = event["ts"], event["ts"] + event["dur"]
        inside = [
            [(max(a, low), max(min(b, high), low)) for a, b in pairs if b > low] for pairs in (compute, collective)
        ]
        assert one.length == to_nanoseconds(event["dur"]) == sum(one.bar.values())
        assert min(one.bar.values()) >= 0
        assert one.spent["compute"] == to_nanoseconds(measure_union(inside[0]))
        assert one.bar[event_names.COMMUNICATION] == to_nanoseconds(measure_union(inside[1]) - measure_overlap(*inside))


@pytest.mark.parametrize("name", ["control.json.gz", "sampled_rank-0.json.gz"])
def test_own_time_of_real_operators(name):
    """Held against a computation that looks for the parent of every operator in all of its thread."""
    path = find_real_trace(name)
    threads = defaultdict(list)
    for event in load_trace(path)["traceEvents"]:
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
    for one in summarize_trace(path).operators:
        for place, value in enumerate((one.own, one.total, one.calls)):
            found[one.name][place] += value
    assert set(found) == set(own)
    for called, (own_ns, total_ns, count) in found.items():
        assert (total_ns, count) == (to_nanoseconds(total[called]), calls[called])
        assert (
            abs(own_ns - to_nanoseconds(own[called])) <= to_nanoseconds(1) * count
        )  # spans of equal start have no order


def test_a_step_on_the_cpu(tmp_path):
    events = [
        make_step(7, 1000, 100),
        make_annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1000, 20),
        make_op("aten::stack", 1005, 10),
        make_op("aten::linear", 1025, 10),
        make_op("aten::addmm", 1026, 8),
        make_op("autograd::engine::evaluate_function: AddmmBackward0", 1040, 30),
        make_op("aten::mm", 1045, 20),
        make_annotation("Optimizer.step#SGD.step", 1075, 20),
        make_op("aten::_foreach_add_", 1080, 10),
        make_step(8, 1100, 50),
        make_op("aten::linear", 1110, 10),
    ]
    found = summarize_trace(write_trace(tmp_path / "t.json", events))
    first, second = found.steps
    assert (first.number, first.length, second.number) == (7, to_nanoseconds(100), 8)
    assert first.bar == {
        "input": to_nanoseconds(20),
        "forward": to_nanoseconds(10),
        "backward": to_nanoseconds(30),
        "optimizer": to_nanoseconds(20),
        "communication": 0,
        "other": to_nanoseconds(20),
    }
    assert second.bar["forward"] == to_nanoseconds(10) and second.bar["other"] == to_nanoseconds(40)
    assert first.spent["forward"] == to_nanoseconds(30)  # with what runs inside input and optimizer
    by_name = {one.name: one for one in found.operators}
    assert (by_name["aten::linear"].calls, by_name["aten::linear"].total, by_name["aten::linear"].own) == (
        2,
        to_nanoseconds(20),
        to_nanoseconds(12),
    )
    assert found.recorded == ["steps"] and found.device is None and not found.problems


def test_collectives_inside_of_an_optimizer_are_communication(tmp_path):
    events = [
        make_step(1, 0, 100),
        make_annotation("Optimizer.step#ZeroRedundancyOptimizer.step", 10, 80),
        make_op("aten::_foreach_add_", 20, 20),
        make_op("c10d::broadcast_", 40, 5),
        make_annotation("gloo:broadcast", 30, 40, tid=2),  # from 20 to 40 the optimizer computes
    ]
    found = summarize_trace(write_trace(tmp_path / "t.json", events)).steps[0]
    assert (found.bar["optimizer"], found.bar["communication"], found.bar["other"]) == (
        to_nanoseconds(50),
        to_nanoseconds(30),
        to_nanoseconds(20),
    )
    assert found.spent["optimizer"] == to_nanoseconds(80)


def test_a_step_on_an_accelerator(tmp_path):
    """Kernels belong to what launched them; the loader counts only while the device has nothing to do."""
    events = [
        make_step(1, 0, 100),
        make_annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 10),
        make_op("aten::linear", 10, 10),
        make_launch(12, 2, 1),
        make_op("autograd::engine::evaluate_function: A", 20, 20, tid=2),
        make_launch(22, 2, 2, tid=2),
        make_launch(24, 2, 3, tid=2),
        make_annotation("Optimizer.step#Adam.step", 40, 20),
        make_launch(45, 2, 4),
        make_gpu_span("old", 0, 4, 99),
        make_gpu_span("linear", 15, 15, 1),
        make_gpu_span("grad", 30, 20, 2),
        make_gpu_span("ncclKernel_AllReduce", 40, 20, 3, stream=9),
        make_gpu_span("adam", 62, 8, 4),
        make_gpu_span("Memcpy HtoD (Pageable -> Device)", 68, 12, 5, cat="gpu_memcpy", bytes=64),
        make_span("cudaDeviceSynchronize", 100, 40, "cuda_runtime"),
    ]
    found = summarize_trace(write_trace(tmp_path / "t.json", events))
    assert found.steps[0].bar == {
        "input": to_nanoseconds(6),
        "h2d": to_nanoseconds(10),
        "forward": to_nanoseconds(15),
        "backward": to_nanoseconds(20),
        "optimizer": to_nanoseconds(8),
        "communication": to_nanoseconds(10),
        "copy": 0,
        "idle": to_nanoseconds(100 - 6 - 10 - 15 - 20 - 8 - 10 - 4),
        "other": to_nanoseconds(4),
    }
    assert (found.device.overlap, found.device.communication) == (to_nanoseconds(10), to_nanoseconds(20))
    assert [(one.name, one.kind, one.nbytes) for one in found.copies] == [
        ("Memcpy HtoD (Pageable -> Device)", "HtoD", 64)
    ]
    assert found.closing_wait == to_nanoseconds(40) and found.waits == []
    assert found.recorded == ["device", "steps"]


def test_several_accelerators_of_one_process_are_told_as_one_and_it_is_said(tmp_path):
    events = [make_step(1, 0, 100), make_op("aten::mm", 0, 10), make_gpu_span("k", 10, 40, 1)]
    other = make_gpu_span("k", 30, 40, 2)
    other["args"]["device"] = 1
    assert (one := summarize_trace(write_trace(tmp_path / "t.json", events))).device.count == 1 and one.problems == []
    found = summarize_trace(write_trace(tmp_path / "t.json", [*events, other]))
    assert found.device.count == 2 and found.steps[0].spent["busy"] == to_nanoseconds(60)
    assert found.problems == ["2 accelerators ran its kernels, shown as one: busy while any is, idle while all are"]


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (3, 1, 0, 4, 2), (2, 4, 3, 1, 0)])
def test_each_of_several_accelerators_has_its_busy_time(tmp_path, order, capsys):
    ran = [
        make_gpu_span("k", 0, 40, 1),
        make_gpu_span("ncclDevKernel_AllReduce", 30, 20, 2, stream=9),
        make_gpu_span("Memcpy HtoD", 60, 10, 3, cat="gpu_memcpy", bytes=1),
        make_gpu_span("k", 20, 30, 4),
        make_gpu_span("Memset", 90, 10, 5, cat="gpu_memset"),
    ]
    for one, device in zip(ran, (0, 0, 0, 1, 1), strict=True):
        one["args"]["device"] = device
    found = summarize_trace(write_trace(tmp_path / "t.json", [make_step(1, 0, 100), *(ran[at] for at in order)]))
    assert found.device.busy_of == {
        "0": to_nanoseconds(60),
        "1": to_nanoseconds(40),
    } and found.device.busy == to_nanoseconds(70)
    print_summary([(TraceFile(tmp_path / "t.json", None), found)], 10, False)
    assert "device 0: busy 60.0%; device 1: busy 40.0%" in capsys.readouterr().out
    alone = summarize_trace(write_trace(tmp_path / "t.json", [one for one in ran if not one["args"]["device"]]))
    assert alone.device.busy_of == {}


def test_any_number_of_accelerators_is_told_of_up_to_a_limit(tmp_path):
    ran = [make_gpu_span("k", at, 1, at) for at in range(200)]
    for at, one in enumerate(ran):
        one["args"]["device"] = at
    found = summarize_trace(write_trace(tmp_path / "t.json", ran)).device
    assert len(found.busy_of) == found.count == 64 and list(found.busy_of)[:3] == ["0", "1", "2"]


def test_a_wait_before_the_last_launch_is_the_programs(tmp_path):
    wait = make_span("cudaDeviceSynchronize", 5, 10, "cuda_runtime")
    events = [make_step(1, 0, 100), wait, make_launch(50, 1, 1), make_gpu_span("k", 60, 5, 1)]
    found = summarize_trace(write_trace(tmp_path / "t.json", events))
    assert found.closing_wait == 0 and found.waits[0].total == to_nanoseconds(10)
    assert found.steps[0].spent["wait"] == to_nanoseconds(10)


def test_a_wait_within_the_last_step_is_the_programs(tmp_path):
    """Many a loop synchronises at the end of a step, to take the time."""
    events = [
        make_step(1, 0, 100),
        make_launch(5, 1, 1),
        make_gpu_span("k", 10, 5, 1),
        make_span("cudaDeviceSynchronize", 60, 30, "cuda_runtime"),
    ]
    found = summarize_trace(write_trace(tmp_path / "t.json", events))
    assert found.closing_wait == 0 and found.steps[0].spent["wait"] == to_nanoseconds(30)
    closing = make_span("cudaDeviceSynchronize", 101, 9, "cuda_runtime")
    found = summarize_trace(write_trace(tmp_path / "t.json", [*events, closing]))
    assert found.closing_wait == to_nanoseconds(9) and found.steps[0].spent["wait"] == to_nanoseconds(30)


def test_a_trace_of_kernels_alone_has_a_verdict(tmp_path):
    found = summarize_trace(
        write_trace(tmp_path / "t.json", [make_gpu_span("k", 10, 5, 1), make_gpu_span("k", 30, 5, 2)])
    )
    assert summary_figures.format_verdict(found) == "most of a step is an idle accelerator: 60%"


def test_a_kernel_of_unknown_launch_is_of_no_span_that_begins_before_the_first_event(tmp_path):
    events = [make_op("aten::mm", 1000, 10), make_annotation("Optimizer.step#A.step", 990, 300), make_step(1, 980, 400)]
    found = summarize_trace(write_trace(tmp_path / "t.json", [*events, make_gpu_span("k", 1300, 50, 7)]))
    assert (found.steps[0].bar["optimizer"], found.steps[0].bar["other"]) == (0, to_nanoseconds(50))


def test_without_steps_the_whole_is_one(tmp_path):
    found = summarize_trace(write_trace(tmp_path / "t.json", [make_op("aten::mm", 5, 10), make_op("aten::mm", 20, 10)]))
    assert [(one.number, one.length, one.bar["forward"]) for one in found.steps] == [
        (None, to_nanoseconds(25), to_nanoseconds(20))
    ]


def test_a_step_that_the_program_ended_in_is_none(tmp_path):
    events = [make_step(3, 0, 100), make_op("aten::mm", 5, 10)]
    head = {"tdbg": {"first_step": 3, "wanted": 2, "partial_step": 3}}
    found = summarize_trace(write_trace(tmp_path / "t.json", events, head=head))
    assert [one.number for one in found.steps] == [None] and "steps" not in found.recorded
    assert found.problems == ["its window holds 0 of 2 steps: the program ended early"]


def test_what_the_window_of_a_profile_ends_in_is_not_counted(tmp_path):
    """The step that a program broke off in, and the closing of the window within the last ``Optimizer.step``."""
    broken = {"Input Dims": [[2]]}
    events = [
        make_step(3, 0, 100),
        make_op("aten::mm", 5, 10),
        make_annotation("Optimizer.step#SGD.step", 90, 900),
        make_op("aten::add_", 92, 5),
        make_step(4, 100, 5000),
        make_op("aten::mm", 105, 10),
        make_op("aten::item", 120, 9, **broken),
        make_op("aten::_local_scalar_dense", 121, 7),
        make_annotation("region", 130, 5),
        make_memory_event(121, 64, 64, address=1),
        make_span("train.py(3): main", 4, 90, "python_function"),
        make_span("train.py(9): broken", 104, 4000, "python_function"),
    ]
    ours = {"first_step": 3, "wanted": 3}
    broke_off = {"tdbg": {**ours, "partial_step": 4}}
    cut_out = {"tdbg": {**ours, "slice": {"steps": [3], "end": False}}}
    whole = {"tdbg": {"first_step": 3, "wanted": 1}}
    for head in (broke_off, cut_out, whole):
        for order in (1, -1):  # as kineto writes them, and sorted here
            found = summarize_trace(write_trace(tmp_path / "t.json", events[::order], head=head))
            assert found.steps[0].number == 3
            told = {one.name: (one.calls, one.own) for one in found.operators}
            assert told == {"aten::mm": (1, to_nanoseconds(10)), "aten::add_": (1, to_nanoseconds(5))}
            assert [(one.name, one.total) for one in found.regions] == [("Optimizer.step#SGD.step", to_nanoseconds(10))]
            assert found.memory[0].holders == {"aten::item": 64}, "of memory all of it is told"
            rows = {
                row.name: (row.calls, row.total)
                for row in flame_rows.sort_rows(flame_rows.build_tree(found, "operator"))
            }
            assert rows["Optimizer.step#SGD.step"] == (1, to_nanoseconds(10)) and rows["aten::mm"] == (
                1,
                to_nanoseconds(10),
            )
            assert not {"aten::item", "region"} & set(rows)
            lines = {row.name for row in flame_rows.sort_rows(flame_rows.build_tree(found, "stack"))}
            assert "train.py(3): main" in lines and not {"train.py(9): broken", "aten::item"} & lines


def test_steps_that_a_cut_copy_lacks_are_not_laid_on_the_program(tmp_path):
    events = [one for at in range(3) for one in (make_step(at, at * 100, 100), make_op("aten::mm", at * 100 + 5, 10))]
    path = write_trace(tmp_path / "t.json", events, head={"tdbg": {"first_step": 0, "wanted": 3}})
    text = path.read_text()
    path.write_text(text[: text.index("ProfilerStep#2")])
    torn = "the file is truncated: the last events are missing"
    assert summarize_trace(path).problems == [torn, "the file holds 2 of the 3 steps of its window"]


def test_an_empty_trace_has_a_summary(tmp_path):
    found = summarize_trace(write_trace(tmp_path / "t.json", []))
    assert found.steps[0].length == 0 and found.operators == []


@pytest.mark.parametrize("behind", [True, False])
def test_memory_its_peak_and_its_holders(tmp_path, behind):
    events = [
        make_op("aten::conv2d", 0, 10),
        make_memory_event(1, 600, 1600, address=1),
        make_op("autograd::engine::evaluate_function: ConvBackward", 20, 10),
        make_memory_event(21, 300, 1900, address=2),
        make_memory_event(22, 50, 1950, address=3),
        make_memory_event(40, -600, 1350, address=1),
        make_memory_event(41, 100, 1450, address=4, reserved=5000),
        make_memory_event(42, 7, 7, device_type=1),
    ]
    if behind:  # torch writes them behind all operators
        events.sort(key=lambda event: event["name"] == "[memory]")
    cpu, cuda = summarize_trace(write_trace(tmp_path / "t.json", events)).memory
    assert (cpu.device, cpu.peak, cpu.peak_at, cpu.first, cpu.last, cpu.reserved) == (
        "cpu",
        1950,
        to_nanoseconds(22),
        1000,
        1450,
        5000,
    )
    assert cpu.holders == {"aten::conv2d": 600, "ConvBackward": 350}
    assert (max(most for _, most, _ in cpu.line), min(least for _, _, least in cpu.line)) == (1950, 1000)
    assert (cuda.device, cuda.holders) == ("cuda:0", {"outside of any operator": 7})


def test_a_line_of_memory_keeps_its_peak_whatever_its_length(tmp_path):
    events = [
        make_memory_event(number * 30, 0, 500 if number == 4321 else number % 300, address=number)
        for number in range(9000)
    ]
    found = summarize_trace(write_trace(tmp_path / "t.json", events)).memory[0]
    assert 200 < len(found.line) <= 1024
    assert max(found.line, key=lambda point: point[1])[0] <= to_nanoseconds(4321 * 30)
    assert found.peak == 500 == max(most for _, most, _ in found.line)
    assert min(least for _, _, least in found.line) == 0


def test_events_out_of_order_are_sorted(tmp_path):
    events = [make_op("outer", 0, 100), make_op("inner", 10, 50), make_op("leaf", 20, 10)]
    straight = summarize_trace(write_trace(tmp_path / "a.json", events))
    turned = summarize_trace(write_trace(tmp_path / "b.json", events[::-1]))
    assert {one.name: one.own for one in turned.operators} == {one.name: one.own for one in straight.operators}
    assert {one.name: one.own for one in straight.operators} == {
        "outer": to_nanoseconds(50),
        "inner": to_nanoseconds(40),
        "leaf": to_nanoseconds(10),
    }
    assert turned.problems == []


def test_events_in_no_order_are_sorted_a_few_at_a_time(tmp_path, monkeypatch):
    events = []
    for at in range(60):
        begin = at * 100
        events += [
            make_step(at, begin, 100),
            make_op("outer", begin, 60, **{"Input Dims": [[at % 3]]}),
            make_op("inner", begin + 10, 20),
            make_launch(begin + 12, 2, at + 1),
            make_gpu_span("k", begin + 20, 30, at + 1),
            make_memory_event(begin + 15, 8, 8 * at, address=at),
            make_span("train.py(3): main", begin + 1, 90, "python_function"),
        ]
    straight = summarize_trace(write_trace(tmp_path / "a.json.gz", events))
    random.Random(3).shuffle(events)
    path = write_trace(tmp_path / "b.json.gz", events)
    held = []
    feed = summary_builder.Builder.add_events
    monkeypatch.setattr(event_sorting, "SORTED", 50)
    monkeypatch.setattr(
        summary_builder.Builder, "add_events", lambda built, batch: (held.append(len(batch)), feed(built, batch))[1]
    )
    turned = summarize_trace(path, 1 << 12)
    assert sum(held[-9:]) == 420 and max(held[-9:]) <= 60, "nine stretches of about as many"
    (problem,) = turned.problems
    assert problem.startswith("its events are not in time order") and problem.endswith("read 11 times to sort them")
    for name in ("steps", "operators", "device", "memory", "kernels", "start", "end"):
        mine, theirs = getattr(turned, name), getattr(straight, name)
        if isinstance(mine, list):
            mine, theirs = (sorted(map(str, one)) for one in (mine, theirs))
        assert mine == theirs, name


def test_of_any_number_of_events_at_one_moment_no_more_are_held(tmp_path, monkeypatch):
    """Such a file is nobody's trace: it is read, and that is all."""
    held = []
    feed = summary_builder.Builder.add_events
    monkeypatch.setattr(event_sorting, "SORTED", 50)
    monkeypatch.setattr(
        summary_builder.Builder, "add_events", lambda built, batch: (held.append(len(batch)), feed(built, batch))[1]
    )
    events = [make_op("a", at % 2 * 10, 5) for at in range(1000)]
    found = summarize_trace(write_trace(tmp_path / "t.json", events, dense), 1 << 10)
    assert sum(one.calls for one in found.operators) == 1000 and max(held) <= 2 * 50 + 20


def test_any_number_of_threads_is_read_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_timeline, "MOST_THREADS", 50)
    events = [make_op("aten::mm", at * 10, 10, tid=f"thread {at % 4000}") for at in range(20_000)]
    path = write_trace(tmp_path / "t.json", events, dense)
    begun = time.monotonic()
    found = summarize_trace(path)
    assert time.monotonic() - begun < 5
    assert sum(one.own for one in found.operators) == to_nanoseconds(200_000)
    threads = Threads()
    threads.add_operators([Event("X", "cpu_op", "a", 1, at) for at in range(200)], np.arange(200), np.ones(200, int))
    assert len(threads.of) == 51 and sum(len(one.starts) for one in threads.of.values()) == 200


def test_times_that_cannot_be_are_left_out(tmp_path):
    assert summarize_trace(
        write_trace(tmp_path / "t.json", [make_op("good", 5, 10), make_op("far", 1e300, 1)])
    ).problems == ["1 event has an impossible time and was left out"]
    events = [
        make_op("good", 5, 10),
        make_op("far", 1e300, 1),
        make_op("long", 6, 1e200),
        make_op("back", -5, 1),
        make_op("minus", 7, -1),
    ]
    found = summarize_trace(write_trace(tmp_path / "t.json", events))
    assert [one.name for one in found.operators] == ["good"]
    assert found.problems == ["4 events have impossible times and were left out"]


def test_a_step_whose_number_cannot_be_is_a_span_like_others(tmp_path):
    name = f"ProfilerStep#{'7' * 5000}"
    found = summarize_trace(
        write_trace(tmp_path / "t.json", [make_annotation(name, 0, 50), make_step(2, 0, 50), make_op("a", 1, 2)])
    )
    assert ([one.number for one in found.steps], [one.name for one in found.regions]) == ([2], [name])


def test_numbers_that_cannot_be_are_left_out(tmp_path, capsys):
    huge = 10**400
    head = {
        "tdbg": {"rank": huge, "world_size": 2},
        "deviceProperties": [{"computeMajor": huge, "computeMinor": 0, "totalGlobalMem": huge}],
    }
    events = [
        make_op("aten::mm", 0, 9),
        make_gpu_span("Memcpy HtoD", 1, 5, cat="gpu_memcpy", bytes=huge),
        make_memory_event(3, huge, huge),
    ]
    found = summarize_trace(
        write_trace(tmp_path / "t.json", [*events, make_memory_event(4, 8, 8, reserved=huge)], head=head)
    )
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
        events += [make_step(at, at * 10, 10), make_op(f"aten::{at}", at * 10, 5), make_op("aten::0", at * 10 + 6, 1)]
        events += [
            make_gpu_span(f"Memcpy HtoD {at}", at * 10, 3, cat="gpu_memcpy", bytes=1),
            make_memory_event(at * 10, 1, 1, device_type=at),
        ]
    found = summarize_trace(write_trace(tmp_path / "t.json", events))
    assert (len(found.operators), sum(one.calls for one in found.operators)) == (21, 100)
    assert max((one.calls, one.name) for one in found.operators) == (51, "aten::0")
    assert (len(found.copies), sum(one.nbytes for one in found.copies)) == (11, 50)
    assert (len(found.steps), len(found.memory)) == (10, 10)
    assert found.problems == [
        "memory of only 10 devices is shown: 40 events of others left out",
        "50 steps are marked: only the first 10 are shown",
    ]
    kernels = [make_gpu_span(f"{name} {at}", at * 100, 50) for at in range(20) for name in ("nccl", "sgemm")]
    found = summarize_trace(write_trace(tmp_path / "t.json", kernels))
    assert (len(found.kernels), found.device.communication, found.steps[0].spent["matrix"]) == (
        11,
        to_nanoseconds(1000),
        to_nanoseconds(1000),
    )


def test_times_are_exact_where_the_trace_counts_from_1970(tmp_path):
    begin = 1_661_203_462_584_767
    found = summarize_trace(
        write_trace(
            tmp_path / "t.json", [make_op("a", begin, 3), make_op("b", begin + 3, 4), make_step(1, begin - 9, 20)]
        )
    )
    assert (found.start, found.end, found.steps[0].start) == (
        to_nanoseconds(-9),
        to_nanoseconds(11),
        to_nanoseconds(-9),
    )
    assert found.base_us == begin


@pytest.mark.parametrize("behind", [True, False])
def test_lines_of_the_program_are_those_of_its_own_files(tmp_path, behind):
    """torch writes Python's calls behind all operators of the trace, or among them."""
    frames = [
        make_span("train.py(10): main", 0, 100, "python_function"),
        make_span("nn.Module: Linear_0", 5, 20, "python_function"),
        make_span("torch/nn/modules/linear.py(114): forward", 6, 18, "python_function"),
        make_op("aten::linear", 8, 10),
        make_span("train.py(48): log", 40, 20, "python_function"),
        make_span("<built-in method item>", 41, 18, "python_function"),
        make_op("aten::item", 42, 10),
        make_op("aten::_local_scalar_dense", 43, 8),
        make_op("aten::item", 70, 10),
    ]
    if behind:
        frames.sort(key=lambda event: event["cat"] == "python_function")
    found = summarize_trace(write_trace(tmp_path / "t.json", frames))
    by_name = {one.name: one.frames for one in found.operators}
    assert by_name["aten::linear"] == {"train.py(10): main": 1}
    assert by_name["aten::item"] == {"train.py(48): log": 1, "train.py(10): main": 1}
    assert [(one.name, one.total) for one in found.modules] == [("Linear_0", to_nanoseconds(20))]


def test_shapes_part_calls_of_one_name(tmp_path):
    shapes = {"Input Dims": [[2, 3], [3, 4]]}
    events = [make_op("aten::mm", 0, 1, **shapes), make_op("aten::mm", 2, 1, **shapes), make_op("aten::mm", 4, 1)]
    found = summarize_trace(write_trace(tmp_path / "t.json", events)).operators
    assert {(json.dumps(json.loads(one.shapes)) if one.shapes else "", one.calls) for one in found} == {
        ("[[2, 3], [3, 4]]", 2),
        ("", 1),
    }


def test_what_the_trace_tells_of_itself(tmp_path):
    ours = {"tdbg": {"rank": 2, "world_size": 4, "wanted": 3}, "with_stack": 1, "profile_memory": 0}
    found = summarize_trace(write_trace(tmp_path / "t.json", [make_step(1, 0, 10), make_op("a", 1, 2)], head=ours))
    assert (found.rank, found.world_size, found.recorded) == (2, 4, ["stacks", "steps"])
    assert found.problems == ["its window holds 1 of 3 steps: the program ended early"]
    wrong = {"distributedInfo": [1], "tdbg": "x", "deviceProperties": {"a": 1}, "wanted": "many"}
    found = summarize_trace(write_trace(tmp_path / "t.json", [make_op("a", 1, 2)], head=wrong))
    assert (found.rank, found.problems, found.devices) == (None, [], [])
