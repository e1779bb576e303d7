"""The command of `--on-finding`: what it reads, what becomes of what it prints, and its end."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tdbg.launch import alert_command
from tdbg.launch.alert_command import CommandChannel

FINDING = {"code": "TD-N001", "title": "first NaN, \u00e4 and \u2028", "rank": 0, "evidence": ["a"]}
FAR = float("inf")


def make_channel(*argv: str, **more: Any) -> CommandChannel:
    return CommandChannel(argv, dict(os.environ), **more)


def make_python_channel(code: str, *args: str, **more: Any) -> CommandChannel:
    return make_channel(sys.executable, "-c", code, *args, **more)


def test_it_reads_one_json_document(tmp_path: Path) -> None:
    code = "import sys; open(sys.argv[1], 'wb').write(sys.stdin.buffer.read())"
    assert make_python_channel(code, str(tmp_path / "got")).send_message(FINDING, [], FAR) == ""
    assert json.loads((tmp_path / "got").read_bytes()) == FINDING


def test_words_are_passed_as_they_are(tmp_path: Path) -> None:
    words = ["$HOME", "a b", "*", "; touch x", "\u00e4"]
    code = "import json, sys; json.dump(sys.argv[2:], open(sys.argv[1], 'w'))"
    assert make_python_channel(code, str(tmp_path / "got"), *words).send_message(FINDING, [], FAR) == ""
    assert json.loads((tmp_path / "got").read_text()) == words and os.listdir(tmp_path) == ["got"]


def test_what_it_prints_is_shown_on_stderr_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    code = "import sys; print('out \\x1b[31m'); print('err', file=sys.stderr); print('tdbg: forged')"
    assert make_python_channel(code).send_message(FINDING, [], FAR) == ""
    out, err = capsys.readouterr()
    assert out == ""
    assert sorted(err.splitlines()) == [
        "tdbg: on-finding: err",
        "tdbg: on-finding: out \\u001b[31m",
        "tdbg: on-finding: tdbg: forged",
    ]
    assert (
        make_python_channel(code, shows_output=False).send_message(FINDING, [], FAR) == ""
        and capsys.readouterr().err == ""
    )


def test_a_flood_is_read_and_cut(capsys: pytest.CaptureFixture[str]) -> None:
    code = "for n in range(200_000): print('line', n)"
    assert make_python_channel(code).send_message(FINDING, [], FAR) == ""
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == alert_command.SHOWN_LINES + 1 and "more lines" in shown[-1]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import sys; print('no route', file=sys.stderr); sys.exit(3)", "ended with exit code 3: no route"),
        ("import sys; sys.exit(3)", "ended with exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "was killed by signal 9"),
        ("import os; os.close(0); import sys; sys.exit(1)", "ended with exit code 1"),
        ("print('token=hunter2hunter'); exit(1)", "ended with exit code 1: token=***"),
    ],
)
def test_a_failure_is_one_line(code: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_python_channel(code).send_message(FINDING, [], FAR) == f"{sys.executable} {why}"
    assert capsys.readouterr().err == ""


def test_a_command_that_reads_nothing_is_no_failure() -> None:
    assert make_channel("true").send_message({"evidence": ["x" * 10_000_000]}, [], FAR) == ""


@pytest.mark.parametrize("name", ["no-such-command-anywhere", "/no/such/file", "/etc/passwd", "/"])
def test_what_cannot_be_started_is_said(name: str) -> None:
    assert make_channel(name).send_message(FINDING, [], FAR).startswith(f"cannot start {name}: ")


def test_no_file_is_left_open() -> None:
    def count() -> int:
        return len(os.listdir("/dev/fd"))

    before = count()
    for argv in (["true"], ["false"], ["no-such-command-anywhere"]):
        make_channel(*argv).send_message(FINDING, [], FAR)
    assert count() == before


HANGS = """
import os, signal, sys, time
if deaf := sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child:
    with open(sys.argv[1] + ".new", "w") as file:
        file.write(f"{os.getpid()} {child}")
    os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["mild", "deaf"])
def test_a_command_that_hangs_and_forks_is_ended_with_its_group(
    tmp_path: Path, how: str, is_alive: Callable[[int], bool], wait_until: Callable[..., Any]
) -> None:
    begun = time.monotonic()
    why = make_python_channel(HANGS, str(tmp_path / "pids"), how).send_message(FINDING, [], begun + 4.0)
    assert why == f"{sys.executable} did not end within 4 s" and time.monotonic() - begun < 5.0
    pids = list(map(int, (tmp_path / "pids").read_text().split()))
    assert len(pids) == 2 and wait_until(lambda: not any(map(is_alive, pids)))


def test_it_has_thirty_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert alert_command.LIMIT_S == 30.0
    monkeypatch.setattr(alert_command, "LIMIT_S", 2.0)
    begun = time.monotonic()
    assert "did not end within 2 s" in make_channel("sleep", "600").send_message(FINDING, [], FAR)
    assert time.monotonic() - begun < 3.0


def test_cancelling_ends_it_at_once(
    tmp_path: Path, wait_until: Callable[..., Any], is_alive: Callable[[int], bool]
) -> None:
    hangs = make_python_channel(HANGS, str(tmp_path / "pids"), "mild")
    thread = threading.Thread(target=hangs.send_message, args=(FINDING, [], FAR))
    thread.start()
    wait_until((tmp_path / "pids").exists)
    hangs.cancelled.set()
    thread.join(5)
    assert not thread.is_alive()
    assert wait_until(lambda: not any(is_alive(int(pid)) for pid in (tmp_path / "pids").read_text().split()))


def test_a_daemon_that_it_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    begun = time.monotonic()
    assert make_channel("sh", "-c", "sleep 20 & echo done").send_message(FINDING, [], FAR) == ""
    assert time.monotonic() - begun < 10


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="Linux shows the signals of a process")
def test_no_signal_is_blocked_or_ignored_on_account_of_tdbg(capsys: pytest.CaptureFixture[str]) -> None:
    """The supervisor blocks what it passes on to the program; a command that inherited that could not be ended."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})
    try:
        assert make_channel("grep", "^Sig[BI]", "/proc/self/status").send_message(FINDING, [], FAR) == ""
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    masks = [int(line.split()[-1], 16) for line in capsys.readouterr().err.splitlines()]
    python_ignores = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
    assert len(masks) == 2 and masks[0] == 0 and not masks[1] & python_ignores


def test_it_is_no_part_of_the_terminals_foreground_group() -> None:
    code = "import os, sys; sys.exit(os.getpgrp() != os.getpid() or os.getsid(0) != os.getpid())"
    assert make_python_channel(code).send_message(FINDING, [], FAR) == ""
