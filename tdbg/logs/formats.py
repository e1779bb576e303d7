"""Log formats: where a record begins, and what its header says. One class a format; the list is the order of trust.

A record is a header line and everything up to the next header: tracebacks and tensor dumps stay whole. All matching is
done on bytes, so that what is printed is what was read. Standard library alone.
"""

import re
from collections.abc import Iterable
from typing import ClassVar

from tdbg.logs.textlog import LEVELS
from tdbg.registry import Registry

# What launchers, tees and terminals put before a line: colours, `[rank3]:`, `[default3]:`, `3: `.
COLOUR = rb"(?:\x1b\[[0-9;]*m)*"
LAUNCHER = rb"(?:\[(?:rank|default)\d+\]:\s?|\d+: )?"
PREFIX = COLOUR + LAUNCHER + COLOUR
STAMP = rb"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
LETTERS = {letter.encode(): number for letter, number in LEVELS.items()}
WORDS = {
    b"TRACE": 5,
    b"DEBUG": 10,
    b"STATS": 15,
    b"INFO": 20,
    b"WARN": 30,
    b"WARNING": 30,
    b"ERROR": 40,
    b"CRITICAL": 50,
    b"FATAL": 50,
}
TAG = rb"\[[A-Z][A-Z0-9_.]*\]"
SNIFF_LINES = 400
ENOUGH = 0.2  # of the lines looked at must be headers; the rest may be dumps and tracebacks


class Format:
    """How one kind of log writes a record's first line.

    header: matches a whole header from the line's first byte. Groups, where the format has them: ``time``, ``level``,
    ``rank``, ``step``, ``tag`` (with its brackets, at its own column).
    """

    name: ClassVar[str] = ""
    header: ClassVar[re.Pattern[bytes]]
    levels: ClassVar[dict[bytes, int]] = WORDS

    @classmethod
    def level(cls, found: "re.Match[bytes]") -> int | None:
        """The record's level as a number; None where the header has none."""
        word = found["level"] if "level" in cls.header.groupindex else None
        return cls.levels.get(word) if word else None


FORMATS: Registry[type[Format]] = Registry("log format", group="tdbg.log_formats")


@FORMATS.add
class Tdbg(Format):
    """tdbg's own: ``2026-11-20T03:06:40.000299 D r0003 s00020000 [DEBUG_FORWARD] ...``."""

    name = "tdbg"
    header = re.compile(
        PREFIX
        + rb"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}) (?P<level>[DSIWEC]) r(?P<rank>\d{4,}) s(?P<step>\d{8,})"
        rb" (?P<tag>\[[^\]\n]*\])?"
    )
    levels = LETTERS


@FORMATS.add
class Json(Format):
    """One JSON object a line, as tdbg's records.jsonl and many services write it."""

    name = "json"
    header = re.compile(
        rb'\{(?=[^\n]*"(?:message|msg|text|event)")'
        rb'(?=(?:[^\n]*?"(?:time|timestamp|asctime|t|ts)": ?"?(?P<time>[^",}]+))?)'
        rb'(?=(?:[^\n]*?"(?:level|levelname|severity)": ?"(?P<level>[A-Za-z]+)")?)'
        rb'(?=(?:[^\n]*?"(?:rank|global_rank)": ?"?(?P<rank>\d+))?)'
        rb'(?=(?:[^\n]*?"(?:step|global_step|iteration)": ?"?(?P<step>\d+))?)'
        rb"(?=(?:[^\n]*?\"(?:message|msg|text|event)\": ?\"(?P<tag>" + TAG + rb"))?)"
    )

    @classmethod
    def level(cls, found: "re.Match[bytes]") -> int | None:
        word = found["level"]
        return cls.levels.get(word.upper()) if word else None


@FORMATS.add
class Stamped(Format):
    """A line that begins with a date and a time, bracketed or not, as `logging` writes it with ``%(asctime)s``."""

    name = "stamped"
    header = re.compile(
        PREFIX + rb"[\[(]?(?P<time>" + STAMP + rb")"
        rb"(?=(?:[^\n]{0,160}?\b(?P<level>TRACE|DEBUG|STATS|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b)?)"
        rb"(?:[^\n]{0,240}?(?P<tag>\[(?!(?:TRACE|DEBUG|STATS|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\])"
        rb"[A-Z][A-Z0-9_.]+\]))?"
    )


@FORMATS.add
class Glog(Format):
    """glog's and NCCL-era torch's: ``[I1120 03:06:40.000299 ...``, ``W1120 03:06:40.000299 1234 file.py:12] ...``."""

    name = "glog"
    header = re.compile(PREFIX + rb"\[?(?P<level>[IWEF])(?P<time>\d{4} \d\d:\d\d:\d\d(?:\.\d+)?)")
    levels: ClassVar[dict[bytes, int]] = {b"I": 20, b"W": 30, b"E": 40, b"F": 50}


@FORMATS.add
class Tagged(Format):
    """Only a tag and a message: ``[DEBUG_NULL_MASKING] 17 of 128``. No time, no level."""

    name = "tagged"
    header = re.compile(PREFIX + rb"(?P<tag>" + TAG + rb")")


@FORMATS.add
class Leveled(Format):
    """``logging``'s own: ``INFO:root:message``."""

    name = "leveled"
    header = re.compile(
        PREFIX + rb"(?P<level>TRACE|DEBUG|STATS|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b[:\s]"
        rb"(?:[^\n]{0,160}?(?P<tag>" + TAG + rb"))?"
    )


@FORMATS.add
class Lines(Format):
    """Nothing known: a record is a line that is not indented, with the indented ones and the traceback after it."""

    name = "lines"
    header = re.compile(PREFIX + rb"(?P<tag>" + TAG + rb")?(?=[^\s])(?!Traceback \(most)")


def sniff(sample: bytes) -> type[Format]:
    """The format of a log, from its beginning: the first of the list that enough lines fit."""
    lines = sample.split(b"\n")[:SNIFF_LINES]
    if len(lines) > 1:
        lines = lines[:-1]  # the last one may be cut
    told = [line for line in lines if line.strip()]
    for candidate in FORMATS:
        if _share(candidate, told) >= ENOUGH:
            return candidate
    return Lines


def _share(candidate: type[Format], lines: Iterable[bytes]) -> float:
    """The share of header lines among those that are not indented."""
    hits = total = 0
    for line in lines:
        if line[:1] in (b" ", b"\t"):
            continue
        total += 1
        hits += candidate.header.match(line) is not None
    return hits / total if total else 0.0
