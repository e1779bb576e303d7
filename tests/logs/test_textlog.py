"""tdbg's own text logs: one shape of line, rotation, nothing raised."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forks import fork_while_held

from tdbg.core.flags import tag
from tdbg.logs.textlog import RankLogs, TextLog, format_header, format_line


def test_the_header_has_a_fixed_width() -> None:
    early, late = format_header(1795000000.0000004, "D", 3, 20000), format_header(1795000000.999999, "E", 41, 7)
    assert len(early) == len(late)
    assert early.endswith(".000000 D r0003 s00020000") and late.endswith(".999999 E r0041 s00000007")


def test_a_record_stays_whole() -> None:
    text = format_line(1795000000.5, "D", 0, 1, tag("LOSS.NULL_MASKING", "INPUT"), "first\nsecond\r\nthird")
    first, *rest = text.splitlines()
    assert first.endswith("[DEBUG_NULL_MASKING_INPUT] first")
    assert rest == ["    second\\r", "    third"]


def test_two_logs_by_level(tmp_path: Path) -> None:
    logs = RankLogs(lambda: tmp_path, lambda: 2)
    for level in "DSIWEC":
        logs.write_record(1795000000.0, level, 5, "[T]", f"at {level}")
    debug = (tmp_path / "debug_log_rank2.txt").read_text().splitlines()
    info = (tmp_path / "info_log_rank2.txt").read_text().splitlines()
    assert [text[-1] for text in debug] == list("DSIWEC")
    assert [text[-1] for text in info] == list("IWEC")
    assert logs.lost == 0


def test_rotation_keeps_the_last_parts(tmp_path: Path) -> None:
    log = TextLog(lambda: tmp_path / "x.txt", rotate_bytes=100)
    for number in range(60):
        log.write(f"line {number:03d} of some length\n")
    parts = sorted(path.name for path in tmp_path.iterdir())
    assert parts == ["x.txt", "x.txt.1", "x.txt.2", "x.txt.3", "x.txt.4"]
    assert all(path.stat().st_size <= 100 for path in tmp_path.iterdir())
    assert "line 059" in (tmp_path / "x.txt").read_text()
    older = [(tmp_path / name).read_text().splitlines()[0] for name in ("x.txt.4", "x.txt.3", "x.txt.2", "x.txt.1")]
    assert older == sorted(older)


def test_nothing_is_raised_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = TextLog(lambda: tmp_path / "file" / "x.txt")
    log.write("lost\n")
    assert log.lost == 1
    nowhere = TextLog(lambda: None)
    nowhere.write("lost\n")
    assert nowhere.lost == 1


def test_a_forked_child_writes_its_own_file(tmp_path: Path) -> None:
    here = tmp_path / "parent.txt"
    log = TextLog(lambda: here)
    log.write("parent\n")
    child = os.fork()
    if child == 0:
        here = tmp_path / "child.txt"
        log.write("child\n")
        os._exit(0)
    os.waitpid(child, 0)
    log.write("parent\n")
    assert (tmp_path / "parent.txt").read_text() == "parent\nparent\n"
    assert (tmp_path / "child.txt").read_text() == "child\n"


def list_open_files(folder: Path) -> list[str]:
    """What this process has open there."""
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    paths = [Path(os.readlink(link)) for link in links if os.path.lexists(link)]
    return [path.name for path in paths if path.parent == folder]


def list_last_words(folder: Path) -> list[str]:
    """The last word of each line of the debug log and its parts, oldest first."""
    parts = sorted(folder.glob("debug_log_rank0.txt*"), reverse=True)
    return [line.split()[-1] for path in parts for line in path.read_text().splitlines()]


@pytest.fixture
def rank_logs(tmp_path: Path) -> RankLogs:
    """A debug log that has a line, has room for another short one, and is rotated for a long one."""
    found = RankLogs(lambda: tmp_path, lambda: 0, rotate_bytes=130)
    found.write_record(1795000000.0, "D", 1, "[T]", "first")
    return found


def run_at_first_rename(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """Have something happen in the middle of the first rotation."""
    replace = os.replace

    def replace_and_call(*paths: Any, **how: Any) -> None:
        monkeypatch.setattr(os, "replace", replace)
        then()
        replace(*paths, **how)

    monkeypatch.setattr(os, "replace", replace_and_call)


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="reads /proc")
def test_another_thread_writes_while_the_log_is_rotated(
    rank_logs: RankLogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = threading.Thread(target=rank_logs.write_record, args=[1795000000.0, "D", 1, "[T]", "other"])

    def beside() -> None:
        other.start()
        other.join(0.5)  # it has to wait

    run_at_first_rename(monkeypatch, beside)
    rank_logs.write_record(1795000000.0, "D", 1, "[T]", "long" + "g" * 60)
    other.join()
    assert list_last_words(tmp_path) == ["first", "long" + "g" * 60, "other"]
    assert len(list_open_files(tmp_path)) == 1 and rank_logs.lost == 0
    rank_logs.close()
    assert list_open_files(tmp_path) == []


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="reads /proc")
def test_a_handler_of_a_signal_logs_while_the_log_is_rotated(
    rank_logs: RankLogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(number: int, frame: Any) -> None:
        raise TimeoutError("it waits for itself")

    def log_on_signal(number: int, frame: Any) -> None:
        rank_logs.write_record(1795000000.0, "D", 1, "[T]", "handler")

    before = signal.signal(signal.SIGUSR1, log_on_signal), signal.signal(signal.SIGALRM, stuck)
    signal.setitimer(signal.ITIMER_REAL, 10)
    try:
        run_at_first_rename(monkeypatch, lambda: signal.raise_signal(signal.SIGUSR1))
        rank_logs.write_record(1795000000.0, "D", 1, "[T]", "long" + "g" * 60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGALRM, before[1])
    assert sorted(list_last_words(tmp_path)) == ["first", "handler", "long" + "g" * 60]
    assert len(list_open_files(tmp_path)) == 1 and rank_logs.lost == 0


def test_a_line_goes_to_no_file_that_the_program_has_opened_meanwhile(
    rank_logs: RankLogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread has seen that the file is its own, the other closes it to rotate, the program gets the number."""
    is_ours, rotating, written = TextLog._is_ours, threading.Event(), threading.Event()
    programs = tmp_path / "program.txt"
    opened: list[int] = []

    def ours_until_then(log: TextLog) -> bool:
        found = is_ours(log)
        if threading.current_thread() is not rotates and not rotates.ident:
            rotates.start()
            rotating.wait(0.5)  # the other thread has to wait
        return found

    def program_opens() -> None:
        opened.append(os.open(programs, os.O_WRONLY | os.O_CREAT))
        rotating.set()
        written.wait(5)

    rotates = threading.Thread(target=rank_logs.write_record, args=[1795000000.0, "D", 1, "[T]", "long" + "g" * 60])
    monkeypatch.setattr(TextLog, "_is_ours", ours_until_then)
    run_at_first_rename(monkeypatch, program_opens)
    rank_logs.write_record(1795000000.0, "D", 1, "[T]", "a")
    written.set()
    rotates.join()
    os.close(opened[0])
    assert programs.read_text() == ""
    assert list_last_words(tmp_path) == ["first", "a", "long" + "g" * 60]


def test_a_lock_that_another_thread_held_is_no_matter_of_a_forked_child(rank_logs: RankLogs, tmp_path: Path) -> None:
    assert fork_while_held(rank_logs._lock, lambda: rank_logs.write_record(1795000000.0, "D", 1, "[T]", "child")) == 0
    assert list_last_words(tmp_path) == ["first", "child"]
