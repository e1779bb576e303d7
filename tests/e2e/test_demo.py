"""`tdbg demo` trains through the same path as any program, and its verdict names the fault that was planted."""

import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Result, run_command

STEPS, FAULT_STEP = 60, 36


def run_demo(folder: Path, *options: str) -> Result:
    words = [sys.executable, "-m", "tdbg", "demo", "--run-dir", str(folder / "run"), *options]
    result = run_command(words, folder)
    result.folder = folder / "run"
    return result


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("forward-inf", ["TD-N001", f"first Inf at step {FAULT_STEP}", "blocks.2.fc", "forward"]),
        ("backward-nan", ["TD-N001", f"first NaN at step {FAULT_STEP}", "blocks.1.act", "backward"]),
        ("inf-grad", ["TD-N001", f"first Inf at step {FAULT_STEP}", "blocks.3.proj.weight", "gradient"]),
        ("bad-batch", ["TD-N001", f"first NaN at step {FAULT_STEP}", "input"]),
        ("lr-spike", ["TD-S001", f"step {FAULT_STEP}"]),
    ],
)
def test_the_verdict_names_the_fault(tmp_path: Path, fault: str, said: list[str]) -> None:
    result = run_demo(tmp_path, "--steps", str(STEPS), "--fault", fault)
    assert result.code == 0, result.stderr
    finding = result.find_finding(said[0])
    assert finding["first_step"] == FAULT_STEP
    assert all(word in f"{finding['code']} {finding['title']}" for word in said), finding["title"]
    assert any(all(word in line for word in said) for line in result.tdbg_lines), result.stderr


def test_without_a_fault_nothing_is_found(tmp_path: Path) -> None:
    result = run_demo(tmp_path)
    assert result.code == 0, result.stderr
    assert result.codes == []
    assert result.stdout.splitlines()[-1].startswith("step  200/200  loss ")
    assert any("1 rank, 200 steps" in line for line in result.tdbg_lines)
    assert result.tdbg_lines[-1] == "tdbg: next: `tdbg demo --fault backward-nan` plants a fault; then read its verdict"


def test_an_unknown_fault_is_wrong_use(tmp_path: Path) -> None:
    result = run_demo(tmp_path, "--fault", "backwards-nan")
    assert result.code == 2
    assert [line.removeprefix("tdbg: ") for line in result.tdbg_lines] == [
        "--fault cannot be 'backwards-nan'",
        "did you mean backward-nan? choose from: none, forward-inf, backward-nan, inf-grad, bad-batch, lr-spike",
    ]
    assert not result.folder.exists()


def test_the_script_and_the_command_know_the_same_faults() -> None:
    from tdbg.cli.demo import FAULTS
    from tdbg.launch import demo_train

    assert FAULTS == demo_train.FAULTS
