"""kill -9 of tdbg leaves nothing of the run behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tdbg.launch import orphans

SLEEPER = "import os,sys,time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(120)"
DEAF = "import signal; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; " + SLEEPER


def read_pid(path: Path) -> int:
    text = path.read_text() if path.exists() else ""
    return int(text) if text else 0


def test_the_command_ends_when_tdbg_is_killed(shell, wait_until, is_alive) -> None:
    process = shell.start_command(sys.executable, "-c", SLEEPER, "pid")
    pid = wait_until(lambda: read_pid(shell.folder / "pid"))
    process.kill()
    process.wait()
    wait_until(lambda: not is_alive(pid), 5)


@pytest.mark.parametrize("closed", ["0<&-", "2>&-", "1>&- 2>&-", "0<&- 1>&- 2>&-"])
def test_a_closed_standard_stream_ends_nothing(closed: str, tmp_path: Path) -> None:
    """A pipe of tdbg's got its number, and the guard took what was written there, or nothing, for tdbg's end."""
    # A program that opens a file of its own would get a closed number: the shell looks from a high one.
    look = "exec 9>$0; for n in 0 1 2; do if [ -e /proc/$$/fd/$n ]; then echo $n >&9; fi; done; exit 5"
    tdbg = f"{sys.executable} -m tdbg run -q --run-dir run --"
    found = {}
    for name, words in (("bare", "sh -c"), ("watched", f"{tdbg} sh -c")):
        done = subprocess.run(["sh", "-c", f"{words} '{look}' {name} {closed}"], cwd=tmp_path, check=False, timeout=60)
        assert done.returncode == 5
        found[name] = (tmp_path / name).read_text().split()
    assert (
        found["watched"] == found["bare"] == [n for n in "012" if f"{n}<&-" not in closed and f"{n}>&-" not in closed]
    )


def test_what_the_command_started_ends_too(shell, wait_until, is_alive) -> None:
    """A shell script around the program: the kernel ends the shell alone, the guard ends the rest."""
    line = f'{sys.executable} -c "$0" inner; true'
    process = shell.start_command("sh", "-c", line, SLEEPER)
    pid = wait_until(lambda: read_pid(shell.folder / "inner"))
    process.kill()
    process.wait()
    wait_until(lambda: not is_alive(pid), 20)


@pytest.mark.timeout(90)
def test_a_command_deaf_to_sigterm_is_killed_in_the_end(shell, wait_until, is_alive) -> None:
    process = shell.start_command(sys.executable, "-c", DEAF, "pid")
    pid = wait_until(lambda: read_pid(shell.folder / "pid"))
    process.kill()
    process.wait()
    wait_until(lambda: not is_alive(pid), orphans.ALONE_S + orphans.TERM_S + 15)


def test_the_guard_alone_is_enough(tmp_path: Path, wait_until, is_alive) -> None:
    """macOS has no parent-death signal: here a command without it."""
    program = f"""
import os, subprocess, sys, time
from tdbg.launch.orphans import Guard
child = subprocess.Popen([sys.executable, "-c", {SLEEPER!r}, "pid"], env={{**os.environ, "MARK": "here"}})
guard = Guard(child.pid, {{"MARK": "here"}})
open("ready", "w").write("1")
time.sleep(120)
"""
    process = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path)
    pid = wait_until(lambda: read_pid(tmp_path / "ready") and read_pid(tmp_path / "pid"))
    process.kill()
    process.wait()
    wait_until(lambda: not is_alive(pid), 15)


def test_a_dismissed_guard_harms_nobody(tmp_path: Path, is_alive) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, "MARK": "b"})
    guard = orphans.Guard(child.pid, {"MARK": "b"})
    guard.dismiss()
    assert not is_alive(guard._pid)
    assert is_alive(child.pid)
    child.kill()
    child.wait()


def test_nobody_waits_for_the_guard(shell) -> None:
    """A reader of tdbg's output sees its end at once when tdbg is killed, though the guard is at work."""
    process = shell.start_command(sys.executable, "-c", "print('up', flush=True); import time; time.sleep(60)")
    assert process.stdout.readline() == "up\n"
    process.kill()
    process.communicate(timeout=3)


def test_another_agents_processes_are_left_alone(shell, wait_until, is_alive) -> None:
    """Two agents share a run directory: the death of one ends its own processes alone."""
    options = ("--run-dir", "job")
    env = {"TORCHELASTIC_RUN_ID": "42"}
    one = shell.start_command(sys.executable, "-c", SLEEPER, "one", options=options, env=env)
    first = wait_until(lambda: read_pid(shell.folder / "one"))
    two = shell.start_command(sys.executable, "-c", SLEEPER, "two", options=options, env=env)
    second = wait_until(lambda: read_pid(shell.folder / "two"))
    one.kill()
    one.wait()
    wait_until(lambda: not is_alive(first))
    assert two.poll() is None and is_alive(second)
    two.send_signal(signal.SIGTERM)
    two.communicate(timeout=30)
    assert two.returncode == 143
