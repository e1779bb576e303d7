"""Where files may not grow: a program starts as without tdbg, its own start-up file included."""

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import build_environment

OWN_SITE = Path(__file__).parent / "programs" / "own_site"
# Two processes, one after the other: what the first one leaves behind must not hurt the second.
CHILD = "import sys; print('child', sys.own_start_up)"
PROGRAM = f"""
import subprocess, sys
print(sys.own_start_up, flush=True)
subprocess.run([sys.executable, "-c", {CHILD!r}])
"""
EXPECTED = "own/sitecustomize\nchild own/sitecustomize\n"


@pytest.mark.parametrize("limit", [4_000, 7_000, 8_500, 10_000, 30_000])
def test_a_limit_on_the_size_of_files(tmp_path: Path, limit: int) -> None:
    """Either all is as without tdbg, or tdbg says that it cannot start. The boot file has 9 KB, its bytecode 12."""
    shutil.copytree(OWN_SITE, tmp_path / "own")
    # tdbg itself, and what it imports, is not to be compiled here; the program's Python writes bytecode where it can.
    python = ["env", "-u", "PYTHONDONTWRITEBYTECODE", sys.executable]
    words = [sys.executable, "-m", "tdbg", "run", "--run-dir", str(tmp_path / "run"), "--", *python, "-c", PROGRAM]
    done = subprocess.run(
        words,
        env=build_environment({"PYTHONPATH": str(tmp_path / "own")}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert "Error in sitecustomize" not in done.stderr
    if done.returncode == 125:
        assert "tdbg: " in done.stderr and "Traceback" not in done.stderr and limit < 9_000
    else:
        assert (done.returncode, done.stdout) == (0, EXPECTED), done.stderr
