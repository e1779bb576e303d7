"""Observations: what a probe sees, as a typed class. One file a probe; the probe emits them, rules listen for them.

On its way through `events.jsonl` an observation is an `Observation` event: probe, part, and its fields as ``values``.
Fields, their units, the line in the debug log, the part and how sure the observation is stand in its class alone.
"""

import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar, Self, Union

from tdbg.core.events import Event, Observation


class Evidence(Enum):
    """How an observation knows what it says, the surest first."""

    LOCATED = "located: the operation or the line that did it was seen"
    LOCAL = "local: measured on this rank, before anything was exchanged with others"
    AFTER_REDUCTION = "after reduction: read where the ranks' values were already combined"
    FROM_WEIGHTS = "from weights: read off the parameters or the optimizer, after the fact"
    STATISTICAL = "statistical: judged from a sample or a trend"


@dataclass(kw_only=True)
class Observed:
    """What every observation has. A field that is None was not seen, and is not written (but those in ``ALWAYS``).

    A subclass must be complete without arguments: a reader gives a field that is missing, or holds what it must
    not, its default, and `text` still has to work.
    """

    PROBE: ClassVar[str]  # the probe's name
    PART: ClassVar[str] = ""  # which of its lines, as in the tag of the debug log: SUMMARY, PASS, ...
    EVIDENCE: ClassVar[Evidence] = Evidence.LOCAL
    NUMBERED: ClassVar[bool] = False  # a second one of a run has the part PART_2
    ALWAYS: ClassVar[tuple[str, ...]] = ()  # fields that are written as null where None is an answer

    step: int = field(default=0)  # the step that was running, or the last one done
    suffix: str = field(default="")  # of the part, where NUMBERED

    @property
    def level(self) -> str:
        """D, S, I, W or E, as in the debug log."""
        return "D"

    def text(self) -> str:
        """The line in the debug log, without header and tag."""
        raise NotImplementedError

    def as_values(self) -> dict[str, Any]:
        """The fields as an event carries them."""
        named = ((name, getattr(self, name)) for name in _names(type(self)))
        return {name: value for name, value in named if value is not None or name in self.ALWAYS}

    @classmethod
    def of(cls, event: Event) -> Self | None:
        """The observation that an event carries; None if it carries another."""
        if not isinstance(event, Observation) or event.probe != cls.PROBE:
            return None
        suffix = event.part.removeprefix(cls.PART)
        if event.part != cls.PART + suffix or (suffix and not (cls.NUMBERED and suffix.startswith("_"))):
            return None
        values, kinds = event.values, _kinds(cls)
        known = {name: values[name] for name in _names(cls) if name in values and _fits(values[name], kinds[name])}
        return cls(**known, step=event.step, suffix=suffix)


def field_lines(kinds: Iterable[type[Observed]]) -> dict[str, str]:
    """Each field of these observations, with its line for docs/probes.md."""
    return {item.name: item.metadata["doc"] for kind in kinds for item in fields(kind) if "doc" in item.metadata}


NON_FINITE = ("nan", "inf", "-inf")
_NAMES: dict[type[Observed], tuple[str, ...]] = {}
_KINDS: dict[type[Any], dict[str, Any]] = {}


def _names(cls: type[Observed]) -> tuple[str, ...]:
    if cls not in _NAMES:
        _NAMES[cls] = tuple(field_lines([cls]))
    return _NAMES[cls]


def _kinds(cls: type[Any]) -> dict[str, Any]:
    if cls not in _KINDS:
        _KINDS[cls] = typing.get_type_hints(cls)
    return _KINDS[cls]


def _fits(value: Any, kind: Any) -> bool:
    """True if a value of an event is of the kind that its field says."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        if (
            isinstance(value, str) and float in inner and str in inner
        ):  # Number: a text is there for what JSON cannot write
            return value in NON_FINITE
        return any(_fits(value, one) for one in inner)
    if origin is list:
        return isinstance(value, list) and all(_fits(one, inner[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(key, inner[0]) and _fits(value[key], inner[1]) for key in value)
    if typing.is_typeddict(kind):
        parts = _kinds(kind)
        return (
            isinstance(value, dict)
            and all(name in value for name in kind.__required_keys__)
            and all(_fits(value[name], parts[name]) for name in parts if name in value)
        )
    if kind is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return kind is Any or isinstance(value, kind)
