"""The thread that reads the program's source, and those who wait for it."""

import threading
from pathlib import Path

import pytest

from tdbg.inject.maps import Maps


def test_who_waits_at_the_moment_of_its_start_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread logs, or a signal comes, while the thread is made and has not begun."""
    file = tmp_path / "train.py"
    file.write_text("if cfg.DEBUG.AMP: print('x')\n")
    failures: list[BaseException] = []
    maps = Maps((), lambda: None, lambda part, error: failures.append(error))
    start = threading.Thread.start

    def start_later(thread: threading.Thread) -> None:
        maps.wait(1.0)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_later)
    assert maps.pending(str(file))
    maps.wait(30.0)
    assert not failures and not maps.busy
