"""Processes that train beside each other without a process group, and what is a restart."""

import json

import pytest
from streams import HOST, Stream

from tdbg.core.events import Cost, Start, Traceback


def process(run: Stream, folder: str, pid: int, steps: int, evals: int = 0, *, end: bool = True, **more) -> None:
    """One process: training steps, calls of evaluation, its end."""
    run.emit(folder, Start(rank=0, host=HOST, pid=pid, world_size=1, **more))
    run.train(folder, [2.0 / (pid + step) for step in range(steps)])
    if evals:
        run.train(folder, [None] * evals, first=0, phase="eval")
    if end:
        run.emit(folder, Cost(step=steps, evals=evals, wall_ms=100.0))
        run.end(folder, steps)


def lines(run: Stream, code: int = 0) -> str:
    return "\n".join(run.judge(code).lines(limit=20))


@pytest.mark.parametrize("children", [2, 4])
@pytest.mark.parametrize("parent_trains", [False, True])
@pytest.mark.parametrize("parent", ["first", "rank0000/attempt1", "rank0000/pid1-vm"])
def test_children_that_train_while_the_parent_evaluates(stream, children, parent_trains, parent):
    run = stream()
    trained = 7 if parent_trains else 0
    places = [f"rank0000/pid{pid}-vm" for pid in range(2, children + 2)]
    if parent == "first":
        process(run, "rank0000", 1, trained, evals=3)
    else:
        places[0] = "rank0000"
    for number, place in enumerate(places):
        process(run, place, number + 2, 10 * (number + 1))
    if parent != "first":
        process(run, parent, 1, trained, evals=3)
    text, report = lines(run), run.judge().as_dict()
    count = children + parent_trains
    assert f"{count} training processes without a process group, {10 * children} steps" in text
    for number in range(children):
        steps = 10 * (number + 1)
        assert f"process {number + 2}: step {steps}, ended, loss {2.0 / (number + 2 + steps - 1):.4g}" in text
    assert ("process 1: step 7" if parent_trains else "process 1: 3 evaluation calls, ended") in text
    assert "attempt" not in text
    told = {row["pid"]: row["steps"] for row in [*report["ranks"], *report["others"]]}
    assert told == {1: trained, **{number + 2: 10 * (number + 1) for number in range(children)}}


def test_one_training_after_another_is_no_restart(stream):
    run = stream()
    for number, place in enumerate(("rank0000", "rank0000/attempt1", "rank0000/attempt2")):
        process(run, place, number + 1, 5, attempt=number)
    text = lines(run)
    assert "3 training processes without a process group" in text and "attempt" not in text


@pytest.mark.parametrize("counted", [False, True])
def test_a_restart_after_a_bad_end_is_one(stream, counted):
    run = stream()
    env = {"TORCHELASTIC_RESTART_COUNT": "1"} if counted else {}
    process(run, "rank0000", 1, 5, end=counted)
    process(run, "rank0000/attempt1", 2, 9, attempt=1, env=env)
    text = lines(run)
    assert "rank 0: step 9, ended, after 1 restart" in text and "1 rank, 9 steps" in text
    assert run.judge().as_dict()["others"] == []


def test_an_evaluation_after_the_training_is_no_attempt(stream):
    run = stream()
    process(run, "rank0000", 1, 5)
    process(run, "rank0000/attempt1", 2, 0, evals=4, attempt=1)
    text = lines(run)
    assert "1 rank, 5 steps" in text and "rank 0: step 5, ended, loss" in text
    assert "process 2: 4 evaluation calls, ended" in text and "attempt" not in text


def test_the_commands_exit_is_not_that_of_each_child(stream):
    run = stream()
    process(run, "rank0000", 1, 5)
    process(run, "rank0000/pid2-vm", 2, 5)
    assert "process 1: step 5, ended" in lines(run, 3) and "exit 3" in run.judge(3).headline()


def test_the_cost_line_names_a_process_that_is_no_rank_by_its_pid(stream):
    """Seen: "rank 0 2.40 %" of a child that trains while the parent evaluates."""
    run = stream()
    process(run, "rank0000", 1, 0, evals=3)
    process(run, "rank0000/pid2-vm", 2, 10)
    process(run, "rank0000/pid3-vm", 3, 10)
    run.emit("rank0000/pid3-vm", Cost(step=10, own_ms=50.0, wall_ms=100.0))
    (cost,) = [line for line in run.judge().page() if line.startswith("cost of tdbg")]
    assert ", process 3 50.00 %," in cost and "rank" not in cost


def test_the_cost_line_names_ranks_as_ranks(stream):
    run = stream()
    for rank in range(2):
        folder = run.rank(rank, world=2)
        run.train(folder, [1.0] * 5)
        run.emit(folder, Cost(step=5, own_ms=10.0 * rank, wall_ms=100.0))
        run.end(folder, 5)
    assert any(", rank 1 10.00 %," in line for line in run.judge().page())


def hello(run: Stream, pid: int, restarts: int) -> None:
    """A torch process of that launch has reported; it need not have stepped."""
    folder = run.run.path / "hello"
    folder.mkdir(exist_ok=True)
    text = json.dumps({"pid": pid, "env": {"TORCHELASTIC_RESTART_COUNT": str(restarts)}})
    (folder / f"vm-{pid}.json").write_text(text)


def failed_ranks(run: Stream) -> None:
    """Attempt 0: rank 1 raises after step 4, and the launcher ends rank 0."""
    for rank in range(2):
        folder = run.rank(rank, world=2)
        run.train(folder, [1.0] * 4)
    run.emit("rank0001", Traceback(step=4, exception="RuntimeError", message="planted", how="uncaught"))
    run.child_exit(1, 1)
    run.child_exit(0, -15)


def test_the_verdict_tells_of_each_attempt(stream):
    run = stream()
    failed_ranks(run)
    for rank in range(2):
        folder = run.rank(rank, world=2, attempt=1)
        run.train(folder, [1.0] * 8)
        run.end(folder, 8)
    text = lines(run)
    assert "ranks 0-1: step 8, ended, after 1 restart" in text
    assert "restarts: attempt 0 failed at step 4 (rank 1: RuntimeError); attempt 1 ended at step 8" in text


def test_an_attempt_that_took_no_step_is_told(stream):
    run = stream()
    failed_ranks(run)
    hello(run, 5000, 2)
    assert "restarts: attempt 0 failed at step 4 (rank 1: RuntimeError); attempt 2 took no step" in lines(run, 1)


def test_without_a_restart_there_is_no_line_of_attempts(stream):
    run = stream()
    failed_ranks(run)
    hello(run, 5000, 0)
    assert "restarts" not in lines(run, 1)
