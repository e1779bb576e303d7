"""Some steps of some traces as one small trace: it tells of them what the whole tells."""

import gzip
import json
import time
import tracemalloc

import pytest
from traces.material import (
    LAYOUTS,
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

from tdbg.core.errors import TdbgError
from tdbg.traces.analyze.summary_builder import summarize_trace
from tdbg.traces.parse import merged_traces
from tdbg.traces.parse.trace_files import TraceFile, find_traces
from tdbg.traces.render.slice_file import write_slice
from tdbg.traces.render.step_slice import StepSlice, select_steps
from tdbg.traces.render.step_slice import _join_spans as joined
from tdbg.traces.summary import Step

BACKWARD = "autograd::engine::evaluate_function: MmBackward0"


def make_arrow(ph, number, ts, pid=1, tid=1, cat="ac2g"):
    return {"ph": ph, "id": number, "pid": pid, "tid": tid, "ts": ts, "cat": cat, "name": cat, "bp": "e"}


def make_metadata(kind, pid, **args):
    return {"ph": "M", "name": kind, "pid": pid, "tid": 0, "args": args}


# Kernel 3 runs in step 2, but was launched in the backward of step 1.
EVENTS = [
    make_step(1, 0, 1000),
    make_op("aten::mm", 100, 200),
    make_launch(150, 5, 1),
    make_arrow("s", 1, 150),
    make_op(BACKWARD, 700, 250, tid=2),
    make_op("aten::mm", 710, 200, tid=2),
    make_launch(720, 5, 2, tid=2),
    make_arrow("s", 2, 720, tid=2),
    make_launch(800, 5, 3, tid=2),
    make_arrow("s", 3, 800, tid=2),
    make_span("cudaDeviceSynchronize", 960, 30, "cuda_runtime"),
    make_step(2, 1000, 1000),
    make_memory_event(1100, 4096, 4096, address=1),
    make_op("aten::add", 1500, 100),
    make_launch(1510, 5, 4),
    make_arrow("s", 4, 1510),
    make_step(3, 2000, 1000),
    make_op("aten::sub", 2500, 100),
    make_gpu_span("sgemm", 160, 100, 1),
    make_arrow("f", 1, 160, pid=0, tid=7),
    make_gpu_span("sgemm", 740, 200, 2),
    make_arrow("f", 2, 740, pid=0, tid=7),
    make_gpu_span("sgemm", 950, 450, 3),
    make_arrow("f", 3, 950, pid=0, tid=7),
    make_gpu_span("add", 1950, 100, 4),
    make_arrow("f", 4, 1950, pid=0, tid=7),
    make_span("cudaDeviceSynchronize", 3000, 40, "cuda_runtime"),
    make_metadata("process_name", 1, name="python"),
    make_metadata("process_name", 0, name="GPU 0"),
]
HEAD = {"deviceProperties": [{"name": "Card"}], "distributedInfo": {"rank": 1, "world_size": 2}}


def slice_trace(path, out, wanted, part=None, one=None):
    """A slice of one trace; its summary."""
    read = summarize_trace(path, part=part)
    keeping = StepSlice(read, select_steps(read, wanted), part)
    write_slice([(one or TraceFile(path, None, part=part), keeping)], out)
    return summarize_trace(out)


def list_steps(summary, *numbers):
    return [(step.number, step.bar, step.spent) for step in summary.steps if not numbers or step.number in numbers]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_has_the_same_bar_and_only_its_own_events(tmp_path, layout):
    path = write_trace(tmp_path / "t.json", EVENTS, layout, HEAD)
    found = slice_trace(path, tmp_path / "s.json.gz", lambda number: number == 2)
    assert list_steps(found) == list_steps(summarize_trace(path), 2)
    assert found.steps[0].bar["backward"] == 400_000  # of kernel 3, by the operator that launched it
    data = load_trace(tmp_path / "s.json.gz")
    spans = [(event["name"], event["ts"]) for event in data["traceEvents"] if event["ph"] == "X"]
    assert spans == [
        (BACKWARD, 700),
        ("aten::mm", 710),
        ("cudaLaunchKernel", 800),
        ("ProfilerStep#2", 1000),
        ("aten::add", 1500),
        ("cudaLaunchKernel", 1510),
        ("sgemm", 950),
        ("add", 1950),
    ]
    arrows = [(event["ph"], event["id"]) for event in data["traceEvents"] if event["ph"] in "sf"]
    assert sorted(arrows) == [("f", 3), ("f", 4), ("s", 3), ("s", 4)]
    assert [event for event in data["traceEvents"] if event["ph"] == "M"] == EVENTS[-2:]


def test_an_event_is_kept_as_it_stands_and_the_head_with_it(tmp_path):
    path = write_trace(tmp_path / "t.json", EVENTS, head=HEAD, tail={"traceName": "/home/me/t.json"})
    path.chmod(0o600)
    found = slice_trace(path, tmp_path / "s.json", lambda number: number in (1, 2, 3))
    data = load_trace(tmp_path / "s.json")
    key = json.dumps
    assert sorted(map(key, data["traceEvents"])) == sorted(map(key, EVENTS))
    assert (found.rank, found.world_size, found.devices) == (1, 2, ["Card"]) and "traceName" not in data
    assert (tmp_path / "s.json").stat().st_mode & 0o777 == 0o600
    assert data["tdbg"]["slice"] == {"of": "t.json", "steps": [1, 2, 3], "end": True}


def test_the_programs_own_wait_at_the_end_of_a_slice_is_not_taken_for_the_profilers(tmp_path):
    path = write_trace(tmp_path / "t.json", EVENTS, head=HEAD)
    whole = summarize_trace(path)
    assert whole.closing_wait == 40_000
    first = slice_trace(path, tmp_path / "1.json", lambda number: number == 1)
    assert (first.closing_wait, first.steps[0].spent["wait"]) == (0, 30_000)
    last = slice_trace(path, tmp_path / "3.json", lambda number: number == 3)
    assert (last.closing_wait, last.waits) == (40_000, [])


def test_steps_that_were_wanted_but_cut_off_are_no_problem(tmp_path):
    path = write_trace(tmp_path / "t.json", EVENTS, head={"tdbg": {"wanted": 3, "rank": 0, "world_size": 1}})
    assert slice_trace(path, tmp_path / "s.json", lambda number: number == 2).problems == []
    assert summarize_trace(path).problems == []


def test_a_slice_of_a_slice(tmp_path):
    path = write_trace(tmp_path / "t.json", EVENTS, head=HEAD)
    slice_trace(path, tmp_path / "a.json.gz", lambda number: number < 3)
    found = slice_trace(tmp_path / "a.json.gz", tmp_path / "b.json.gz", lambda number: number == 2)
    assert list_steps(found) == list_steps(summarize_trace(path), 2)


def write_two_ranks(tmp_path):
    """Two ranks with the same ids; the second counts its times from 5 ms later, and is slower."""
    slower = [{**event, "dur": event["dur"] + 10} if event["name"] == "aten::mm" else event for event in EVENTS]
    paths = []
    for rank, events in enumerate((EVENTS, slower)):
        head = {"distributedInfo": {"rank": rank, "world_size": 2}, "baseTimeNanoseconds": 10**18 + rank * 5_000_000}
        paths.append(write_trace(tmp_path / f"rank{rank}.json", events, head=head))
    return paths


def test_several_ranks_in_one_file_are_told_apart_again(tmp_path):
    paths = write_two_ranks(tmp_path)
    reads = [summarize_trace(path) for path in paths]
    parts = [
        (TraceFile(path, rank), StepSlice(read, select_steps(read, lambda number: number == 2)))
        for rank, (path, read) in enumerate(zip(paths, reads, strict=True))
    ]
    out = tmp_path / "both.json.gz"
    write_slice(parts, out)
    again = find_traces(str(out))
    assert [(one.rank, one.part) for one in again] == [(0, 0), (1, 1)]
    for one, read in zip(again, reads, strict=True):
        found = summarize_trace(out, part=one.part)
        assert list_steps(found) == list_steps(read, 2) and found.rank == one.rank
        assert found.events == len(
            [
                event
                for event in load_trace(out)["traceEvents"]
                if merged_traces.is_pid_of_rank_trace(one.part, event["pid"])
            ]
        )
    events = load_trace(out)["traceEvents"]
    titles = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
    assert list(titles) == ["rank 0: python", "rank 0: GPU 0", "rank 1: python", "rank 1: GPU 0"]
    assert len(set(titles.values())) == 4 == len({event["pid"] for event in events})
    ids = [event["id"] for event in events if event["ph"] == "s"]
    assert len(ids) == len(set(ids)) == 4
    starts = [event["ts"] for event in events if event["name"] == "ProfilerStep#2"]
    assert starts == [1000, 6000]
    with pytest.raises(TdbgError, match="no trace of these ranks"):
        find_traces(str(out), lambda rank: rank == 7)


def test_one_rank_of_several_and_a_folder_with_a_slice(tmp_path):
    paths = write_two_ranks(tmp_path)
    parts = [(TraceFile(path, rank), StepSlice(summarize_trace(path), ())) for rank, path in enumerate(paths)]
    (tmp_path / "sub").mkdir()
    out = tmp_path / "sub" / "both.json"
    write_slice(parts, out)
    (one,) = find_traces(str(tmp_path / "sub"), lambda rank: rank == 1)
    found = slice_trace(one.path, tmp_path / "one.json", lambda number: number == 1, part=one.part, one=one)
    assert list_steps(found) == list_steps(summarize_trace(paths[1]), 1) and found.rank == 1
    assert {step.number for step in summarize_trace(out, part=0).steps} == {1, 2, 3}


@pytest.mark.parametrize("name", ["control.json.gz", "sampled_rank-0.json.gz"])
def test_the_real_traces_tell_the_same_of_a_step(tmp_path, name):
    path = find_real_trace(name)
    whole = summarize_trace(path)
    numbers = [step.number for step in whole.steps][1:3]
    found = slice_trace(path, tmp_path / "s.json.gz", lambda number: number in numbers)
    assert list_steps(found) == list_steps(whole, *numbers)
    assert (tmp_path / "s.json.gz").stat().st_size < path.stat().st_size


def test_any_number_of_steps_is_joined_in_time():
    every = [Step(number, number * 10, number * 10 + 9, {"forward": 5}) for number in range(10_000)]
    begun = time.monotonic()
    assert joined(every, every[1:]) == [(10, 99_999)]
    assert joined(every[::-1], [every[1], every[3]]) == [(10, 19), (30, 39)]
    assert time.monotonic() - begun < 3


def test_more_traces_than_one_file_holds_are_refused(tmp_path):
    with pytest.raises(TdbgError, match="1,001 traces are too many for one file"):
        write_slice([(TraceFile(tmp_path / "t.json", 0), None)] * 1001, tmp_path / "s.json")


def test_what_cannot_be_written_is_told_and_leaves_nothing(tmp_path):
    path = write_trace(tmp_path / "t.json", EVENTS)
    parts = [(TraceFile(path, None), StepSlice(summarize_trace(path), ()))]
    with pytest.raises(TdbgError, match="is the trace itself"):
        write_slice(parts, path)
    with pytest.raises(TdbgError, match="cannot write"):
        write_slice(parts, tmp_path / "none" / "s.json")
    assert [one.name for one in tmp_path.iterdir()] == ["t.json"]


def test_a_trace_without_steps_is_kept_whole_or_refused(tmp_path):
    path = write_trace(tmp_path / "t.json", [make_op("aten::mm", 0, 10), make_annotation("mine", 5, 9)])
    read = summarize_trace(path)
    assert select_steps(read, None) == []
    write_slice([(TraceFile(path, None), StepSlice(read, ()))], tmp_path / "s.json.gz")
    data = json.loads(gzip.decompress((tmp_path / "s.json.gz").read_bytes()))
    assert [event["name"] for event in data["traceEvents"]] == ["aten::mm", "mine"]
    with pytest.raises(TdbgError, match="marks no steps"):
        select_steps(read, lambda number: True)


def test_a_torn_trace_gives_what_it_holds(tmp_path):
    path = write_trace(tmp_path / "t.json.gz", EVENTS * 30)
    path.write_bytes(path.read_bytes()[:-30])
    found = slice_trace(path, tmp_path / "s.json", lambda number: number == 1)
    assert list_steps(found)[0][1]["backward"] > 0 and found.problems == []


def test_memory_does_not_grow_with_the_trace(tmp_path):
    def peak(count):
        events = [make_step(number, number * 1000, 1000) for number in range(count)]
        events += [make_op(f"aten::{at % 9}", at * 10, 5, filler="x" * 99) for at in range(100 * count)]
        path = write_trace(tmp_path / "t.json", events)
        read = summarize_trace(path)
        tracemalloc.start()
        write_slice([(TraceFile(path, None), StepSlice(read, read.steps[2:3]))], tmp_path / "s.json.gz")
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(240) < 1.1 * peak(120)  # 6 MB and 3 MB, blocks of 1 MB
