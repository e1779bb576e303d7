"""docs/scenarios: the command of each page says what the page says, and nothing without its fault."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from tdbg.core.rundir import RunDir
from tdbg.launch import metrics_findings
from tdbg.rules.rule_engine import judge_run
from tests.e2e.conftest import Result, run_command

ROOT = Path(__file__).parents[2]
PAGES = [path for path in sorted((ROOT / "docs" / "scenarios").glob("*.md")) if path.name != "index.md"]
SCENARIOS = 9  # those that are promised


@pytest.fixture(autouse=True)
def offline_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B stays here."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


def find_commands(page: Path) -> list[str]:
    """The lines of the page's one block of commands."""
    (block,) = re.findall(r"^```\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)
    return block.strip().splitlines()


def run_line(line: str, place: Path, *, fault: bool) -> Result:
    """A line of a page, in a folder of its own.

    Without the fault a rank may be late by a second nevertheless, where the machine has other things to do.
    """
    text = line if fault else re.sub(r" --fault [\w-]+", "", line).replace(".quiet_s=1 ", ".quiet_s=6 ")
    text = text.replace("examples/taxa/", f"{ROOT}/examples/taxa/")
    words = [sys.executable if word == "python" else word for word in shlex.split(text)]
    return run_command([sys.executable, "-m", *words], place)


def find_promised_code(page: Path) -> str:
    """The code that the page says is found."""
    return re.findall(r"\*\*(TD-\w+)\*\*", page.read_text(encoding="utf-8"))[0]


def has_finding(code: str, said: str) -> bool:
    """True if a finding, or a piece of advice, has the code; the text of another one may mention it."""
    return re.search(rf"^(tdbg: +)?{code} (info|notice|warning|error|critical): ", said, re.M) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_command_finds_it(page: Path, tmp_path: Path) -> None:
    results = [run_line(line, tmp_path, fault=True) for line in find_commands(page)]
    said = "".join(result.stdout + result.stderr for result in results)
    assert has_finding(find_promised_code(page), said), said


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_nothing_is_found_without_the_fault(page: Path, tmp_path: Path) -> None:
    results = [run_line(line, tmp_path, fault=False) for line in find_commands(page)]
    assert results[0].code == 0, results[0].stderr
    (folder,) = (tmp_path / "tdbg_runs").glob("2*")
    verdict = metrics_findings.add_metrics_findings(judge_run(RunDir(folder)), RunDir(folder))
    assert verdict.findings == [] and verdict.trouble == [], results[0].stderr
    said = "".join(result.stdout + result.stderr for result in results)
    assert not has_finding(find_promised_code(page), said), said


def test_every_scenario_has_its_page() -> None:
    assert len(PAGES) == SCENARIOS
    index = (ROOT / "docs" / "scenarios" / "index.md").read_text(encoding="utf-8")
    assert all(f"({page.name})" in index for page in PAGES)
