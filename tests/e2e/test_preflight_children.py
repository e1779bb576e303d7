"""`tdbg run --preflight`: which processes of a program share its files, and which write for real."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tdbg
from tests.e2e.conftest import Result, build_program_command, run_command
from tests.e2e.test_preflight import AS_BEFORE

TREE = str(Path(tdbg.__file__).parent.parent)
SHARED = (
    "subprocess",
    "subfolder",
    "posix-spawn",
    "exec",
    "fork",
    "process-fork",
    "process-spawn",
    "process-forkserver",
    "pool-spawn",
    "executor",
    "made-folder",
    "loader-fork",
    "loader-spawn",
)
THROUGH_A_SHELL = ("shell-python",)
REAL = ("isolated", "no-environment", "no-site", "other-path", "shell")
BEFORE = {"changed.txt": "old", "deleted.txt": "old"}
pytestmark = pytest.mark.cold  # how Python starts is what is looked at


def start(folder: Path, kinds: tuple[str, ...], *options: str) -> Result:
    (folder / "sub").mkdir()
    for name, text in (*BEFORE.items(), *((f"victim-{kind}.txt", "") for kind in kinds)):
        (folder / name).write_text(text)
    words = [sys.executable, "-m", "tdbg", "run", "--run-dir", str(folder / "run"), *options, "--"]
    result = run_command([*words, *build_program_command("preflight_children", *kinds)], folder, {"PYTHONPATH": TREE})
    result.folder = folder
    assert result.code == 0, result.stderr
    return result


def index_lines(result: Result, key: str) -> dict[str, dict[str, Any]]:
    """What the processes saw (key "kind"), or what the program saw of them (key "of"), by kind."""
    found = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    return {line[key]: line for line in found if key in line}


def list_files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Result]:
    yield start(tmp_path_factory.mktemp("shared"), SHARED, "--preflight")


@pytest.fixture(scope="module")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Result]:
    yield start(tmp_path_factory.mktemp("real"), (*REAL, *THROUGH_A_SHELL), "--preflight")


@pytest.mark.parametrize("kind", [*SHARED, *THROUGH_A_SHELL])
def test_a_process_of_python_shares_the_files(shared: Result, real_run: Result, kind: str) -> None:
    result = shared if kind in SHARED else real_run
    seen = index_lines(result, "kind")[kind]
    assert seen == {
        "kind": kind,
        "changed.txt": "changed",
        "new.txt": "new",
        "deleted.txt": "",
        "listed": ["changed.txt", "new.txt"],
    }
    assert index_lines(result, "of")[kind] == {"of": kind, "wrote": kind, "victim": False}


def test_nothing_of_theirs_is_written(shared: Result) -> None:
    assert list_files(shared.folder) == {**BEFORE, **{f"victim-{kind}.txt": "" for kind in SHARED}}
    assert not (shared.folder / "made").exists() and not (shared.folder / "run" / "preflight").exists()
    assert list(shared.folder.joinpath("sub").iterdir()) == []
    assert AS_BEFORE not in shared.tdbg_lines


@pytest.mark.parametrize("kind", REAL)
def test_other_commands_write_for_real(real_run: Result, kind: str) -> None:
    assert (real_run.folder / f"by-{kind}.txt").read_text() == ("old" if kind == "shell" else kind)
    assert not (real_run.folder / f"victim-{kind}.txt").exists()
    if kind != "shell":
        assert index_lines(real_run, "kind")[kind]["changed.txt"] == "old"


def test_it_is_said_that_they_may(real_run: Result) -> None:
    assert AS_BEFORE in real_run.tdbg_lines
    assert any(
        "other commands, and Python that ignores PYTHONPATH, wrote to the real files" in line
        for line in real_run.tdbg_lines
    )


@pytest.mark.parametrize("kind", REAL)
def test_each_of_them_is_told_of(tmp_path: Path, kind: str) -> None:
    assert AS_BEFORE in start(tmp_path, (kind,), "--preflight").tdbg_lines


def test_without_preflight_all_of_them_write(tmp_path: Path) -> None:
    kinds = (*SHARED, *THROUGH_A_SHELL, *REAL)
    start(tmp_path, kinds)
    written = {path.name for path in tmp_path.iterdir()}
    assert written >= {f"by-{kind}.txt" for kind in kinds} and not any(name.startswith("victim") for name in written)
    assert "deleted.txt" not in written and os.path.isdir(tmp_path / "made")
