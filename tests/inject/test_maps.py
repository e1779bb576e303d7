"""The thread that reads the program's source, and those who wait for it."""

import ast
import secrets
import threading
import warnings
from pathlib import Path
from typing import Any

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
        maps.wait_for_thread(1.0)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_later)
    assert maps.is_pending(str(file))
    maps.wait_for_thread(30.0)
    assert not failures and not maps.busy


def test_the_thread_leaves_the_warnings_of_the_program_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: what the program recorded by `catch_warnings` while the thread parsed a file was lost."""
    file = tmp_path / "train.py"
    file.write_text(f"if cfg.DEBUG.AMP: print('{secrets.token_hex()}')\n")  # never read before, so that no map is kept
    parse, is_parsing, goes_on = ast.parse, threading.Event(), threading.Event()

    def parse_slowly(*args: Any, **kwargs: Any) -> ast.Module:
        is_parsing.set()
        goes_on.wait(30.0)
        return parse(*args, **kwargs)

    monkeypatch.setattr(ast, "parse", parse_slowly)
    before = list(warnings.filters)
    maps = Maps((), lambda: None, lambda part, error: None)
    assert maps.is_pending(str(file)) and is_parsing.wait(30.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        goes_on.set()
        maps.wait_for_thread(30.0)
        warnings.warn("of the program", stacklevel=1)
    assert [str(one.message) for one in caught] == ["of the program"]
    assert not maps.is_pending(str(file)) and maps.get_map(str(file)) is not None
    assert list(warnings.filters) == before
