"""`tdbg trace` as a user calls it."""

import json
import os
import re
import subprocess
import sys

import pytest
from traces.material import (
    find_real_trace,
    make_annotation,
    make_gpu_span,
    make_launch,
    make_memory_event,
    make_op,
    make_step,
    write_trace,
)

EVENTS = [
    make_step(5, 0, 1000),
    make_annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 600),
    make_op("aten::linear", 650, 100, **{"Input Dims": [[8, 16], [4, 16]]}),
    make_memory_event(660, 4096, 4096, address=1),
    make_op("autograd::engine::evaluate_function: AddmmBackward0", 800, 100),
    make_step(6, 1000, 1000),
    make_op("aten::linear", 1650, 100, **{"Input Dims": [[8, 16], [4, 16]]}),
]


def run_trace(*words, cwd=None, **more):
    command = [sys.executable, "-m", "tdbg", "trace", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=60, **more)


@pytest.fixture
def trace_file(tmp_path):
    return write_trace(tmp_path / "t.pt.trace.json.gz", EVENTS, head={"distributedInfo": {"rank": 1, "world_size": 2}})


def test_show_tells_the_bar_the_operators_and_memory(trace_file):
    done = run_trace("show", trace_file)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == "rank 1 of 2; cpu; 7 events"
    assert lines[1] == "2 steps (5 to 6), median 1 ms, 1 to 1 ms"
    assert "forward ████ 10.0% 0.1 ms" in lines and "input ████████████ 30.0% 0.3 ms" in lines
    assert "0.2 66.7% 0.2 2 aten::linear" in lines
    assert "memory of cpu: peak 4.1 kB at 0.7 ms, 4.1 kB at the end" in lines


def test_the_range_of_steps_is_that_of_the_steps_its_median_is_of(tmp_path):
    events = [
        one
        for at, long in ((0, 1490), (2000, 333), (3000, 443))
        for one in (make_step(at, at, long), make_op("a", at, 300))
    ]
    lines = run_trace("show", write_trace(tmp_path / "t.json", events)).stdout.splitlines()
    assert lines[1] == "3 steps (0 to 3000), median 0.443 ms, 0.333 to 1.49 ms"
    assert lines[2] == "step 0 took 1.49 ms and is left out of the bar"
    assert not any(line.startswith("backward") for line in lines), "of a program that has none"


def test_json_is_one_document_with_the_same_figures(trace_file):
    done = run_trace("show", trace_file, "--json")
    told = json.loads(done.stdout)
    assert (told["kind"], told["version"], told["data"]["times"]) == ("trace-show", 1, "ns")
    one = told["data"]["traces"][0]
    assert (one["rank"], one["median_step_ms"], one["parts"]["input"]) == (1, 1.0, 0.3)
    assert one["steps"][0]["bar"]["backward"] == 100_000
    assert next((row["name"], row["shapes"]) for row in one["operators"]) == ("aten::linear", "[[8, 16], [4, 16]]")


def test_shapes_and_top(trace_file):
    done = run_trace("show", trace_file, "--shapes", "--top", "1")
    assert "[[8, 16], [4, 16]]" in done.stdout and "AddmmBackward0" not in done.stdout.partition("memory")[0]


def test_ranks_beside_each_other_and_the_slowest_whole(tmp_path):
    for rank, factor in ((0, 1), (1, 3)):
        folder = tmp_path / f"rank{rank:04d}" / "traces"
        folder.mkdir(parents=True)
        events = [{**event, "ts": event["ts"] * factor, "dur": event.get("dur", 0) * factor} for event in EVENTS]
        write_trace(folder / f"host_{rank}.1700000000000000000.pt.trace.json.gz", events)
    done = run_trace("show", tmp_path)
    assert done.stdout.splitlines()[1].split("\t")[:3] == ["rank 0", "2", "1"]
    assert done.stdout.splitlines()[2].split("\t")[:3] == ["rank 1", "2", "3"]
    assert "the slowest of them, rank 1:" in done.stdout
    assert "rank 1" not in run_trace("show", tmp_path, "--ranks", "0").stdout


@pytest.mark.parametrize("line", ["show {}", "show --top 3 {}", "show {} --top=3"])
def test_the_thin_front_and_the_whole_parser_say_the_same(trace_file, line):
    words = line.format(trace_file).split()
    code = "import sys; from tdbg import cli; sys.exit(cli.main(['trace', *sys.argv[1:]]))"
    whole = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60)
    thin = run_trace(*words)
    assert (whole.returncode, whole.stdout) == (thin.returncode, thin.stdout)


def test_a_torn_trace_is_shown_and_told(trace_file):
    trace_file.write_bytes(trace_file.read_bytes()[:-150])
    done = run_trace("show", trace_file)
    assert done.returncode == 0 and "tdbg: t.pt.trace.json.gz: the compressed data is truncated" in done.stderr


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("empty.json", "", "is empty"),
        ("none.json", "{}", "is not a trace"),
        ("list.json", "[1, 2, 3", "is not a trace"),
        ("wrong.json", '{"traceEvents": [{"lr": 0.1}, {"lr": 0.2}]}', "2 events are damaged"),
        ("numbers.json", "[1, 2, 3]", "is not a trace"),
        ("objects.json", '[{"lr": 0.1}, {"lr": 0.2}]', "is not a trace"),
        ("deep.json", '{"traceEvents": ' + "[" * 9000, "is truncated"),
    ],
)
def test_bad_input_is_told_and_never_a_traceback(tmp_path, name, text, says):
    (tmp_path / name).write_text(text)
    done = run_trace("show", tmp_path / name)
    assert done.returncode in (1, 2) and says in done.stderr and "Traceback" not in done.stderr


def test_wrong_use_is_told(trace_file, tmp_path):
    for words, says in (
        (["show", trace_file, trace_file], "2 paths were given"),
        (["show", trace_file, "--windows", "some"], "--windows cannot be 'some'"),
        (["show", tmp_path / "none"], "there is no such file"),
        (["shwo", trace_file], "Did you mean"),
        (["show", trace_file, "--html", tmp_path, "--force"], "is a folder"),
        *(([name, trace_file, "--top", "-1"], "--top cannot be negative") for name in ("show", "flame", "compare")),
    ):
        done = run_trace(*words)
        assert done.returncode == 2 and says in done.stderr, done.stderr


def test_names_that_a_terminal_would_obey_are_escaped(tmp_path):
    path = write_trace(tmp_path / "t.json", [make_op("\x1b]0;evil\x07", 0, 10), make_annotation("\x1b[2J", 0, 5)])
    assert "\x1b" not in run_trace("show", path).stdout


def test_torch_and_numpy_are_not_loaded_where_an_index_is(tmp_path):
    path = write_trace(
        tmp_path / "t.json", [make_op("aten::mm", number * 9, 5, filler="x" * 99) for number in range(6000)]
    )
    first = run_trace("show", path)
    assert sorted(os.listdir(tmp_path)) == [".t.json.tdbg-index", "t.json"]
    command = [sys.executable, "-X", "importtime", "-m", "tdbg", "trace", "show", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not loaded & {"torch", "numpy", "rich", "typer"} and "msgspec" in loaded
    assert done.stdout == first.stdout


def test_the_real_traces_are_shown(tmp_path):
    for name in ("control.json.gz", "sampled_rank-0.json.gz"):
        (tmp_path / name).write_bytes(find_real_trace(name).read_bytes())
    done = run_trace("show", tmp_path / "control.json.gz")
    assert "busy 83.6% of 465 ms" in done.stdout and "46.6% of it overlapped with computation" in done.stdout
    both = run_trace("show", tmp_path)
    assert both.returncode == 0 and "the slowest of them, rank 0:" in both.stdout


def test_an_accelerators_figures(tmp_path):
    events = [make_step(1, 0, 100), make_launch(5, 2, 1), make_gpu_span("ampere_sgemm_128x64_nn", 10, 50, 1)]
    done = run_trace("show", write_trace(tmp_path / "t.json", events))
    assert "accelerator: busy 100.0% of 0.05 ms, 1 launch" in done.stdout
    assert "kernels start 3 us after their launch (median), 3 us (p90)" in done.stdout
    assert "launch-bound: 0.0% of the time the device is idle and the next kernel is not launched yet" in done.stdout
    assert "matrix kernels: 0.05 ms, 0% of it on tensor cores by kernel name" in done.stdout


def test_advise_names_what_is_wrong_and_fails_if_asked(tmp_path):
    again = make_annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1000, 600)
    trace = write_trace(tmp_path / "t.json", [*EVENTS, again])
    assert run_trace("advise", trace).stdout == "nothing to advise\n", "steps of a millisecond are not told of 0.6 ms"
    floor = ("--threshold", "input_floor_ms=0.1")
    done = run_trace("advise", trace, *floor)
    assert done.returncode == 0 and done.stdout.startswith("TD-P102 warning: 60% of a step is spent loading batches")
    assert "num_workers=2" in done.stdout
    skipped = [line for line in done.stderr.splitlines() if "skipped" in line]
    assert len(skipped) == len(done.stderr.splitlines()) == 1 and re.match(r"tdbg: \d+ rules skipped, ", skipped[0])
    assert "; it needs the traces of two ranks or more, one of each (TD-P115)" in skipped[0]
    assert run_trace("advise", trace, *floor, "--fail-on", "warning").returncode == 1
    assert run_trace("advise", trace, *floor, "--fail-on", "critical").returncode == 0
    quiet = [word for level in ("notice", "warning", "critical") for word in ("--threshold", f"input_{level}=100%")]
    assert run_trace("advise", trace, *floor, *quiet).stdout == "nothing to advise\n"
    told = json.loads(run_trace("advise", trace, *floor, "--json").stdout)["data"]
    assert told["advice"][0]["code"] == "TD-P102" and {"code", "reason"} == set(told["abstained"][0])


@pytest.mark.parametrize("folder", ["rank0", "any"])
def test_windows_of_one_rank_and_traces_of_anything_are_no_ranks(tmp_path, folder):
    (tmp_path / folder).mkdir()
    for factor in (1, 2):
        events = [{**one, "ts": one["ts"] * factor, "dur": one.get("dur", 0) * factor} for one in EVENTS]
        write_trace(tmp_path / folder / f"a.170000000000000000{factor}.pt.trace.json", events)
    done = run_trace("advise", tmp_path / folder, "--windows", "all")
    assert "TD-P115" not in done.stdout
    assert "it needs the traces of two ranks or more, one of each (TD-P115)" in done.stderr


def test_wrong_use_of_advise_is_told(trace_file):
    for words, says in (
        (["--fail-on", "bad"], "--fail-on cannot be"),
        (["--threshold", "x=1"], "no threshold is called"),
    ):
        done = run_trace("advise", trace_file, *words)
        assert done.returncode == 2 and says in done.stderr
