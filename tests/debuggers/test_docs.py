"""docs/debuggers.md: every example runs, one after the other, and every debugger is on the page."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tdbg
from tdbg.debuggers import DEBUGGERS

PAGE = Path(__file__).parents[2] / "docs" / "debuggers.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_every_example(tmp_path):
    """In one fresh process, so that an error names the line of the page."""
    found = [
        (TEXT[: part.start()].count("\n") + 2, part[1]) for part in re.finditer(r"```python\n(.*?)```", TEXT, re.S)
    ]
    assert len(found) > 10
    parts = [f"exec(compile({chr(10) * (line - 1) + code!r}, {str(PAGE)!r}, 'exec'), space)" for line, code in found]
    program = tmp_path / "program.py"
    program.write_text("\n".join(["space = {}", *parts]))
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(tdbg.__file__).parents[1]), "OMP_NUM_THREADS": "1", "PATH": ""},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "not executed: 'body.0' did not run" in done.stdout
    assert "no layer is named 'body.weight': body (Sequential) has no 'weight'" in done.stdout


@pytest.mark.parametrize(
    "debugger", [one for one in DEBUGGERS if one.__module__.startswith("tdbg.")], ids=lambda one: one.name
)
def test_every_debugger_is_on_the_page(debugger):
    assert re.search(rf"\b{debugger.__name__}\(", TEXT), "with an example"
    assert re.search(rf"^## .*\b{debugger.__name__}\b", TEXT, re.M), "and a section"


def test_every_key_is_on_the_page():
    files = {
        Path(sys.modules[one.__module__].__file__ or "") for one in DEBUGGERS if one.__module__.startswith("tdbg.")
    }
    keys = re.findall(r'^ +"(\w+)":', "\n".join(path.read_text() for path in files), re.M)
    assert len(keys) > 10
    assert [key for key in keys if f"`{key}`" not in TEXT] == []


@pytest.mark.parametrize("anchor", re.findall(r"\]\(#([\w-]+)\)", TEXT))
def test_links_lead_somewhere(anchor):
    headings = [
        re.sub(r"[^\w -]", "", line.lstrip("# ")).strip().lower() for line in TEXT.splitlines() if line[:1] == "#"
    ]
    assert anchor in [heading.replace(" ", "-") for heading in headings]
