"""Intervals: every so many steps, every so many epochs, or every fraction of the run."""

from collections.abc import Mapping
from typing import NamedTuple

from tdbg.core.errors import TdbgError
from tdbg.core.tables import format_count

KINDS = ("steps", "epochs", "fraction")


class ScheduleError(TdbgError):
    """A schedule that contradicts itself, or says what cannot be."""


class Interval(NamedTuple):
    """Every ``steps`` steps or every ``epochs`` epochs; both 0: never. asked: the fraction it was resolved from."""

    steps: int = 0
    epochs: int = 0
    asked: str = ""

    @property
    def is_off(self) -> bool:
        """True if it is never due."""
        return not self.steps and not self.epochs

    def is_due(self, step: int) -> bool:
        """True at every step that is a multiple; never at step 0."""
        return self.steps > 0 and step > 0 and step % self.steps == 0

    def due_after_epoch(self, epochs_done: int) -> bool:
        """True at the end of every Nth epoch, counted from 1."""
        return self.epochs > 0 and epochs_done > 0 and epochs_done % self.epochs == 0

    def next_due(self, step: int) -> int | None:
        """The first step after this one at which it is due; None if that is not known in steps."""
        return step - step % self.steps + self.steps if self.steps else None


def resolve_interval(asked: object, name: str, total_steps: int | None = None) -> Interval:
    """What was asked, checked and resolved to steps or epochs.

    asked: a number of steps, an `Interval`, or a mapping with one of ``steps``, ``epochs``, ``fraction`` (of
    total_steps), in any case, also as ``INTERVAL_STEPS``; 0 and None are off. Raises ScheduleError, naming both if two are given.
    """
    if isinstance(asked, Interval):
        return asked
    if asked is None:
        return Interval()
    if isinstance(asked, Mapping):
        return _of_mapping(asked, name, total_steps)
    if isinstance(asked, float):
        raise ScheduleError(
            f"the interval of {name} is {asked:g}, which could mean a fraction or steps",
            f"write {{'fraction': {asked:g}}} or a whole number of steps",
        )
    return _parse_steps(asked, name)


def _of_mapping(asked: Mapping[str, object], name: str, total_steps: int | None) -> Interval:
    if not asked:
        raise ScheduleError(f"the interval of {name} is empty: {{}}", f"give one of {', '.join(KINDS)}; 0 turns it off")
    asked = {str(kind).lower().removeprefix("interval_"): value for kind, value in asked.items()}
    unknown = [kind for kind in asked if kind not in KINDS]
    if unknown:
        raise ScheduleError(f"the interval of {name} has the unknown unit {unknown[0]!r}", f"use {', '.join(KINDS)}")
    given = {kind: value for kind, value in asked.items() if value}
    if len(given) > 1:
        both = " and ".join(f"{kind}={value}" for kind, value in given.items())
        raise ScheduleError(f"the interval of {name} is given twice: {both}", "give one of them; 0 or none is off")
    for kind, value in given.items():
        if kind == "steps":
            return _parse_steps(value, name)
        if kind == "epochs":
            return Interval(epochs=_validate_whole(value, name, kind))
        return _of_fraction(value, name, total_steps)
    return Interval()


def _of_fraction(value: object, name: str, total_steps: int | None) -> Interval:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ScheduleError(f"the interval of {name} is the fraction {value!r}", "a fraction is above 0 and at most 1")
    if not total_steps:
        raise ScheduleError(f"the interval of {name} is a fraction of a run of unknown length", "set total_steps")
    return Interval(steps=max(1, round(value * total_steps)), asked=f"{value:g} of {format_count(total_steps, 'step')}")


def _parse_steps(value: object, name: str) -> Interval:
    return Interval(steps=_validate_whole(value, name, "steps"))


def _validate_whole(value: object, name: str, kind: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ScheduleError(f"the interval of {name} is {value!r} {kind}", f"{kind} must be a whole number; 0 is off")
    if value < 0:
        raise ScheduleError(f"the interval of {name} is {value} {kind}", "it must be 0 or more; 0 turns it off")
    return value
