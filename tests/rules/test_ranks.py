"""TD-R...: how ranks end."""

import json

import pytest
from streams import HOST, Stream

from tdbg.core.events import Note, Observation, Plan, ProbeOff, Step, Traceback
from tdbg.core.rundir import ProcessDir
from tdbg.rules.rule_engine import RuleEngine


def first(run: Stream, code: str, exit_code: int = 0):
    return next(finding for finding in run.judge(exit_code).findings if finding.code == code)


def pair(run: Stream, steps: tuple[int, int], well: bool = True) -> list[str]:
    folders = [run.rank(rank, world=2) for rank in (0, 1)]
    for folder, count in zip(folders, steps, strict=True):
        run.train(folder, [2.0] * count)
        if well:
            run.end(folder, count)
    return folders


def test_uneven_ranks_are_named(stream):
    run = stream()
    pair(run, (13, 12))
    assert first(run, "TD-R001").title == "ranks stopped at different steps: rank 1 at 12, rank 0 at 13"


def test_even_ranks_are_fine(stream):
    run = stream()
    pair(run, (13, 13))
    assert run.codes() == []


def test_after_a_kill_one_step_is_chance(stream):
    run = stream()
    pair(run, (13, 12), well=False)
    assert run.codes(-2) == []


def test_ranks_of_no_group_are_not_compared(stream):
    run = stream()
    for rank, count in ((0, 10), (1, 50)):
        folder = run.rank(rank)
        run.train(folder, [2.0] * count)
        run.end(folder, count)
    assert run.codes() == []


def test_a_rank_that_never_stepped_counts_after_a_failure_only(stream):
    run = stream()
    folder = run.rank(0, world=2)
    run.train(folder, [2.0] * 5)
    run.end(folder, 5)
    assert run.codes() == []
    assert first(run, "TD-R001", 1).title == "rank 1 never took a step"


def test_a_restart_with_fewer_ranks_is_compared_among_itself(stream):
    run = stream()
    pair(run, (30, 30), well=False)
    again = run.rank(0, world=1, attempt=1)
    run.train(again, [2.0] * 70)
    run.end(again, 70)
    assert "TD-R001" not in run.codes()
    assert next(row for row in run.judge().ranks if row["rank"] == 0)["attempts"] == 2


def counted(restarts: int) -> dict[str, dict[str, str]]:
    """What torch elastic tells a rank."""
    return {"env": {"TORCHELASTIC_RESTART_COUNT": str(restarts)}}


def test_a_rank_that_died_before_its_first_step_is_compared_after_the_restart(stream):
    """Its first folder is of the second launch: the numbers of the folders differ, the launcher's count does not."""
    run = stream()
    run.train(run.rank(0, world=2, **counted(0)), [2.0] * 3)
    for folder, steps in ((run.rank(0, 2, 1, **counted(1)), 70), (run.rank(1, 2, 0, **counted(1)), 40)):
        run.train(folder, [2.0] * steps)
        run.end(folder, steps)
    assert first(run, "TD-R001", 1).title == "ranks stopped at different steps: rank 1 at 40, rank 0 at 70"
    assert first(run, "TD-R001", 1).evidence == []


def test_nodes_that_count_different_restarts_are_compared(stream):
    """torch elastic counts on each node what failed there; the others restart with it."""
    run = stream()
    pair(run, (3, 3), well=False)
    for folder, steps in ((run.rank(0, 2, 1, **counted(1)), 70), (run.rank(1, 2, 1, **counted(0)), 40)):
        run.train(folder, [2.0] * steps)
        run.end(folder, steps)
    assert first(run, "TD-R001", 1).title == "ranks stopped at different steps: rank 1 at 40, rank 0 at 70"


def test_a_ranks_own_code_is_named_through_its_launcher(stream):
    run = stream()
    pair(run, (12, 12), well=False)
    run.child_exit(1, -9)
    run.child_exit(0, -15)
    finding = first(run, "TD-R002", 1)
    assert finding.title == "rank 1 was ended by SIGKILL, last recorded at step 12"
    assert "then: rank 0 SIGTERM" in finding.evidence
    assert [row["ended"] for row in run.judge(1).ranks] == ["SIGTERM", "SIGKILL"]


def test_a_rank_that_dies_before_its_first_step(stream):
    run = stream()
    hello = run.run.path / "hello"
    hello.mkdir()
    (hello / "h-1001.json").write_text(json.dumps({"host": HOST, "pid": 1001, "rank": 1}))
    run.child_exit(1, 3)
    assert first(run, "TD-R002", 1).title == "rank 1 exited with code 3 before its first step"


def test_other_children_may_end_as_they_like(one):
    run, rank = one
    run.train(rank, [2.0] * 5)
    run.child_exit(700, 1, parent=rank)
    run.end(rank, 5)
    assert run.codes() == []


def test_the_command_itself(one):
    run, rank = one
    run.train(rank, [2.0] * 5)
    run.end(rank, 5)
    finding = first(run, "TD-R002", 7)
    assert finding.title == "rank 0 exited with code 7 after step 5"
    assert run.judge(7).ranks[0]["ended"] == "exit 7"
    assert first(run, "TD-R002", -11).title == "rank 0 was ended by SIGSEGV after step 5"


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
def test_what_a_script_ends_with_is_not_its_trainings_exit(one, pid, well, code, ended, title):
    """The command's process is noted: it is the rank only where the pids agree."""
    run, rank = one
    run.run.update(child={"pid": pid, "host": HOST})
    run.train(rank, [2.0] * 5)
    if well:
        run.end(rank, 5)
    verdict = run.judge(code)
    assert verdict.ranks[0]["ended"] == ended
    assert [found.title for found in verdict.findings if found.code == "TD-R002"] == [title] * bool(title)


def test_a_program_that_replaced_itself_ended_once(one):
    run, rank = one
    run.run.update(child={"pid": 1000, "host": HOST})
    again = run.rank(attempt=1, pid=1000)
    for folder in (rank, again):
        run.train(folder, [2.0] * 5)
    view = RuleEngine(run.run).view
    for folder, event in run.log:
        view.add_event(ProcessDir(run.run, run.run.path / folder), event)
    view.close(7)
    assert [view.own_exit(view.processes[folder]) for folder in (rank, again)] == [None, 7]


def test_a_killed_rank_comes_first_and_its_step_is_that_of_its_record(stream):
    """As written by two DDP ranks in step 119: the budget left out the last records of the one that was killed."""
    run = stream()
    zero, _ = pair(run, (60, 60), well=False)
    run.end(zero, 119)
    run.child_exit(1, -9)
    findings = run.judge(1).findings
    assert [finding.code for finding in findings] == ["TD-R002"], "the records of both end at step 60"
    assert findings[0].title == "rank 1 was ended by SIGKILL, last recorded at step 60"


@pytest.mark.parametrize(("last", "told"), [(30, False), (61, False), (62, True)])
def test_beside_a_killed_rank_last_records_are_compared(stream, last, told):
    """Records at every 15th step, of which the budget then makes every 30th: one may be missing, or both."""
    run = stream()
    for rank, steps in ((0, last), (1, 0)):
        folder = run.rank(rank, world=2)
        for step in (15, 30, *((steps,) if steps > 30 else ())):
            run.train(folder, [2.0], first=step)
        if rank == 0:
            run.end(folder, 200)
    run.child_exit(1, -9)
    titles = [found.title for found in run.judge(1).findings if found.code == "TD-R001"]
    assert titles == ["the last records of the ranks are from different steps: rank 1 at 30, rank 0 at 62"] * told


@pytest.mark.parametrize("behind", [0, 1])
def test_a_rank_that_was_killed_stands_before_what_it_switched_off_on_another(stream, behind):
    run = stream()
    for rank, steps in ((0, 5 - behind), (1, 5)):
        run.train(run.rank(rank, world=2), [2.0] * steps)
    run.emit("rank0000", ProbeOff(probe="reduce", error="RuntimeError: Connection closed by peer"))
    run.child_exit(1, -9)
    (story, *_) = run.judge(1).stories()
    assert story.first.code == "TD-R002" and "TD-C005" in [found.code for found in story.followers]


def test_a_request_to_end_is_info(one):
    run, rank = one
    run.train(rank, [2.0] * 5)
    assert [(f.code, f.severity) for f in run.judge(-2).findings] == [("TD-R002", "info")]


def crash(step: int = 3, **more) -> Traceback:
    lines = [
        "Traceback (most recent call last):",
        '  File "data.py", line 88, in f',
        "    g()",
        "ValueError: bad label",
    ]
    parts = {"exception": "ValueError", "message": "bad label", "lines": lines, "where": "data.py:88", **more}
    return Traceback(step=step, **parts)


def test_the_full_stop_of_a_message_does_not_stand_before_a_comma(stream):
    run = stream()
    zero, _ = pair(run, (3, 3), well=False)
    run.emit(zero, crash(message="Expected a mask for each output."))
    assert first(run, "TD-R003", 1).title.startswith("rank 0: ValueError: Expected a mask for each output, uncaught")


def test_what_a_loader_worker_raised_is_named_by_its_own_words(one):
    """torch raises it again, with the worker's whole traceback as its text."""
    run, rank = one
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
    run.emit(rank, crash(message=message, lines=lines, where="data.py:20"))
    finding = first(run, "TD-R003", 1)
    told = "ValueError: corrupt sample 3000: cannot decode, in DataLoader worker process 1"
    assert finding.title == f"rank 0: {told}, uncaught, after step 3 (data.py:20)"
    assert finding.evidence[0].strip() == 'File "data.py", line 20, in __getitem__'


def test_the_first_exception_of_several_ranks_is_named_in_any_order(stream):
    run = stream()
    zero, one = pair(run, (3, 3), well=False)
    t = run.t + 1
    run.emit(zero, crash(t=t + 2, exception="RuntimeError", message="Connection closed by peer"))
    run.emit(one, crash(t=t + 1))
    finding = first(run, "TD-R003", 1)
    assert finding.title == "rank 1: ValueError: bad label, uncaught, after step 3 (data.py:88)"
    assert any("rank 0: RuntimeError: Connection closed" in line for line in finding.evidence)
    assert "TD-R002" not in run.codes(1)  # the traceback says it


@pytest.mark.parametrize(
    ("code", "later", "told"), [(-9, 0, True), (-7, 4, True), (-6, 0, False), (-9, 30, False), (3, 0, False)]
)
def test_a_signal_is_not_hidden_by_an_exit_that_followed_from_it(stream, code: int, later: int, told: bool):
    run = stream()
    zero, _ = pair(run, (3, 3), well=False)
    run.emit(zero, crash(exception="RuntimeError", message="Connection reset by peer"))
    run.child_exit(0, 1)
    run.t += later
    run.child_exit(1, code)
    findings = [finding for finding in run.judge(1).findings if finding.code == "TD-R002"]
    assert [finding.rank for finding in findings] == [1] * told


@pytest.mark.parametrize("first_noted", [0, 1])
@pytest.mark.parametrize("traceback", [True, False])
@pytest.mark.parametrize("killed", [-9, -11, -7, 3])
def test_an_abort_does_not_hide_the_exit_it_followed_from(stream, killed: int, traceback: bool, first_noted: int):
    """A launcher looks at its children every tenth of a second: the rank left alone in a collective may come first."""
    run = stream()
    zero, _ = pair(run, (3, 3), well=False)
    if traceback:
        run.emit(zero, crash(exception="RuntimeError", message="Connection reset by peer"))
    for rank in (first_noted, 1 - first_noted):
        run.child_exit(rank, killed if rank == 1 else -6)
    findings = [finding for finding in run.judge(1).findings if finding.code == "TD-R002"]
    assert [finding.rank for finding in findings] == [1] * (killed < 0 or not traceback or first_noted == 1)


def test_an_abort_after_a_traceback_is_told_by_the_traceback(one):
    run, rank = one
    run.train(rank, [2.0] * 3)
    run.emit(rank, crash())
    assert run.codes(-6) == ["TD-R003"]


def test_a_swallowed_exception_is_a_warning_once(one):
    run, rank = one
    run.train(rank, [2.0] * 9)
    for step in range(5):
        run.emit(rank, crash(step=step, how="logged"))
    run.end(rank, 9)
    finding = first(run, "TD-R003")
    assert finding.severity == "warning" and finding.evidence[0] == "5 times, last after step 4"
    (live,) = run.live()  # nobody knows yet whether it will go on
    assert "logged and swallowed, after step 0" in live.title and "logged, and the program went on" in finding.title


@pytest.mark.parametrize("folder", ["other/vm-1000", "rank0000"])
def test_an_exception_that_is_swallowed_before_any_step_is_an_error(stream, folder):
    run = stream()
    if folder == "rank0000":
        run.rank()
    run.emit(folder, crash(step=0, how="logged", rank=0, pid=1000, where="/home/me/train.py:88"))
    if folder == "rank0000":
        run.end(folder, 0)
    verdict = run.judge(0)
    (finding,) = verdict.findings
    assert (finding.code, finding.severity, finding.rank) == ("TD-R003", "error", 0)
    assert finding.title == (
        "rank 0: ValueError: bad label, logged and swallowed, and the program ended (exit 0) without one optimizer step,"
        " after step 0 (/home/me/train.py:88)"
    )
    assert finding.title in verdict.headline() and verdict.fails("error")


def test_a_rank_that_swallows_its_first_step_is_an_error_beside_one_that_trains(stream):
    run = stream()
    zero = run.rank(0, world=2)
    run.train(zero, [2.0] * 5)
    run.emit("other/vm-1001", crash(step=0, how="logged", rank=1, pid=1001))
    run.end(zero, 5)
    finding = first(run, "TD-R003")
    assert finding.severity == "error" and finding.title.startswith("rank 1: ") and finding.rank == 1


@pytest.mark.parametrize("after", ["step", "evaluation"])
def test_what_was_swallowed_before_the_first_step_is_a_warning_where_the_program_went_on(stream, after):
    """The step is the rank's, in a folder of its own; the exception was written before there was one."""
    run = stream()
    run.emit(f"other/{HOST}-1000", crash(step=0, how="printed", rank=0, pid=1000))
    rank = run.rank()
    run.train(rank, [2.0], phase="train" if after == "step" else "eval", first=1 if after == "step" else 0)
    run.end(rank, 1 if after == "step" else 0)
    finding = first(run, "TD-R003")
    assert finding.severity == "warning" and "printed, and the program went on" in finding.title


def test_what_came_after_the_last_step_did_not_let_the_program_go_on(one):
    run, rank = one
    run.train(rank, [2.0] * 4)
    run.emit(rank, crash(step=4, how="logged"))
    run.end(rank, 4)
    finding = first(run, "TD-R003")
    assert finding.severity == "warning" and "logged and swallowed, and no step came after it" in finding.title


@pytest.mark.parametrize("how", ["logged", "uncaught"])
@pytest.mark.parametrize(
    "name", ["SignalException", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"]
)
def test_what_a_launcher_raises_of_its_ranks_is_no_finding(stream, name, how):
    run = stream()
    pair(run, (3, 3), well=False)
    run.emit("other/launcher-1", crash(exception=name, how=how))
    run.child_exit(1, -9)
    assert run.codes(1) == ["TD-R002"]


def test_what_came_more_often_than_it_was_written_down_is_not_called_exact(one):
    run, rank = one
    run.train(rank, [2.0] * 9)
    for step in range(3):
        run.emit(rank, crash(step=step, how="logged"))
    run.emit(rank, Note(code="tracebacks-capped", text="more exceptions were logged than are kept", step=4))
    run.end(rank, 9)
    assert first(run, "TD-R003").evidence[0] == "3 times or more, last after step 2"


def test_the_end_of_a_thread_is_a_warning_and_no_crash_of_the_rank(one):
    run, rank = one
    run.train(rank, [2.0] * 9)
    run.emit(rank, crash(how="logged"), crash(how="thread"))
    run.end(rank, 9)
    (finding,) = run.judge().findings
    assert finding.severity == "warning"
    assert finding.title == (
        "rank 0: ValueError: bad label, ended a thread, and the program went on, after step 3 (data.py:88)"
    )
    assert not any("times" in line for line in finding.evidence)
    assert run.judge().ranks[0]["ended"] == "ended"


def test_a_launcher_that_waits_in_vain_for_the_others_at_the_end_is_no_finding(stream):
    from torch.distributed.elastic.utils import store

    run = stream()
    pair(run, (3, 3))
    barrier = f'  File "{store.__file__}", line 220, in barrier'
    lines = ["Traceback (most recent call last):", barrier, "torch.distributed.DistStoreError: timed out"]
    parts = {"how": "logged", "exception": "torch.distributed.DistStoreError", "lines": lines}
    run.emit("other/launcher-1", crash(**parts))
    assert run.codes() == []
    run.emit("other/launcher-1", crash(**{**parts, "how": "uncaught"}))
    assert run.codes() == ["TD-R003"]


def test_the_same_barrier_failing_in_a_rank_is_a_finding(stream):
    from torch.distributed.elastic.utils import store

    run = stream()
    zero, _ = pair(run, (3, 3))
    run.emit(zero, crash(how="logged", lines=[f'  File "{store.__file__}", line 220, in barrier']))
    assert run.codes() == ["TD-R003"]


def test_logged_and_then_uncaught_is_one_finding(one):
    run, rank = one
    run.train(rank, [2.0] * 3)
    run.emit(rank, crash(how="logged"), crash())
    findings = run.judge(1).findings
    assert [(found.code, found.severity) for found in findings] == [("TD-R003", "error")]


def test_a_correction_stands_above_the_traceback(one):
    """The exception was a warning while the program might yet go on."""
    run, rank = one
    run.emit(rank, crash(step=0, how="logged"))
    said = [json.dumps(finding.as_dict()) for finding in run.live()]
    (run.run.path / "findings.jsonl").write_text("\n".join(said) + "\n")
    run.end(rank, 0)
    finding = first(run, "TD-R003")
    assert finding.severity == "error" and finding.evidence[-1] == "ValueError: bad label"
    at = finding.evidence.index("traceback:")
    assert finding.evidence[at - 1] == "corrects what was reported during the run: severity warning, now error"


def test_ctrl_c_is_no_exception(one):
    run, rank = one
    run.train(rank, [2.0])
    run.emit(rank, crash(exception="KeyboardInterrupt"))
    assert run.codes() == []


def test_fewer_steps_than_planned(one):
    run, rank = one
    run.emit(rank, Plan(steps=100, source="Trainer"))
    run.train(rank, [2.0] * 80)
    run.end(rank, 80)
    finding = first(run, "TD-R004")
    assert (finding.severity, finding.title) == ("info", "rank 0 took 80 of 100 planned steps (Trainer)")
    run.emit(rank, crash(how="logged"))
    assert first(run, "TD-R004").severity == "warning"


def test_an_early_stopper_ended_the_run(one):
    run, rank = one
    run.emit(rank, Plan(steps=100, source="Trainer"))
    run.train(rank, [2.0] * 80)
    run.emit(rank, Observation(probe="early-stopping", part="CHECK", step=80, text="-", values={"stop": True}))
    run.end(rank, 80)
    assert run.codes() == []


def test_a_stopper_that_nobody_heard_did_not_end_the_run(one):
    run, rank = one
    run.emit(rank, Plan(steps=100, source="Trainer"))
    run.train(rank, [2.0] * 60)
    run.emit(rank, Observation(probe="early-stopping", part="CHECK", step=60, text="-", values={"stop": True}))
    run.train(rank, [2.0] * 20, first=61)
    run.end(rank, 80)
    assert run.codes() == ["TD-R004"]


def test_a_stopper_excuses_no_swallowed_exception(one):
    run, rank = one
    run.emit(rank, Plan(steps=100, source="Trainer"))
    run.train(rank, [2.0] * 80)
    run.emit(rank, Observation(probe="early-stopping", part="CHECK", step=80, text="-", values={"stop": True}))
    run.emit(rank, crash(how="logged"))
    run.end(rank, 80)
    assert first(run, "TD-R004").severity == "warning"


def test_all_planned_steps_taken(one):
    run, rank = one
    run.emit(rank, Plan(steps=80, source="Trainer"))
    run.train(rank, [2.0] * 80)
    run.end(rank, 80)
    assert run.codes() == []


def test_steps_without_a_record_count_too(stream):
    run = stream()
    for rank, last in ((0, 74), (1, 77)):
        folder = run.rank(rank, world=2)
        run.train(folder, [2.0, 2.0])
        run.train(folder, [2.0], first=last)
        run.end(folder, 80)
    verdict = run.judge()
    assert verdict.findings == [] and [row["steps"] for row in verdict.ranks] == [80, 80]


def test_a_killed_rank_may_lag_as_far_as_its_records_do(stream):
    run = stream()
    for rank, last in ((0, 74), (1, 77)):
        folder = run.rank(rank, world=2)
        run.train(folder, [2.0, 2.0])
        run.train(folder, [2.0], first=last - 5)
        run.train(folder, [2.0], first=last)
    assert run.codes(-9) == []


LOST = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:39344"


def left_alone(run: Stream, exception: str = "RuntimeError", message: str = LOST, ends: str = "exit") -> list[str]:
    """Rank 1 ends after step 9; rank 0 fails a moment later."""
    zero, one = pair(run, (9, 9), well=False)
    run.end(one, 9, ends)
    run.emit(zero, Traceback(exception=exception, message=message, where="train.py:8", how="uncaught", step=9))
    run.end(zero, 9, "exception")
    run.child_exit(0, 1)
    return [zero, one]


@pytest.mark.parametrize(
    ("exception", "message"),
    [("RuntimeError", LOST), ("torch.distributed.DistBackendError", "NCCL communicator was aborted on rank 0.")],
)
def test_a_rank_that_ended_well_before_a_collective_is_named_before_the_one_that_failed(stream, exception, message):
    run = stream()
    left_alone(run, exception, message)
    findings = run.judge(1).findings
    assert [finding.code for finding in findings] == ["TD-R007", "TD-R003"]
    assert findings[0].title == (
        "rank 1 ended without an error after step 9, and rank 0 then failed in a collective after step 9"
    )
    assert (findings[0].rank, findings[0].severity) == (1, "error")


def test_a_rank_that_left_without_a_word_is_known_by_its_launcher(stream):
    run = stream()
    zero, _ = pair(run, (9, 9), well=False)
    run.emit(zero, Traceback(exception="RuntimeError", message=LOST, where="train.py:8", how="uncaught", step=9))
    run.child_exit(0, 1)
    assert run.codes(1) == ["TD-R003"]  # who ended rank 1?
    run.child_exit(1, 0)
    assert run.codes(1)[0] == "TD-R007"


@pytest.mark.parametrize("how", ["traceback", "signal"])
def test_a_rank_that_its_launcher_ended_after_the_first_failure_is_not_named(stream, how):
    """Rank 1 catches the SIGTERM that the failure of rank 0 brought it, and ends with code 0."""
    run = stream()
    zero, one = pair(run, (9, 9), well=False)
    if how == "traceback":
        run.emit(
            zero, Traceback(exception="ValueError", message="bad label", where="train.py:8", how="uncaught", step=9)
        )
        run.end(zero, 9, "exception")
    else:
        run.child_exit(0, -9)
    two = run.rank(2, world_size=3)
    run.train(two, [2.0], first=9)
    run.emit(two, Traceback(exception="RuntimeError", message=LOST, where="train.py:8", how="uncaught", step=9))
    run.end(two, 9, "exception")
    run.t += 0.3
    run.end(one, 9)
    assert "TD-R007" not in run.codes(1)


def test_a_rank_that_left_without_a_word_left_when_its_launcher_saw_it(stream):
    """Its last event may be much older: a sampled record."""
    run = stream()
    zero, _ = pair(run, (9, 9), well=False)
    run.t += 20
    run.emit(zero, Traceback(exception="RuntimeError", message=LOST, where="train.py:8", how="uncaught", step=9))
    run.t += 20
    run.child_exit(1, 0)
    assert "TD-R007" not in run.codes(1)


@pytest.mark.parametrize(
    ("exception", "message", "ends"),
    [
        ("ValueError", "bad label 17", "exit"),
        ("ConnectionError", "Connection reset by peer", "exit"),  # an upload after training, say
        ("RuntimeError", "The size of tensor a must match", "exit"),
        ("RuntimeError", LOST, "signal"),
    ],
)
def test_what_says_nothing_of_a_rank_that_left(stream, exception, message, ends):
    run = stream()
    left_alone(run, exception, message, ends)
    assert "TD-R007" not in run.codes(1)


@pytest.mark.parametrize(
    ("after_s", "evaluates", "told"), [(60.0, False, True), (60.0, True, False), (5.0, False, False)]
)
def test_a_rank_that_only_waited_until_it_was_ended(stream, after_s, evaluates, told):
    run = stream()
    zero, one = pair(run, (9, 9), well=False)
    run.end(one, 9)
    run.t += after_s
    if evaluates:
        run.emit(zero, Step(step=9, phase="eval", call=1))
    run.child_exit(0, -15)
    codes = run.codes(1)
    assert ("TD-R007" in codes) == told
    if told:
        assert first(run, "TD-R007").title.endswith("rank 0 took no step after step 9 in the 60 s until the end")
