"""Processes that train beside each other without a process group, and what is a restart."""

import json

import pytest
from streams import HOST, Stream

from tdbg.core.events import Cost, Start, Traceback
from tdbg.launch.live import read_snapshot


def emit_process(run: Stream, folder: str, pid: int, steps: int, evals: int = 0, *, end: bool = True, **more) -> None:
    """One process: training steps, calls of evaluation, its end."""
    run.emit_events(folder, Start(rank=0, host=HOST, pid=pid, world_size=1, **more))
    run.emit_steps(folder, [2.0 / (pid + step) for step in range(steps)])
    if evals:
        run.emit_steps(folder, [None] * evals, first=0, phase="eval")
    if end:
        run.emit_events(folder, Cost(step=steps, evals=evals, wall_ms=100.0))
        run.end_process(folder, steps)


def format_verdict(run: Stream, code: int = 0) -> str:
    return "\n".join(run.judge_stream(code).format_summary(limit=20))


@pytest.mark.parametrize("children", [2, 4])
@pytest.mark.parametrize("parent_trains", [False, True])
@pytest.mark.parametrize("parent", ["first", "rank0000/attempt1", "rank0000/pid1-vm"])
def test_children_that_train_while_the_parent_evaluates(make_stream, children, parent_trains, parent):
    run = make_stream()
    trained = 7 if parent_trains else 0
    places = [f"rank0000/pid{pid}-vm" for pid in range(2, children + 2)]
    if parent == "first":
        emit_process(run, "rank0000", 1, trained, evals=3)
    else:
        places[0] = "rank0000"
    for number, place in enumerate(places):
        emit_process(run, place, number + 2, 10 * (number + 1))
    if parent != "first":
        emit_process(run, parent, 1, trained, evals=3)
    text, report = format_verdict(run), run.judge_stream().as_dict()
    count = children + parent_trains
    assert f"{count} training processes without a process group, {10 * children} steps" in text
    for number in range(children):
        steps = 10 * (number + 1)
        assert f"process {number + 2}: step {steps}, ended, loss {2.0 / (number + 2 + steps - 1):.4g}" in text
    assert ("process 1: step 7" if parent_trains else "process 1: 3 evaluation calls, ended") in text
    assert "attempt" not in text
    told = {row["pid"]: row["steps"] for row in [*report["ranks"], *report["others"]]}
    assert told == {1: trained, **{number + 2: 10 * (number + 1) for number in range(children)}}


def test_one_training_after_another_is_no_restart(make_stream):
    run = make_stream()
    for number, place in enumerate(("rank0000", "rank0000/attempt1", "rank0000/attempt2")):
        emit_process(run, place, number + 1, 5, attempt=number)
    text = format_verdict(run)
    assert "3 training processes without a process group" in text and "attempt" not in text


@pytest.mark.parametrize("counted", [False, True])
def test_a_restart_after_a_bad_end_is_one(make_stream, counted):
    run = make_stream()
    env = {"TORCHELASTIC_RESTART_COUNT": "1"} if counted else {}
    emit_process(run, "rank0000", 1, 5, end=counted)
    emit_process(run, "rank0000/attempt1", 2, 9, attempt=1, env=env)
    text = format_verdict(run)
    assert "rank 0: step 9, ended, after 1 restart" in text and "1 rank, 9 steps" in text
    assert run.judge_stream().as_dict()["others"] == []


def test_an_evaluation_after_the_training_is_no_attempt(make_stream):
    run = make_stream()
    emit_process(run, "rank0000", 1, 5)
    emit_process(run, "rank0000/attempt1", 2, 0, evals=4, attempt=1)
    text = format_verdict(run)
    assert "1 rank, 5 steps" in text and "rank 0: step 5, ended, loss" in text
    assert "process 2: 4 evaluation calls, ended" in text and "attempt" not in text


def test_the_commands_exit_is_not_that_of_each_child(make_stream):
    run = make_stream()
    emit_process(run, "rank0000", 1, 5)
    emit_process(run, "rank0000/pid2-vm", 2, 5)
    assert "process 1: step 5, ended" in format_verdict(run, 3) and "exit 3" in run.judge_stream(3).format_headline()


def test_the_cost_line_names_a_process_that_is_no_rank_by_its_pid(make_stream):
    """Seen: "rank 0 2.40 %" of a child that trains while the parent evaluates."""
    run = make_stream()
    emit_process(run, "rank0000", 1, 0, evals=3)
    emit_process(run, "rank0000/pid2-vm", 2, 10)
    emit_process(run, "rank0000/pid3-vm", 3, 10)
    run.emit_events("rank0000/pid3-vm", Cost(step=10, own_ms=50.0, wall_ms=100.0))
    (cost,) = [line for line in run.judge_stream().format_page() if line.startswith("cost of tdbg")]
    assert ", process 3 50.00 %," in cost and "rank" not in cost


def test_the_cost_line_names_ranks_as_ranks(make_stream):
    run = make_stream()
    for rank in range(2):
        folder = run.begin_rank(rank, world=2)
        run.emit_steps(folder, [1.0] * 5)
        run.emit_events(folder, Cost(step=5, own_ms=10.0 * rank, wall_ms=100.0))
        run.end_process(folder, 5)
    assert any(", rank 1 10.00 %," in line for line in run.judge_stream().format_page())


def write_hello(run: Stream, pid: int, restarts: int) -> None:
    """A torch process of that launch has reported; it need not have stepped."""
    folder = run.run.path / "hello"
    folder.mkdir(exist_ok=True)
    text = json.dumps({"pid": pid, "host": HOST, "env": {"TORCHELASTIC_RESTART_COUNT": str(restarts)}})
    (folder / f"vm-{pid}.json").write_text(text)


def emit_failed_ranks(run: Stream) -> None:
    """Attempt 0: rank 1 raises after step 4, and the launcher ends rank 0."""
    for rank in range(2):
        folder = run.begin_rank(rank, world=2)
        run.emit_steps(folder, [1.0] * 4)
    run.emit_events("rank0001", Traceback(step=4, exception="RuntimeError", message="planted", how="uncaught"))
    run.record_child_exit(1, 1)
    run.record_child_exit(0, -15)


def test_the_verdict_tells_of_each_attempt(make_stream):
    run = make_stream()
    emit_failed_ranks(run)
    for rank in range(2):
        folder = run.begin_rank(rank, world=2, attempt=1)
        run.emit_steps(folder, [1.0] * 8)
        run.end_process(folder, 8)
    text = format_verdict(run)
    assert "ranks 0-1: step 8, ended, after 1 restart" in text
    assert "restarts: attempt 0 failed at step 4 (rank 1: RuntimeError); attempt 1 ended at step 8" in text


def test_an_attempt_that_took_no_step_is_told(make_stream):
    run = make_stream()
    emit_failed_ranks(run)
    write_hello(run, 5000, 2)
    assert "restarts: attempt 0 failed at step 4 (rank 1: RuntimeError); attempt 2 took no step" in format_verdict(
        run, 1
    )


def test_what_ended_an_attempt_before_its_first_step_is_told(make_stream):
    """Such processes became no ranks: their exceptions lie beside, and the launcher's count in what they said first."""
    run = make_stream()
    emit_failed_ranks(run)
    for pid, attempt, error in ((5000, 1, "RuntimeError"), (6000, 2, "torch.cuda.OutOfMemoryError")):
        write_hello(run, pid, attempt)
        run.emit_events(f"other/{HOST}-{pid}", Traceback(exception=error, how="uncaught", rank=1, pid=pid))
    assert (
        "restarts: attempt 0 failed at step 4 (rank 1: RuntimeError); attempt 1 took no step (rank 1: RuntimeError);"
        " attempt 2 took no step (rank 1: OutOfMemoryError)"
    ) in format_verdict(run, 1)


def test_a_count_of_restarts_that_is_none_is_passed_over(make_stream):
    """Of a file that somebody made: Python raises for a number of 5,000 digits."""
    run = make_stream()
    emit_failed_ranks(run)
    (run.run.path / "hello").mkdir()
    about = {"pid": [1], "host": {"a": 1}, "env": {"TORCHELASTIC_RESTART_COUNT": "9" * 5000}}
    (run.run.path / "hello/x-1.json").write_text(json.dumps(about))
    assert "restarts:" not in format_verdict(run, 1) and read_snapshot(run.run).restarts == ""


def test_without_a_restart_there_is_no_line_of_attempts(make_stream):
    run = make_stream()
    emit_failed_ranks(run)
    write_hello(run, 5000, 0)
    assert "restarts" not in format_verdict(run, 1)
