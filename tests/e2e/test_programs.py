"""Real programs, unchanged, in one process: what is on record is what the program itself printed."""

import pytest

from tdbg.core.events import End, Params, Start
from tests.e2e.conftest import EVERY_STEP, PROGRAMS, Runner, nothing_found, program, same_output, same_steps


def test_plain_loop_with_loader_workers(watched: Runner, bare: Runner) -> None:
    words = program("plain")
    result = watched(words, EVERY_STEP)
    same_output(result, bare(words))
    steps = same_steps(result, every=True)
    assert [step.batch for step in steps] == [1, 2, 3, 4, 5, 6] * 2
    assert {step.batches for step in steps} == {6}
    assert all(step.finite is not False and not step.skipped for step in steps)
    assert all((step.step_ms or 0) > 0 for step in steps[1:])
    for name in ("loader_ms", "forward_ms", "backward_ms", "optimizer_ms", "host_mb"):
        assert all((getattr(step, name) or 0) > 0 for step in steps[1:]), name
    nothing_found(result)


def test_the_process_describes_itself(watched: Runner) -> None:
    result = watched(program("plain"))
    (start,), (end,), params = result.events(Start), result.events(End), result.events(Params)
    assert (start.rank, start.world_size, start.attempt) == (0, 1, 0)
    assert start.argv[0].endswith("plain.py")
    assert params[0].names == result.printed("done")[0]["parameters"]
    assert params[0].numel == [256, 32, 32, 32, 32, 1]
    assert params[0].optimizers == ["AdamW"]
    assert (end.step, end.reason) == (12, "exit")


def test_loader_workers_write_nothing(watched: Runner) -> None:
    result = watched(program("plain"))
    assert [process.label for process in result.run.processes()] == ["rank0000"]


@pytest.mark.parametrize("accumulation", ["1", "2"])
def test_hugging_face_trainer(watched: Runner, bare: Runner, accumulation: str) -> None:
    words = program("hf_trainer", accumulation)
    result = watched(words)
    same_output(result, bare(words))
    steps = same_steps(result)
    assert {step.micro for step in steps} == {int(accumulation)}
    assert result.verdict["ranks"][0]["planned"] in (None, 10)
    nothing_found(result)


def test_lightning(watched: Runner, bare: Runner) -> None:
    words = program("lightning_fit")
    result = watched(words)
    same_output(result, bare(words))
    steps = same_steps(result)
    assert all((step.forward_ms or 0) > 0 for step in steps[1:]), "the root is never called: its child is"
    nothing_found(result)


def test_accelerate_launch(watched: Runner, bare: Runner) -> None:
    machine = "--cpu --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no"
    words = ["accelerate", "launch", *machine.split(), str(PROGRAMS / "accelerate_train.py")]
    result = watched(words)
    same_output(result, bare(words))
    same_steps(result)
    nothing_found(result)


def test_run_json_says_what_each_rank_ran_on(watched: Runner) -> None:
    result = watched(program("amp"))
    info = result.run.info()
    rank = info["ranks"]["0"]
    assert rank["device"]["type"] == "cpu" and rank["device"]["threads"] == 1
    assert rank["torch"].startswith("2.") and rank["host"] == info["host"]


def test_grad_scaler_skips_a_step_without_losing_it(watched: Runner, bare: Runner) -> None:
    words = program("amp")
    result = watched(words)
    same_output(result, bare(words))
    steps = same_steps(result, norms="some")
    assert sum(step.skipped for step in steps) >= 3
    nothing_found(result)


def test_two_optimizers_make_one_step(watched: Runner, bare: Runner) -> None:
    words = program("gan")
    result = watched(words, EVERY_STEP)
    same_output(result, bare(words))
    steps = same_steps(result, every=True)
    others = [other for step in steps for other in step.other_losses]
    assert others == pytest.approx([line["other"] for line in result.printed("step")][: len(others)], rel=1e-6)
    assert len(others) >= len(steps) - 1
    nothing_found(result)


def test_lbfgs_closure(watched: Runner, bare: Runner) -> None:
    words = program("lbfgs")
    result = watched(words)
    same_output(result, bare(words))
    steps, printed = result.steps(), result.printed("step")
    assert [(step.step, step.micro) for step in steps] == [(line["step"], line["micro"]) for line in printed]
    for step, line in zip(steps, printed, strict=True):
        loss, norm = line["seen"][0]
        assert step.loss == pytest.approx(loss, rel=1e-6), "the first evaluation's, which step() returns"
        assert step.grad_norm is None or step.grad_norm == pytest.approx(norm, rel=1e-4)
    nothing_found(result)


def test_gradient_accumulation(watched: Runner, bare: Runner) -> None:
    words = program("accumulate")
    result = watched(words)
    same_output(result, bare(words))
    assert [step.micro for step in same_steps(result)][:8] == [4, 4, 4, 4, 2, 4, 4, 4]
    nothing_found(result)


def test_evaluation_alone(watched: Runner, bare: Runner) -> None:
    words = program("evaluate")
    result = watched(words)
    same_output(result, bare(words))
    calls, printed = result.steps(phase="eval"), result.printed("call")
    numbers = [step.call or 0 for step in calls]
    assert numbers[:8] == [1, 2, 3, 4, 5, 6, 7, 8], "later ones only as far as the budget reaches"
    assert [step.samples for step in calls] == [printed[number - 1]["samples"] for number in numbers]
    assert result.verdict["ranks"][0]["evals"] == len(printed), "all are counted, recorded or not"
    assert result.steps(phase="train") == []
    nothing_found(result)


def test_a_command_that_is_not_python(watched: Runner) -> None:
    result = watched(["sh", "-c", "echo one; echo two >&2; exit 7"])
    assert (result.code, result.stdout) == (7, "one\n")
    assert "two\n" in result.stderr
    assert result.finding("TD-C003")["severity"] in ("info", "warning")


def test_nothing_is_seen_at_level_off(watched: Runner, bare: Runner) -> None:
    words = program("plain")
    result = watched(words, ["--level", "off"])
    same_output(result, bare(words))
    assert result.steps() == []


@pytest.mark.parametrize("level", ["advanced", "extreme"])
def test_higher_levels_change_nothing_either(watched: Runner, bare: Runner, level: str) -> None:
    words = program("accumulate")
    result = watched(words, ["--level", level])
    same_output(result, bare(words))
    same_steps(result)
    nothing_found(result)


def test_the_disk_budget_is_kept_and_said(watched: Runner, bare: Runner) -> None:
    words = program("plain")
    result = watched(words, ["--disk-budget", "4KB"])
    same_output(result, bare(words))
    size = sum(path.stat().st_size for path in (result.folder / "rank0000").rglob("*") if path.is_file())
    assert size <= 4_000 + 500  # owner.json is not counted
    assert any("disk budget" in line for line in [*result.said, *result.verdict["notes"]])
