"""Rows as lines of JSON and back. Standard library alone; `tdbg.metrics.rows.row_reader` reads many of them fast.

JSON is strict: numbers that are not finite are the words ``NaN``, ``Infinity`` and ``-Infinity``.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from tdbg.core.errors import TdbgError
from tdbg.metrics.rows.row import MAX_STEP, SCHEMA, Header, Row

HEADER = b'{"schema":'  # how the line of a header begins, and no row's
WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def encode_row(row: Row) -> bytes:
    """One line, its end included. Raises TypeError for a value that is no number. Cost: about 4 us and 0.4 us a value."""
    made: dict[str, object] = {"t": round(row.t, 3), "step": row.step}
    if row.epoch is not None:
        made["epoch"] = row.epoch
    if row.phase is not None:
        made["phase"] = row.phase
    made |= {"rank": row.rank, "source": row.source, "values": row.values}
    if row.text:
        made["text"] = row.text
    if row.units:
        made["units"] = row.units
    if row.own_step is not None:
        made["own_step"] = row.own_step
    if row.left_out:
        made["left_out"] = row.left_out
    try:
        line = _encode(made)
    except (ValueError, TypeError):  # not finite, or a number of some library
        epoch = row.epoch if row.epoch is None else encode_number(row.epoch)
        values = {str(key): encode_number(value) for key, value in row.values.items()}
        line = _encode({**made, "values": values} | ({} if epoch is None else {"epoch": epoch}))
    return line.encode("ascii") + b"\n"


def encode_header(header: Header) -> bytes:
    """The line of a header, its end included."""
    made = {
        "schema": header.schema,
        "run": header.run,
        "rank": header.rank,
        "attempt": header.attempt,
        "t": round(header.t, 3),
        "pid": header.pid,
    }
    if header.resumed_after:
        made["resumed_after"] = header.resumed_after
    if header.joins:
        made["joins"] = True
    return _encode(made).encode("ascii") + b"\n"


def decode_line(line: bytes) -> Row | Header | None:
    """What a line says; None for one that is torn or of somebody else. TdbgError for a schema that is newer than ours."""
    try:
        found = json.loads(line)
        if not isinstance(found, dict):
            return None
        return _parse_header(found) if "schema" in found else _parse_row(found)
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


def _parse_header(found: dict[str, Any]) -> Header:
    schema = int(found["schema"])
    if schema > SCHEMA:
        raise TdbgError(f"these metrics have schema {schema}; this tdbg reads up to {SCHEMA}", "upgrade tdbg")
    after = {str(name): int(step) for name, step in found.get("resumed_after", {}).items()}
    numbers = (int(found.get("rank", 0)), int(found.get("attempt", 0)), float(found.get("t", 0.0)))
    return Header(
        str(found.get("run", "")), *numbers, int(found.get("pid", 0)), after, bool(found.get("joins")), schema
    )


def _parse_row(found: dict[str, Any]) -> Row | None:
    step, values = found.get("step"), found.get("values")
    if not isinstance(step, int) or abs(step) > MAX_STEP or not isinstance(values, dict):
        return None
    epoch, phase = found.get("epoch"), found.get("phase")
    return Row(
        float(found.get("t", 0.0)),
        step,
        WORDS.get(epoch) if isinstance(epoch, str) else epoch,
        phase if isinstance(phase, str) else None,
        int(found.get("rank", 0)),
        {key: parse_number(value) for key, value in values.items()},
        _parse_texts(found.get("text")),
        _parse_texts(found.get("units")),
        str(found.get("source", "")),
        own if isinstance(own := found.get("own_step"), int) else None,
        {str(why): int(count) for why, count in found.get("left_out", {}).items()},
    )


def _parse_texts(found: object) -> dict[str, str]:
    return {key: str(value) for key, value in found.items()} if isinstance(found, Mapping) else {}


def parse_number(value: Any) -> float:
    """A number of the file as a float. Raises ValueError or TypeError for what is none."""
    if isinstance(value, str):
        if value not in WORDS:
            raise ValueError(f"{value!r} is no number")
        return WORDS[value]
    return float(value)


def encode_number(value: Any) -> float | int | str:
    """A number as strict JSON has it. Raises TypeError for what is none."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str) or value is None:
        raise TypeError(f"{value!r} is no number")
    found = float(value)
    if math.isfinite(found):
        return found
    return "NaN" if math.isnan(found) else "Infinity" if found > 0 else "-Infinity"
