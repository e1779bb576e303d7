"""What the tests of launch/ share: a run of the real command line in a folder of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TDBG = [sys.executable, "-m", "tdbg"]


def build_clean_env(**extra: str) -> dict[str, str]:
    """The environment without what a surrounding job or an outer tdbg put into it."""
    foreign = ("TDBG_", "SLURM_", "TORCHELASTIC_", "MASTER_", "RANK", "WORLD_SIZE", "NODE_RANK")
    env = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**env, **extra}


class Shell:
    """Runs `tdbg run` in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write_script(self, text: str, name: str = "x.py") -> str:
        """A file of the program's; returns its name."""
        (self.folder / name).write_text(text, encoding="utf-8")
        return name

    def build_command(self, *command: str, options: tuple[str, ...] = ()) -> list[str]:
        """The command line of `tdbg run`."""
        return [*TDBG, "run", *options, "--", *command]

    def run_command(
        self, *command: str, options: tuple[str, ...] = (), **kwargs: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        env = build_clean_env(**kwargs.pop("env", {}))
        return subprocess.run(
            self.build_command(*command, options=options),
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            **kwargs,
        )

    def start_command(self, *command: str, options: tuple[str, ...] = (), **kwargs: Any) -> subprocess.Popen[str]:
        """Start, and leave it running."""
        env = build_clean_env(**kwargs.pop("env", {}))
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self.build_command(*command, options=options),
            cwd=self.folder,
            env=env,
            stdout=kwargs.pop("stdout", pipe),
            stderr=kwargs.pop("stderr", pipe),
            text=True,
            **kwargs,
        )

    def run_python(self, text: str, *args: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        """Run a Python program given as text."""
        return self.run_command(sys.executable, self.write_script(text), *args, **kwargs)

    def list_runs(self) -> list[Path]:
        """The run directories made, oldest first."""
        return sorted((self.folder / "tdbg_runs").iterdir(), key=lambda path: path.stat().st_mtime)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A folder to run commands in."""
    return Shell(tmp_path)


def wait_until(true: Callable[[], Any], seconds: float = 20.0) -> Any:
    """What ``true`` returns once it is true; the test fails if it never is."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = true()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {true}")


def is_alive(pid: int) -> bool:
    """True if the process runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        if Path("/proc/self").exists():
            return False
        return subprocess.run(["kill", "-0", str(pid)], capture_output=True).returncode == 0
    return state not in "ZX"


@pytest.fixture(name="wait_until")
def _wait_until() -> Callable[..., Any]:
    return wait_until


@pytest.fixture(name="is_alive")
def _is_alive() -> Callable[[int], bool]:
    return is_alive
