"""Answers as JSON, also those that hold what a program or a foreign file wrote."""

import json
import math
from typing import Any

import msgspec

from tdbg.core.events import replace_lone_surrogates


def encode_json(value: object) -> bytes:
    """The value as JSON in UTF-8; halves of surrogate pairs, which UTF-8 cannot hold, as the replacement character.

    Numbers that are not finite are null. Raises TypeError for what JSON cannot hold.
    """
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError):  # a half of a pair; an integer of more than 64 bits
        whole = replace_lone_surrogates(_without_non_finite(msgspec.to_builtins(value)))
        return json.dumps(whole, ensure_ascii=False).encode()


def _without_non_finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _without_non_finite(item) for key, item in value.items()}
    return [_without_non_finite(item) for item in value] if isinstance(value, list | tuple) else value
