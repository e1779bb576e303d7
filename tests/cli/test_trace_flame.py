"""`tdbg trace flame`, and what `show` tells of memory, modules and operations, as a user calls them."""

import json

import pytest
from cli.test_trace import run_trace
from traces.material import make_memory_event, make_op, make_span, make_step, write_trace

DIMS = {"Input Dims": [[200, 300], [300, 400]]}
EVENTS = [
    make_step(1, 0, 1000),
    make_op("aten::linear", 100, 400),
    make_op("aten::mm", 110, 240, **DIMS),
    make_memory_event(120, 3_000_000, 4_000_000, address=1),
    make_memory_event(700, -3_000_000, 1_000_000, address=1),
    make_step(2, 1000, 1000),
    make_span("train.py(3): main", 0, 2000, "python_function"),
    make_span("nn.Module: Net_0", 50, 600, "python_function"),
    make_span("nn.Module: Linear_0", 90, 500, "python_function"),
]


@pytest.fixture
def trace_file(tmp_path):
    return write_trace(tmp_path / "t.pt.trace.json", EVENTS)


def test_a_row_a_call_and_its_bar_below_its_callers(trace_file):
    done = run_trace("flame", trace_file)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "t.pt.trace.json: calls by stack, ms per step (mean of 2 steps)"
    assert [line.split()[-1] for line in lines[2:]] == ["main", "Net_0", "Linear_0", "aten::linear"]
    assert lines[2].split()[:3] == ["1", "0.7", "0.5"] and "█" * 30 in lines[2]


def test_other_ways_and_fewer_rows(trace_file):
    done = run_trace("flame", trace_file, "--by", "module", "--top", "3")
    assert [line.split()[-1] for line in done.stdout.splitlines()[2:]] == ["modules", "Net_0", "Linear_0"]
    assert "1 row with less time left out" in done.stderr
    done = run_trace("flame", trace_file, "--by", "operator", "--depth", "1")
    assert [line.split()[-1] for line in done.stdout.splitlines()[2:]] == ["aten::linear"]
    done = run_trace("flame", trace_file, "--by", "colour")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, "tdbg: write one of: stack, module, operator")


def test_folded_stacks(trace_file, tmp_path):
    every = run_trace("flame", trace_file, "--folded").stdout.splitlines()
    some = run_trace("flame", trace_file, "--folded", "--top", "2").stdout.splitlines()
    times = sorted((int(line.rpartition(" ")[2]) for line in every), reverse=True)
    assert len(some) == 2 < len(every) and set(some) < set(every)
    assert sorted((int(line.rpartition(" ")[2]) for line in some), reverse=True) == times[:2]
    flat = run_trace("flame", trace_file, "--folded", "--depth", "1").stdout.splitlines()
    assert all(";" not in line for line in flat)
    assert sum(int(line.rpartition(" ")[2]) for line in flat) == pytest.approx(sum(times), abs=2)
    done = run_trace("flame", trace_file, "--folded")
    assert done.stdout.splitlines() == [
        "train.py(3): main 1400",
        "train.py(3): main;nn.Module: Net_0 100",
        "train.py(3): main;nn.Module: Net_0;nn.Module: Linear_0 100",
        "train.py(3): main;nn.Module: Net_0;nn.Module: Linear_0;aten::linear 400",
    ]
    for rank in (0, 1):
        (tmp_path / f"rank{rank}").mkdir()
        write_trace(tmp_path / f"rank{rank}" / "t.pt.trace.json", [make_op("aten::mm", 0, 7 + rank)])
    trace_file.unlink()
    assert run_trace("flame", tmp_path, "--folded").stdout.splitlines() == ["rank 0;aten::mm 7", "rank 1;aten::mm 8"]


def test_json_has_all_rows(trace_file):
    told = json.loads(run_trace("flame", trace_file, "--json", "--by", "operator").stdout)
    (one,) = told["data"]["traces"]
    assert (told["kind"], one["by"], one["steps"], one["calls_cut"]) == ("trace-flame", "operator", 2, 0)
    assert [(row["name"], row["depth"], row["own"]) for row in one["rows"]] == [
        ("aten::linear", 1, 160_000),
        ("aten::mm", 2, 240_000),
    ]


def test_nothing_was_called(tmp_path):
    done = run_trace("flame", write_trace(tmp_path / "t.json", [make_step(1, 0, 10)]))
    assert (done.returncode, done.stderr) == (1, "tdbg: nothing was called in it\n")


def test_show_tells_memory_modules_and_operations(trace_file):
    lines = run_trace("show", trace_file).stdout.splitlines()
    flops = 2 * 200 * 300 * 400
    assert f"{flops / 2 / 1e6:.3g} MFLOP a step, 24 GFLOP/s over the whole step" in next(
        x for x in lines if "FLOP" in x
    )
    assert any(line.split("\t")[4:6] == [f"{flops / 240_000:.3g}", "aten::mm"] for line in lines)
    at = lines.index("memory of cpu: peak 4 MB at 0.1 ms, 1 MB at the end")
    curve = lines[at + 1 : at + 8]
    assert curve[0].startswith("    4 MB ┤") and "█" in curve[0] and curve[0].count("█") < curve[4].count("█")
    assert "▲" in curve[5] and curve[5].count("╵") == 2 and curve[6].endswith("╵ a step begins")
    assert lines[at + 9 : at + 11] == [
        "3 MB\t75.0%\taten::linear",
        "1 MB more: allocated before the trace began, or not tracked",
    ]
    assert lines[-3:] == ["total ms\tself ms\tcalls\tmodule", "0.3\t0.05\t1\tNet_0", "0.25\t0.25\t1\t  Linear_0"]
