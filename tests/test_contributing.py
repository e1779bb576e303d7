"""The recipes of CONTRIBUTING.md, carried out word for word on a copy of the repository."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
COPIED = ("tdbg", "tests", "docs", "man", "completions", "examples", "benchmarks")
GENERATED = ("man/", "completions/", "docs/", "tdbg/cli/help.txt")
TABLES = {"tdbg/core/flags.py": "\nFLAGS: tuple[Flag, ...] = (", "tdbg/cli/__init__.py": "\nCOMMANDS = ("}
BLOCK = re.compile(r"([^\n]+)\n\n```(\w*)\n(.*?)\n```", re.DOTALL)  # the line before it, its language, its text
PLACE = re.compile(r"`((?:tdbg|tests)/[\w/.]+)`")
HELD = ("tests/contract/test_surface.py", "tests/test_floors.py", "tests/test_bases.py", "tests/core/test_flags.py")


class Block(NamedTuple):
    """A fenced block of a recipe. place: the file that the line before it names, last; empty for commands."""

    place: str
    text: str


def load_recipes() -> dict[str, list[Block]]:
    """The blocks of each recipe, by its heading."""
    sections = PAGE.read_text(encoding="utf-8").partition("\n## Recipes\n")[2].split("\n### ")[1:]
    return {section.partition("\n")[0]: list(_iter_blocks(section)) for section in sections}


def _iter_blocks(section: str) -> Iterator[Block]:
    for before, _, text in BLOCK.findall(section):
        places = PLACE.findall(before)
        yield Block(places[-1] if places else "", f"{text}\n")


RECIPES = load_recipes()


def copy_repository(folder: Path) -> Path:
    """A copy of what the recipes read and change, as a repository with one commit."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "tdbg_runs"))
    for path in [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), ROOT / "LICENSE", ROOT / ".gitignore"]:
        shutil.copy(path, folder)
    for words in ("init -q", "add -A", "-c user.name=x -c user.email=x@localhost commit -qm start"):
        subprocess.run(["git", *words.split()], cwd=folder, check=True)
    return folder


def write_block(folder: Path, block: Block) -> None:
    """A new file; or an addition, to the end of a text or of a table."""
    path = folder / block.place
    if block.place in TABLES:
        before, begin, after = path.read_text(encoding="utf-8").partition(TABLES[block.place])
        table, closing, rest = after.partition("\n)\n")
        path.write_text(f"{before}{begin}{table}\n{block.text.rstrip()}{closing}{rest}", encoding="utf-8")
    elif path.suffix == ".txt":
        path.write_text(path.read_text(encoding="utf-8") + block.text, encoding="utf-8")
    else:
        assert not path.exists(), f"{block.place} is there already"
        path.write_text(block.text, encoding="utf-8")


def write_recipe(folder: Path, heading: str) -> set[str]:
    """All files and additions of a recipe. Returns their places."""
    written = [block for block in RECIPES[heading] if block.place]
    for block in written:
        write_block(folder, block)
    return {block.place for block in written}


def run_in_copy(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command on the copy, which comes before the installed package."""
    env = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run([sys.executable, *words], cwd=folder, env=env, text=True, capture_output=True, timeout=600)


@pytest.mark.cold
@pytest.mark.timeout(900)
@pytest.mark.parametrize("heading", RECIPES)
def test_a_recipe_is_complete(heading: str, tmp_path: Path) -> None:
    folder = copy_repository(tmp_path)
    written = write_recipe(folder, heading)
    for block in RECIPES[heading]:
        for command in block.text.splitlines() if not block.place else ():
            python, *words = command.split()
            done = run_in_copy(folder, *words)
            assert python == "python" and done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    changed = subprocess.run(
        ["git", "status", "--porcelain", "-uall"], cwd=folder, text=True, capture_output=True, check=True
    ).stdout
    paths = {line[3:] for line in changed.splitlines()}
    by_hand = {path for path in paths if not path.startswith(GENERATED)}
    assert by_hand == written, "no other file needs a change"


@pytest.mark.cold
@pytest.mark.timeout(900)  # it starts some 400 tests in a process of its own
def test_what_the_recipes_add_keeps_the_contract_and_the_structure(tmp_path: Path) -> None:
    folder = copy_repository(tmp_path)
    for heading in RECIPES:
        write_recipe(folder, heading)
    done = run_in_copy(folder, "-m", "tdbg", "docs", "all")
    assert done.returncode == 0, done.stderr[-3000:]
    held = run_in_copy(folder, "-m", "pytest", "-q", "-n", "0", "--timeout", "200", *HELD)
    assert held.returncode == 0, held.stdout[-3000:]
    for words in (("ruff", "check", "tdbg", "tests"), ("ruff", "format", "--check", "tdbg", "tests")):
        done = run_in_copy(folder, "-m", *words)
        assert done.returncode == 0, done.stdout[-3000:]


def test_there_are_five_recipes() -> None:
    headings = ["Add a flag with its probe", "Add a rule", "Add an exporter", "Add a metric sink", "Add a subcommand"]
    assert list(RECIPES) == headings
    assert all(any(block.place.startswith("tests/") for block in blocks) for blocks in RECIPES.values())
