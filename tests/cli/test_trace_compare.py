"""`tdbg trace compare` and `slice` as a user calls them, and the run that is meant where none is named."""

import json
import os

import pytest
from cli.test_trace import EVENTS, run_trace
from traces.material import load_trace, make_annotation, make_op, make_step, write_trace

LENGTHS = (100, 102, 98, 101, 99, 103)


def write_run(folder, factor=1.0, ranks=1, age=0):
    """A run directory with a trace of each rank; of several the last has more to do, and all wait for each other."""
    for rank in range(ranks):
        events, at = [], 0.0
        for number, length in enumerate(LENGTHS, 3):
            work = length * factor * (0.8 if rank and rank == ranks - 1 else 0.5)
            events += [make_step(number, at, length * factor), make_op("aten::mm", at, work)]
            events += [make_annotation("gloo:all_reduce", at + work, length * factor - work)] if ranks > 1 else []
            at += length * factor
        place = folder / f"rank{rank:04d}" / "traces"
        place.mkdir(parents=True)
        write_trace(place / f"rank{rank:04d}.1700000000000000000.pt.trace.json.gz", events)
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text("{}")
    os.utime(folder / "run.json", (1e9 - age, 1e9 - age))
    return folder


@pytest.fixture(scope="module")
def runs_folder(tmp_path_factory):
    """A folder with runs in it: the newest has no trace, the one before it is slower than the first."""
    base = tmp_path_factory.mktemp("here")
    write_run(base / "tdbg_runs" / "20261121-100000-good", age=300)
    write_run(base / "tdbg_runs" / "20261121-110000-slow", 1.5, age=200)
    (base / "tdbg_runs" / "20261121-120000-bare").mkdir()
    (base / "tdbg_runs" / "20261121-120000-bare" / "run.json").write_text("{}")
    return base


def test_without_a_path_the_newest_run_that_has_traces_is_meant(runs_folder, tmp_path):
    for words in (["show"], ["advise"], ["slice", "-o", tmp_path / "s.json"]):
        done = run_trace(*words, cwd=runs_folder)
        assert done.returncode == 0
        said = "tdbg: the newest run has no trace: using tdbg_runs/20261121-110000-slow"
        assert said in done.stderr.splitlines()
    for folder, says in (
        (tmp_path, "there is no run under"),
        (runs_folder / "tdbg_runs" / "20261121-120000-bare", "no run"),
    ):
        done = run_trace("show", cwd=folder)
        assert done.returncode == 2 and says in done.stderr and "`tdbg profile -- COMMAND` makes one" in done.stderr
    (tmp_path / "tdbg_runs" / "one").mkdir(parents=True)
    (tmp_path / "tdbg_runs" / "one" / "run.json").write_text("{}")
    done = run_trace("show", cwd=tmp_path)
    assert done.stderr.splitlines()[0] == f"tdbg: no run under {tmp_path / 'tdbg_runs'} has a trace"


def test_compare_says_what_changed_and_fails_on_a_regression(runs_folder):
    done = run_trace("compare", "good", "slow", cwd=runs_folder)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "A: good: 6 steps, median 0.101 ms (0.098 to 0.103, half of them within 0.0015)"
    assert lines[2].startswith("B is slower: a step takes +50.0% (96% interval +4") and "5.0% is allowed" in lines[2]
    assert "forward\t0.0503\t0.0754\t+0.0251\tyes" in lines
    assert "0.0503\t0.0754\t+0.0251\t1\t1\taten::mm" in lines
    assert run_trace("compare", "good", "slow", "--tolerance", "60%", cwd=runs_folder).returncode == 0
    assert run_trace("compare", "slow", "good", cwd=runs_folder).returncode == 0
    newest = run_trace("compare", "good", cwd=runs_folder)  # the newest run is B
    assert newest.returncode == 1 and "B: the newest run (20261121-110000-slow): 6 steps" in newest.stdout
    for words in (
        ["slow"],
        ["slow", "tdbg_runs/20261121-110000-slow"],
        ["good", "tdbg_runs/20261121-100000-good/rank0000"],
    ):
        same = run_trace("compare", *words, cwd=runs_folder)
        assert (same.returncode, same.stdout) == (2, "") and "A and B are the same traces, of 20261121-1" in same.stderr


def test_the_change_of_a_part_is_that_of_its_row(tmp_path):
    """Medians, whose difference the median of all differences need not be: `backward 1.91 1.12 +0.176` was told."""

    def write_op_trace(name, *works):
        events = []
        for number, work in enumerate(works):
            events += [make_step(number, 10_000 * number, 10_000), make_op("aten::mm", 10_000 * number, work)]
        return write_trace(tmp_path / name, events)

    done = run_trace("compare", write_op_trace("a.json", 1000, 1910, 2000), write_op_trace("b.json", 1110, 1120, 5000))
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("forward"))
    assert line.split("\t") == ["forward", "1.91", "1.12", "-0.79", "no"]


def test_compare_as_json_and_against_a_baseline(runs_folder, tmp_path):
    kept = tmp_path / "b.json"
    done = run_trace("compare", "--save", kept, "good", "good", cwd=runs_folder)
    assert (done.returncode, done.stdout) == (0, "") and done.stderr == f"tdbg: {kept}: 12 steps of good, good\n"
    done = run_trace("compare", kept, "slow", "--json", cwd=runs_folder)
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert (told["kind"], told["version"]) == ("trace-compare", 1)
    data = told["data"]
    assert (data["verdict"], data["regression"], data["a"]["runs"]) == ("slower", True, 2)
    assert data["change"]["guess"] == pytest.approx(0.5, abs=0.03) and data["operators"][0]["name"] == "aten::mm"
    assert [part["notable"] for part in data["parts"]] == [True, True]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["compare"], "0 paths were given"),
        (["compare", "good", "slow", "good"], "3 paths were given"),
        (["compare", "good", "--tolerance", "10"], "--tolerance cannot be '10'"),
        (["compare", "good", "slow", "--tolerance", "nan"], "--tolerance cannot be 'nan'"),
        (["advise", "good", "--threshold", "input_warning=20"], "--threshold input_warning cannot be '20'"),
        (["advise", "good", "--threshold", "input_warning=nan"], "--threshold input_warning cannot be 'nan'"),
        (["advise", "good", "--threshold", "loop_calls=-1"], "--threshold loop_calls cannot be '-1'"),
        (["show", "good", "--ranks", "7"], "there are traces of rank 0"),
        (["flame", "good", "--depth", "-1"], "--depth cannot be negative"),
        (["flame", "good", "--folded", "--json"], "--folded and --json exclude each other"),
        (["slice", "good", "-o", "-"], "--output writes a file, not to stdout"),
        (["show", "good", "--html", "-"], "--html writes a file, not to stdout"),
        (["compare", "good", "none"], "none: there is no such file, folder or run"),
        (["slice", "good"], "missing option: -o FILE"),
        (["slice", "good", "--steps", "99", "-o", "{tmp}/s.json"], "no trace holds the steps 99"),
        (["slice", "good", "--steps", "5-6", "-o", "{tmp}/s.json"], "--steps cannot be '5-6'"),
        (["slice", "good", "-o", "{tmp}/none/s.json"], "No such file"),
    ],
)
def test_wrong_use_is_told(runs_folder, tmp_path, words, says):
    done = run_trace(*(word.format(tmp=tmp_path) for word in words), cwd=runs_folder)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_steps_that_no_trace_holds_are_named(runs_folder, tmp_path):
    done = run_trace("slice", "good", "--steps", "4,99,5:200, 300:", "-o", tmp_path / "s.json", cwd=runs_folder)
    assert done.returncode == 0
    assert done.stderr.splitlines()[0] == "tdbg: no trace holds the steps 99, 300:"


def test_a_trace_without_events_is_the_same_to_all(runs_folder, tmp_path):
    nothing, out = write_trace(tmp_path / "t.json", []), tmp_path / "out.json"
    for words in (
        ["show"],
        ["show", "--perfetto", out],
        ["flame"],
        ["advise"],
        ["advise", "--json"],
        ["slice", "-o", out],
    ):
        done = run_trace(*words, nothing)
        assert (done.returncode, done.stderr) == (1, "tdbg: the trace holds no event\n"), words
        assert not out.exists() and "nothing to advise" not in done.stdout
    for sides in (("good", nothing), (nothing, "good")):
        done = run_trace("compare", *sides, cwd=runs_folder)
        assert done.returncode == 1 and "tdbg: the trace holds no event" in done.stderr


def test_too_few_steps_are_told(runs_folder, tmp_path):
    few = write_trace(tmp_path / "t.json", EVENTS)
    done = run_trace("compare", "good", few, cwd=runs_folder)
    assert done.returncode == 0 and "too few steps to tell a difference from chance" in done.stdout


def test_a_file_that_is_there_is_kept_and_a_trace_that_is_read_always(tmp_path):
    trace = write_trace(tmp_path / "t.json", EVENTS)
    before = trace.read_bytes()
    there = tmp_path / "there.json"
    for words, option in ((["slice"], "-o"), (["show"], "--perfetto"), (["show"], "--html")):
        there.write_text("mine")
        done = run_trace(*words, trace, option, there)
        assert done.returncode == 2 and "already exists" in done.stderr and "--force" in done.stderr
        assert there.read_text() == "mine"
        assert run_trace(*words, trace, option, there, "--force").returncode == 0 and there.read_text() != "mine"
        (tmp_path / "link.json").unlink(missing_ok=True)
        (tmp_path / "link.json").symlink_to(trace)
        for name in (trace, tmp_path / "link.json"):
            done = run_trace(*words, trace, option, name, "--force")
            assert done.returncode == 2 and "is the trace itself" in done.stderr and trace.read_bytes() == before


def find_bar_lines(text):
    """The lines of the bar of `show`."""
    return [line for line in text.splitlines() if line.endswith(" ms") and "%" in line]


def test_a_slice_of_some_ranks_shows_as_the_run_does(tmp_path):
    folder, out = write_run(tmp_path / "run", ranks=3), tmp_path / "out.json.gz"
    done = run_trace("slice", "--steps", "4:5", "--ranks", "0,2", "-o", out, folder)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(f"tdbg: {out}: 4 steps of 2 traces, ")
    again = run_trace("show", out)
    assert again.returncode == 0 and again.stdout.startswith("trace\t") and "rank 2" in again.stdout
    one = run_trace("show", out, "--ranks", "2")
    assert "2 steps (4 to 5)" in one.stdout and "forward" in one.stdout and find_bar_lines(one.stdout)
    whole = tmp_path / "whole.json"
    shown = run_trace("show", folder, "--ranks", "2", "--perfetto", whole)
    assert find_bar_lines(shown.stdout) == find_bar_lines(run_trace("show", whole).stdout) != []
    assert {event["pid"] for event in load_trace(whole)["traceEvents"]} == {1}


def test_several_ranks_tell_who_is_slow_and_by_how_much(tmp_path):
    folder = write_run(tmp_path / "run", ranks=3)
    out = run_trace("show", folder).stdout
    more = "rank 2 does 60% more work than the others, 0.0804 ms a step; the longer part is forward, by 0.0301 ms"
    assert more in out.splitlines()
    assert "skew: own work differs by 0.0301 ms a step (6 steps in common)" in out
    assert "exposed communication: 0.0201 ms a step on rank 2 to 0.0503 ms on rank 0" in out
    told = json.loads(run_trace("show", folder, "--json").stdout)["data"]["ranks"]
    assert [one["label"] for one in told["each"]] == ["rank 0", "rank 1", "rank 2"] and told["skew"] == 30_150
    assert "no rank stands out: the slowest does 0.0% more work" in run_trace("show", folder, "--ranks", "0-1").stdout
