"""tdbg hook: the startup file for Pythons that ignore PYTHONPATH."""

import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tdbg.core.errors import TdbgError
from tdbg.launch import startup_files


@pytest.fixture(scope="module")
def venv_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A fresh environment without tdbg; its interpreter."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return str(folder / "bin" / "python")


@pytest.fixture
def hooked_python(venv_python: str) -> Iterator[str]:
    """The same with the hook in it."""
    startup_files.install_hook(venv_python)
    yield venv_python
    startup_files.remove_hook(venv_python)


def read_report(shell) -> str:
    done = shell.list_runs()[-1] / "boot" / "woke"
    return "woke" if done.exists() else ""


@pytest.mark.parametrize("option", ["-I", "-E"])
def test_it_reaches_a_python_that_ignores_pythonpath(shell, venv_python: str, option: str) -> None:
    assert shell.run_command(venv_python, option, "-c", "print(1)").stdout == "1\n"
    assert not read_report(shell)
    path = startup_files.install_hook(venv_python)
    assert path.name == "tdbg_hook.pth"
    assert shell.run_command(venv_python, option, "-c", "print(1)").stdout == "1\n"
    assert read_report(shell)
    assert startup_files.remove_hook(venv_python) == path
    assert startup_files.remove_hook(venv_python) is None


def test_a_program_that_overwrites_pythonpath_is_reached(shell, hooked_python: str) -> None:
    text = "import os, subprocess, sys; subprocess.run([sys.executable, '-c', 'print(2)'], env={**os.environ, 'PYTHONPATH': '/x'})"
    done = shell.run_command("env", "PYTHONPATH=/elsewhere", hooked_python, "-c", text)
    assert done.stdout == "2\n"
    assert read_report(shell)


def test_it_does_nothing_where_pythonpath_works_and_nothing_outside_a_run(shell, hooked_python: str) -> None:
    text = "import sys; print([type(f).__name__ for f in sys.meta_path].count('Waker'), 'tdbg' in sys.modules)"
    assert shell.run_command(hooked_python, "-c", text).stdout == "1 False\n"
    bare = subprocess.run([hooked_python, "-c", text], capture_output=True, text=True, check=True)
    assert (bare.stdout, bare.stderr) == ("0 False\n", "")
    gone = {"TDBG_RUN_DIR": "/no/such/run", "PATH": "/usr/bin:/bin"}
    left = subprocess.run([hooked_python, "-c", text], capture_output=True, text=True, check=True, env=gone)
    assert (left.stdout, left.stderr) == ("0 False\n", "")


def test_the_command_line(shell, venv_python: str) -> None:
    tdbg = [sys.executable, "-m", "tdbg", "hook"]
    done = subprocess.run([*tdbg, "install", "--python", venv_python], capture_output=True, text=True)
    assert done.returncode == 0 and Path(done.stdout.strip()).is_file()
    done = subprocess.run([*tdbg, "remove", "--python", venv_python], capture_output=True, text=True)
    assert done.returncode == 0 and not Path(done.stdout.strip()).exists()
    done = subprocess.run([*tdbg, "remove", "--python", venv_python], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "no hook is installed\n")


def test_an_interpreter_that_cannot_be_asked(tmp_path: Path) -> None:
    for name in (str(tmp_path / "nothing"), "/bin/false"):
        with pytest.raises(TdbgError, match="cannot ask"):
            startup_files.install_hook(name)


def test_a_folder_that_is_not_ours_to_change(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(startup_files, "find_hook_path", lambda python: tmp_path / "no folder" / startup_files.FILE)
    with pytest.raises(TdbgError, match="cannot write"):
        startup_files.install_hook()
    assert not startup_files.is_installed()
    (tmp_path / "no folder").mkdir()
    startup_files.install_hook()
    assert startup_files.is_installed()


# what TDBG_RUN_DIR names is code only if this user alone can have written it


def run_booted(hooked: str, run: Path, **env: str) -> tuple[str, str]:
    """What a Python prints that ignores PYTHONPATH, with a run whose boot file prints a word."""
    done = subprocess.run(
        [hooked, "-I", "-c", "print('program')"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "TDBG_RUN_DIR": str(run), **env},
    )
    return done.stdout.replace("\n", " ").strip(), done.stderr


@pytest.fixture
def planted_run(tmp_path: Path) -> Path:
    """A run directory with a boot file that tells when it runs."""
    boot = tmp_path / "run" / "boot"
    boot.mkdir(parents=True)
    (boot / "sitecustomize.py").write_text("print('boot')\n")
    for path in (boot.parent, boot, boot / "sitecustomize.py"):
        path.chmod(0o700)
    return boot.parent


PARTS = ["", "boot", "boot/sitecustomize.py"]


@pytest.mark.parametrize("part", PARTS)
def test_what_others_may_write_is_not_started(hooked_python: str, planted_run: Path, part: str) -> None:
    assert run_booted(hooked_python, planted_run) == ("boot program", "")
    (planted_run / part).chmod(0o722)
    printed, said = run_booted(hooked_python, planted_run)
    assert printed == "program" and len(said.splitlines()) == 1 and "other users can write to it" in said
    assert run_booted(hooked_python, planted_run, TDBG_TRUST=str(planted_run)) == ("boot program", "")


@pytest.mark.skipif(os.geteuid() != 0 and not os.environ.get("PYTEST_NO_SKIPS"), reason="only root can be another user")
@pytest.mark.parametrize("part", PARTS)
def test_what_another_user_owns_is_not_started(hooked_python: str, planted_run: Path, part: str) -> None:
    os.chown(planted_run / part, 12345, 12345)
    printed, said = run_booted(hooked_python, planted_run)
    assert printed == "program" and "belongs to uid 12345" in said


@pytest.mark.parametrize("part", PARTS[1:])
def test_what_a_link_leads_to_is_not_started(hooked_python: str, planted_run: Path, part: str) -> None:
    real = planted_run.parent / "elsewhere"
    (planted_run / part).rename(real)
    (planted_run / part).symlink_to(real)
    printed, said = run_booted(hooked_python, planted_run)
    assert printed == "program" and "is a symbolic link" in said


def test_a_relative_run_directory_is_not_started(
    hooked_python: str, planted_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(planted_run.parent)
    assert run_booted(hooked_python, Path("run"))[0] == "program"


def test_the_lines_call_one_module_and_hold_no_code(venv_python: str) -> None:
    """Python 3.15 reads the ``.start`` file, and then no line of the ``.pth`` file of that name (PEP 829)."""
    folder = startup_files.install_hook(venv_python).parent
    assert (folder / "tdbg_hook.start").read_text() == "tdbg_startup:start\n"
    assert (folder / "tdbg_hook.pth").read_text() == "import tdbg_startup; tdbg_startup.start()\n"
    assert callable(pkgutil.resolve_name("tdbg.inject.startup:start"))
    startup_files.remove_hook(venv_python)
    assert not list(folder.glob("tdbg*"))


def test_a_hook_of_an_earlier_tdbg_is_replaced(venv_python: str) -> None:
    old = startup_files.find_hook_path(venv_python)
    old.write_text("import os; exec(os.environ.get('TDBG_X', ''))\n")
    assert "exec" not in startup_files.install_hook(venv_python).read_text()
    startup_files.remove_hook(venv_python)
