"""The child process: as though tdbg were not there."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tdbg.launch import supervise

NAMES = {number.name: number for number in supervise.FORWARDED}

REPORTER = """
import json, os, signal, sys
status = dict(line.rstrip("\\n").split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
print(json.dumps({
    "pgrp": os.getpgrp(), "parent": os.getppid(), "sid": os.getsid(0),
    "blocked": int(status["SigBlk"], 16), "ignored": int(status["SigIgn"], 16),
    "sigint": str(signal.getsignal(signal.SIGINT)),
}))
"""

LISTENER = """
import os, signal, sys, time
heard = []
def hear(number, frame):
    heard.append(signal.Signals(number).name)
    os.write(1, f"heard {' '.join(heard)}\\n".encode())  # print may be at work already, and is not to be called anew
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), hear)
print("ready", os.getpid(), flush=True)
until = time.monotonic() + 30
while not heard and time.monotonic() < until:
    time.sleep(0.01)
time.sleep(0.3)  # a signal that is sent twice would come now
print("total", len(heard), flush=True)
sys.exit(42)
"""


@pytest.fixture
def woken_times() -> Iterator[list[int]]:
    """Wakes a wait in this thread that would last for ever; empty if it was not needed.

    A child supervised in this process has SIGALRM blocked, by which pytest-timeout ends a test.
    """
    times: list[int] = []
    over, main = threading.Event(), threading.get_ident()

    def wake_main() -> None:
        while not over.wait(15 if not times else 0.1):
            times.append(signal.SIGCHLD)
            signal.pthread_kill(main, signal.SIGCHLD)

    waker = threading.Thread(target=wake_main)
    waker.start()
    yield times
    over.set()
    waker.join()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_child_is_in_the_same_group_and_session_with_clean_signals(shell) -> None:
    bare = subprocess.run([sys.executable, "-c", REPORTER], capture_output=True, text=True, check=True)
    seen = json.loads(shell.run_python(REPORTER).stdout)
    direct = json.loads(bare.stdout)
    assert seen["pgrp"] == direct["pgrp"] == os.getpgrp()
    assert seen["sid"] == direct["sid"]
    assert seen["blocked"] == direct["blocked"] == 0
    assert seen["ignored"] == direct["ignored"]
    assert "default_int_handler" in seen["sigint"]


@pytest.mark.parametrize("name", NAMES)
def test_a_signal_to_tdbg_reaches_the_child_once_and_its_code_comes_back(shell, name: str) -> None:
    process = shell.start_command(sys.executable, shell.write_script(LISTENER), name)
    assert process.stdout.readline().startswith("ready")
    process.send_signal(NAMES[name])
    out, err = process.communicate(timeout=30)
    assert (out.splitlines(), process.returncode) == ([f"heard {name}", "total 1"], 42), err


SLOW_TO_END = """
import signal, sys, time
def end(number, frame):
    time.sleep(float(sys.argv[1]))
    sys.exit(3)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
for _ in range(1200):  # short sleeps: a signal just before the system call of a long one is heard only after it
    time.sleep(0.05)
"""


@pytest.mark.parametrize(("seconds", "said"), [("0", 0), ("6", 1)])
def test_a_command_that_takes_its_time_to_end_is_said_to(shell, seconds: str, said: int) -> None:
    process = shell.start_command(sys.executable, shell.write_script(SLOW_TO_END), seconds)
    assert process.stdout.readline().startswith("ready")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 3 and err.count("waiting for the command to end") == said, err


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP", "SIGTERM", "SIGQUIT"])
def test_a_signal_inherited_as_ignored_stays_ignored_in_both(shell, name: str) -> None:
    number = NAMES[name]
    script = shell.write_script(
        "import signal, sys, time\n"
        "print(signal.getsignal(getattr(signal, sys.argv[1])) == signal.SIG_IGN, flush=True)\n"
        "sys.stdin.readline()\nsys.exit(5)\n"
    )
    process = shell.start_command(
        sys.executable, script, name, stdin=subprocess.PIPE, preexec_fn=lambda: signal.signal(number, signal.SIG_IGN)
    )
    assert process.stdout.readline() == "True\n"
    process.send_signal(number)
    out, _ = process.communicate("go\n", timeout=30)
    assert process.returncode == 5, out


def test_a_background_job_of_a_shell_ignores_ctrl_c(shell) -> None:
    """sh starts background jobs with SIGINT ignored: it must reach neither tdbg nor the program."""
    script = shell.write_script("import signal; print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)")
    line = f"{' '.join(shell.build_command(sys.executable, script))} & wait $!"
    done = subprocess.run(["sh", "-c", line], cwd=shell.folder, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "True\n")


def test_ignored_sigchld_is_handed_on_and_the_code_still_comes_back(shell) -> None:
    script = shell.write_script(
        "import signal, sys; print(signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN); sys.exit(9)"
    )
    done = shell.run_command(sys.executable, script, preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    assert (done.returncode, done.stdout) == (9, "True\n")


def test_files_that_tdbg_inherited_reach_the_child(shell) -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    done = shell.run_python("import os, sys; os.write(int(sys.argv[1]), b'through')", str(write), close_fds=False)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        assert (done.returncode, file.read()) == (0, b"through")


def test_the_child_holds_no_file_of_tdbgs(shell) -> None:
    text = "import os; print(sorted(int(fd) for fd in os.listdir('/dev/fd') if int(fd) > 2)[:-1])"
    bare = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert shell.run_python(text).stdout == bare.stdout
    assert shell.run_python(text, options=("--tee",)).stdout == bare.stdout


def test_stdin_is_the_childs(shell) -> None:
    done = shell.run_python("import sys; print(sys.stdin.read().upper())", input="text\n")
    assert done.stdout == "TEXT\n\n"


def test_a_script_without_an_interpreter_line_goes_to_sh(shell) -> None:
    path = shell.folder / "job"
    path.write_text('echo "$1"; exit 3\n')
    path.chmod(0o755)
    done = shell.run_command("./job", "one word")
    assert (done.returncode, done.stdout) == (3, "one word\n")


def test_stop_ends_the_child_by_term_and_a_deaf_one_by_kill(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, woken_times: list[int]
) -> None:
    monkeypatch.setattr(supervise, "STOP_GRACE_S", 0.5)
    deaf = "import signal,sys,time; signal.signal(15, signal.SIG_IGN); open(sys.argv[1], 'w'); time.sleep(60)"
    for text, expected in (("import sys,time; open(sys.argv[1], 'w'); time.sleep(60)", -15), (deaf, -9)):
        ready = tmp_path / str(expected)
        child = supervise.Child([sys.executable, "-c", text, str(ready)], dict(os.environ))
        while not ready.exists():
            pass
        child.stop_gracefully()
        assert child.wait_for_exit() == expected
    assert not woken_times, "it waited for ever"


def test_a_child_that_ends_while_another_thread_stops_it_is_seen(
    monkeypatch: pytest.MonkeyPatch, woken_times: list[int]
) -> None:
    """The other thread asks the system for the child, which has just ended, as SIGCHLD comes: no second one will."""
    child = supervise.Child([sys.executable, "-c", "import time; time.sleep(60)"], dict(os.environ))
    process, next_signal, real = child._process, supervise._next_signal, child._process._waitpid_lock
    missed = threading.Event()

    class Asked:
        """The lock that Popen asks under; the other thread holds it until the main one was turned away, or waits."""

        def acquire(self, blocking: bool = True) -> bool:
            got = real.acquire(blocking)
            if threading.current_thread() is stops:
                os.kill(process.pid, signal.SIGKILL)
                missed.wait(0.5)
            elif not got:
                missed.set()
            return got

        def release(self) -> None:
            real.release()

        def __enter__(self) -> None:
            real.acquire()

        def __exit__(self, *error: object) -> None:
            real.release()

    def stop_meanwhile(wanted: Any) -> tuple[int, bool] | None:
        if not stops.ident:
            stops.start()
        return next_signal(wanted)

    stops = threading.Thread(target=child.stop_gracefully)
    monkeypatch.setattr(process, "_waitpid_lock", Asked())
    monkeypatch.setattr(supervise, "_next_signal", stop_meanwhile)
    assert child.wait_for_exit() == -signal.SIGKILL
    stops.join()
    assert not woken_times, "it waited for ever"


@pytest.mark.skipif(sys.platform != "linux", reason="only there the system tells how long to wait for a signal")
def test_a_child_whose_end_was_told_to_another_thread_is_seen(
    monkeypatch: pytest.MonkeyPatch, woken_times: list[int]
) -> None:
    """A thread from before the child blocks nothing: SIGCHLD is its own, while the main thread is between look and wait."""
    over, next_signal = threading.Event(), supervise._next_signal
    other = threading.Thread(target=over.wait, daemon=True)
    other.start()
    child = supervise.Child([sys.executable, "-c", "import time; time.sleep(60)"], dict(os.environ))

    def end_before_the_wait(wanted: Any) -> tuple[int, bool] | None:
        if not over.is_set():
            os.kill(child.pid, signal.SIGKILL)
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            while signal.SIGCHLD in signal.sigpending():  # until the other thread has it
                pass
            over.set()
        return next_signal(wanted)

    monkeypatch.setattr(supervise, "_next_signal", end_before_the_wait)
    assert child.wait_for_exit() == -signal.SIGKILL
    other.join()
    assert not woken_times, "it waited for ever"


def test_signal_state_of_tdbg_is_as_before_afterwards(woken_times: list[int]) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(signal.SIGCHLD)
    assert supervise.Child(["true"], dict(os.environ)).wait_for_exit() == 0
    assert (signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(signal.SIGCHLD)) == before
    with pytest.raises(Exception, match="not found"):
        supervise.Child(["no-such-command-here"], dict(os.environ))
    assert (signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(signal.SIGCHLD)) == before
    assert not woken_times, "it waited for ever"
