"""tdbg hook: the startup file for Pythons that ignore PYTHONPATH."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tdbg.errors import TdbgError
from tdbg.launch import hook


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A fresh environment without tdbg; its interpreter."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return str(folder / "bin" / "python")


@pytest.fixture
def hooked(venv: str) -> Iterator[str]:
    """The same with the hook in it."""
    hook.install(venv)
    yield venv
    hook.remove(venv)


def reported(shell) -> str:
    done = shell.runs()[-1] / "boot" / "woke"
    return "woke" if done.exists() else ""


@pytest.mark.parametrize("option", ["-I", "-E"])
def test_it_reaches_a_python_that_ignores_pythonpath(shell, venv: str, option: str) -> None:
    assert shell.run(venv, option, "-c", "print(1)").stdout == "1\n"
    assert not reported(shell)
    path = hook.install(venv)
    assert path.name == "tdbg_hook.pth"
    assert shell.run(venv, option, "-c", "print(1)").stdout == "1\n"
    assert reported(shell)
    assert hook.remove(venv) == path
    assert hook.remove(venv) is None


def test_a_program_that_overwrites_pythonpath_is_reached(shell, hooked: str) -> None:
    text = "import os, subprocess, sys; subprocess.run([sys.executable, '-c', 'print(2)'], env={**os.environ, 'PYTHONPATH': '/x'})"
    done = shell.run("env", "PYTHONPATH=/elsewhere", hooked, "-c", text)
    assert done.stdout == "2\n"
    assert reported(shell)


def test_it_does_nothing_where_pythonpath_works_and_nothing_outside_a_run(shell, hooked: str) -> None:
    text = "import sys; print([type(f).__name__ for f in sys.meta_path].count('Waker'), 'tdbg' in sys.modules)"
    assert shell.run(hooked, "-c", text).stdout == "1 False\n"
    bare = subprocess.run([hooked, "-c", text], capture_output=True, text=True, check=True)
    assert (bare.stdout, bare.stderr) == ("0 False\n", "")
    gone = {"TDBG_RUN_DIR": "/no/such/run", "PATH": "/usr/bin:/bin"}
    left = subprocess.run([hooked, "-c", text], capture_output=True, text=True, check=True, env=gone)
    assert (left.stdout, left.stderr) == ("0 False\n", "")


def test_the_command_line(shell, venv: str) -> None:
    tdbg = [sys.executable, "-m", "tdbg", "hook"]
    done = subprocess.run([*tdbg, "install", "--python", venv], capture_output=True, text=True)
    assert done.returncode == 0 and Path(done.stdout.strip()).is_file()
    done = subprocess.run([*tdbg, "remove", "--python", venv], capture_output=True, text=True)
    assert done.returncode == 0 and not Path(done.stdout.strip()).exists()
    done = subprocess.run([*tdbg, "remove", "--python", venv], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "no hook is installed\n")


def test_an_interpreter_that_cannot_be_asked(tmp_path: Path) -> None:
    for name in (str(tmp_path / "nothing"), "/bin/false"):
        with pytest.raises(TdbgError, match="cannot ask"):
            hook.install(name)


def test_a_folder_that_is_not_ours_to_change(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hook, "place", lambda python: tmp_path / "no folder" / hook.FILE)
    with pytest.raises(TdbgError, match="cannot write"):
        hook.install()
    assert not hook.installed()
    (tmp_path / "no folder").mkdir()
    hook.install()
    assert hook.installed()
