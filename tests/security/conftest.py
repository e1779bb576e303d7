"""What the tests of security share: a second user, and commands in a folder and a home of their own."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

OTHER = 12345  # a user id without a name
needs_root = pytest.mark.skipif(os.geteuid() != 0 and not os.environ.get("CI"), reason="only root can be another user")
FOREIGN = ("TDBG_", "SLURM_", "TORCHELASTIC_", "MASTER_", "RANK", "WORLD_SIZE", "NODE_RANK", "GIT_")


class Place:
    """A folder to run commands in, with a home of its own."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.home = home

    def write_file(self, name: str, text: str) -> Path:
        """A file in the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def run_tdbg(self, *words: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        """One command line of tdbg, to its end; in this process where it starts nothing."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        kept |= {"HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home / "config"), **env}
        if words[0] == "trust" or "--dry-run" in words:
            return self._run_in_process(words, cwd or self.folder, kept)
        return subprocess.run(
            [sys.executable, "-m", "tdbg", *words],
            cwd=cwd or self.folder,
            env=kept,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def _run_in_process(
        self, words: tuple[str, ...], cwd: Path, env: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        from tdbg.cli import main

        config_files = sys.modules.get("tdbg.core.config_files")
        if config_files is not None:
            config_files._reported.clear()  # what is said once a process
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.chdir(cwd),
            patch.dict(os.environ, env, clear=True),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = main(words)
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


@pytest.fixture
def private_place(tmp_path: Path) -> Place:
    """A folder and a home that are this user's alone."""
    for name in ("work", "home"):
        (tmp_path / name).mkdir(mode=0o700)
    return Place(tmp_path / "work", tmp_path / "home")


def give_away(path: Path, **how: Any) -> Path:
    """Make a file or folder another user's."""
    os.chown(path, how.get("uid", OTHER), how.get("gid", OTHER), follow_symlinks=False)
    return path
