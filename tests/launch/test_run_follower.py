"""Reading along: what is said, when, how often, and at what cost."""

import json
import math
import os
import threading
import time

import pytest
from streams import Stream, make_nonfinite

from tdbg.core.config import Settings
from tdbg.core.events import End, Observation, Plan, Step, Trigger, encode
from tdbg.core.rundir import EVENTS, ProcessDir
from tdbg.launch.program_rows import ProgramRows
from tdbg.launch.progress import Progress
from tdbg.launch.run_follower import FINDINGS, POLL_S, Follower, Tail, compute_rest_s


@pytest.fixture
def run_stream(tmp_path) -> Stream:
    return Stream(tmp_path / "run")


def make_follower(run: Stream, stop=lambda finding: None, speaks: bool = True, **settings) -> Follower:
    return Follower(run.run, Settings(**settings), stop, speaks=speaks)


def wait_for(condition, seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "nothing happened"
        time.sleep(0.02)


def emit_nan_run(run: Stream, world: int = 2, steps: int = 60) -> None:
    folders = [run.begin_rank(rank, world=world) for rank in range(world)]
    for folder in folders:
        run.emit_steps(folder, [2.5, 2.4])
    for rank, folder in enumerate(folders):
        run.emit_events(folder, make_nonfinite(origin="here" if rank == 1 else "other-rank"))
    for step in range(3, steps + 1):
        for folder in folders:
            run.emit_steps(folder, ["nan"], first=step)


def test_a_finding_is_said_while_the_run_goes_on_and_once(run_stream, capsys):
    follower = make_follower(run_stream)
    follower.start_thread()
    rank = run_stream.begin_rank()
    run_stream.emit_steps(rank, [2.5, 2.4])
    run_stream.emit_events(rank, make_nonfinite())
    run_stream.emit_steps(rank, ["nan"], first=3)
    said = ""

    def heard() -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return "cause:" in said

    wait_for(heard)
    assert (
        said.splitlines()[0]
        == 'tdbg: TD-N001 critical: first NaN at step 3 on rank 0, in backward of module "blocks.2.act" (Act)'
    )
    run_stream.end_process(rank, 3)
    run_stream.record_exit(0)
    verdict = follower.finish_run(0)
    late = capsys.readouterr().err
    assert verdict.worst_severity == "critical" and "tdbg: verdict: 1 finding" in late and "cause:" not in late
    assert (run_stream.run.path / "report.json").exists()


@pytest.mark.parametrize("world", [1, 2, 8])
def test_a_nan_run_says_at_most_twenty_lines_over_all_ranks(run_stream, capsys, world):
    emit_nan_run(run_stream, world)
    run_stream.record_child_exit(0, -11)
    run_stream.record_exit(1)
    follower = make_follower(run_stream)
    follower.start_thread()
    wait_for(lambda: follower.judge.findings)
    follower.finish_run(1)
    said, out = capsys.readouterr().err.splitlines(), capsys.readouterr().out
    assert out == "" and all(line.startswith("tdbg: ") for line in said)
    assert len(said) <= 18
    assert "first NaN at step 3 on rank 1" in said[0] or world == 1


def test_the_worst_is_shown_whole_even_if_something_else_came_first(run_stream, capsys):
    rank = run_stream.begin_rank()
    run_stream.emit_steps(rank, [2.0] * 60 + [60.0], lr=[1e-3] * 60 + [1.0])
    run_stream.emit_steps(rank, [70.0, 80.0], lr=1.0, first=62)
    run_stream.emit_events(rank, make_nonfinite(step=64))
    run_stream.emit_steps(rank, ["nan"], lr=1.0, first=64)
    follower = make_follower(run_stream)
    follower.finish_run(0)
    said = capsys.readouterr().err
    assert said.startswith("tdbg: TD-S001 error: learning rate jumped 1,000x at step 61")
    assert "tdbg: TD-N001 critical: first NaN at step 64" in said and "12 of 4,096 elements" in said
    assert len(said.splitlines()) <= 18


def test_events_written_after_the_end_still_count(run_stream):
    follower = make_follower(run_stream)
    follower.start_thread()
    time.sleep(0.05)
    emit_nan_run(run_stream)
    assert follower.finish_run(0).findings[0].rank == 1


def test_without_start_it_judges_at_the_end(run_stream):
    emit_nan_run(run_stream)
    assert make_follower(run_stream).finish_run(0).findings[0].rank == 1


def test_stop_is_called_once_with_the_finding_asked_for(run_stream):
    asked, called = threading.Event(), []
    follower = make_follower(run_stream, lambda finding: (called.append(finding), asked.set()), stop_on=["TD-N"])
    follower.start_thread()
    emit_nan_run(run_stream)
    assert asked.wait(10)
    follower.finish_run(-15)
    # The dead run of rank 0 may be read before the NaN of rank 1, which made it.
    assert len(called) == 1 and called[0] in ("TD-N001 (--stop-on)", "TD-N002 (--stop-on)")


def test_quiet_says_the_first_line_of_the_verdict(run_stream, capsys):
    emit_nan_run(run_stream)
    follower = make_follower(run_stream, quiet=True)
    follower.start_thread()
    follower.finish_run(0)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tdbg: verdict: 2 findings")


def test_an_agent_that_joined_says_nothing_and_writes_nothing(run_stream, capsys):
    emit_nan_run(run_stream)
    follower = make_follower(run_stream, speaks=False)
    follower.start_thread()
    assert follower.finish_run(0).findings
    assert capsys.readouterr().err == "" and not (run_stream.run.path / "report.json").exists()


def test_a_follower_that_fails_never_raises(run_stream, monkeypatch, capsys):
    def broken(self):
        raise RuntimeError("broken")

    monkeypatch.setattr(Follower, "poll_events", broken)
    emit_nan_run(run_stream)
    follower = make_follower(run_stream)
    follower.start_thread()
    verdict = follower.finish_run(0)
    assert verdict.findings[0].rank == 1 and "RuntimeError: broken" in verdict.trouble[-1]


def test_an_unwritable_report_is_said_and_no_failure(run_stream, monkeypatch, capsys):
    def full(self, where):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tdbg.rules.verdict.Verdict.write_report", full)
    make_follower(run_stream).finish_run(0)
    assert "cannot write the report: No space left on device" in capsys.readouterr().err


def test_tail_gives_whole_lines_only_and_all_of_them(tmp_path, run_stream):
    folder = run_stream.run.path / "rank0000"
    folder.mkdir()
    tail = Tail(ProcessDir(run_stream.run, folder))
    assert tail.read_events() == []
    lines = [encode(Step(step=step, loss=1.0)) for step in range(1, 200)]
    data, found = b"".join(lines), []
    with (folder / EVENTS).open("ab", buffering=0) as file:
        for begin in range(0, len(data), 37):
            file.write(data[begin : begin + 37])
            found += tail.read_events()
    assert [event.step for event in found] == list(range(1, 200))
    assert not tail.has_more()


def test_tail_gets_over_garbage_and_a_file_that_shrinks(run_stream):
    folder = run_stream.run.path / "rank0000"
    folder.mkdir()
    path = folder / EVENTS
    tail = Tail(ProcessDir(run_stream.run, folder))
    path.write_bytes(b"\xff" * 100 + b"\n" + encode(Step(step=1)))
    assert [event.step for event in tail.read_events()] == [1]
    path.write_bytes(b"")
    assert tail.read_events() == []
    path.unlink()
    assert tail.read_events() == [] and not tail.has_more()


def test_a_flood_is_read_in_parts(run_stream, monkeypatch):
    monkeypatch.setattr("tdbg.launch.run_follower.CHUNK_BYTES", 1000)
    rank = run_stream.begin_rank()
    run_stream.emit_steps(rank, [2.0] * 500)
    follower = make_follower(run_stream, speaks=False)
    assert follower.finish_run(0).ranks[0]["steps"] == 500


def test_progress_line_where_stderr_is_no_terminal(run_stream, capsys):
    rank = run_stream.begin_rank()
    run_stream.emit_events(rank, Plan(steps=1000, source="x"))
    run_stream.emit_steps(rank, [2.5] * 100, epoch=1)
    follower = make_follower(run_stream, progress_every=0.05)
    follower.start_thread()
    said = ""

    def heard() -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return said != ""

    wait_for(heard)
    follower.finish_run(0)
    line = said.splitlines()[0]
    assert line.startswith("tdbg: step 100 of 1,000, epoch 1, loss 2.5, lr 0.001")


def make_live_rows() -> ProgramRows:
    """Rows as on a terminal, where all output passes through tdbg."""
    rows = ProgramRows(passes_all=True)
    rows.passes_all = rows._sees_all = rows._at_start = True
    return rows


def test_the_live_line_is_wiped_before_anything_else_is_said(run_stream, capsys, monkeypatch):
    monkeypatch.setattr("tdbg.core.output._rows", make_live_rows())
    follower = make_follower(run_stream)
    rank = run_stream.begin_rank()
    run_stream.emit_steps(rank, [2.5] * 10)
    follower.poll_events()
    follower._progress.print_if_due(time.monotonic() + 2)
    follower.finish_run(0)
    said = capsys.readouterr().err
    assert said.startswith("\rtdbg: step 10, loss 2.5, lr 0.001") and "\x1b[K\r\x1b[Ktdbg: verdict" in said


def test_progress_is_silent_before_the_first_step(run_stream, capsys):
    follower = make_follower(run_stream, progress_every=0.01)
    progress = Progress(follower.settings, follower.judge.view)
    progress.print_if_due(time.monotonic() + 100)
    assert capsys.readouterr().err == ""


def test_a_rank_that_stands_still_has_no_speed(run_stream, capsys):
    """It tells that it is in step 40, of which 10 are on record: those are no steps of now."""
    follower = make_follower(run_stream, progress_every=1.0)
    rank = run_stream.begin_rank()
    run_stream.emit_steps(rank, [2.5] * 10)
    values = {"state": "elsewhere", "quiet_s": 15.0, "activity": "sleep"}
    run_stream.emit_events(rank, Observation(probe="hang", part="QUIET", step=41, text="-", values=values))
    follower.poll_events()
    follower._progress.print_if_due(time.monotonic() + 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tdbg: step 40, ") and "/s" not in line


def read_standstill(follower: Follower, capsys, seconds: int = 30 * 9) -> list[str]:
    """What is said while no event comes, every 30 seconds from the first line on."""
    follower.poll_events()
    now = time.monotonic() + 1.0
    for tick in range(0, seconds + 1, 30):
        follower._progress.print_if_due(now + tick)
    return capsys.readouterr().err.splitlines()[1:]


def test_a_standstill_is_said_again_each_time_that_it_has_doubled(run_stream, capsys):
    follower = make_follower(run_stream, progress_every=1.0)
    run_stream.emit_steps(run_stream.begin_rank(), [2.5] * 10)
    assert read_standstill(follower, capsys) == [
        f"tdbg: step 10, nothing new recorded for {text}" for text in ("30 s", "60 s", "2 min", "4 min")
    ]


def test_a_standstill_of_several_ranks_says_where_they_are(run_stream, capsys):
    follower = make_follower(run_stream, progress_every=1.0)
    for rank in (0, 1):
        run_stream.emit_steps(run_stream.begin_rank(rank, world=2), [2.5] * 40)
    assert read_standstill(follower, capsys) == [
        f"tdbg: step 40 on each of 2 ranks; no rank has recorded a step for {text}"
        for text in ("30 s", "60 s", "2 min", "4 min")
    ]


@pytest.mark.parametrize(
    ("steps", "ends", "where"),
    [
        ((41, 40), (), "last recorded: step 40 on rank 1, step 41 on rank 0"),
        ((41, 40, 41, 41), (), "last recorded: step 40 on rank 1, step 41 on ranks 0, 2-3"),
        ((41, 40), (1,), "last recorded: step 40 on rank 1 (ended), step 41 on rank 0"),
        ((1, 2, 3, 4, 5), (), "last recorded: step 1 on rank 0, step 2 on rank 1, step 3 on rank 2 and 2 more"),
    ],
)
def test_a_standstill_says_where_each_rank_stands(run_stream, capsys, steps, ends, where):
    follower = make_follower(run_stream, progress_every=1.0)
    for rank, count in enumerate(steps):
        folder = run_stream.begin_rank(rank, world=len(steps))
        run_stream.emit_steps(folder, [2.5] * count)
        if rank in ends:
            run_stream.end_process(folder, count)
    assert read_standstill(follower, capsys, 30) == [f"tdbg: {where}; no rank has recorded a step for 30 s"]


def test_a_rank_without_a_step_counts_in_a_standstill(run_stream, capsys):
    follower = make_follower(run_stream, progress_every=1.0)
    run_stream.emit_steps(run_stream.begin_rank(world=2), [2.5] * 3)
    (line,) = read_standstill(follower, capsys, 30)
    assert line == "tdbg: step 3 on 1 of 2 ranks; no rank has recorded a step for 30 s"


def test_ranks_that_have_all_ended_do_not_hang(run_stream, capsys):
    follower = make_follower(run_stream, progress_every=1.0)
    for rank in (0, 1):
        folder = run_stream.begin_rank(rank, world=2)
        run_stream.emit_steps(folder, [2.5] * 40)
        run_stream.end_process(folder, 40)
    assert read_standstill(follower, capsys, 30) == ["tdbg: step 40, nothing new recorded for 30 s"]


def test_beside_a_live_line_no_other_line_says_so(run_stream, capsys, monkeypatch):
    monkeypatch.setattr("tdbg.core.output._rows", make_live_rows())
    follower = make_follower(run_stream)
    for rank in range(2):
        run_stream.emit_steps(run_stream.begin_rank(rank, world=2), [2.5] * 10)
    follower.poll_events()
    now = time.monotonic() + 2
    for second in range(70):
        follower._progress.print_if_due(now + second)
    said = capsys.readouterr().err
    assert said.count("\n") == 0 and "tdbg: step 10, nothing new recorded for 69 s" in said


def test_following_costs_little_more_than_reading(run_stream):
    """Two ranks, twenty steps a second each, with vectors of a hundred norms.

    To parse the same lines takes some 0.035 % of a core, all of following 0.14 %: four times as much.
    """
    follower = make_follower(run_stream, speaks=False)
    folders = [run_stream.begin_rank(rank, world=2) for rank in (0, 1)]
    for _ in range(8):
        follower.poll_events()
    followed_s, seconds = 0.0, 10
    for tick in range(seconds * 4):
        for folder in folders:
            for step in range(5):
                run_stream.emit_events(
                    folder,
                    Step(step=tick * 5 + step + 1, loss=2.0, lr=[1e-3], grad_norm=1.0, grad_norms=[0.123456] * 100),
                )
        begun = time.thread_time()
        follower.poll_events()
        followed_s += time.thread_time() - begun
    written = [line for folder in folders for line in (run_stream.run.path / folder / EVENTS).read_bytes().splitlines()]
    assert follower.judge.view.processes and len(written) >= 400
    parsed_s = math.inf
    for _ in range(5):
        begun = time.thread_time()
        for line in written:
            json.loads(line)
        parsed_s = min(parsed_s, time.thread_time() - begun)
    assert followed_s < 25 * parsed_s, f"{followed_s / parsed_s:.1f} times as much"


def test_many_ranks_are_followed(run_stream):
    for rank in range(200):
        folder = run_stream.begin_rank(rank, world=200)
        run_stream.emit_steps(folder, [2.0] * 3)
        run_stream.emit_events(folder, End(step=3))
    verdict = make_follower(run_stream, speaks=False).finish_run(0)
    assert len(verdict.ranks) == 200 and verdict.findings == []


def test_nothing_is_left_open(run_stream):
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")
    emit_nan_run(run_stream, 8)
    before = list_open_files(run_stream)
    make_follower(run_stream, speaks=False).finish_run(0)
    assert list_open_files(run_stream) == before


def list_open_files(run: Stream) -> list[str]:
    """The files of the run that this process has open; what other tests leave to the collector is not counted."""
    opened = []
    for number in os.listdir("/proc/self/fd"):
        try:
            opened.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:  # the one that listed them
            continue
    return sorted(path for path in opened if path.startswith(str(run.run.path)))


def test_a_trigger_may_end_the_run(run_stream):
    asked, called = threading.Event(), []
    follower = make_follower(run_stream, lambda why: (called.append(why), asked.set()))
    follower.start_thread()
    run_stream.emit_events(
        run_stream.begin_rank(2),
        Trigger(step=7, condition="loss > 10", action="stop", stop=True),
        Trigger(step=9, stop=True),
    )
    assert asked.wait(10)
    follower.finish_run(-15)
    assert called == ["'loss > 10' in step 7, rank 2 (--then)"]


def test_findings_are_kept_as_they_come(run_stream):
    emit_nan_run(run_stream)
    follower = make_follower(run_stream)
    follower.poll_events()
    line, *_ = (run_stream.run.path / FINDINGS).read_text().splitlines()
    assert json.loads(line)["code"] == "TD-N001" and json.loads(line)["t"] > 0


def test_an_agent_that_joined_keeps_no_findings(run_stream):
    emit_nan_run(run_stream)
    make_follower(run_stream, speaks=False).poll_events()
    assert not (run_stream.run.path / FINDINGS).exists()


EVENT_S = 65e-6  # CPU time that the follower takes for an event


def follow_rate(rate: float) -> tuple[float, float]:
    """How late the follower comes, in seconds, and its share of a core, on a job that writes so many events a second."""
    late_s, work_s = POLL_S, 0.0
    for _ in range(200):
        work_s = rate * late_s * EVENT_S
        late_s = work_s + max(compute_rest_s(work_s), POLL_S)
    return late_s, work_s / late_s


@pytest.mark.parametrize("rate", [1, 20, 100, 150, 200, 500, 1000, 3000, 8000])
def test_on_a_busy_job_findings_are_not_late(rate):
    late_s, share = follow_rate(rate)
    assert share <= 1.01 * rate * EVENT_S and late_s < (2.5 if rate <= 2000 else 25.0)


def test_after_a_backlog_a_hang_is_told_at_once(run_stream):
    """The first look takes a third of a second."""
    folders = [run_stream.begin_rank(rank, world=2) for rank in (0, 1)]
    for folder in folders:
        run_stream.emit_steps(folder, [2.0] * 3000)
    told, stopped = threading.Event(), threading.Event()
    follower = Follower(
        run_stream.run,
        Settings(stop_on=["TD-R006"]),
        lambda why: stopped.set(),
        alert=lambda finding: told.set(),
        speaks=False,
    )
    follower.start_thread()
    wait_for(lambda: len(follower.judge.view.processes) == 2 and follower.judge.view.processes["rank0001"].step >= 3000)
    time.sleep(1.0)  # it rests
    for folder, state, count in zip(folders, ("collective", "elsewhere"), (9, 8), strict=True):
        values = {"state": state, "op": "all_reduce", "number": count, "counts": {"world": count}, "quiet_s": 16.0}
        values["began_t"] = run_stream.t - 16.0
        run_stream.emit_events(folder, Observation(probe="hang", part="QUIET", step=3001, text="-", values=values))
    assert told.wait(6.0) and stopped.wait(1.0)
    follower.finish_run(-15)
