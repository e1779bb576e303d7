"""The program's own records of a run directory, as text for people: in the form of tdbg's own log.

2026-11-20T03:06:40.000299 D r0003 s00020000 [DEBUG_NULL_MASKING] train loss.py:41: 17 of 128 without a label
"""

import os
from typing import Any

from tdbg.core import flags
from tdbg.core.escapes import escape_line
from tdbg.core.files import parse_json
from tdbg.logs.formats import WORDS
from tdbg.logs.log_header import LEVELS
from tdbg.logs.textlog import INDENT

LETTERS = {number: letter for letter, number in LEVELS.items()}


def as_text(data: bytes) -> bytes:
    """One line of records.jsonl; what is no such record stays as it is. The flags that guard the call are its tags."""
    try:
        row = parse_json(data)
        header = (
            f"{row['time']} {_select_level_letter(row.get('level'))} r{row['rank']:04d} s{row.get('step') or 0:08d}"
        )
    except (ValueError, KeyError, TypeError):
        return data
    tags = " ".join(flags.tag(name) for name in row.get("flags") or ()) or f"[{row.get('logger') or 'root'}]"
    place = os.path.basename(str(row.get("file", "")))
    message = str(row.get("message", "")).replace("\r", "\\r").rstrip("\n").replace("\n", f"\n{INDENT}")
    return f"{escape_line(f'{header} {tags} {place}')}: {message}\n".encode("utf-8", "backslashreplace")


def _select_level_letter(level: Any) -> str:
    number = WORDS.get(str(level).upper().encode(), 20)
    return LETTERS[max((known for known in LETTERS if known <= number), default=10)]
