"""Encode the record of a datapoint. Standard library alone."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tdbg.core.tables import format_count
from tdbg.pages.format.file_format import FRAME_LIMIT, encode_json
from tdbg.pages.format.layout import Layout, UnstorableError

RESERVED = frozenset(("t", "key", "seq", "page", "base", "length", "layout", "crc"))


def encode_placed_record(start: bytes, seq: int, page: int, base: int, layout: Layout, rest: bytes) -> bytes:
    """The whole record, of a datapoint whose number and place are known."""
    place = b'%d,"page":%d,"base":%d,"length":%d,"layout":%d' % (seq, page, base, layout.length, layout.id)
    return start + place + rest


def encode_record(key: str | int, fields: Mapping[str, Any], layout: Layout | None) -> tuple[bytes, bytes]:
    """A datapoint's record: what comes before its number, and what comes behind number and place."""
    known = {name: value for name, value in fields.items() if value is not None}
    if RESERVED & known.keys():
        raise UnstorableError(f"a datapoint field has a reserved name: {', '.join(RESERVED & known.keys())}")
    try:
        key = key if isinstance(key, str) else operator.index(key)
        for name, kind in KINDS.items():
            if name in known:
                known[name] = kind(known[name])
        start = b'{"t":"dp","key":%b,"seq":' % encode_json(key)
        rest = b"," + encode_json({"step": 0, **known})[1:]
    except (TypeError, ValueError, OverflowError) as error:
        raise UnstorableError(f"{_find_unencodable(known)}: {error}", "store a number, a text or a tensor") from None
    if len(rest) + len(start) > FRAME_LIMIT - 1000:
        raise UnstorableError(f"the scalars of datapoint {key!r} are too large: {len(rest):,} bytes of JSON")
    if "keys" in known:
        _check_rows(known, layout)
    return start, rest


def _normalize_row_keys(keys: Sequence[str | int]) -> list[str | int]:
    return [key if isinstance(key, str) else operator.index(key) for key in keys]


KINDS: dict[str, Callable[[Any], object]] = {
    "step": operator.index,
    "epoch": operator.index,
    "phase": str,
    "keys": _normalize_row_keys,
    "split": list,
    "flags": list,
    "scalars": dict,
    "stats": dict,
}


def _find_unencodable(fields: Mapping[str, object]) -> str:
    """The path of the value that JSON cannot hold."""
    scalars = fields.get("scalars")
    named = {**fields, **(scalars if isinstance(scalars, dict) else {})}
    named.pop("scalars", None)
    for path, value in named.items():
        try:
            encode_json(value)
        except (TypeError, ValueError):
            return str(path)
    return "a datapoint"


def _check_rows(fields: Mapping[str, Any], layout: Layout | None) -> None:
    """UnstorableError if what is split has not one row for each of the keys."""
    count, scalars = len(fields["keys"]), fields.get("scalars", {})
    for path in fields.get("split", ()):
        rows = layout.rows.get(path) if layout else None
        if rows is None and isinstance(scalars.get(path), list | tuple):
            rows = len(scalars[path])
        if rows != count:
            raise UnstorableError(f"{path}: {rows if rows is not None else 'no'} rows for {format_count(count, 'key')}")
