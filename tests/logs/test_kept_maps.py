"""The maps of a tree on disk: read again as long as nothing has changed, and never longer."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tdbg.logs.guards import kept
from tdbg.logs.guards.program_files import cache_folder, maps_below
from tdbg.logs.guards.reader import CHECKERS

GUARDED = "def train(cfg):\n    if cfg.DEBUG.AMP:\n        print('scale', 1)\n"
PASSING = "from b import say\ndef go(cfg):\n    if cfg.DEBUG.LR:\n        say('rate')\n"
WRAPPER = "def say(text):\n    print(text)\n"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three files that were written long ago, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(kept, "SETTLED_S", 0.0)  # the clock of this file system has nanoseconds
    root = tmp_path / "program"
    root.mkdir()
    for name, text in (("a.py", GUARDED), ("b.py", WRAPPER), ("c.py", PASSING), ("d.py", "x = 1\n")):
        (root / name).write_text(text)
    time.sleep(0.01)
    return root


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The trees that were read whole."""
    made: list[str] = []

    def counting(root: str, *rest: object) -> object:
        made.append(root)
        return maps_below(root, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(kept, "maps_below", counting)
    return made


def _maps(root: Path) -> dict[str, tuple[dict[int, frozenset[str]], frozenset[int]]]:
    found = kept.tree_maps(str(root), CHECKERS, bool)
    return {Path(path).name: (one.lines, one.passed_on) for path, one in found.items()}


def test_what_is_kept_is_what_was_made(tree: Path, parsed: list[str]) -> None:
    made = _maps(tree)
    assert made["a.py"] == ({3: frozenset({"AMP"})}, frozenset())
    assert "d.py" not in made and made["b.py"][1] == {2}
    assert _maps(tree) == made
    assert parsed == [str(tree)]


def _same_size_and_time(root: Path) -> None:
    file = root / "a.py"
    before = file.stat()
    file.write_text(GUARDED.replace("AMP", "LR "))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def _new_file(root: Path) -> None:
    (root / "e.py").write_text(GUARDED)


def _removed(root: Path) -> None:
    (root / "a.py").unlink()


def _replaced(root: Path) -> None:
    (root / "new").write_text(GUARDED.replace("AMP", "MEMORY"))
    (root / "new").rename(root / "a.py")


@pytest.mark.parametrize("change", [_same_size_and_time, _new_file, _removed, _replaced])
def test_a_change_is_seen(tree: Path, parsed: list[str], change: Callable[[Path], None]) -> None:
    before = _maps(tree)
    change(tree)
    after = _maps(tree)
    assert len(parsed) == 2
    assert after != before
    fresh = {Path(path).name: one for path, one in maps_below(str(tree)).items() if one.lines or one.passed_on}
    assert after == {name: (one.lines, one.passed_on) for name, one in fresh.items()}


def test_what_was_written_a_moment_ago_is_not_kept(
    tree: Path, parsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time on disk may not tell the next change from this one."""
    monkeypatch.setattr(kept, "SETTLED_S", 60.0)
    assert _maps(tree) == _maps(tree)
    assert len(parsed) == 2


@pytest.mark.parametrize(
    "text", ["", "[]", '{"stamps": 3}', "[" * 100_000, '{"stamps": {}, "maps": {"x": {"lines": {"a": 1}}}}']
)
def test_a_damaged_file_is_made_anew(tree: Path, parsed: list[str], text: str) -> None:
    made = _maps(tree)
    (path,) = cache_folder().glob("tree-*.json")
    path.write_text(text)
    assert _maps(tree) == made
    assert len(parsed) == 2 and json.loads(path.read_text())["root"] == str(tree)
