"""Hangs at the default level: the rank, its line and what it does are named; who only takes long is left alone."""

import json
import math
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tdbg.core.rundir import RunDir, find_live_owner
from tdbg.launch.supervise import HUNG_END_S
from tests.e2e.conftest import Runner, Start, build_program_command, build_torchrun_command

SOON = ("--threshold", "DISTRIBUTED.hang_s=3")
STOP = (*SOON, "--stop-on", "TD-R006")
# kind -> (rank that hangs, what the title says of the place)
HANGS = {
    "sleep": (1, "asleep at hangs.py:", "in fall_asleep"),
    "lock": (0, "waiting for a lock at hangs.py:", "in wait_for_lock"),
    "pipe": (1, "at hangs.py:", "in read_pipe"),
    "recv": (1, "in recv (hangs.py:", "in receive_nothing"),
    "dataset": (0, "at hangs.py:", "in __getitem__"),
    "worker": (1, "waiting for the loader at hangs.py:", "in train"),
    "skip": (1, "in barrier (hangs.py:", "in train"),
    "leave": (0, "in barrier (hangs.py:", "in train"),
}


def list_variables(process: psutil.Process) -> list[str]:
    """The environment that a process was started with."""
    try:
        return list(process.environ().values())
    except psutil.Error:
        return []


def assert_named(result: object, kind: str) -> None:
    who, place, function = HANGS[kind]
    finding = result.find_finding("TD-R006")  # type: ignore[attr-defined]
    assert finding["rank"] == who and finding["severity"] == "error", finding
    title = finding["title"]
    if kind in ("skip", "leave"):  # it might as well be the other that missed something
        assert title.startswith("ranks 0-1 wait for each other in different collectives, for "), title
        assert f"rank {who} {place}" in title and f"rank {1 - who} in all_reduce (" in title, title
    else:
        assert title.startswith(f"rank {who} does not come to all_reduce, where rank {1 - who} has waited for"), title
    assert place in title and (kind in ("skip", "leave") or title.rstrip(")").endswith(function)), title
    assert finding["first_step"] == (20 if kind != "skip" else 30), finding
    assert result.verdict["findings"][0]["code"] == "TD-R006", "whoever ended the ranks did it because of that"  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", HANGS)
def test_the_rank_that_hangs_is_named_at_the_default_level(watched_runner: Runner, kind: str) -> None:
    result = watched_runner(build_torchrun_command("hangs", kind, str(HANGS[kind][0])), STOP)
    assert_named(result, kind)
    assert any("TD-R006 warning" in line for line in result.tdbg_lines), "it is said as it happens"
    finding = result.find_finding("TD-R006")
    kept = next(line for line in finding["evidence"] if line.startswith("stacks: ")).removeprefix("stacks: ")
    stacks = json.loads((result.folder / kept.split(", ")[0]).read_text(encoding="utf-8"))
    main = next(lines for name, lines in stacks["threads"].items() if name.startswith("MainThread"))
    assert any(HANGS[kind][2].removeprefix("in ") in line for line in main)


def test_ranks_that_a_program_spawns_are_watched_too(watched_runner: Runner) -> None:
    assert_named(watched_runner(build_program_command("hangs", "sleep", "1"), STOP), "sleep")


@pytest.mark.parametrize("kind", ["none", "compute", "save", "evaluate"])
def test_who_takes_long_is_left_alone(watched_runner: Runner, kind: str) -> None:
    """A rank that computes, saves or evaluates for twice the limit, while the other waits for it."""
    result = watched_runner(build_torchrun_command("hangs", kind, "0", "8"), SOON)
    assert result.code == 0 and result.codes == [], result.stderr
    assert len(result.list_printed("done")) == 2
    assert not any("TD-R006" in line for line in result.tdbg_lines)


def test_one_who_goes_on_is_a_note(watched_runner: Runner) -> None:
    result = watched_runner(build_torchrun_command("late_rank", "--for", "9"), SOON)
    assert result.code == 0, result.stderr
    finding = result.find_finding("TD-R006")
    assert finding["severity"] == "info" and finding["title"].startswith("rank 1 came late to all_reduce")


def interrupt_run(run: Path, *, again_after_s: float = math.inf) -> float:
    """Press Ctrl-C, again if that is asked for, and wait for the verdict; returns the seconds that took."""
    supervisor = json.loads((run / "run.json").read_text(encoding="utf-8"))["supervisor"]["pid"]
    begun = time.monotonic()
    os.killpg(os.getpgid(supervisor), signal.SIGINT)  # as a terminal does
    while not (run / "report.json").exists():
        took_s = time.monotonic() - begun
        assert took_s < 25.0, (run.parent / "out.txt").read_text()
        if took_s >= again_after_s:
            again_after_s = math.inf
            os.killpg(os.getpgid(supervisor), signal.SIGINT)
        time.sleep(0.02)
    return time.monotonic() - begun


@pytest.mark.cold
def test_after_ctrl_c_the_verdict_waits_for_ranks_that_the_command_left_behind(start_run: Start) -> None:
    run = start_run(build_program_command("leaves_ranks", "1"), '"rank": 1')
    assert interrupt_run(run) >= 1.0
    assert [one for one in RunDir(run).list_processes() if find_live_owner(one.path)] == []
    assert "SIGKILL" not in (run.parent / "out.txt").read_text()


@pytest.mark.cold
def test_another_ctrl_c_ends_the_wait_for_ranks_and_not_the_verdict(start_run: Start) -> None:
    run = start_run(build_program_command("leaves_ranks", "20"), '"rank": 1')
    assert interrupt_run(run, again_after_s=1.5) < HUNG_END_S
    assert "verdict: " in (run.parent / "out.txt").read_text()
    assert any(find_live_owner(one.path) for one in RunDir(run).list_processes()), "they take their time"


@pytest.mark.cold
@pytest.mark.parametrize("start", ["torchrun", "spawn"])
def test_ctrl_c_ends_a_job_that_hangs_before_torchrun_would(start_run: Start, start: str) -> None:
    """torchrun by itself waits for 30 s for a rank that does not hear the signal; here it is some 10 s on a quiet machine."""
    words = build_torchrun_command("hangs", "lock", "1")
    run = start_run(words if start == "torchrun" else build_program_command("hangs", "lock", "1"), "TD-R006", SOON)
    interrupt_run(run)
    verdict = json.loads((run / "report.json").read_text(encoding="utf-8"))
    assert verdict["findings"][0]["code"] == "TD-R006" and verdict["findings"][0]["severity"] == "error"
    assert [one for one in RunDir(run).list_processes() if find_live_owner(one.path)] == []
    marked = [one for one in psutil.process_iter() if str(run) in " ".join(list_variables(one))]
    assert marked == []
