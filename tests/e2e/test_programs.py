"""Real programs, unchanged, in one process: what is on record is what the program itself printed."""

import pytest

from tdbg.core.events import End, Params, Start
from tests.e2e.conftest import (
    EVERY_STEP,
    PROGRAMS,
    Runner,
    assert_no_finding,
    assert_same_output,
    assert_same_steps,
    build_program_command,
)


def test_plain_loop_with_loader_workers(watched_runner: Runner, bare_runner: Runner) -> None:
    words = build_program_command("plain")
    result = watched_runner(words, EVERY_STEP)
    assert_same_output(result, bare_runner(words))
    steps = assert_same_steps(result, every=True)
    assert [step.batch for step in steps] == [1, 2, 3, 4, 5, 6] * 2
    assert {step.batches for step in steps} == {6}
    assert all(step.finite is not False and not step.skipped for step in steps)
    assert all((step.step_ms or 0) > 0 for step in steps[1:])
    for name in ("loader_ms", "forward_ms", "backward_ms", "optimizer_ms", "host_mb"):
        assert all((getattr(step, name) or 0) > 0 for step in steps[1:]), name
    assert_no_finding(result)


def test_the_process_describes_itself(watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("plain"))
    (start,), (end,), params = result.list_events(Start), result.list_events(End), result.list_events(Params)
    assert (start.rank, start.world_size, start.attempt) == (0, 1, 0)
    assert start.argv[0].endswith("plain.py")
    assert params[0].names == result.list_printed("done")[0]["parameters"]
    assert params[0].numel == [256, 32, 32, 32, 32, 1]
    assert params[0].optimizers == ["AdamW"]
    assert (end.step, end.reason) == (12, "exit")


def test_loader_workers_write_nothing(watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("plain"))
    assert [process.label for process in result.run_dir.list_processes()] == ["rank0000"]


@pytest.mark.parametrize("accumulation", ["1", "2"])
def test_hugging_face_trainer(watched_runner: Runner, bare_runner: Runner, accumulation: str) -> None:
    words = build_program_command("hf_trainer", accumulation)
    result = watched_runner(words)
    assert_same_output(result, bare_runner(words))
    steps = assert_same_steps(result)
    assert {step.micro for step in steps} == {int(accumulation)}
    assert result.verdict["ranks"][0]["planned"] in (None, 10)
    assert_no_finding(result)


def test_lightning(watched_runner: Runner, bare_runner: Runner) -> None:
    words = build_program_command("lightning_fit")
    result = watched_runner(words)
    assert_same_output(result, bare_runner(words))
    steps = assert_same_steps(result)
    assert all((step.forward_ms or 0) > 0 for step in steps[1:]), "the root is never called: its child is"
    assert_no_finding(result)


def test_accelerate_launch(watched_runner: Runner, bare_runner: Runner) -> None:
    machine = "--cpu --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no"
    words = ["accelerate", "launch", *machine.split(), str(PROGRAMS / "accelerate_train.py")]
    result = watched_runner(words)
    assert_same_output(result, bare_runner(words))
    assert_same_steps(result)
    assert_no_finding(result)


def test_run_json_says_what_each_rank_ran_on(watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("amp"))
    info = result.run_dir.read_info()
    rank = info["ranks"]["0"]
    assert rank["device"]["type"] == "cpu" and rank["device"]["threads"] == 1
    assert rank["torch"].startswith("2.") and rank["host"] == info["host"]


def test_grad_scaler_skips_a_step_without_losing_it(watched_runner: Runner, bare_runner: Runner) -> None:
    words = build_program_command("amp")
    result = watched_runner(words)
    assert_same_output(result, bare_runner(words))
    steps = assert_same_steps(result, norms="some")
    assert sum(step.skipped for step in steps) >= 3
    assert_no_finding(result)


def test_two_optimizers_make_one_step(watched_runner: Runner, bare_runner: Runner) -> None:
    words = build_program_command("gan")
    result = watched_runner(words, EVERY_STEP)
    assert_same_output(result, bare_runner(words))
    steps = assert_same_steps(result, every=True)
    others = [other for step in steps for other in step.other_losses]
    assert others == pytest.approx([line["other"] for line in result.list_printed("step")][: len(others)], rel=1e-6)
    assert len(others) >= len(steps) - 1
    assert_no_finding(result)


def test_lbfgs_closure(watched_runner: Runner, bare_runner: Runner) -> None:
    words = build_program_command("lbfgs")
    result = watched_runner(words)
    assert_same_output(result, bare_runner(words))
    steps, printed = result.list_steps(), result.list_printed("step")
    assert [(step.step, step.micro) for step in steps] == [(line["step"], line["micro"]) for line in printed]
    for step, line in zip(steps, printed, strict=True):
        loss, norm = line["seen"][0]
        assert step.loss == pytest.approx(loss, rel=1e-6), "the first evaluation's, which step() returns"
        assert step.grad_norm is None or step.grad_norm == pytest.approx(norm, rel=1e-4)
    assert_no_finding(result)


def test_gradient_accumulation(watched_runner: Runner, bare_runner: Runner) -> None:
    words = build_program_command("accumulate")
    result = watched_runner(words)
    assert_same_output(result, bare_runner(words))
    assert [step.micro for step in assert_same_steps(result)][:8] == [4, 4, 4, 4, 2, 4, 4, 4]
    assert_no_finding(result)


def test_evaluation_alone(watched_runner: Runner, bare_runner: Runner) -> None:
    words = build_program_command("evaluate")
    result = watched_runner(words)
    assert_same_output(result, bare_runner(words))
    calls, printed = result.list_steps(phase="eval"), result.list_printed("call")
    numbers = [step.call or 0 for step in calls]
    assert numbers[:8] == [1, 2, 3, 4, 5, 6, 7, 8], "later ones only as far as the budget reaches"
    assert [step.samples for step in calls] == [printed[number - 1]["samples"] for number in numbers]
    assert result.verdict["ranks"][0]["evals"] == len(printed), "all are counted, recorded or not"
    assert result.list_steps(phase="train") == []
    assert_no_finding(result)


def test_a_command_that_is_not_python(watched_runner: Runner) -> None:
    result = watched_runner(["sh", "-c", "echo one; echo two >&2; exit 7"])
    assert (result.code, result.stdout) == (7, "one\n")
    assert "two\n" in result.stderr
    assert result.find_finding("TD-C003")["severity"] in ("info", "warning")


def test_nothing_is_seen_at_level_off(watched_runner: Runner, bare_runner: Runner) -> None:
    words = build_program_command("plain")
    result = watched_runner(words, ["--level", "off"])
    assert_same_output(result, bare_runner(words))
    assert result.list_steps() == []


@pytest.mark.parametrize("level", ["advanced", "extreme"])
def test_higher_levels_change_nothing_either(watched_runner: Runner, bare_runner: Runner, level: str) -> None:
    words = build_program_command("accumulate")
    result = watched_runner(words, ["--level", level])
    assert_same_output(result, bare_runner(words))
    assert_same_steps(result)
    assert_no_finding(result)


def test_the_disk_budget_is_kept_and_said(watched_runner: Runner, bare_runner: Runner) -> None:
    words = build_program_command("plain")
    result = watched_runner(words, ["--disk-budget", "4KB"])
    assert_same_output(result, bare_runner(words))
    size = sum(path.stat().st_size for path in (result.folder / "rank0000").rglob("*") if path.is_file())
    assert size <= 4_000 + 500  # owner.json is not counted
    assert any("disk budget" in line for line in [*result.tdbg_lines, *result.verdict["notes"]])
