"""What the names of functions say: the share of one word, and the bare generic words, here and at another commit.

    python benchmarks/names.py [--vs REVISION] [--list]

Counted is every function and method that the sources define (``tdbg``, ``tests``, ``benchmarks``, ``examples``), but
names with two underscores at both ends, and a test's own name counts as it stands. A name is of one word where nothing
but underscores at its ends parts it. A generic name is counted where it could change: not ``main``, and not the names that
the contract test freezes for other packages. ``--list`` prints where the generic ones are.
"""

import argparse
import ast
import collections
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("tdbg", "tests", "benchmarks", "examples")

# Frozen: a word may not leave this list because a function is called so.
GENERIC = frozenset(
    """
    add after again all answer apply around ask at back before begin begun body both build call calls carry
    change check clean collect come copy count data do done draw each end every fill find finish first fit fix
    form found from get give given go got grow handle have held hold init inner item join keep kept last leave
    left let line lines list load look loop made main make mark match merge move name names new next note of off
    on one open other out over own pack part parts pass pick place play plain point process put raw read real
    reads ready rest row rows run said same save say see seen send set shape show shown size some sort split
    start state step stop store sum take taken tell text tick told total touch try turn update use used value
    values view wait walk watch way whole work wrap write
    """.split()  # noqa: SIM905 - one word a line would be 200 lines
)
DATA = ("/fixtures/",)
SURFACE = ROOT / "tests/contract/surface.json"
# What other packages call or override besides: CONTRIBUTING.md has them write ``Observed.text`` and call
# ``RunDir.open``, docs/inspect-pages.md ``PageSet.open``, docs/loss.md ``MemoryWatch.mark``.
KEPT = {"main", "text", "open", "mark"}


def read_public_names() -> set[str]:
    """The last parts of the names that other packages call or override."""
    surface = json.loads(SURFACE.read_text("utf-8"))
    found = set(KEPT)
    waiting = [surface["python"], surface["overridden"]]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            found |= {key.rpartition(".")[2] for key in value}
            waiting += value.values()
    return found


def read_sources(revision: str | None) -> Iterator[tuple[str, str]]:
    """Path and text of every source file of the working tree, or of a commit."""
    if revision is None:
        for folder in FOLDERS:
            for path in sorted((ROOT / folder).rglob("*.py")):
                yield str(path.relative_to(ROOT)), path.read_text("utf-8")
        return
    listed = _run_git("ls-tree", "-r", "--name-only", revision, *FOLDERS)
    for name in listed.splitlines():
        if name.endswith(".py"):
            yield name, _run_git("show", f"{revision}:{name}")


def _run_git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, encoding="utf-8").stdout


def list_names(sources: Iterator[tuple[str, str]]) -> list[tuple[str, int, str]]:
    """Path, line and name of every function that is counted."""
    found = []
    for path, text in sources:
        if any(part in f"/{path}" for part in DATA):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not re.fullmatch("__.*__", node.name):
                found.append((path, node.lineno, node.name))
    return found


def is_generic(name: str, public: set[str]) -> bool:
    """Whether a bare generic word is all of a name that could change."""
    return name.strip("_") in GENERIC and name not in public


def print_counts(title: str, names: list[tuple[str, int, str]], public: set[str]) -> None:
    """One line for the whole, one for each folder."""
    for folder in ("", *FOLDERS):
        own = [name for path, _, name in names if path.startswith(folder)]
        one_word = sum("_" not in name.strip("_") for name in own)
        generic = sum(is_generic(name, public) for name in own)
        share = one_word / max(len(own), 1)
        print(
            f"{title:<12} {folder or 'all':<11} {len(own):>6} functions  {share:6.1%} of one word  {generic:>5} generic"
        )


def main() -> int:
    """Print the counts of the working tree, after those of the commit to compare with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vs", metavar="REVISION", help="a commit to count as well")
    parser.add_argument("--list", action="store_true", help="print where the generic names are")
    options = parser.parse_args()
    public = read_public_names()
    if options.vs:
        print_counts(options.vs[:12], list_names(read_sources(options.vs)), public)
    names = list_names(read_sources(None))
    print_counts("now", names, public)
    if options.list:
        words = collections.Counter(name.strip("_") for *_, name in names)
        for path, line, name in names:
            if is_generic(name, public):
                print(f"{path}:{line}: {name} ({words[name.strip('_')]})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
