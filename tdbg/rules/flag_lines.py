"""Which key of the program's own configuration each debug flag reached: the lines of the report."""

from collections.abc import Sequence
from typing import TypedDict

from tdbg.core.events import Injection
from tdbg.rules.text import clip_text

MAX_INJECTIONS = 200
RESULTS = {
    "set": "set {where}: {old!r} became {new!r}",
    "already": "{where} had it on before",
    "own": "already on in the program: {where}",
    "rejected": "rejected: {where} has no such key",
}


class InjectionRow(TypedDict):
    """What became of one flag in the program's configuration."""

    flag: str
    status: str
    where: str
    old: object
    new: object
    hint: str


class Injections:
    """The Injection events of a run; what all ranks say alike is kept once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], Injection] = {}

    def add_injection(self, event: Injection) -> None:
        """Keep it, if it is new."""
        if len(self._found) < MAX_INJECTIONS:
            self._found.setdefault((event.flag, event.status, event.where), event)

    def list_rows(self) -> list[InjectionRow]:
        """Each as plain data, in the order of their flags."""
        events = sorted(self._found.values(), key=lambda event: (event.flag, event.t))
        return [
            InjectionRow(
                flag=event.flag, status=event.status, where=event.where, old=event.old, new=event.new, hint=event.hint
            )
            for event in events
        ]


def format_flags(rows: Sequence[InjectionRow]) -> list[str]:
    """``MEMORY: set argparse --debug_memory_usage: False became True``."""
    return [clip_text(f"{row['flag']}: {_format_result(row)}", 200) for row in rows]


def _format_result(row: InjectionRow) -> str:
    known = RESULTS.get(row["status"])
    return f"{row['status']} {row['where']}" if known is None else known.format(**row)
