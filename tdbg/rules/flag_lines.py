"""Which key of the program's own configuration each debug flag reached: the lines of the report."""

from collections.abc import Sequence
from typing import Any

from tdbg.core.events import Injection
from tdbg.rules.text import clip

MAX_INJECTIONS = 200
RESULTS = {
    "set": "set {where}: {old!r} became {new!r}",
    "already": "{where} had it on before",
    "own": "already on in the program: {where}",
    "rejected": "rejected: {where} has no such key",
}


class Injections:
    """The Injection events of a run; what all ranks say alike is kept once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], Injection] = {}

    def take(self, event: Injection) -> None:
        """Keep it, if it is new."""
        if len(self._found) < MAX_INJECTIONS:
            self._found.setdefault((event.flag, event.status, event.where), event)

    def rows(self) -> list[dict[str, Any]]:
        """Each as plain data, in the order of their flags."""
        names = ("flag", "status", "where", "old", "new", "hint")
        events = sorted(self._found.values(), key=lambda event: (event.flag, event.t))
        return [{name: getattr(event, name) for name in names} for event in events]


def flag_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """``MEMORY: set argparse --debug_memory_usage: False became True``."""
    return [clip(f"{row['flag']}: {_result(row)}", 200) for row in rows]


def _result(row: dict[str, Any]) -> str:
    known = RESULTS.get(row["status"])
    return f"{row['status']} {row['where']}" if known is None else known.format(**row)
