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
def program_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
def parsed_roots(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The trees that were read whole."""
    made: list[str] = []

    def count_and_map(root: str, *rest: object) -> object:
        made.append(root)
        return maps_below(root, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(kept, "maps_below", count_and_map)
    return made


def _load_maps(root: Path) -> dict[str, tuple[dict[int, frozenset[str]], frozenset[int]]]:
    found = kept.tree_maps(str(root), CHECKERS, bool)
    return {Path(path).name: (one.lines, one.passed_on) for path, one in found.items()}


def test_what_is_kept_is_what_was_made(program_tree: Path, parsed_roots: list[str]) -> None:
    made = _load_maps(program_tree)
    assert made["a.py"] == ({3: frozenset({"AMP"})}, frozenset())
    assert "d.py" not in made and made["b.py"][1] == {2}
    assert _load_maps(program_tree) == made
    assert parsed_roots == [str(program_tree)]


def _rewrite_in_place(root: Path) -> None:
    file = root / "a.py"
    before = file.stat()
    file.write_text(GUARDED.replace("AMP", "LR "))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def _add_file(root: Path) -> None:
    (root / "e.py").write_text(GUARDED)


def _remove_file(root: Path) -> None:
    (root / "a.py").unlink()


def _replace_file(root: Path) -> None:
    (root / "new").write_text(GUARDED.replace("AMP", "MEMORY"))
    (root / "new").rename(root / "a.py")


@pytest.mark.parametrize("change", [_rewrite_in_place, _add_file, _remove_file, _replace_file])
def test_a_change_is_seen(program_tree: Path, parsed_roots: list[str], change: Callable[[Path], None]) -> None:
    before = _load_maps(program_tree)
    change(program_tree)
    after = _load_maps(program_tree)
    assert len(parsed_roots) == 2
    assert after != before
    fresh = {Path(path).name: one for path, one in maps_below(str(program_tree)).items() if one.lines or one.passed_on}
    assert after == {name: (one.lines, one.passed_on) for name, one in fresh.items()}


def test_what_was_written_a_moment_ago_is_not_kept(
    program_tree: Path, parsed_roots: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time on disk may not tell the next change from this one."""
    monkeypatch.setattr(kept, "SETTLED_S", 60.0)
    assert _load_maps(program_tree) == _load_maps(program_tree)
    assert len(parsed_roots) == 2


@pytest.mark.parametrize(
    "text", ["", "[]", '{"stamps": 3}', "[" * 100_000, '{"stamps": {}, "maps": {"x": {"lines": {"a": 1}}}}']
)
def test_a_damaged_file_is_made_anew(program_tree: Path, parsed_roots: list[str], text: str) -> None:
    made = _load_maps(program_tree)
    (path,) = cache_folder().glob("tree-*.json")
    path.write_text(text)
    assert _load_maps(program_tree) == made
    assert len(parsed_roots) == 2 and json.loads(path.read_text())["root"] == str(program_tree)


def test_what_is_old_is_removed(program_tree: Path) -> None:
    _load_maps(program_tree)
    other = cache_folder().with_name("guards-v0-py39")
    other.mkdir()
    (other / "old.json").touch()
    (other / "notes.txt").touch()
    kept_before = set(cache_folder().iterdir())
    old_s = time.time() - kept.KEPT_S - 60.0
    for path in (other / "old.json", other / "notes.txt", min(kept_before)):
        os.utime(path, (old_s, old_s))
    kept.forget_old_maps()
    assert set(cache_folder().iterdir()) == kept_before - {min(kept_before)}
    assert [path.name for path in other.iterdir()] == ["notes.txt"]


def test_what_another_user_could_write_is_not_used(program_tree: Path, parsed_roots: list[str]) -> None:
    """In a shared cache folder somebody else would choose which lines are taken to be guarded by which flag."""
    made = _load_maps(program_tree)
    (path,) = cache_folder().glob("tree-*.json")
    text = path.read_text().replace("AMP", "LOSS")
    path.write_text(text)
    assert _load_maps(program_tree)["a.py"][0] == {3: frozenset({"LOSS"})}  # one's own is
    path.chmod(0o666)
    assert _load_maps(program_tree) == made
    path.unlink()
    elsewhere = path.parents[2] / "elsewhere.json"
    elsewhere.write_text(text)
    path.symlink_to(elsewhere)
    assert _load_maps(program_tree) == made and elsewhere.read_text() == text
    path.unlink(missing_ok=True)
    cache_folder().chmod(0o777)
    before = set(cache_folder().iterdir())
    assert _load_maps(program_tree) == made and set(cache_folder().iterdir()) == before
    with kept.take_turn(str(program_tree), CHECKERS) as is_ours:
        assert is_ours and set(cache_folder().iterdir()) == before
