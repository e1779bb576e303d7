"""Observations: what a probe sees, as a typed class. One file a probe; the probe emits them, rules listen for them.

On its way through `events.jsonl` an observation is an `Observation` event: probe, part, and its fields as ``values``.
Fields, their units, the line in the debug log, the part and how sure the observation is stand in its class alone.
"""

import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field
from enum import Enum
from typing import Any, ClassVar, Self, Union

from tdbg.core.events import Event, Number, Observation, as_float

# Probes that the opening inspection alone has: no flag and no level wakes them.
OF_INSPECTION = ("data-splits", "rank-batches", "worker-states")
# Probes that see the batches of a DataLoader, and nothing where a program cuts its batches itself.
OF_LOADERS = ("dataloader", "data-splits", "worker-states")


class Evidence(Enum):
    """How an observation knows what it says, the surest first."""

    LOCATED = "located: what did it was seen itself, an operation, a line or an object"
    LOCAL = "local: measured on this rank, before anything was exchanged with others"
    AFTER_REDUCTION = "after reduction: read where the ranks' values were already combined"
    FROM_WEIGHTS = "from weights: read off the parameters or the optimizer, after the fact"
    STATISTICAL = "statistical: judged from a sample or a trend"

    @property
    def grade_word(self) -> str:
        """What a finding carries as its grade."""
        return self.value.partition(":")[0]


@typing.dataclass_transform(kw_only_default=True)
class _Fields:
    """Fields are declared as in a dataclass, each with a default. Made by hand: a hundred dataclasses take 50 ms."""

    _lines: ClassVar[dict[str, str]] = {}  # those that an event carries, each with its line in docs/probes.md
    _factories: ClassVar[dict[str, Callable[[], object]]] = {}

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        known = [vars(base) for base in reversed(cls.__mro__[1:]) if "_lines" in vars(base)]
        cls._lines = {name: line for base in known for name, line in base["_lines"].items()}
        cls._factories = {name: make for base in known for name, make in base["_factories"].items()}
        for name, item in [(name, item) for name, item in vars(cls).items() if isinstance(item, Field)]:
            cls._lines[name] = item.metadata["doc"]
            if item.default_factory is MISSING:
                setattr(cls, name, item.default)
                cls._factories.pop(name, None)
            else:
                setattr(cls, name, None)
                cls._factories[name] = item.default_factory

    def __init__(self, **values: object) -> None:
        for name, make in self._factories.items():
            setattr(self, name, make())
        for name, value in values.items():
            if not hasattr(self, name):
                raise TypeError(f"{type(self).__name__} has no field {name!r}")
            setattr(self, name, value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class Observed(_Fields, ABC):
    """What every observation has. A field that is None was not seen, and is not written (but those in ``ALWAYS``).

    A subclass must be complete without arguments: a reader gives a field that is missing, or holds what it must
    not, its default, and `text` still has to work.
    """

    PROBE: ClassVar[str]  # the probe's name
    PART: ClassVar[str] = ""  # which of its lines, as in the tag of the debug log: SUMMARY, PASS, ...
    EVIDENCE: ClassVar[Evidence] = Evidence.LOCAL
    NUMBERED: ClassVar[bool] = False  # a second one of a run has the part PART_2
    LEVEL: ClassVar[str] = "D"  # D, S, I, W or E, as in the debug log; `level` where it depends on the fields
    ALWAYS: ClassVar[tuple[str, ...]] = ()  # fields that are written as null where None is an answer

    step: int = 0  # the step that was running, or the last one done
    suffix: str = ""  # of the part, where NUMBERED

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Observed) or type(self) is not type(other):
            return False
        return (self.step, self.suffix, self.as_values()) == (other.step, other.suffix, other.as_values())

    __hash__ = None  # type: ignore[assignment]

    @property
    def level(self) -> str:
        """The level of this very observation."""
        return self.LEVEL

    @abstractmethod
    def text(self) -> str:
        """The line in the debug log, without header and tag."""

    def as_values(self) -> dict[str, object]:
        """The fields as an event carries them."""
        named = ((name, getattr(self, name)) for name in self._lines)
        return {name: value for name, value in named if value is not None or name in self.ALWAYS}

    @classmethod
    def from_event(cls, event: Event) -> Self | None:
        """The observation that an event carries; None if it carries another."""
        if not isinstance(event, Observation) or event.probe != cls.PROBE:
            return None
        suffix = event.part.removeprefix(cls.PART)
        if event.part != cls.PART + suffix or (suffix and not (cls.NUMBERED and suffix.startswith("_"))):
            return None
        return cls(**cls.known_values(event.values), step=event.step, suffix=suffix)

    @classmethod
    def known_values(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Those of the values that are fields of this class and hold what they must."""
        kinds = _get_field_types(cls)
        found: dict[str, Any] = {}
        for name in cls._lines:
            if name not in values:
                continue
            value = values[name]
            if not _matches_type(value, kinds[name]):
                value = _restore_floats(value, kinds[name])  # rarely: an event has words for what JSON cannot write
                if not _matches_type(value, kinds[name]):
                    continue
            found[name] = value
        return found


def field_lines(kinds: Iterable[type[Observed]]) -> dict[str, str]:
    """Each field of these observations, with its line for docs/probes.md."""
    return {name: line for kind in kinds for name, line in kind._lines.items()}


def format_number(value: Number | None, digits: int = 4) -> str:
    """A number in the line of a debug log."""
    found = as_float(value)
    return "unknown" if found is None else f"{found:.{digits}g}"


NON_FINITE = ("nan", "inf", "-inf")
_KINDS: dict[type[object], dict[str, object]] = {}


def _get_field_types(cls: type[object]) -> dict[str, object]:
    if cls not in _KINDS:
        _KINDS[cls] = typing.get_type_hints(cls)
    return _KINDS[cls]


def _restore_floats(value: Any, kind: Any) -> Any:
    """The value of an event with ``"nan"``, ``"inf"`` and ``"-inf"`` as the numbers they were where a float belongs."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(value, str):
        is_float = kind is float or (origin in (Union, types.UnionType) and float in inner and str not in inner)
        return float(value) if is_float and value in NON_FINITE else value
    if origin in (Union, types.UnionType):
        return next((found for one in inner if _matches_type(found := _restore_floats(value, one), one)), value)
    if origin is list and isinstance(value, list):
        return [_restore_floats(one, inner[0]) for one in value]
    if origin is dict and isinstance(value, dict):
        return {key: _restore_floats(one, inner[1]) for key, one in value.items()}
    if typing.is_typeddict(kind) and isinstance(value, dict):
        parts = _get_field_types(kind)
        return {name: _restore_floats(one, parts[name]) if name in parts else one for name, one in value.items()}
    return value


def _matches_type(value: object, kind: Any) -> bool:
    """True if a value of an event is of the kind that its field says."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        if isinstance(value, str) and float in inner and str in inner:  # `Number`: a word for what JSON cannot write
            return value in NON_FINITE
        return any(_matches_type(value, one) for one in inner)
    if origin is list:
        return isinstance(value, list) and all(_matches_type(one, inner[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            _matches_type(key, inner[0]) and _matches_type(value[key], inner[1]) for key in value
        )
    if typing.is_typeddict(kind):
        parts = _get_field_types(kind)
        return (
            isinstance(value, dict)
            and all(name in value for name in kind.__required_keys__)
            and all(_matches_type(value[name], parts[name]) for name in parts if name in value)
        )
    if kind is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return kind is Any or isinstance(value, kind)
