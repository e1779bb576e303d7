"""`tdbg run` on a CUDA device: faults are named as on the CPU, healthy runs stay silent and keep their numbers."""

import json
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import EVERY_STEP, Result, Runner, build_program_command, run_command
from tests.e2e.test_faults import MODELS, assert_truth, find_first_bad

PROGRAM = Path(__file__).parent / "programs" / "on_gpu.py"
pytestmark = pytest.mark.cold  # a warm server's children could not use CUDA
SAME_NUMBERS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def build_command(kind: str, *args: str) -> list[str]:
    """The command of one kind of the program, under torchrun where it needs a process group."""
    start = ["torchrun", "--standalone", "--nproc-per-node=1"] if kind in ("nccl", "fsdp") else [sys.executable]
    return [*start, str(PROGRAM), kind, *args]


def assert_silent(result: Result) -> None:
    """Nothing found above a note, nothing of tdbg switched off."""
    assert result.code == 0, result.stderr
    found = [(one["code"], one["title"]) for one in result.verdict["findings"] if one["severity"] != "info"]
    assert found == [], result.stderr
    assert result.verdict["trouble"] == [] and result.verdict["cost"].get("errors", 0) == 0, result.verdict


@pytest.mark.parametrize("level", ["basic", "advanced", "extreme"])
@pytest.mark.parametrize("kind", ["plain", "amp", "bf16", "pinned", "graph", "compile", "nccl", "fsdp"])
def test_a_healthy_run_is_silent_and_keeps_its_numbers(
    kind: str, level: str, watched_runner: Runner, bare_runner: Runner
) -> None:
    expected = bare_runner(build_command(kind), SAME_NUMBERS)
    result = watched_runner(build_command(kind), ("--level", level), SAME_NUMBERS)
    assert expected.code == 0 and expected.stdout.endswith("done\n"), expected.stderr
    assert result.stdout == expected.stdout, result.stderr
    assert_silent(result)


@pytest.mark.parametrize("options", [(), EVERY_STEP], ids=["default", "every-step"])
def test_the_host_never_waits_for_the_device_on_account_of_tdbg(
    options: tuple[str, ...], watched_runner: Runner
) -> None:
    result = watched_runner(build_command("no-sync", "--steps", "400"), options)
    assert "waits 0\n" in result.stdout, result.stdout + result.stderr
    assert_silent(result)


@pytest.mark.parametrize("fault", ["forward-inf", "backward-nan", "inf-grad"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("at", [3, 40])
def test_a_fault_is_named_as_on_the_cpu(model: str, fault: str, at: int, watched_runner: Runner) -> None:
    words = build_program_command("faults", model, fault, "--at", str(at), "--device", "cuda")
    assert_truth(watched_runner(words), fault, model, step=at)


def test_a_bad_batch_is_named(watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("faults", "gpt", "bad-batch", "--device", "cuda"))
    assert "TD-D001" in result.codes, result.stderr


@pytest.mark.parametrize("kind", ["plain", "amp", "bf16", "busy"])
def test_the_module_that_makes_a_nan_in_forward_is_named(kind: str, watched_runner: Runner) -> None:
    """Also where the device is far behind the host: a loss is waited for while backward is queued."""
    finding, event = find_first_bad(watched_runner(build_command(kind, "--fault", "forward")), step=30)
    assert (finding["phase"], event.module, event.kind) == ("forward", "clipped", "nan"), finding
    assert "on_gpu.py:" in event.line


@pytest.mark.parametrize("kind", ["plain", "bf16", "busy"])
def test_where_a_nan_in_backward_comes_from_is_named(kind: str, watched_runner: Runner) -> None:
    """The module, or where the device is far behind the host the parameter that it met first."""
    finding, event = find_first_bad(watched_runner(build_command(kind, "--fault", "backward")), step=30)
    assert event.kind == "nan" and (event.module == "clipped" or event.parameter.startswith("inner.2.")), finding


def test_an_allocation_that_failed_is_named(watched_runner: Runner) -> None:
    result = watched_runner(build_command("oom"))
    finding = result.find_finding("TD-M002")
    assert finding["first_step"] == 20, result.stderr


def test_a_device_side_assertion_ends_like_the_bare_run(watched_runner: Runner, bare_runner: Runner) -> None:
    result, expected = watched_runner(build_command("assert")), bare_runner(build_command("assert"))
    assert (result.code, result.stdout) == (expected.code, expected.stdout), result.stderr
    assert "device-side assert" in result.find_finding("TD-R003")["title"], result.stderr


def test_a_starved_device_is_named(watched_runner: Runner) -> None:
    result = watched_runner(build_command("starved"))
    assert "TD-P002" in result.codes, result.stderr


def test_waits_inside_the_step_are_named(watched_runner: Runner) -> None:
    result = watched_runner(build_command("syncs", "--steps", "200"), ("--flag", "DEVICE"))
    assert "TD-P001" in result.codes, result.stderr


def test_a_trace_has_the_time_of_the_device(tmp_path: Path) -> None:
    tdbg = [sys.executable, "-m", "tdbg"]
    folder = tmp_path / "run"
    command = [*tdbg, "profile", "--run-dir", str(folder), "--", *build_command("plain", "--steps", "200")]
    assert run_command(command, tmp_path).code == 0
    shown = run_command([*tdbg, "trace", "show", str(folder), "--json"], tmp_path)
    summary = json.loads(shown.stdout)
    assert summary, shown.stderr
    print(shown.stdout[:4000])
    advised = run_command([*tdbg, "trace", "advise", str(folder)], tmp_path)
    assert "TD-P104" in advised.stdout, "three small layers do not fill a device"
