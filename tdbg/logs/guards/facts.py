"""What one source file says of flags, functions and log calls, as plain data that can be kept on disk."""

from collections.abc import Mapping
from dataclasses import dataclass, field

VERSION = 3  # of Facts: a new one leaves what older versions kept on disk alone


@dataclass(slots=True)
class Function:
    """A function or method: the lines of its body, its parameters, whether references to it tell who calls it."""

    first: int
    last: int
    params: list[str]
    is_method: bool = False
    is_traceable: bool = True
    returns: list[str] = field(default_factory=list)  # flags that are on where what it gives back is true
    denies: list[str] = field(default_factory=list)  # and where it is false


@dataclass(slots=True)
class Reference:
    """A place that calls, or hands on, something of this name; ``given``: flags among the arguments, by place or name."""

    flags: list[str]
    inside: str
    given: dict[str, list[str]] = field(default_factory=dict)
    args: int = -1  # positional arguments; -1: no call


@dataclass(slots=True)
class LogCall:
    """A call that prints or logs: its lines, and its message's constant parts (a `Shape`)."""

    first: int
    last: int
    shape: list[str]
    flags: list[str]
    inside: str
    callee: str = ""  # of a call of a function that may only pass a message on: its name
    given: list[list[str]] = field(default_factory=list)  # and the shapes of what it is given
    printed: bool = False  # it has no header of a logger's in front of it


@dataclass(slots=True)
class Facts:
    """What one file says."""

    lines: dict[int, list[str]] = field(default_factory=dict)
    functions: dict[str, list[Function]] = field(default_factory=dict)
    references: dict[str, list[Reference]] = field(default_factory=dict)
    calls: list[LogCall] = field(default_factory=list)
    # A function -> place and line of the message it passes on, 1 if it adds to it, 1 if it prints all that follows too,
    # 1 if it prints.
    wrappers: dict[str, list[int]] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)  # every flag the file asks for
    broken: str = ""  # why it could not be parsed


def decode_facts(data: Mapping[str, object]) -> Facts:
    """Facts as they were kept; any error of shape is the caller's to catch."""
    raw: dict[str, object] = dict(data)
    lines: dict[str, list[str]] = raw["lines"]  # type: ignore[assignment]
    functions: dict[str, list[dict[str, object]]] = raw["functions"]  # type: ignore[assignment]
    references: dict[str, list[dict[str, object]]] = raw["references"]  # type: ignore[assignment]
    calls: list[dict[str, object]] = raw["calls"]  # type: ignore[assignment]
    return Facts(
        {int(line): flags for line, flags in lines.items()},
        {name: [Function(**item) for item in items] for name, items in functions.items()},  # type: ignore[arg-type]
        {name: [Reference(**item) for item in items] for name, items in references.items()},  # type: ignore[arg-type]
        [LogCall(**item) for item in calls],  # type: ignore[arg-type]
        raw["wrappers"],  # type: ignore[arg-type]
        raw["flags"],  # type: ignore[arg-type]
        str(raw["broken"]),
    )
