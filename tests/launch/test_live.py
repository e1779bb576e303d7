"""`tdbg status` and `tdbg control` on runs written by hand: what is read, what is worked out, what is refused."""

import fcntl
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from streams import HOST, Stream

from tdbg.cli import main
from tdbg.core import control
from tdbg.core.control import CONTROL_FILE, Request
from tdbg.core.errors import TdbgError
from tdbg.core.events import Cost, End, Finding, Observation, Plan, Step, Switch, Traceback
from tdbg.core.rundir import RunDir, process_start
from tdbg.launch import ask as ask_module
from tdbg.launch.ask import LOCK_FILE, common_step, send_request
from tdbg.launch.join import describe_process
from tdbg.launch.live import TAIL_BYTES, RankState, Snapshot, read_snapshot
from tdbg.launch.progress import _format_cost
from tdbg.launch.run_follower import FINDINGS, Follower
from tdbg.rules.rule_engine import judge_run
from tdbg.rules.view import View


def begin_run(folder: Path, **settings: Any) -> Stream:
    """A run that is watched over by this very process."""
    run = Stream(folder, **settings)
    run.t -= 1000.0  # its ranks began a while ago
    run.run.update_info(supervisor=describe_process())
    return run


def begin_rank(run: Stream, rank: int = 0, world: int = 2, pid: int | None = None) -> str:
    """A rank that lives: this process, unless another pid is given."""
    folder = run.begin_rank(rank, world=world, pid=pid or os.getpid())
    owner = {"pid": pid or os.getpid(), "host": HOST, "start": process_start(pid or os.getpid())}
    (run.run.path / folder / "owner.json").write_text(json.dumps(owner))
    return folder


def emit_steps(run: Stream, folder: str, last: int, rate: float = 10.0, count: int = 20, ago: float = 0.0) -> None:
    """The last ``count`` records of a rank that does ``rate`` steps a second, the last of them ``ago`` seconds old."""
    now = time.time() - ago
    for step in range(max(last - count, 0) + 1, last + 1):
        run.emit_events(folder, Step(t=now - (last - step) / rate, step=step, loss=1.0 / step, lr=[0.1], finite=True))
    run.t = max(run.t, now)


@pytest.fixture
def run_stream(tmp_path: Path) -> Stream:
    return begin_run(tmp_path / "tdbg_runs" / "run")


@pytest.fixture
def live_run(run_stream: Stream) -> Stream:
    """Two ranks at steps 200 and 203, ten steps a second."""
    folders = [begin_rank(run_stream, rank) for rank in (0, 1)]
    for folder, last in zip(folders, (200, 203), strict=True):
        emit_steps(run_stream, folder, last)
    return run_stream


class Ranks:
    """Ranks that answer a request as soon as they see it."""

    def __init__(self, run: Stream, late: dict[int, int], deaf: set[int]) -> None:
        self.run, self.late, self.deaf = run, late, deaf
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._answer_requests, daemon=True)

    def _answer_requests(self) -> None:
        seen = 0
        while not self.over.wait(0.02):
            for request in control.read_requests(self.run.run.path / CONTROL_FILE):
                if request.number > seen:
                    seen = request.number
                    self.switch_level(request)

    def switch_level(self, request: Request) -> None:
        for rank in {0, 1} - self.deaf:
            step = self.late.get(rank, request.at_step - 1)
            event = Switch(step=step, level=request.level or "basic", why="control", asked=request.number)
            event.late = rank in self.late
            self.run.emit_events(f"rank{rank:04d}", event)


@pytest.fixture
def rank_starter(live_run: Stream) -> Iterator[Any]:
    started: list[Ranks] = []

    def start_ranks(late: dict[int, int] | None = None, deaf: set[int] | None = None) -> None:
        started.append(Ranks(live_run, late or {}, deaf or set()))
        started[-1].thread.start()

    yield start_ranks
    for one in started:
        one.over.set()
        one.thread.join(5)


@pytest.fixture
def at_once(live_run: Stream, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ranks whose answer is there as soon as a request is written: for what waits no longer than it is told."""
    write = control.write_requests

    def answer_at_once(late: dict[int, int], deaf: set[int]) -> None:
        ranks = Ranks(live_run, late, deaf)

        def write_and_switch(path: Path, requests: list[Request]) -> None:
            write(path, requests)
            ranks.switch_level(requests[-1])

        monkeypatch.setattr(control, "write_requests", write_and_switch)

    return answer_at_once


# looking


def test_a_live_run(live_run: Stream) -> None:
    found = read_snapshot(live_run.run)
    assert not found.ended and [rank.state for rank in found.live] == ["running", "running"]
    first, second = found.ranks
    assert (first.step, second.step, first.level, first.flags) == (200, 203, "basic", [])
    assert first.loss == pytest.approx(1 / 200) and first.pid == os.getpid() and first.host == HOST
    assert first.rate == pytest.approx(10, rel=0.1) and first.fastest == pytest.approx(10, rel=0.1)
    assert found.t - first.last_t < 5


def test_what_was_told_last_counts(run_stream: Stream) -> None:
    folder = begin_rank(run_stream)
    run_stream.emit_events(folder, Plan(steps=500))
    emit_steps(run_stream, folder, 100, count=5)
    run_stream.emit_events(folder, Switch(step=100, level="extreme", flags={"MEMORY": True}, why="control"))
    assert (read_snapshot(run_stream.run).ranks[0].level, read_snapshot(run_stream.run).ranks[0].flags) == (
        "extreme",
        ["MEMORY"],
    )
    run_stream.emit_events(folder, Cost(step=140, level="advanced", flags=["AMP"], own_ms=2.0, wall_ms=100.0))
    (rank,) = read_snapshot(run_stream.run).ranks
    assert (rank.step, rank.level, rank.flags, rank.planned) == (140, "advanced", ["AMP"], 500)
    assert rank.cost_pct == pytest.approx(2.0)


def test_the_cost_is_that_of_the_verdict(run_stream: Stream) -> None:
    folder = begin_rank(run_stream)
    emit_steps(run_stream, folder, 100, count=5)
    cost = Cost(step=100, own_ms=950.0, inspection_ms=900.0, allowance_ms=1000.0, wall_ms=10_000.0, budget_pct=1.0)
    run_stream.emit_events(folder, cost)
    (rank,) = read_snapshot(run_stream.run).ranks
    verdict = judge_run(run_stream.run)
    assert rank.cost_pct == pytest.approx(0.5) == verdict.cost["pct"]
    assert verdict.cost["ranks"][0]["pct"] == rank.cost_pct
    view = View(run_stream.run)
    view.add_event(rank.process, cost)
    assert _format_cost(next(iter(view.processes.values()))) == "tdbg 0.50 %"


def test_level_and_flags_as_started_without_any_word_of_them(tmp_path: Path) -> None:
    run = begin_run(tmp_path / "r", level="advanced", flags={"AMP": True, "LR": False, "OWN": "7"})
    emit_steps(run, begin_rank(run), 5)
    assert (read_snapshot(run.run).ranks[0].level, read_snapshot(run.run).ranks[0].flags) == (
        "advanced",
        ["AMP", "OWN"],
    )


def test_only_the_ends_of_long_files_are_read(run_stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = begin_rank(run_stream)
    emit_steps(run_stream, folder, 20_000, rate=1000.0, count=20_000)
    path = run_stream.run.path / folder / "events.jsonl"
    read = 0
    original = os.stat(path).st_size
    from tdbg.launch.run_follower import Tail

    def count_and_decode(self: Tail, data: bytes, known: Any = Tail._decode_chunk) -> Any:
        nonlocal read
        read += len(data)
        return known(self, data)

    monkeypatch.setattr(Tail, "_decode_chunk", count_and_decode)
    (rank,) = read_snapshot(run_stream.run).ranks
    assert rank.step == 20_000 and original > 10 * TAIL_BYTES and read <= TAIL_BYTES
    assert rank.pid == os.getpid(), "the first line is read too"


def test_a_long_last_event_does_not_hide_the_step(run_stream: Stream) -> None:
    folder = begin_rank(run_stream)
    emit_steps(run_stream, folder, 50)
    run_stream.emit_events(
        folder, Observation(probe="tensor-stats", step=50, values={"weight_rms": [0.123456] * 60_000})
    )
    assert (run_stream.run.path / folder / "events.jsonl").stat().st_size > 4 * TAIL_BYTES
    assert read_snapshot(run_stream.run).ranks[0].step == 50


def test_torn_and_foreign_lines(live_run: Stream) -> None:
    with (live_run.run.path / "rank0000" / "events.jsonl").open("ab") as file:
        file.write(b'\xff\xfe\n{"type":"step","v":1,"st\n[1,2]\n{"type":"cost","step":250,"t":')
    assert read_snapshot(live_run.run).ranks[0].step == 200


def test_a_rank_that_is_gone_and_one_that_ended(run_stream: Stream) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    emit_steps(run_stream, begin_rank(run_stream, 0, pid=dead.pid), 10)
    ended = begin_rank(run_stream, 1)
    emit_steps(run_stream, ended, 12)
    run_stream.emit_events(ended, End(step=12))
    found = read_snapshot(run_stream.run)
    assert [rank.state for rank in found.ranks] == ["gone", "ended"] and found.live == []


def test_a_rank_of_another_host(run_stream: Stream) -> None:
    for rank, ago in ((1, 300.0), (0, 1.0)):
        folder = run_stream.begin_rank(rank, world=2, host="elsewhere", t=time.time() - 400)
        (run_stream.run.path / folder / "owner.json").write_text(
            json.dumps({"pid": 1, "host": "elsewhere", "start": "1"})
        )
        emit_steps(run_stream, folder, 10, ago=ago)
    found = read_snapshot(run_stream.run)
    assert [rank.state for rank in found.ranks] == ["running", "silent"]
    assert len(found.live) == 2, "silence is no proof"


def test_the_latest_attempt_counts(run_stream: Stream) -> None:
    emit_steps(run_stream, begin_rank(run_stream), 90)
    run_stream.begin_rank(0, attempt=1, world=1, pid=os.getpid())
    emit_steps(run_stream, "rank0000/attempt1", 7)
    assert [(rank.rank, rank.step) for rank in read_snapshot(run_stream.run).ranks] == [(0, 7)]


def test_the_attempts_of_a_restarted_job_are_told_apart(run_stream: Stream) -> None:
    """Seen: under `running` the ends of the first attempt, and nothing of the second, which waited in its beginning."""
    for rank in (0, 1):
        folder = run_stream.begin_rank(rank, world=2)
        emit_steps(run_stream, folder, 100)
    run_stream.emit_events("rank0001", Traceback(step=100, exception="RuntimeError", how="uncaught"))
    assert read_snapshot(run_stream.run).restarts == ""
    hello = run_stream.run.path / "hello"
    hello.mkdir(exist_ok=True)
    text = json.dumps({"pid": 5, "host": HOST, "env": {"TORCHELASTIC_RESTART_COUNT": "1"}})
    (hello / f"{HOST}-5.json").write_text(text)
    said = "attempt 0 failed at step 100 (rank 1: RuntimeError); attempt 1 has begun"
    snapshot = read_snapshot(run_stream.run)
    assert snapshot.restarts == said and snapshot.as_dict()["restarts"] == said


def test_the_end_of_a_run(live_run: Stream) -> None:
    live_run.record_exit(3)
    found = read_snapshot(live_run.run)
    assert found.ended and found.exit_text == "exit 3" and found.live == []


def test_a_supervisor_that_is_gone_takes_the_run_with_it(live_run: Stream) -> None:
    live_run.run.update_info(supervisor={"pid": 2**22 - 1, "host": HOST, "started": "1"})
    assert read_snapshot(live_run.run).ended


def test_the_last_finding(live_run: Stream) -> None:
    assert read_snapshot(live_run.run).finding is None
    with (live_run.run.path / FINDINGS).open("w") as file:
        for step in (3, 9):
            title = f"first NaN at step {step}"
            file.write(
                json.dumps({"t": 1.0, **Finding(code="TD-N001", severity="critical", title=title).as_dict()}) + "\n"
            )
        file.write('{"torn')
    assert (read_snapshot(live_run.run).finding or {})["title"] == "first NaN at step 9"


# the step all ranks can keep


def make_rank_state(step: int = 100, fastest: float = 10.0, ago: float = 0.0, host: str = HOST) -> RankState:
    return RankState(
        process=None,  # type: ignore[arg-type]
        rank=0,
        state="running",
        step=step,
        last_t=1000.0 - ago,
        rate=fastest,
        fastest=fastest,
        loss=None,
        level="basic",
        flags=[],
        host=host,
        pid=1,
        planned=None,
        cost_pct=None,
    )


@pytest.mark.parametrize(
    ("ranks", "step"),
    [
        ([], 0),
        ([make_rank_state(100, 0.0)], 102),
        ([make_rank_state(100, 10.0)], 117),  # half a second until it is polled, one for luck
        ([make_rank_state(100, 10.0), make_rank_state(130, 10.0)], 147),  # the fastest
        ([make_rank_state(100, 10.0, ago=4.0)], 157),  # where it must be by now
        ([make_rank_state(100, 10.0, ago=4.0), make_rank_state(120, 10.0)], 157),
        ([make_rank_state(100, 10.0, ago=3600.0)], 177),  # it stands still: it would have written something
        ([make_rank_state(100, 0.1, ago=5.0)], 103),
        ([make_rank_state(100, 10.0, host="elsewhere")], 157),  # a shared file system is slow
        ([make_rank_state(100, 10.0, ago=-50.0)], 117),  # clocks differ
    ],
)
def test_common_step(ranks: list[RankState], step: int) -> None:
    assert common_step(ranks, 1000.0) == step


@pytest.mark.parametrize("step_s", [0.001, 0.02, 0.3, 0.7, 2.0, 10.0])
@pytest.mark.parametrize("asked_at", [0.0, 0.1, 0.49, 0.9])
def test_no_rank_is_past_the_step_when_it_reads_of_it(step_s: float, asked_at: float) -> None:
    """Ranks that step at an even pace and poll at their step's end, at most twice a second, each at its own beat."""
    now = 100.0 + asked_at * step_s
    done = int(now / step_s)
    seen = make_rank_state(done, 1 / step_s, ago=0.0)
    seen.last_t = 1000.0 - (now - done * step_s)
    wanted = common_step([seen], 1000.0)
    for beat in (0.0, 0.13, 0.37):
        polled_at, step = now - 0.5 + beat * 0.99, done
        while True:  # the first poll after the request
            step += 1
            end = step * step_s
            if end - polled_at >= 0.5:
                polled_at = end
                if end > now:
                    break
        assert step < wanted, "it takes it up in time for the step"


# asking


def test_all_ranks_answer(live_run: Stream, rank_starter: Any) -> None:
    rank_starter()
    answer = send_request(live_run.run, Request(number=0, level="advanced", for_steps=30))
    assert answer.missing == [] and not answer.late and answer.waited
    assert {rank: switch.step + 1 for rank, switch in answer.switched.items()} == dict.fromkeys(
        (0, 1), answer.request.at_step
    )
    assert answer.request.at_step > 203 + 15
    (kept,) = control.read_requests(live_run.run.path / CONTROL_FILE)
    assert (kept.level, kept.for_steps, kept.number) == ("advanced", 30, answer.request.number)
    assert abs(kept.t - time.time()) < 60


def test_the_step_is_chosen_by_the_time_of_the_request(live_run: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the look at the run may be long over when the request is written."""
    look = ask_module.read_snapshot

    def look_early(run: RunDir) -> Snapshot:
        snapshot = look(run)
        snapshot.t -= 5.0
        for rank in snapshot.ranks:
            rank.last_t = time.time() - 5.0
        return snapshot

    monkeypatch.setattr(ask_module, "read_snapshot", look_early)
    answer = send_request(live_run.run, Request(number=0, profile_for=2), 0)
    assert answer.request.at_step >= 203 + 10 * (5 + 1.5)


def test_earlier_requests_stay_and_numbers_grow(live_run: Stream) -> None:
    path = live_run.run.path / CONTROL_FILE
    control.write_requests(path, [Request(number=4 * 10**9, level="extreme")])
    send_request(live_run.run, Request(number=0, flags={"AMP": True}), 0)
    first, second = control.read_requests(path)
    assert (first.level, second.flags, second.number) == ("extreme", {"AMP": True}, 4 * 10**9 + 1)


def test_a_lost_file_does_not_make_numbers_small(live_run: Stream) -> None:
    first = send_request(live_run.run, Request(number=0, level="basic"), 0).request.number
    send_request(live_run.run, Request(number=0, level="basic"), 0)
    (live_run.run.path / CONTROL_FILE).unlink()
    assert send_request(live_run.run, Request(number=0, level="basic"), 0).request.number >= first > 10**9


def test_a_late_rank_and_one_that_does_not_answer(live_run: Stream, at_once: Any) -> None:
    at_once(late={1: 400}, deaf={0})
    answer = send_request(live_run.run, Request(number=0, level="advanced"), 1.0)
    assert list(answer.late) == [1] and [rank.rank for rank in answer.missing] == [0]
    assert answer.as_dict()["missing"] == [0]


def test_a_rank_that_ends_meanwhile_is_not_waited_for(live_run: Stream, rank_starter: Any, monkeypatch) -> None:
    monkeypatch.setattr(ask_module, "LOOK_AT_ALL_EVERY_S", 0.2)
    rank_starter(deaf={0})
    threading.Timer(0.5, lambda: live_run.emit_events("rank0000", End(step=204))).start()
    begun = time.monotonic()
    answer = send_request(live_run.run, Request(number=0, level="advanced"), 30)
    assert answer.ended == [0] and answer.missing == [] and time.monotonic() - begun < 15


def test_a_step_far_away_is_not_waited_for(live_run: Stream) -> None:
    begun = time.monotonic()
    answer = send_request(live_run.run, Request(number=0, level="advanced", at_step=100_000))
    assert not answer.waited and time.monotonic() - begun < 5
    assert answer.likely_s == pytest.approx(9980, rel=0.2)


def test_a_run_without_steps_is_asked_for_whatever_comes(run_stream: Stream) -> None:
    answer = send_request(run_stream.run, Request(number=0, level="advanced"))
    assert answer.asked == [] and answer.request.at_step == 0 and not answer.waited


def test_two_at_once_lose_nothing(live_run: Stream) -> None:
    def many(flag: str) -> None:
        for _ in range(4):
            send_request(live_run.run, Request(number=0, flags={flag: True}), 0)

    threads = [threading.Thread(target=many, args=(flag,)) for flag in ("AMP", "LR", "MEMORY")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = control.read_requests(live_run.run.path / CONTROL_FILE)
    assert len(kept) == 12 and len({request.number for request in kept}) == 12


def test_a_lock_that_is_never_let_go(live_run: Stream, monkeypatch) -> None:
    monkeypatch.setattr(ask_module, "LOCK_PATIENCE_S", 0.3)
    with (live_run.run.path / LOCK_FILE).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(TdbgError, match="another `tdbg control`"):
            send_request(live_run.run, Request(number=0, level="basic"), 0)


def test_a_broken_file_is_replaced_and_that_is_said(live_run: Stream, capsys) -> None:
    (live_run.run.path / CONTROL_FILE).write_text('{"requests": [{"num')
    send_request(live_run.run, Request(number=0, level="advanced"), 0)
    assert "is replaced" in capsys.readouterr().err
    (kept,) = control.read_requests(live_run.run.path / CONTROL_FILE)
    assert kept.level == "advanced" and kept.number > 10**9, "a rank may have taken up any number before"


# the commands


def build_control_words(run: Stream, *words: str) -> list[str]:
    return ["control", str(run.run.path), *words]


def test_control_says_what_came_of_it(live_run: Stream, rank_starter: Any, capsys) -> None:
    rank_starter()
    assert (
        main(build_control_words(live_run, "--level", "advanced", "--for", "30", "-f", "MEMORY", "--no-flag", "amp"))
        == 0
    )
    (request,) = control.read_requests(live_run.run.path / CONTROL_FILE)
    assert request.flags == {"MEMORY": True, "AMP": False}
    what = "level advanced, flag MEMORY on, flag AMP off, for 30 steps"
    assert capsys.readouterr().out == f"2 ranks switched at step {request.at_step} ({what})\n"


def test_control_names_who_was_late_or_silent(live_run: Stream, at_once: Any, capsys) -> None:
    at_once(late={1: 400}, deaf={0})
    assert main(build_control_words(live_run, "--clear-history", "--wait", "1")) == 1
    late, missing = capsys.readouterr().out.splitlines()
    assert late.startswith("1 rank switched at step 401, late: step ") and "history cleared" in late
    assert missing == "rank 0 has not answered; it was last seen at step 200"


def test_control_as_json(live_run: Stream, rank_starter: Any, capsys) -> None:
    rank_starter()
    assert main(build_control_words(live_run, "--flag", "LOSS", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    data = found["data"]
    assert (found["kind"], data["missing"], data["waited"]) == ("control", [], True)
    assert [row["rank"] for row in data["switched"]] == [0, 1] and data["flags"]["LOSS.NULL_MASKING"] is True


def test_control_without_waiting(live_run: Stream, capsys) -> None:
    assert main(build_control_words(live_run, "--level", "extreme", "--at-step", "9000", "--wait", "0")) == 0
    out = capsys.readouterr().out
    assert out.startswith("asked 2 ranks to level extreme from step 9000, in about ")


WRONG: dict[str, tuple[tuple[str, ...], str, str]] = {
    "nothing": ((), "nothing to change", "--level"),
    "only for": (("--for", "3"), "--for needs a change", "--level"),
    "only at step": (("--at-step", "300"), "nothing to change", "--level"),
    "level": (("--level", "advnced"), "level cannot be 'advnced'", "did you mean advanced?"),
    "flag": (("--flag", "MEMROY"), "no flag is named 'MEMROY'", "did you mean MEMORY?"),
    "no flag": (("--no-flag", "MEMROY"), "no flag is named 'MEMROY'", "did you mean MEMORY?"),
    "for none": (("--level", "basic", "--for", "0"), "--for cannot be ", "1 or more"),
    "for less": (("--level", "basic", "--for", "-3"), "--for cannot be ", "1 or more"),
    "a step that has passed": (("--level", "basic", "--at-step", "150"), "step 150 has passed: rank 1", "later step"),
    "wait": (("--level", "basic", "--wait", "-1"), "--timeout cannot be ", "0 or more"),
    "wait for nan": (("--level", "basic", "--wait", "nan"), "--timeout cannot be ", "0 or more"),
}


@pytest.mark.parametrize(("words", "what", "hint"), WRONG.values(), ids=WRONG)
def test_control_used_wrongly(live_run: Stream, capsys, words, what: str, hint: str) -> None:
    assert main(build_control_words(live_run, *words)) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 2 and what in err and hint in err
    assert not (live_run.run.path / CONTROL_FILE).exists()


def assert_refused(words: list[str], capsys: Any) -> str:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 2 and all(line.startswith("tdbg: ") for line in err.splitlines())
    return str(err)


def test_control_of_no_run(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "there is no" in assert_refused(["control", "nothing", "--level", "basic"], capsys)
    assert "there is no run under" in assert_refused(["control", "--level", "basic"], capsys)
    assert "there is no" in assert_refused(["status", "nothing"], capsys)
    assert list(tmp_path.iterdir()) == []


def test_control_of_a_dead_run(live_run: Stream, capsys) -> None:
    live_run.record_exit(0)
    err = assert_refused(build_control_words(live_run, "--level", "basic"), capsys)
    assert "has ended (exit 0)" in err and "tdbg report" in err


def test_control_of_a_run_that_was_killed(live_run: Stream, capsys) -> None:
    live_run.run.update_info(supervisor={"pid": 2**22 - 1, "host": HOST, "started": "1"})
    assert "has ended (no exit code recorded)" in assert_refused(
        build_control_words(live_run, "--level", "basic"), capsys
    )


def test_control_of_a_run_at_level_off(tmp_path: Path, capsys) -> None:
    run = begin_run(tmp_path / "r", level="off")
    assert "started at level off" in assert_refused(build_control_words(run, "--level", "basic"), capsys)


def test_control_of_a_run_that_measures_itself(tmp_path: Path, capsys) -> None:
    run = begin_run(tmp_path / "r", baseline=20)
    assert "--measure-overhead" in assert_refused(build_control_words(run, "--level", "basic"), capsys)


def test_a_flag_that_wakes_no_probe_is_mentioned(tmp_path: Path, capsys) -> None:
    run = begin_run(tmp_path / "r", flags={"MY.OWN": True})
    assert main(build_control_words(run, "--no-flag", "MY.OWN")) == 0
    assert "MY.OWN: no probe" in capsys.readouterr().err


AS_ANOTHER = """
import os, sys
sys.path[:0] = {path!r}
from tdbg.cli import main
run = {run!r}
main(["status", run])
main(["control", run, "--level", "basic", "--at-step", "1"])  # all it needs is loaded now
os.setgid(65534); os.setuid(65534)
print("now as another")
print("codes", main(["status", run]), main(["control", run, "--level", "basic"]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_control_of_a_run_of_another_user() -> None:
    with tempfile.TemporaryDirectory(prefix="tdbg-test-") as folder:
        Path(folder).chmod(0o755)
        run = begin_run(Path(folder) / "run")
        emit_steps(run, begin_rank(run), 10)
        for path in (run.run.path, *run.run.path.rglob("*")):  # as --share leaves them
            path.chmod(0o755 if path.is_dir() else 0o644)
        code = AS_ANOTHER.format(path=sys.path, run=str(run.run.path))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=False)
        kept = (run.run.path / CONTROL_FILE).exists()
    shown = done.stdout.partition("now as another")[2]
    assert "(running)" in shown and shown.rstrip().endswith("codes 0 125"), done.stderr
    what, hint = done.stderr.splitlines()[-2:]
    assert "belongs to user root" in what and "TDBG_TRUST" in hint and not kept


def test_a_folder_that_may_not_be_written(live_run: Stream, capsys, monkeypatch) -> None:
    def refuse(*args: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(control, "write_requests", refuse)
    assert "cannot write to the run" in assert_refused(build_control_words(live_run, "--level", "basic"), capsys)


def test_status_page(live_run: Stream, capsys) -> None:
    live_run.emit_events("rank0001", Cost(step=210, own_ms=1.0, wall_ms=100.0, level="extreme", flags=["MEMORY"]))
    assert main(["status", str(live_run.run.path)]) == 0
    head, columns, first, second, finding = capsys.readouterr().out.splitlines()
    assert head.endswith("(running)") and columns.startswith("rank\tstate\tstep\tsteps/s\tloss\tlevel\tflags")
    assert first.startswith("0\trunning\t200\t10") and first.split("\t")[4:7] == ["0.005", "basic", "-"]
    assert second.split("\t")[2] == "210" and second.split("\t")[5:8] == ["extreme", "MEMORY", "1"]
    assert finding == "last finding: none"


def test_status_as_json_and_the_newest_run(live_run: Stream, capsys, monkeypatch) -> None:
    monkeypatch.chdir(live_run.run.path.parent.parent)
    assert main(["status", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["data"]["state"]) == ("status", "running")
    assert [row["step"] for row in found["data"]["ranks"]] == [200, 203]


def test_status_writes_nothing(live_run: Stream, capsys) -> None:
    before = {path: path.read_bytes() for path in live_run.run.path.rglob("*") if path.is_file()}
    main(["status", str(live_run.run.path)])
    assert {path: path.read_bytes() for path in live_run.run.path.rglob("*") if path.is_file()} == before


def test_status_before_any_step(run_stream: Stream, capsys) -> None:
    assert main(["status", str(run_stream.run.path)]) == 0
    assert "no rank has done a step yet" in capsys.readouterr().out


def test_status_watches_until_the_run_ends(live_run: Stream, capsys, monkeypatch) -> None:
    monkeypatch.setattr("tdbg.cli.status.WATCH_S", 0.1)
    looks = []

    def looking(run: Any) -> Any:
        looks.append(read_snapshot(run))
        if len(looks) == 2:
            live_run.record_exit(0)
        return looks[-1]

    monkeypatch.setattr("tdbg.launch.live.read_snapshot", looking)
    assert main(["status", str(live_run.run.path), "--watch"]) == 0
    out = capsys.readouterr().out
    assert len(looks) == 3 and out.count("(running)") == 2 and out.rstrip().splitlines()[-5].endswith("(ended, exit 0)")


def test_status_of_a_broken_run(tmp_path: Path, capsys) -> None:
    (tmp_path / "run.json").write_text("[1,2")
    assert "cannot read" in assert_refused(["status", str(tmp_path)], capsys)


def test_status_shows_what_the_follower_found(live_run: Stream, capsys) -> None:
    from streams import make_nonfinite

    live_run.emit_events("rank0000", make_nonfinite(step=204))
    Follower(live_run.run, live_run.settings, lambda why: None).poll_events()
    capsys.readouterr()
    main(["status", str(live_run.run.path)])
    assert "last finding: TD-N001 critical: first NaN at step 204" in capsys.readouterr().out
