"""Of many ranks those that are read."""

import json
import subprocess
import sys

import pytest
from traces.material import dense, kineto, make_annotation, make_op, make_step, python, write_trace

from tdbg.core.events import Step, encode
from tdbg.traces.analyze.rank_sampling import describe_unprofiled, select_ranks
from tdbg.traces.parse.trace_files import find_traces, select_newest_windows

COUNT = 16
SLOW = 11


def write_rank_trace(path, work, layout=kineto, wait_until=900):
    """Three steps of a millisecond: ``work`` microseconds of them a rank works, then it waits for the others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    events = []
    for number in range(3):
        at = number * 1000
        events += [
            make_step(number, at, 1000),
            make_op("aten::mm", at, work),
            make_annotation("gloo:all_reduce", at + work, wait_until - work),
        ]
    return write_trace(path, events, layout)


def write_events(path, forward_ms, step_ms=100.0, count=20):
    """Events of a rank whose steps are all as long as the others', since it waits for them in backward."""
    rows = [
        Step(t=float(at), step=at, step_ms=step_ms, forward_ms=forward_ms, backward_ms=step_ms - forward_ms - 1)
        for at in range(1, count + 1)
    ]
    path.mkdir(parents=True, exist_ok=True)
    (path / "events.jsonl").write_bytes(b"".join(map(encode, rows)))


def write_run(tmp_path, traced=range(COUNT), ranks=COUNT, slow=SLOW, layout=kineto, events=True):
    (tmp_path / "run.json").write_text("{}")
    for rank in range(ranks):
        folder = tmp_path / f"rank{rank:04d}"
        if events:
            write_events(folder, 40.0 if rank == slow else 20.0 + rank / 100)
        if rank in traced:
            name = "h.1700000000000000000.pt.trace.json.gz"
            write_rank_trace(folder / "traces" / name, 400 if rank == slow and not events else 100 + rank, layout)
    return select_newest_windows(find_traces(str(tmp_path)))


def list_ranks(found):
    return [one.rank for one in select_ranks(found).found]


def test_up_to_eight_ranks_are_all_read(tmp_path):
    found = write_run(tmp_path, traced=range(8), ranks=8)
    assert select_ranks(found) == (found, [], "")


def test_of_more_the_slowest_by_their_events_are_read_and_it_is_said(tmp_path):
    some = select_ranks(write_run(tmp_path))
    kept = [one.rank for one in some.found]
    assert len(kept) == 8 and {0, SLOW} < set(kept)
    assert any(one < 9 for one in kept if one), "one that is as usual"
    assert sorted([*kept, *some.left]) == list(range(COUNT))
    assert f"of 16 ranks, {', '.join(map(str, kept))} are read: rank 0, a typical one, and those" in some.said
    assert "by step times in their events" in some.said and "--ranks names others" in some.said


def test_a_rank_with_longer_steps_is_read_too(tmp_path):
    found = write_run(tmp_path, slow=None)
    write_events(tmp_path / "rank0006", 1.0, step_ms=150.0)
    assert {0, 6, 15} < set(list_ranks(found))


@pytest.mark.parametrize("layout", [kineto, python, dense])
def test_without_events_the_marks_in_the_traces_tell(tmp_path, layout):
    """All steps are as long as those of the slowest rank, and that one waits least in the collectives."""
    some = select_ranks(write_run(tmp_path, layout=layout, events=False))
    kept = [one.rank for one in some.found]
    assert len(kept) == 8 and {0, SLOW} < set(kept) and "by step times in their traces" in some.said


def test_where_nothing_tells_the_first_are_read(tmp_path):
    for rank in range(12):
        path = tmp_path / f"rank{rank:04d}" / "h.pt.trace.json"
        path.parent.mkdir()
        write_trace(path, [make_op("aten::mm", 0, 1)])
    some = select_ranks(select_newest_windows(find_traces(str(tmp_path))))
    assert [one.rank for one in some.found] == list(range(8)) and "no step times to tell which are slow" in some.said


def test_all_windows_of_a_rank_stay_together_and_other_traces_are_all_read(tmp_path):
    write_run(tmp_path)
    write_rank_trace(tmp_path / f"rank{SLOW:04d}" / "traces" / "h.1800000000000000000.pt.trace.json.gz", 100)
    assert list_ranks(find_traces(str(tmp_path))).count(SLOW) == 2
    for at in range(12):
        write_rank_trace(tmp_path / "any" / f"name{at}.pt.trace.json", 10)
    assert len(list_ranks(find_traces(str(tmp_path / "any")))) == 12


def test_a_slow_rank_without_a_trace_is_named(tmp_path):
    found = write_run(tmp_path, traced=[0])
    assert [one.rank for one in found] == [0]
    assert describe_unprofiled(found).startswith(
        f"rank {SLOW} has no trace and seems slower than those with one: 41 ms"
    )
    assert f"`tdbg profile --ranks 0,{SLOW}` records it" in describe_unprofiled(found)
    write_events(tmp_path / f"rank{SLOW:04d}", 20.0)
    assert describe_unprofiled(found) == "", "nobody is slow"
    write_events(tmp_path / f"rank{SLOW:04d}", 40.0, count=2)
    assert describe_unprofiled(found) == "", "two steps tell nothing"


def test_a_rank_whose_trace_was_not_asked_for_is_not_called_unprofiled(tmp_path):
    found = write_run(tmp_path, ranks=4, slow=2)
    assert describe_unprofiled([one for one in found if one.rank == 0]) == ""


def run_trace(*words):
    command = [sys.executable, "-m", "tdbg", "trace", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_show_and_advise_read_the_slow_rank_and_say_which_were_read(tmp_path):
    write_run(tmp_path)
    for name in ("show", "advise"):
        done = run_trace(name, tmp_path)
        assert done.returncode == 0 and "tdbg: of 16 ranks, 0, " in done.stderr, done.stderr
        left = json.loads(run_trace(name, tmp_path, "--json").stdout)["data"]["ranks_left_out"]
        assert len(left) == 8 and SLOW not in left and 0 not in left
    shown = run_trace("show", tmp_path).stdout
    assert f"rank {SLOW}\t" in shown and sum(line.startswith("rank ") for line in shown.splitlines()[:10]) == 8
    every = run_trace("show", tmp_path, "--ranks", "0-15")
    assert every.stderr == "" and "rank 15\t" in every.stdout and "rank 1\t" in every.stdout
    assert json.loads(run_trace("show", tmp_path, "--ranks", "0-15", "--json").stdout)["data"]["ranks_left_out"] == []


def test_show_names_the_slow_rank_that_was_not_profiled(tmp_path):
    write_run(tmp_path, traced=[0])
    assert f"tdbg: rank {SLOW} has no trace and seems slower" in run_trace("show", tmp_path).stderr
    assert "no trace" not in run_trace("show", tmp_path, "--ranks", "0").stderr
