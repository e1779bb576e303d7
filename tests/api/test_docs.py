"""docs/api.md: every example runs, one after the other, and every public name is there."""

import re
from pathlib import Path

import pytest

import tdbg
from tdbg.api.debugger import PyTorchDebugger

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def find_code_blocks() -> list[tuple[int, str]]:
    """Each example with the number of its first line."""
    text = PAGE.read_text(encoding="utf-8")
    return [
        (text[: found.start()].count("\n") + 2, found[1]) for found in re.finditer(r"```python\n(.*?)```", text, re.S)
    ]


def test_every_example(program_runner):
    """In one fresh process, so that an error names the line of the page."""
    ends = [(str(PAGE), "\n" * (line - 1) + code) for line, code in find_code_blocks()]
    parts = [f"exec(compile({code!r}, {name!r}, 'exec'), space)" for name, code in ends]
    done = program_runner("\n".join(["space = {}", *parts]), header="")
    assert done.code == 0, done.stderr[-3000:]
    runs = sorted(path.name for path in (done.folder.parent / "runs").iterdir())
    assert runs == ["ignite", "lightning", "transformers"]


def test_every_name_is_on_the_page():
    text = PAGE.read_text(encoding="utf-8")
    for name in tdbg.API:
        assert re.search(rf"\b{name}\b", text), name


def test_every_method_of_the_debugger_is_on_the_page():
    text = PAGE.read_text(encoding="utf-8")
    helpers = {"remember", "problem_of", "remember_error", "exploding", "vanishing"}
    for name in vars(PyTorchDebugger):
        assert name.startswith("_") or name in helpers or f"{name}(" in text, name


@pytest.mark.parametrize("target", re.findall(r"\]\((\w+\.md)?(#[\w-]+)?\)", PAGE.read_text(encoding="utf-8")))
def test_links_lead_somewhere(target):
    page, anchor = target
    text = (PAGE.parent / page if page else PAGE).read_text(encoding="utf-8")
    words = [line.lstrip("# ") for line in text.splitlines() if line.startswith("#")]
    headings = ["#" + re.sub(r"[^\w -]", "", word).strip().lower().replace(" ", "-") for word in words]
    assert not anchor or anchor in headings
