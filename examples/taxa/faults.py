"""Faults to plant, one or more for each flag of tdbg."""

from typing import Any, NamedTuple


class Fault(NamedTuple):
    """A mistake, the flag under which it shows, and the code of the finding that names it."""

    name: str
    flag: str
    code: str
    summary: str
    settings: tuple[Any, ...] = ()


FAULTS: dict[str, Fault] = {}


def plant(name: str, training: Any) -> None:
    """Put the fault of that name into the program."""
    if name:
        raise NotImplementedError(name)
