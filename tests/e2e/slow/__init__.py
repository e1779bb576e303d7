"""One program for each thing that makes a training slower than it must be, and with ``--healthy`` without it.

The programs say themselves, in literals at their top, what is to be advised: they know nothing of tdbg.
"""

import ast
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
HEALTHY = "--healthy"


@dataclass(frozen=True)
class Slow:
    """What one program shows."""

    path: Path
    code: str  # of the advice that comes first; empty where it costs nothing on a CPU
    says: str
    options: tuple[str, ...]  # of `tdbg profile`
    ranks: int

    @property
    def name(self) -> str:
        """What a test calls it."""
        return self.path.stem

    def build_command(self, folder: Path, *, healthy: bool) -> list[str]:
        """The command that starts a copy of it in a folder: there it is the whole project, as tdbg looks at that."""
        copy = shutil.copy(self.path, folder)
        start = [sys.executable] if self.ranks == 1 else ["torchrun", "--standalone", f"--nproc-per-node={self.ranks}"]
        return [*start, str(copy), *([HEALTHY] if healthy else [])]


def iter_programs() -> Iterator[Slow]:
    """All of them, by name."""
    for path in sorted(FOLDER.glob("[a-z]*.py")):
        found: dict[str, Any] = {}
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
                try:
                    found[node.targets[0].id] = ast.literal_eval(node.value)
                except ValueError:  # a constant of the program's own
                    continue
        yield Slow(path, found["CODE"], found["SAYS"], tuple(found["OPTIONS"]), found["RANKS"])
