"""The picture of README.md shows what `tdbg demo --fault backward-nan` says today."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import terminal_picture

ROOT = Path(__file__).parents[2]


def test_the_picture_is_current() -> None:
    """If this fails, run `python -m tests.docs.terminal_picture`."""
    words = [sys.executable, "-m", "tests.docs.terminal_picture", "--check"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("shown", ["TD-N001", "at step 120", "blocks.1.act", "SqrtBackward0", "cause:", "followed by:"])
def test_a_picture_that_says_something_else_is_stale(shown: str) -> None:
    """Each stable part is compared."""
    svg = terminal_picture.PICTURE.read_text(encoding="utf-8")
    text = terminal_picture.extract_text(svg)
    lines = [line for line in text.splitlines() if line.startswith("tdbg:")]
    assert shown in text
    changed = [line.replace(shown, "at step 121" if "step" in shown else f"try: another {shown}x") for line in lines]
    assert terminal_picture.list_missing_lines(svg, changed)


def test_the_picture_loads_nothing() -> None:
    svg = terminal_picture.PICTURE.read_text(encoding="utf-8")
    assert svg.count("http") == svg.count('xmlns="http') and "url(" not in svg
