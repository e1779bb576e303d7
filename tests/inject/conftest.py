"""A run directory with its boot folder, and real processes started in it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import tdbg
from tdbg.core.config import Settings, flags_to_env
from tdbg.core.rundir import RunDir
from tdbg.inject import boot_source, watch_table
from tests.e2e.conftest import warm_command

PARENT = str(Path(tdbg.__file__).parents[1])


class Run:
    """One run directory, as `tdbg run` would have made it, and the processes started below it."""

    def __init__(self, path: Path, settings: Settings, watch: Mapping[str, str] | None = None) -> None:
        self.path = path
        self.settings = settings
        RunDir.create(path, {"settings": settings.as_dict(), "command": []})
        self.boot = path / "boot"
        self.boot.mkdir()
        table = dict(watch) if watch is not None else watch_table(settings)
        (self.boot / "sitecustomize.py").write_text(boot_source(str(path), PARENT, table), encoding="utf-8")

    def build_environment(self, *before: str, after: Sequence[str] = (), **extra: str) -> dict[str, str]:
        """The environment of a child: nothing of this test run's own Python settings."""
        env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "TDBG_"))}
        env["PYTHONPATH"] = os.pathsep.join([*before, str(self.boot), *after])
        env["TDBG_RUN_DIR"] = str(self.path)
        if self.settings.flags:
            env["TDBG_FLAGS"] = flags_to_env(self.settings.flags)
        return {**env, **extra}

    def run_python(
        self,
        *args: str,
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
        cwd: Path | None = None,
        stdin: str | None = None,
        warm: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``python ARGS`` in the run; warm: in a process that has torch loaded already."""
        words = [python, *args]
        return subprocess.run(
            warm_command(words) if warm else words,
            env=env if env is not None else self.build_environment(),
            cwd=cwd or self.path.parent,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def list_events(self, kind: str = "") -> list[dict[str, Any]]:
        """Every event of every process, as plain records."""
        lines = [line for path in sorted(self.path.glob("**/events.jsonl")) for line in path.read_text().splitlines()]
        records = [json.loads(line) for line in lines]
        return [record for record in records if not kind or record["type"] == kind]

    @property
    def has_woken(self) -> bool:
        """True if a process started with the boot file."""
        return (self.boot / "woke").exists()

    @property
    def boot_errors(self) -> str:
        """What went wrong inside the boot file."""
        path = self.boot / "errors.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def make_run(tmp_path: Path) -> Any:
    """Make a run: ``make_run(flags={...}, strict_flags=True)``; ``watch=`` replaces the table."""
    count = 0

    def make_numbered_run(watch: Mapping[str, str] | None = None, **settings: Any) -> Run:
        nonlocal count
        count += 1
        return Run(tmp_path / f"run{count}", Settings(**settings), watch)

    return make_numbered_run
