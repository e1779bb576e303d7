"""The examples of docs/loss.md, one after the other in one program, with the flags off and on."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "loss.md"


@pytest.mark.parametrize("flags", ["", "LOSS"])
def test_the_examples_run(flags: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    program = "\n".join(["import logging", "logging.basicConfig(level=10)", *blocks])
    done = subprocess.run(
        [sys.executable, "-c", program], env={"TDBG_FLAGS": flags}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "TD-L003 error" in done.stdout and "at the shared layer" in done.stdout
    assert ("NULL_MASKING_SUMMARY" in done.stderr) == bool(flags), done.stderr
