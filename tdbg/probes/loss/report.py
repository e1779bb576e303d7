"""What every diagnostic of a loss shares: its report, its switch, and the guard around it."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, ParamSpec, TypeVar

import torch

from tdbg.errors import TdbgError
from tdbg.events import plain
from tdbg.flags import tag
from tdbg.probes.loss import host

P = ParamSpec("P")
MAX_TOLD = 1000  # findings of a process that are handed on; each kind once


@dataclass(slots=True)
class Fault:
    """One thing that is wrong, as a diagnostic saw it; `tdbg explain CODE` has its page."""

    code: str
    title: str
    severity: str  # info, warning, error or critical
    what: str = ""  # the task, class or part it is about; a fault is handed on once for each
    evidence: list[str] = field(default_factory=list)
    cause: str = ""
    try_next: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(slots=True, kw_only=True)
class Report:
    """What one call of a diagnostic found out.

    findings: what is wrong, empty where all is well.
    """

    flag: ClassVar[str]
    part: ClassVar[str] = ""  # further words of the tag of its last record

    findings: list[Fault] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as JSON can carry it: NaN and Inf as words."""
        found = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "findings"}
        return {**plain(found), "findings": [fault.as_dict() for fault in self.findings]}

    def records(self) -> list[tuple[str, str]]:
        """(part of the tag, text) of every record that it writes, the last one with the findings."""
        raise NotImplementedError

    def values(self) -> dict[str, Any]:
        """The few figures that are kept with the run as an event."""
        return {}


R = TypeVar("R", bound=Report)

STATES: dict[Any, Any] = {}  # what a diagnostic keeps from call to call, by a key of its own


def forget() -> None:
    """Forget what earlier calls left: counts, first losses, weights, memory of earlier updates."""
    STATES.clear()
    _told.clear()


_told: set[tuple[str, str, str]] = set()


def wanted(flag: str) -> bool:
    """True while the flag is on. Cost: below 0.5 us; inside torch.compile a constant False."""
    return not torch.compiler.is_compiling() and host.current.flags.get(flag, False) is not False


def diagnostic(flag: str) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
    """A function that makes a report, as a diagnostic: nothing while its flag is off, told and guarded while it is on."""

    def wrap(function: Callable[P, R]) -> Callable[P, R | None]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
            if torch.compiler.is_compiling():
                return None
            on = host.current.flags.get(flag, False) is not False
            if not on and not kwargs.get("always"):
                return None
            return run(flag, functools.partial(function, *args, **kwargs), on=on, strict=bool(kwargs.get("always")))

        return call

    return wrap


def run(flag: str, make: Callable[[], R], *, on: bool, strict: bool) -> R | None:
    """Make a report, and tell it where the flag is on."""
    who = host.current
    if on:
        who.take(flag)
        if not strict and not who.looks():
            return None
    try:
        with torch.no_grad():
            report = make()
        if on and who.looks():
            tell(report, who)
        return report
    except Exception as error:
        if strict:
            raise
        key = (flag, type(error).__name__, str(error)[:200])  # guard: a debug call must not end the training
        if key not in _told and len(_told) < MAX_TOLD:
            _told.add(key)
            text = f"(no report: {type(error).__name__}: {error})"
            hint = error.hint if isinstance(error, TdbgError) else ""
            who.line(tag(flag), text + (f"; {hint}" if hint else ""), "W")
        return None


def tell(report: Report, who: host.Host) -> None:
    """Write every record of a report, and each kind of finding once as an event."""
