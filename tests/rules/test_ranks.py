"""TD-R...: how ranks end."""

import json

import pytest
from streams import HOST, Stream

from tdbg.core.events import JOINS_UNEVEN, NonFinite, Note, Observation, Plan, ProbeOff, Step, Traceback
from tdbg.core.rundir import ProcessDir
from tdbg.rules.rule_engine import RuleEngine
from tdbg.rules.watched import format_watched


def find_first(run: Stream, code: str, exit_code: int = 0):
    return next(finding for finding in run.judge_stream(exit_code).findings if finding.code == code)


def begin_pair(run: Stream, steps: tuple[int, int], well: bool = True) -> list[str]:
    folders = [run.begin_rank(rank, world=2) for rank in (0, 1)]
    for folder, count in zip(folders, steps, strict=True):
        run.emit_steps(folder, [2.0] * count)
        if well:
            run.end_process(folder, count)
    return folders


def test_uneven_ranks_are_named(make_stream):
    run = make_stream()
    begin_pair(run, (13, 12))
    assert find_first(run, "TD-R001").title == "ranks stopped at different steps: rank 1 at 12, rank 0 at 13"


def test_uneven_ranks_that_the_program_joins_are_a_note(make_stream):
    run = make_stream()
    folders = begin_pair(run, (13, 12), well=False)
    run.emit_events(folders[0], Note(code=JOINS_UNEVEN, text="joins"))
    for folder, steps in zip(folders, (13, 12), strict=True):
        run.end_process(folder, steps)
    assert find_first(run, "TD-R001").severity == "info" and "Join" in find_first(run, "TD-R001").cause


def test_even_ranks_are_fine(make_stream):
    run = make_stream()
    begin_pair(run, (13, 13))
    assert run.judge_codes() == []


def test_after_a_kill_one_step_is_chance(make_stream):
    run = make_stream()
    begin_pair(run, (13, 12), well=False)
    assert run.judge_codes(-2) == []


def test_ranks_of_no_group_are_not_compared(make_stream):
    run = make_stream()
    for rank, count in ((0, 10), (1, 50)):
        folder = run.begin_rank(rank)
        run.emit_steps(folder, [2.0] * count)
        run.end_process(folder, count)
    assert run.judge_codes() == []


def test_a_rank_that_never_stepped_counts_after_a_failure_only(make_stream):
    run = make_stream()
    folder = run.begin_rank(0, world=2)
    run.emit_steps(folder, [2.0] * 5)
    run.end_process(folder, 5)
    assert run.judge_codes() == []
    assert find_first(run, "TD-R001", 1).title == "rank 1 never took a step"


def test_ranks_of_another_host_with_a_directory_of_its_own_are_not_judged(make_stream):
    run = make_stream()
    folder = run.begin_rank(2, world=4, local_rank=0, env={"LOCAL_WORLD_SIZE": "2"})
    run.emit_steps(folder, [2.0] * 5)
    run.end_process(folder, 5)
    assert find_first(run, "TD-R001", 1).title == "rank 3 never took a step"
    row = run.judge_stream(1).watched
    assert row is not None and row["ranks_elsewhere"] == [0, 1]
    assert "ranks 0-1 of another host: not in this run directory (`tdbg join` adds it)" in format_watched(row, "basic")


def test_a_host_that_came_to_this_directory_and_has_no_rank_is_missing(make_stream):
    run = make_stream()
    folder = run.begin_rank(0, world=2, local_rank=0, env={"LOCAL_WORLD_SIZE": "1"})
    run.emit_steps(folder, [2.0] * 5)
    run.end_process(folder, 5)
    assert "TD-R001" not in run.judge_codes(1)
    (run.run.path / "nodes").mkdir()
    (run.run.path / "nodes" / "host-b-7.json").write_text("{}", encoding="utf-8")
    assert find_first(run, "TD-R001", 1).title == "rank 1 never took a step"


def test_a_restart_with_fewer_ranks_is_compared_among_itself(make_stream):
    run = make_stream()
    begin_pair(run, (30, 30), well=False)
    again = run.begin_rank(0, world=1, attempt=1)
    run.emit_steps(again, [2.0] * 70)
    run.end_process(again, 70)
    assert "TD-R001" not in run.judge_codes()
    assert next(row for row in run.judge_stream().ranks if row["rank"] == 0)["attempts"] == 2


def make_restart_env(restarts: int) -> dict[str, dict[str, str]]:
    """What torch elastic tells a rank."""
    return {"env": {"TORCHELASTIC_RESTART_COUNT": str(restarts)}}


def test_a_rank_that_died_before_its_first_step_is_compared_after_the_restart(make_stream):
    """Its first folder is of the second launch: the numbers of the folders differ, the launcher's count does not."""
    run = make_stream()
    run.emit_steps(run.begin_rank(0, world=2, **make_restart_env(0)), [2.0] * 3)
    for folder, steps in (
        (run.begin_rank(0, 2, 1, **make_restart_env(1)), 70),
        (run.begin_rank(1, 2, 0, **make_restart_env(1)), 40),
    ):
        run.emit_steps(folder, [2.0] * steps)
        run.end_process(folder, steps)
    assert find_first(run, "TD-R001", 1).title == "ranks stopped at different steps: rank 1 at 40, rank 0 at 70"
    assert find_first(run, "TD-R001", 1).evidence == []


def test_nodes_that_count_different_restarts_are_compared(make_stream):
    """torch elastic counts on each node what failed there; the others restart with it."""
    run = make_stream()
    begin_pair(run, (3, 3), well=False)
    for folder, steps in (
        (run.begin_rank(0, 2, 1, **make_restart_env(1)), 70),
        (run.begin_rank(1, 2, 1, **make_restart_env(0)), 40),
    ):
        run.emit_steps(folder, [2.0] * steps)
        run.end_process(folder, steps)
    assert find_first(run, "TD-R001", 1).title == "ranks stopped at different steps: rank 1 at 40, rank 0 at 70"


def test_a_ranks_own_code_is_named_through_its_launcher(make_stream):
    run = make_stream()
    begin_pair(run, (12, 12), well=False)
    run.record_child_exit(1, -9)
    run.record_child_exit(0, -15)
    finding = find_first(run, "TD-R002", 1)
    assert finding.title == "rank 1 was ended by SIGKILL, last recorded at step 12"
    assert "then: rank 0 SIGTERM" in finding.evidence
    assert [row["ended"] for row in run.judge_stream(1).ranks] == ["SIGTERM", "SIGKILL"]


def test_a_rank_that_dies_before_its_first_step(make_stream):
    run = make_stream()
    hello = run.run.path / "hello"
    hello.mkdir()
    (hello / "h-1001.json").write_text(json.dumps({"host": HOST, "pid": 1001, "rank": 1}))
    run.record_child_exit(1, 3)
    assert find_first(run, "TD-R002", 1).title == "rank 1 exited with code 3 before its first step"


def test_a_rank_that_only_evaluates_made_calls_instead_of_steps(make_stream):
    run = make_stream()
    folder = run.begin_rank(0, world=1)
    run.emit_events(folder, *(Step(step=0, phase="eval", call=call) for call in range(1, 41)))
    run.end_process(folder, 0)
    run.record_child_exit(0, 3)
    assert find_first(run, "TD-R002", 3).title == "rank 0 exited with code 3 after 40 evaluation calls"


def test_other_children_may_end_as_they_like(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.0] * 5)
    run.record_child_exit(700, 1, parent=rank)
    run.end_process(rank, 5)
    assert run.judge_codes() == []


def test_the_command_itself(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.0] * 5)
    run.end_process(rank, 5)
    finding = find_first(run, "TD-R002", 7)
    assert finding.title == "rank 0 exited with code 7 after step 5"
    assert run.judge_stream(7).ranks[0]["ended"] == "exit 7"
    assert find_first(run, "TD-R002", -11).title == "rank 0 was ended by SIGSEGV after step 5"


@pytest.mark.parametrize(
    ("pid", "well", "code", "ended", "title"),
    [
        (1000, True, 7, "exit 7", "rank 0 exited with code 7 after step 5"),
        (1000, False, -9, "SIGKILL", "rank 0 was ended by SIGKILL, last recorded at step 5"),
        (1000, True, 137, "exit 137", "rank 0 exited with code 137 after step 5"),
        (1, True, 7, "ended", None),
        (1, False, 0, "cut off", None),  # `python train.py || true`
        (1, False, 137, "SIGKILL", "rank 0 was ended by SIGKILL, last recorded at step 5"),
        (1, True, 137, "ended", None),
        (1, False, 255, "cut off", None),
        (1, False, -15, "cut off", None),
    ],
)
def test_what_a_script_ends_with_is_not_its_trainings_exit(one_rank, pid, well, code, ended, title):
    """The command's process is noted: it is the rank only where the pids agree."""
    run, rank = one_rank
    run.run.update_info(child={"pid": pid, "host": HOST})
    run.emit_steps(rank, [2.0] * 5)
    if well:
        run.end_process(rank, 5)
    verdict = run.judge_stream(code)
    assert verdict.ranks[0]["ended"] == ended
    assert [found.title for found in verdict.findings if found.code == "TD-R002"] == [title] * bool(title)


def test_a_program_that_replaced_itself_ended_once(one_rank):
    run, rank = one_rank
    run.run.update_info(child={"pid": 1000, "host": HOST})
    again = run.begin_rank(attempt=1, pid=1000)
    for folder in (rank, again):
        run.emit_steps(folder, [2.0] * 5)
    view = RuleEngine(run.run).view
    for folder, event in run.log:
        view.add_event(ProcessDir(run.run, run.run.path / folder), event)
    view.read_outcome(7)
    assert [view.find_process_exit(view.processes[folder]) for folder in (rank, again)] == [None, 7]


def test_a_killed_rank_comes_first_and_its_step_is_that_of_its_record(make_stream):
    """As written by two DDP ranks in step 119: the budget left out the last records of the one that was killed."""
    run = make_stream()
    zero, _ = begin_pair(run, (60, 60), well=False)
    run.end_process(zero, 119)
    run.record_child_exit(1, -9)
    findings = run.judge_stream(1).findings
    assert [finding.code for finding in findings] == ["TD-R002"], "the records of both end at step 60"
    assert findings[0].title == "rank 1 was ended by SIGKILL, last recorded at step 60"


@pytest.mark.parametrize(("last", "told"), [(30, False), (61, False), (62, True)])
def test_beside_a_killed_rank_last_records_are_compared(make_stream, last, told):
    """Records at every 15th step, of which the budget then makes every 30th: one may be missing, or both."""
    run = make_stream()
    for rank, steps in ((0, last), (1, 0)):
        folder = run.begin_rank(rank, world=2)
        for step in (15, 30, *((steps,) if steps > 30 else ())):
            run.emit_steps(folder, [2.0], first=step)
        if rank == 0:
            run.end_process(folder, 200)
    run.record_child_exit(1, -9)
    titles = [found.title for found in run.judge_stream(1).findings if found.code == "TD-R001"]
    assert titles == ["the last records of the ranks are from different steps: rank 1 at 30, rank 0 at 62"] * told


@pytest.mark.parametrize("behind", [0, 1])
def test_a_rank_that_was_killed_stands_before_what_it_switched_off_on_another(make_stream, behind):
    run = make_stream()
    for rank, steps in ((0, 5 - behind), (1, 5)):
        run.emit_steps(run.begin_rank(rank, world=2), [2.0] * steps)
    run.emit_events("rank0000", ProbeOff(probe="reduce", error="RuntimeError: Connection closed by peer"))
    run.record_child_exit(1, -9)
    (story, *_) = run.judge_stream(1).get_stories()
    assert story.first.code == "TD-R002" and "TD-C005" in [found.code for found in story.followers]


def test_a_request_to_end_is_info(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.0] * 5)
    assert [(f.code, f.severity) for f in run.judge_stream(-2).findings] == [("TD-R002", "info")]


@pytest.mark.parametrize(("stop_s", "severity"), [(-1.0, "info"), (1.0, "error")])
def test_abort_after_the_stop_is_info(make_stream, stop_s, severity):
    """A rank in a collective whose other side has ended."""
    run = make_stream()
    begin_pair(run, (9, 9), well=False)
    run.record_child_exit(0, -6)
    run.run.update_info(stop_times=[run.t + stop_s])
    assert find_first(run, "TD-R002", 1).severity == severity


def test_a_program_that_went_on_after_the_signal_was_not_stopped(make_stream):
    """It saved a checkpoint at SIGTERM, and was killed an hour later."""
    run = make_stream()
    zero, _ = begin_pair(run, (9, 9), well=False)
    run.run.update_info(stop_times=[run.t])
    run.t += 3600.0
    run.emit_steps(zero, [2.0], first=10)
    run.record_child_exit(0, -9)
    assert find_first(run, "TD-R002", 1).severity == "error"


def test_of_several_requests_to_stop_the_one_that_was_heeded_counts(make_stream):
    run = make_stream()
    zero, _ = begin_pair(run, (9, 9), well=False)
    first_t = run.t
    run.t += 3600.0
    run.emit_steps(zero, [2.0], first=10)
    run.run.update_info(stop_times=[first_t, run.t + 1.0])
    run.t += 2.0
    run.record_child_exit(0, -9)
    assert find_first(run, "TD-R002", 1).severity == "info"


def test_a_program_that_goes_on_evaluating_was_not_stopped(make_stream):
    run = make_stream()
    zero, _ = begin_pair(run, (9, 9), well=False)
    run.run.update_info(stop_times=[run.t])
    run.t += 3600.0
    run.emit_events(zero, Step(step=9, phase="eval", t=run.t))
    run.record_child_exit(0, -9)
    assert find_first(run, "TD-R002", 1).severity == "error"


@pytest.mark.parametrize(("stop_s", "severity"), [(-1.0, "info"), (30.0, "error")])
def test_ranks_that_the_stop_finds_at_different_steps_are_a_note(make_stream, stop_s, severity):
    run = make_stream()
    zero, one = begin_pair(run, (4, 20), well=False)
    ended_t = run.t
    for folder, steps in ((zero, 4), (one, 20)):
        run.end_process(folder, steps)
    run.run.update_info(stop_times=[ended_t + stop_s])
    assert find_first(run, "TD-R001", 1).severity == severity


def test_a_rank_that_stood_still_before_the_stop_is_no_note(make_stream):
    run = make_stream()
    zero, one = begin_pair(run, (4, 20), well=False)
    run.t += 60.0
    run.emit_events(one, Step(step=21, t=run.t))
    for folder, steps in ((zero, 4), (one, 21)):
        run.end_process(folder, steps)
    run.run.update_info(stop_times=[run.t - 1.0])
    found = find_first(run, "TD-R001", 1)
    assert (found.severity, found.rank) == ("error", 0)


def make_crash(step: int = 3, **more) -> Traceback:
    lines = [
        "Traceback (most recent call last):",
        '  File "data.py", line 88, in f',
        "    g()",
        "ValueError: bad label",
    ]
    parts = {"exception": "ValueError", "message": "bad label", "lines": lines, "where": "data.py:88", **more}
    return Traceback(step=step, **parts)


def test_the_full_stop_of_a_message_does_not_stand_before_a_comma(make_stream):
    run = make_stream()
    zero, _ = begin_pair(run, (3, 3), well=False)
    run.emit_events(zero, make_crash(message="Expected a mask for each output."))
    assert find_first(run, "TD-R003", 1).title.startswith(
        "rank 0: ValueError: Expected a mask for each output, uncaught"
    )


def test_what_a_loader_worker_raised_is_named_by_its_own_words(one_rank):
    """torch raises it again, with the worker's whole traceback as its text."""
    run, rank = one_rank
    wrapped = [
        "ValueError: Caught ValueError in DataLoader worker process 1.",
        "Original Traceback (most recent call last):",
        '  File "/torch/utils/data/_utils/worker.py", line 374, in _worker_loop',
        "    data = fetcher.fetch(index)",
        '  File "data.py", line 20, in __getitem__',
        "    raise ValueError(i)",
        "ValueError: corrupt sample 3000:",
        "cannot decode.",
    ]
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 43, in <module>',
        "    for x in dl:",
        *wrapped,
    ]
    message = "\n".join(wrapped).removeprefix("ValueError: ")
    run.emit_events(rank, make_crash(message=message, lines=lines, where="data.py:20"))
    finding = find_first(run, "TD-R003", 1)
    told = "ValueError: corrupt sample 3000: cannot decode, in DataLoader worker process 1"
    assert finding.title == f"rank 0: {told}, uncaught, after step 3 (data.py:20)"
    assert finding.evidence[0].strip() == 'File "data.py", line 20, in __getitem__'


def test_the_first_exception_of_several_ranks_is_named_in_any_order(make_stream):
    run = make_stream()
    zero, one = begin_pair(run, (3, 3), well=False)
    t = run.t + 1
    run.emit_events(zero, make_crash(t=t + 2, exception="RuntimeError", message="Connection closed by peer"))
    run.emit_events(one, make_crash(t=t + 1))
    finding = find_first(run, "TD-R003", 1)
    assert finding.title == "rank 1: ValueError: bad label, uncaught, after step 3 (data.py:88)"
    assert any("rank 0: RuntimeError: Connection closed" in line for line in finding.evidence)
    assert "TD-R002" not in run.judge_codes(1)  # the traceback says it


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("nan_attempt", [0, 1])
def test_what_an_earlier_attempt_ended_with_follows_from_nothing_of_a_later_one(make_stream, nan_attempt, order):
    """Seen: `first NaN at step 3` of the second attempt, `followed by` the exception that had ended the first."""
    run = make_stream()
    folders = {}
    for attempt in (0, 1):
        for rank in (0, 1):
            folder = folders[rank, attempt] = run.begin_rank(rank, 2, attempt, **make_restart_env(attempt))
            run.emit_steps(folder, [2.0] * 3)
            if (rank, attempt) == (0, nan_attempt):
                run.emit_events(folder, NonFinite(step=3, phase="loss", kind="nan", tensor="loss", origin="here"))
        if attempt == 0:
            for number, rank in enumerate(order):
                run.emit_events(folders[rank, 0], make_crash(t=run.t + 2.0 + number))
    for rank in (0, 1):
        run.end_process(folders[rank, 1], 3)
    verdict = run.judge_stream(1)
    causes = {
        found.code: verdict.findings[cause].code if cause is not None else None
        for found, cause in zip(verdict.findings, verdict.causes, strict=True)
    }
    attempts = {found.code: found.attempt for found in verdict.findings}
    assert attempts["TD-R003"] == 0 and attempts["TD-N001"] == nan_attempt
    assert causes["TD-R003"] == ("TD-N001" if nan_attempt == 0 else None)
    assert ("in the loss (attempt 1)" in "\n".join(verdict.format_screen())) == bool(nan_attempt)


@pytest.mark.parametrize(
    ("code", "later", "told"), [(-9, 0, True), (-7, 4, True), (-6, 0, False), (-9, 30, False), (3, 0, False)]
)
def test_a_signal_is_not_hidden_by_an_exit_that_followed_from_it(make_stream, code: int, later: int, told: bool):
    run = make_stream()
    zero, _ = begin_pair(run, (3, 3), well=False)
    run.emit_events(zero, make_crash(exception="RuntimeError", message="Connection reset by peer"))
    run.record_child_exit(0, 1)
    run.t += later
    run.record_child_exit(1, code)
    findings = [finding for finding in run.judge_stream(1).findings if finding.code == "TD-R002"]
    assert [finding.rank for finding in findings] == [1] * told


@pytest.mark.parametrize("first_noted", [0, 1])
@pytest.mark.parametrize("traceback", [True, False])
@pytest.mark.parametrize("killed", [-9, -11, -7, 3])
def test_an_abort_does_not_hide_the_exit_it_followed_from(make_stream, killed: int, traceback: bool, first_noted: int):
    """A launcher looks at its children every tenth of a second: the rank left alone in a collective may come first."""
    run = make_stream()
    zero, _ = begin_pair(run, (3, 3), well=False)
    if traceback:
        run.emit_events(zero, make_crash(exception="RuntimeError", message="Connection reset by peer"))
    for rank in (first_noted, 1 - first_noted):
        run.record_child_exit(rank, killed if rank == 1 else -6)
    findings = [finding for finding in run.judge_stream(1).findings if finding.code == "TD-R002"]
    assert [finding.rank for finding in findings] == [1] * (killed < 0 or not traceback or first_noted == 1)


def test_an_abort_after_a_traceback_is_told_by_the_traceback(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.0] * 3)
    run.emit_events(rank, make_crash())
    assert run.judge_codes(-6) == ["TD-R003"]


def test_a_swallowed_exception_is_a_warning_once(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.0] * 9)
    for step in range(5):
        run.emit_events(rank, make_crash(step=step, how="logged"))
    run.end_process(rank, 9)
    finding = find_first(run, "TD-R003")
    assert finding.severity == "warning" and finding.evidence[0] == "5 times, last after step 4"
    (live,) = run.list_live_findings()  # nobody knows yet whether it will go on
    assert "logged and swallowed, after step 0" in live.title and "logged, and the program went on" in finding.title


@pytest.mark.parametrize("folder", ["other/vm-1000", "rank0000"])
def test_an_exception_that_is_swallowed_before_any_step_is_an_error(make_stream, folder):
    run = make_stream()
    if folder == "rank0000":
        run.begin_rank()
    run.emit_events(folder, make_crash(step=0, how="logged", rank=0, pid=1000, where="/home/me/train.py:88"))
    if folder == "rank0000":
        run.end_process(folder, 0)
    verdict = run.judge_stream(0)
    (finding,) = verdict.findings
    assert (finding.code, finding.severity, finding.rank) == ("TD-R003", "error", 0)
    assert finding.title == (
        "rank 0: ValueError: bad label, logged and swallowed, and the program ended (exit 0) without one optimizer step,"
        " after step 0 (train.py:88)"
    )
    assert finding.title in verdict.format_headline() and verdict.should_fail("error")


def test_a_rank_that_swallows_its_first_step_is_an_error_beside_one_that_trains(make_stream):
    run = make_stream()
    zero = run.begin_rank(0, world=2)
    run.emit_steps(zero, [2.0] * 5)
    run.emit_events("other/vm-1001", make_crash(step=0, how="logged", rank=1, pid=1001))
    run.end_process(zero, 5)
    finding = find_first(run, "TD-R003")
    assert finding.severity == "error" and finding.title.startswith("rank 1: ") and finding.rank == 1


@pytest.mark.parametrize("after", ["step", "evaluation"])
def test_what_was_swallowed_before_the_first_step_is_a_warning_where_the_program_went_on(make_stream, after):
    """The step is the rank's, in a folder of its own; the exception was written before there was one."""
    run = make_stream()
    run.emit_events(f"other/{HOST}-1000", make_crash(step=0, how="printed", rank=0, pid=1000))
    rank = run.begin_rank()
    run.emit_steps(rank, [2.0], phase="train" if after == "step" else "eval", first=1 if after == "step" else 0)
    run.end_process(rank, 1 if after == "step" else 0)
    finding = find_first(run, "TD-R003")
    assert finding.severity == "warning" and "printed, and the program went on" in finding.title


def test_what_came_after_the_last_step_did_not_let_the_program_go_on(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.0] * 4)
    run.emit_events(rank, make_crash(step=4, how="logged"))
    run.end_process(rank, 4)
    finding = find_first(run, "TD-R003")
    assert finding.severity == "warning" and "logged and swallowed, and no step came after it" in finding.title


@pytest.mark.parametrize("how", ["logged", "uncaught"])
@pytest.mark.parametrize(
    "name", ["SignalException", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"]
)
def test_what_a_launcher_raises_of_its_ranks_is_no_finding(make_stream, name, how):
    run = make_stream()
    begin_pair(run, (3, 3), well=False)
    run.emit_events("other/launcher-1", make_crash(exception=name, how=how))
    run.record_child_exit(1, -9)
    assert run.judge_codes(1) == ["TD-R002"]


def test_what_came_more_often_than_it_was_written_down_is_not_called_exact(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.0] * 9)
    for step in range(3):
        run.emit_events(rank, make_crash(step=step, how="logged"))
    run.emit_events(
        rank,
        Note(
            code="tracebacks-capped", text="too many exceptions: only the first ones at each place are recorded", step=4
        ),
    )
    run.end_process(rank, 9)
    assert find_first(run, "TD-R003").evidence[0] == "3 times or more, last after step 2"


def test_the_end_of_a_thread_is_a_warning_and_no_crash_of_the_rank(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.0] * 9)
    run.emit_events(rank, make_crash(how="logged"), make_crash(how="thread"))
    run.end_process(rank, 9)
    (finding,) = run.judge_stream().findings
    assert finding.severity == "warning"
    assert finding.title == (
        "rank 0: ValueError: bad label, ended a thread, and the program went on, after step 3 (data.py:88)"
    )
    assert not any("times" in line for line in finding.evidence)
    assert run.judge_stream().ranks[0]["ended"] == "ended"


def test_a_launcher_that_waits_in_vain_for_the_others_at_the_end_is_no_finding(make_stream):
    from torch.distributed.elastic.utils import store

    run = make_stream()
    begin_pair(run, (3, 3))
    barrier = f'  File "{store.__file__}", line 220, in barrier'
    lines = ["Traceback (most recent call last):", barrier, "torch.distributed.DistStoreError: timed out"]
    parts = {"how": "logged", "exception": "torch.distributed.DistStoreError", "lines": lines}
    run.emit_events("other/launcher-1", make_crash(**parts))
    assert run.judge_codes() == []
    run.emit_events("other/launcher-1", make_crash(**{**parts, "how": "uncaught"}))
    assert run.judge_codes() == ["TD-R003"]


def test_the_same_barrier_failing_in_a_rank_is_a_finding(make_stream):
    from torch.distributed.elastic.utils import store

    run = make_stream()
    zero, _ = begin_pair(run, (3, 3))
    run.emit_events(zero, make_crash(how="logged", lines=[f'  File "{store.__file__}", line 220, in barrier']))
    assert run.judge_codes() == ["TD-R003"]


def test_logged_and_then_uncaught_is_one_finding(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.0] * 3)
    run.emit_events(rank, make_crash(how="logged"), make_crash())
    findings = run.judge_stream(1).findings
    assert [(found.code, found.severity) for found in findings] == [("TD-R003", "error")]


def test_a_correction_stands_above_the_traceback(one_rank):
    """The exception was a warning while the program might yet go on."""
    run, rank = one_rank
    run.emit_events(rank, make_crash(step=0, how="logged"))
    said = [json.dumps(finding.as_dict()) for finding in run.list_live_findings()]
    (run.run.path / "findings.jsonl").write_text("\n".join(said) + "\n")
    run.end_process(rank, 0)
    finding = find_first(run, "TD-R003")
    assert finding.severity == "error" and finding.evidence[-1] == "ValueError: bad label"
    at = finding.evidence.index("traceback:")
    assert finding.evidence[at - 1] == "corrects what was reported during the run: severity warning, now error"


def test_ctrl_c_is_no_exception(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.0])
    run.emit_events(rank, make_crash(exception="KeyboardInterrupt"))
    assert run.judge_codes() == []


def test_fewer_steps_than_planned(one_rank):
    run, rank = one_rank
    run.emit_events(rank, Plan(steps=100, source="Trainer"))
    run.emit_steps(rank, [2.0] * 80)
    run.end_process(rank, 80)
    finding = find_first(run, "TD-R004")
    assert (finding.severity, finding.title) == ("info", "rank 0 took 80 of 100 planned steps (Trainer)")
    run.emit_events(rank, make_crash(how="logged"))
    assert find_first(run, "TD-R004").severity == "warning"


def test_an_early_stopper_ended_the_run(one_rank):
    run, rank = one_rank
    run.emit_events(rank, Plan(steps=100, source="Trainer"))
    run.emit_steps(rank, [2.0] * 80)
    run.emit_events(rank, Observation(probe="early-stopping", part="CHECK", step=80, text="-", values={"stop": True}))
    run.end_process(rank, 80)
    assert run.judge_codes() == []


def test_a_stopper_that_nobody_heard_did_not_end_the_run(one_rank):
    run, rank = one_rank
    run.emit_events(rank, Plan(steps=100, source="Trainer"))
    run.emit_steps(rank, [2.0] * 60)
    run.emit_events(rank, Observation(probe="early-stopping", part="CHECK", step=60, text="-", values={"stop": True}))
    run.emit_steps(rank, [2.0] * 20, first=61)
    run.end_process(rank, 80)
    assert run.judge_codes() == ["TD-R004"]


def test_a_stopper_excuses_no_swallowed_exception(one_rank):
    run, rank = one_rank
    run.emit_events(rank, Plan(steps=100, source="Trainer"))
    run.emit_steps(rank, [2.0] * 80)
    run.emit_events(rank, Observation(probe="early-stopping", part="CHECK", step=80, text="-", values={"stop": True}))
    run.emit_events(rank, make_crash(how="logged"))
    run.end_process(rank, 80)
    assert find_first(run, "TD-R004").severity == "warning"


def test_all_planned_steps_taken(one_rank):
    run, rank = one_rank
    run.emit_events(rank, Plan(steps=80, source="Trainer"))
    run.emit_steps(rank, [2.0] * 80)
    run.end_process(rank, 80)
    assert run.judge_codes() == []


def test_steps_without_a_record_count_too(make_stream):
    run = make_stream()
    for rank, last in ((0, 74), (1, 77)):
        folder = run.begin_rank(rank, world=2)
        run.emit_steps(folder, [2.0, 2.0])
        run.emit_steps(folder, [2.0], first=last)
        run.end_process(folder, 80)
    verdict = run.judge_stream()
    assert verdict.findings == [] and [row["steps"] for row in verdict.ranks] == [80, 80]


def test_a_killed_rank_may_lag_as_far_as_its_records_do(make_stream):
    run = make_stream()
    for rank, last in ((0, 74), (1, 77)):
        folder = run.begin_rank(rank, world=2)
        run.emit_steps(folder, [2.0, 2.0])
        run.emit_steps(folder, [2.0], first=last - 5)
        run.emit_steps(folder, [2.0], first=last)
    assert run.judge_codes(-9) == []


LOST = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:39344"


def emit_left_alone(run: Stream, exception: str = "RuntimeError", message: str = LOST, ends: str = "exit") -> list[str]:
    """Rank 1 ends after step 9; rank 0 fails a moment later."""
    zero, one = begin_pair(run, (9, 9), well=False)
    run.end_process(one, 9, ends)
    run.emit_events(zero, Traceback(exception=exception, message=message, where="train.py:8", how="uncaught", step=9))
    run.end_process(zero, 9, "exception")
    run.record_child_exit(0, 1)
    return [zero, one]


@pytest.mark.parametrize(
    ("exception", "message"),
    [("RuntimeError", LOST), ("torch.distributed.DistBackendError", "NCCL communicator was aborted on rank 0.")],
)
def test_a_rank_that_ended_well_before_a_collective_is_named_before_the_one_that_failed(
    make_stream, exception, message
):
    run = make_stream()
    emit_left_alone(run, exception, message)
    findings = run.judge_stream(1).findings
    assert [finding.code for finding in findings] == ["TD-R007", "TD-R003"]
    assert findings[0].title == (
        "rank 1 ended by itself after step 9, and rank 0 then failed in a collective after step 9"
    )
    assert (findings[0].rank, findings[0].severity) == (1, "error")


def test_a_rank_that_left_without_a_word_is_known_by_its_launcher(make_stream):
    run = make_stream()
    zero, _ = begin_pair(run, (9, 9), well=False)
    run.emit_events(zero, Traceback(exception="RuntimeError", message=LOST, where="train.py:8", how="uncaught", step=9))
    run.record_child_exit(0, 1)
    assert run.judge_stream(1).findings[0].title == (
        "rank 1 ended with an unknown exit code after step 9, and rank 0 then failed in a collective after step 9"
    )
    run.record_child_exit(1, 0)
    assert run.judge_stream(1).findings[0].title.startswith("rank 1 ended with exit code 0 after step 9, and rank 0 ")


@pytest.mark.parametrize(
    ("message", "later"), [("[c10d] Timed out waiting 1800000ms for recv operation to complete", False), (LOST, True)]
)
def test_a_rank_that_may_live_is_not_said_to_have_vanished(make_stream, message, later):
    run = make_stream()
    zero, one = begin_pair(run, (9, 9), well=False)
    lost = Traceback(exception="RuntimeError", message=message, where="train.py:8", how="uncaught", step=9)
    run.emit_events(zero, lost)
    if later:
        run.t += 5.0
        run.emit_steps(one, [2.0], first=10)
    assert "TD-R007" not in run.judge_codes(1)


@pytest.mark.parametrize("how", ["traceback", "signal"])
def test_a_rank_that_its_launcher_ended_after_the_first_failure_is_not_named(make_stream, how):
    """Rank 1 catches the SIGTERM that the failure of rank 0 brought it, and ends with code 0."""
    run = make_stream()
    zero, one = begin_pair(run, (9, 9), well=False)
    if how == "traceback":
        run.emit_events(
            zero, Traceback(exception="ValueError", message="bad label", where="train.py:8", how="uncaught", step=9)
        )
        run.end_process(zero, 9, "exception")
    else:
        run.record_child_exit(0, -9)
    two = run.begin_rank(2, world_size=3)
    run.emit_steps(two, [2.0], first=9)
    run.emit_events(two, Traceback(exception="RuntimeError", message=LOST, where="train.py:8", how="uncaught", step=9))
    run.end_process(two, 9, "exception")
    run.t += 0.3
    run.end_process(one, 9)
    assert "TD-R007" not in run.judge_codes(1)


def test_a_rank_that_left_without_a_word_left_when_its_launcher_saw_it(make_stream):
    """Its last event may be much older: a sampled record."""
    run = make_stream()
    zero, _ = begin_pair(run, (9, 9), well=False)
    run.t += 20
    run.emit_events(zero, Traceback(exception="RuntimeError", message=LOST, where="train.py:8", how="uncaught", step=9))
    run.t += 20
    run.record_child_exit(1, 0)
    assert "TD-R007" not in run.judge_codes(1)


@pytest.mark.parametrize(
    ("exception", "message", "ends"),
    [
        ("ValueError", "bad label 17", "exit"),
        ("ConnectionError", "Connection reset by peer", "exit"),  # an upload after training, say
        ("RuntimeError", "The size of tensor a must match", "exit"),
        ("RuntimeError", LOST, "signal"),
    ],
)
def test_what_says_nothing_of_a_rank_that_left(make_stream, exception, message, ends):
    run = make_stream()
    emit_left_alone(run, exception, message, ends)
    assert "TD-R007" not in run.judge_codes(1)


@pytest.mark.parametrize(
    ("after_s", "evaluates", "told"), [(60.0, False, True), (60.0, True, False), (5.0, False, False)]
)
def test_a_rank_that_only_waited_until_it_was_ended(make_stream, after_s, evaluates, told):
    run = make_stream()
    zero, one = begin_pair(run, (9, 9), well=False)
    run.end_process(one, 9)
    run.t += after_s
    if evaluates:
        run.emit_events(zero, Step(step=9, phase="eval", call=1))
    run.record_child_exit(0, -15)
    codes = run.judge_codes(1)
    assert ("TD-R007" in codes) == told
    if told:
        assert find_first(run, "TD-R007").title.endswith("rank 0 took no step after step 9 in the 60 s until the end")


@pytest.mark.parametrize(("stop", "told"), [("before", False), ("after", True)])
def test_no_early_end_after_the_stop(make_stream, stop, told):
    """At `--stop-on` the first rank to end breaks the connections of the others."""
    run = make_stream()
    begun = run.t
    emit_left_alone(run)
    stop_t = run.t + 1.5 if stop == "after" else begun
    run.run.update_info(stop_times=[stop_t])
    assert ("TD-R007" in run.judge_codes(1)) == told


@pytest.mark.parametrize(("host", "told"), [(HOST, True), ("another", False)])
def test_an_end_just_before_the_stop_counts_where_one_clock_tells_both(make_stream, host, told):
    """Ctrl-C half a second after a rank has left."""
    run = make_stream()
    zero, one = begin_pair(run, (9, 9), well=False)
    run.end_process(one, 9)
    left_t = run.t
    crash = Traceback(exception="RuntimeError", message=LOST, where="train.py:8", how="uncaught", step=9)
    run.emit_events(zero, crash)
    run.t = left_t
    run.run.update_info(stop_times=[left_t + 0.5], supervisor={"host": host})
    assert ("TD-R007" in run.judge_codes(1)) == told


def test_rank_that_waited_until_the_stop_is_a_warning(make_stream):
    run = make_stream()
    zero, one = begin_pair(run, (9, 9), well=False)
    run.end_process(one, 9)
    run.t += 60.0
    run.run.update_info(stop_times=[run.t])
    run.t += 1.0
    run.emit_events(zero, Traceback(exception="RuntimeError", message=LOST, where="train.py:8", how="uncaught", step=9))
    finding = find_first(run, "TD-R007", 1)
    assert finding.severity == "warning"
    assert finding.title.endswith("rank 0 took no step after step 9 in the 60 s until the end")
