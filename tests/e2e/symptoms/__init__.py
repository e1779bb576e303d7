"""One program for each flag: it shows the symptom the flag is there for, and with ``--healthy`` it does not.

The programs say themselves, in literals at their top, what is to be found: they know nothing of tdbg.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
HEALTHY = "--healthy"


@dataclass(frozen=True)
class Symptom:
    """What one program shows."""

    path: Path
    flag: str
    code: str
    says: str
    options: tuple[str, ...]
    ranks: int
    about: str  # the first line of its docstring

    def build_command(self, *, healthy: bool) -> list[str]:
        """The command that starts it."""
        start = [sys.executable] if self.ranks == 1 else ["torchrun", "--standalone", f"--nproc-per-node={self.ranks}"]
        return [*start, str(self.path), *([HEALTHY] if healthy else [])]

    def run_options(self) -> tuple[str, ...]:
        """What `tdbg run` is told."""
        return ("--flag", self.flag, *self.options)


def iter_symptoms() -> Iterator[Symptom]:
    """All of them, by name."""
    for path in sorted(FOLDER.glob("[a-z]*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found: dict[str, Any] = {}
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
                try:
                    found[node.targets[0].id] = ast.literal_eval(node.value)
                except ValueError:  # a constant of the program's own
                    continue
        about = (ast.get_docstring(tree) or "").split("\n\n")[0].replace("\n", " ")
        yield Symptom(path, found["FLAG"], found["CODE"], found["SAYS"], tuple(found["OPTIONS"]), found["RANKS"], about)
