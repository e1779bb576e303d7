"""The names, numbers and JSON of the page format, as docs/pages.md describes them. Standard library alone."""

import base64
import itertools
import json
import math
import re
from collections.abc import Callable
from typing import Any

FORMAT = "tdbg-pages"
MAJOR, MINOR = 1, 0
MANIFEST = "MANIFEST.json"
ALIGN = 64  # bytes: where tensors start, in a page and in a datapoint
FRAME_LIMIT = 16 << 20  # bytes of one journal record: what a reader has in memory at most
HEADER_LIMIT = 16 << 20  # bytes of a page's JSON header, for the same reason
JOURNAL_NAME = re.compile(r"r([0-9]{4,9})-(.+)\.journal", re.DOTALL)
PAGE_NAME = re.compile(r"r([0-9]{4,9})-([0-9]{6,12})\.(part|safetensors)")
DATAPOINT = b'{"t":"dp",'  # how the record of a datapoint begins
DEPTH = 256  # of lists and objects in each other
TEXT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)  # of JSON
STEP = {"[": 1, "{": 1, "]": -1, "}": -1}
MARK = '"$'  # begins the name of a value that JSON has no word for


def journal_name(rank: int, writer: str) -> str:
    """The journal of one writer: ``r0003-4711.journal``."""
    return f"r{rank:04d}-{writer}.journal"


def page_name(rank: int, page: int, *, sealed: bool) -> str:
    """The file of one page: ``r0003-000012.safetensors``, or ``.part`` while it is being filled."""
    return f"r{rank:04d}-{page:06d}.{'safetensors' if sealed else 'part'}"


def align_offset(offset: int) -> int:
    """The next multiple of 64."""
    return -(-offset // ALIGN) * ALIGN


def encode_json(value: object) -> bytes:
    """Strict JSON in UTF-8, without blanks. What JSON has no word for is marked: ``{"$float": "nan"}``.

    Takes what JSON takes, and numbers that are not finite, complex, bytes, and anything with an ``item()`` that gives
    one of these (0-d arrays). Keys that are no text become text, tuples lists. Raises TypeError or ValueError for
    anything else, for a structure that holds itself, and one that is too deep.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        plain = MARK not in text
    except (TypeError, ValueError):
        plain = False
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not plain:
        text = json.dumps(_mark_value(value, 0), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if _is_nested_deeper(text, DEPTH - 16):
        raise ValueError("it is nested too deeply")
    try:
        return text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, as in the name of a file that is no UTF-8
        return json.dumps(json.loads(text), separators=(",", ":")).encode()


def as_float(number: float) -> float:
    """A number of JSON as a float; an integer beyond them is infinite."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def encode_read_json(value: object) -> bytes:
    """JSON that was read, marks and all, as text again."""
    return json.dumps(value, separators=(",", ":")).encode()


def _mark_value(value: Any, depth: int) -> object:
    """``value`` as JSON can hold it."""
    if depth > 100:
        raise ValueError("it is nested too deeply, or contains itself")
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, complex):
        return {"$complex": [_mark_value(value.real, depth + 1), _mark_value(value.imag, depth + 1)]}
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        found = {str(key): _mark_value(item, depth + 1) for key, item in value.items()}
        return {"$dict": found} if any(key.startswith("$") for key in found) else found
    if isinstance(value, list | tuple):
        return [_mark_value(item, depth + 1) for item in value]
    if callable(getattr(value, "item", None)) and getattr(value, "shape", None) == ():
        return _mark_value(value.item(), depth + 1)
    raise TypeError(f"a value of type {type(value).__name__} cannot be stored")


def unmark_value(value: object) -> object:
    """The value that `encode_json` was given. Raises ValueError for a mark that it never makes."""
    if isinstance(value, list):
        return [unmark_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        name, inside = next(iter(value.items()))
        if name.startswith("$"):
            return _decode_mark(name, inside)
    return {key: unmark_value(item) for key, item in value.items()}


def _decode_mark(name: str, inside: object) -> object:
    if name == "$float" and inside in ("nan", "inf", "-inf"):
        return float(inside)
    if name == "$complex" and isinstance(inside, list) and len(inside) == 2:
        real, imag = (unmark_value(part) for part in inside)
        if isinstance(real, int | float) and isinstance(imag, int | float):
            return complex(as_float(real), as_float(imag))
    if name == "$bytes" and isinstance(inside, str):
        return base64.b64decode(inside, validate=True)
    if name == "$dict" and isinstance(inside, dict):
        return {key: unmark_value(item) for key, item in inside.items()}
    raise ValueError(f"an unknown type marker, {name[:40]!r}")


def _no_constant(word: str) -> object:
    raise ValueError(f"{word} is not valid JSON")


_scan: Callable[[str, int], tuple[object, int]] = vars(json.JSONDecoder(parse_constant=_no_constant))["scan_once"]


def _is_nested_deeper(text: str, depth: int) -> bool:
    """True if lists and objects of good JSON lie deeper than that in each other."""
    if text.count("[") + text.count("{") <= depth:
        return False
    steps = (STEP[letter] for letter in TEXT.sub("", text) if letter in STEP)
    return max(itertools.accumulate(steps), default=0) > depth


def decode_json(text: bytes | str) -> object:
    """Strict JSON without blanks around it -> value, marks and all. Raises ValueError, for deep nesting too."""
    try:
        source = text if isinstance(text, str) else text.decode()
        value, end = _scan(source, 0)
    except StopIteration:
        raise ValueError("it is not JSON") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _is_nested_deeper(source, DEPTH):
        raise ValueError("it is nested too deeply")
    if end != len(source) and source[end:].strip(" \t\r\n"):
        raise ValueError("there is extra data after the JSON value")
    return value
