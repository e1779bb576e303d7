"""Validate a saved state field by field: errors name the place of a missing or mistyped field."""

import math
from collections.abc import Mapping
from typing import Any

from tdbg.core.errors import TdbgError

Table = Mapping[str, Any]
MAX_WHOLE = 1 << 63


class StateError(TdbgError):
    """A saved state that is not sound; nothing of it was taken over."""

    def __init__(self, where: str, what: str) -> None:
        hint = "load the state of an older checkpoint, or start without one"
        super().__init__(f"the saved state of the metrics is invalid: {where} {what}", hint)


def require_field(data: object, name: str, where: str) -> Any:
    """A field that must be there."""
    if not isinstance(data, Mapping):
        raise StateError(where, f"is {_shorten_repr(data)}, not a table")
    if name not in data:
        raise StateError(f"{where}.{name}", "is missing")
    return data[name]


def require_table(data: object, name: str, where: str) -> Table:
    """A field that is a table with texts as names."""
    found = require_field(data, name, where)
    if not isinstance(found, Mapping) or not all(isinstance(key, str) for key in found):
        raise StateError(f"{where}.{name}", f"is {_shorten_repr(found)}, not a table")
    return found


def require_list(data: Any, name: str, where: str) -> list[object]:
    """A field that is a list."""
    found = require_field(data, name, where)
    if not isinstance(found, list | tuple):
        raise StateError(f"{where}.{name}", f"is {_shorten_repr(found)}, not a list")
    return list(found)


def require_row(found: object, length: int, where: str, what: str) -> list[Any]:
    """A list of a certain length."""
    if not isinstance(found, list | tuple) or len(found) != length:
        raise StateError(where, f"is {_shorten_repr(found)}, not {what}")
    return list(found)


def require_text(data: object, name: str, where: str) -> str:
    """A field that is a text."""
    found = require_field(data, name, where)
    if not isinstance(found, str):
        raise StateError(f"{where}.{name}", f"is {_shorten_repr(found)}, not a text")
    return found


def require_flag(data: object, name: str, where: str) -> bool:
    """A field that is true or false."""
    found = require_field(data, name, where)
    if not isinstance(found, bool):
        raise StateError(f"{where}.{name}", f"is {_shorten_repr(found)}, not true or false")
    return found


def require_whole(data: object, name: str, where: str) -> int:
    """A field that is a whole number from 0 up."""
    found = require_field(data, name, where)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < MAX_WHOLE:
        raise StateError(f"{where}.{name}", f"is {_shorten_repr(found)}, not a whole number from 0 up")
    return found


def whole_or_none(data: object, name: str, where: str) -> int | None:
    """The same, or nothing."""
    return None if require_field(data, name, where) is None else require_whole(data, name, where)


def number_or_none(data: object, name: str, where: str) -> float | None:
    """A field that is a finite number, or nothing."""
    found = require_field(data, name, where)
    return None if found is None else require_finite(found, f"{where}.{name}")


def validate_epoch(data: object, name: str, where: str) -> int | float | None:
    """An epoch: a finite number, whole or not, or nothing."""
    found = require_field(data, name, where)
    if found is not None:
        require_finite(found, f"{where}.{name}")
    return found  # type: ignore[no-any-return]


def require_finite(found: object, where: str) -> float:
    """A finite number."""
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise StateError(where, f"is {_shorten_repr(found)}, not a finite number")
    return found


def _shorten_repr(found: object) -> str:
    shown = repr(found)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
