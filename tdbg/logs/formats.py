"""Log formats: where a record begins, and what its header says. One class a format; the list is the order of trust.

A record is a header line and everything up to the next header: tracebacks and tensor dumps stay whole. All matching is
done on bytes, so that what is printed is what was read. Standard library alone.
"""

import re
import sys
from collections.abc import Sequence
from typing import ClassVar, cast

from tdbg.core.flags import tag
from tdbg.core.lazy_pattern import lazy_pattern
from tdbg.core.registry import Registry
from tdbg.logs.log_header import LEVELS

# What launchers, tees and terminals put before a line: colours, `[rank3]:`, `[default3]:` (a local rank), `3: `.
# Atomic: what is behind the prefix is judged once, never with a part of the prefix. (No possessive groups below:
# before Python 3.11.5 one whose last try fails takes a byte too many.)
COLOUR = rb"(?:\xef\xbb\xbf)?(?:\x1b\[[0-9;]*m)*"  # and a byte order mark, at the beginning of a file
LAUNCHER = rb"(?:\[(?:rank|default)\d+\]:\s?|\d+: )?"
# What a formatter of the program's own puts before everything else, on the first line of a record alone: `[rank3] `.
OWN_RANK = rb"\[[Rr]ank[ :=]?\d+\]:?[ \t]+(?:[-|][ \t]+)?"
PREFIX = rb"(?>(?=\d\d\d\d-)|" + COLOUR + LAUNCHER + COLOUR + rb"(?:" + OWN_RANK + rb")?)"
RANKED = lazy_pattern(COLOUR + LAUNCHER + COLOUR + rb"\[[Rr]ank[ :=]?(\d+)\]")
LAUNCHED = re.compile(COLOUR + rb"(?:\[rank(\d+)\]:|\[default(?P<local>\d+)\]:|(\d+): )")
# tdbg's own header up to the tag. In whatever log it stands: a line that begins like this begins a record of tdbg's.
OWN = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6} [DSIWEC] r\d{4,}+ s\d{8,}+ "
STEP = rb"\b(?:global[ _]?)?(?:step|iter(?:ation)?)s?\b['\"]?[ =:#]{1,3}\[?(\d+)"
TRACEBACK = b"Traceback (most recent call last)"
ERROR = 40
STAMP = rb"(?:\d{4}[-/]\d\d[-/]\d\d|\d\d/\d\d/\d{4})[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
LETTERS = {letter.encode(): number for letter, number in LEVELS.items()}
WORDS = {
    b"TRACE": 5,
    b"DEBUG": 10,
    b"STATS": 15,
    b"INFO": 20,
    b"SUCCESS": 25,
    b"WARN": 30,
    b"WARNING": 30,
    b"ERROR": 40,
    b"CRITICAL": 50,
    b"FATAL": 50,
}
LEVEL = rb"(?:TRACE|DEBUG|STATS|INFO|SUCCESS|WARN(?:ING)?|ERROR|CRITICAL|FATAL)"
TAG = rb"\[(?!" + LEVEL + rb"\])[A-Z][A-Z0-9_.]*\]"
GAP = rb"[ \t]*+(?>(?:\x1b\[[0-9;]*m[ \t]*+)*)"
SQUARE = rb"\[(?![A-Z][A-Z0-9_.]*+\])[^\]\n]{0,120}+\]:?"
ROUND = rb"\([^)\n]{0,120}+\):?"
# Up to the level: any words and brackets but a tag. Behind it: separators, brackets, one name that ends with a colon or
# stands before a dash or a bar.
BEFORE = (
    rb"(?>(?:[^\nA-Z\[]{1,60}+|(?<=\x1b)\[[0-9;]*m|(?!" + LEVEL + rb"(?!\w))[A-Z]\w*+"
    rb"|\[(?![ ]*+" + LEVEL + rb"|[A-Z][A-Z0-9_.]*+\])[^\]\n]{0,120}+\]){0,8})"
)
BEHIND = rb"(?>(?:" + GAP + rb"(?:[-|:,>]++(?=\s)|\[[Rr]ank[ :=]?(?P<rank>\d+)\]|" + SQUARE + rb"|" + ROUND + rb"))*)"
NAMED = (
    rb"(?>(?:" + GAP + rb"[^\s\[\]()|\x1b]++(?>(?:\x1b\[[0-9;]*m[^\s\[\]()|\x1b]*+)*)"
    rb"(?:(?<=:)(?=\s)|" + GAP + rb"[-|>]++(?=\s)))?)"
)
# `shapes.py:5` or `my.app shapes.py:5]`, with nothing to set them off from the message.
PLACE = rb"(?>(?:" + GAP + rb"(?>(?:[\w.]++[ \t]+)?)[\w./-]+\.py:\d++\]?+(?=\s))?)"
SNIFF_LINES = 400
ENOUGH = 0.2  # of the lines looked at must be headers; the rest may be dumps and tracebacks


class _Expression:
    """An expression that is compiled when it is first needed: most logs are told by the first formats of the list."""

    def __init__(self, pattern: bytes, flags: int) -> None:
        self.pattern, self.flags = pattern, flags
        self.compiled: re.Pattern[bytes] | None = None

    def __get__(self, instance: object, owner: type) -> re.Pattern[bytes]:
        if self.compiled is None:
            self.compiled = re.compile(self.pattern, self.flags)
        return self.compiled


def compile_lazily(pattern: bytes, flags: int = 0) -> re.Pattern[bytes]:
    """An attribute of a class that is a compiled expression; see `_Expression`."""
    return cast(re.Pattern[bytes], _Expression(pattern, flags))


def parse_number(digits: bytes) -> int | None:
    """A rank or a step; None for one that no computer counts to."""
    return int(digits) if len(digits) <= 18 else None


def _except_own(found: _Expression | re.Pattern[bytes]) -> re.Pattern[bytes]:
    """The header of a format, which a line with tdbg's own is none of."""
    return compile_lazily(b"(?!" + PREFIX + OWN + b")(?:" + _strip_inline_flags(found) + b")", found.flags)


def _or_own(found: _Expression | re.Pattern[bytes]) -> re.Pattern[bytes]:
    """Where a record of a format starts, or one of tdbg's."""
    start = _strip_inline_flags(found)
    if b"(?P<" in start:
        start = strip_group_names(start)
    return compile_lazily(b"(?:" + start + b"|" + PREFIX + OWN + b")", found.flags)


def strip_group_names(pattern: bytes) -> bytes:
    """An expression without the names of its groups, so that it can stand in another one."""
    return re.sub(rb"\(\?P<\w+>", b"(?:", pattern)


def _strip_inline_flags(found: _Expression | re.Pattern[bytes]) -> bytes:
    """An expression without the flags that may only stand at its beginning; tdbg's own have none."""
    if isinstance(found, _Expression):
        return found.pattern
    return re.sub(rb"\A\(\?[aiLmsux]+\)", b"", found.pattern)


class Format:
    """How one kind of log writes a record's first line.

    header: matches a whole header from the line's first byte, but none of tdbg's own (`match_header`). Groups, where the format has them: ``time``, ``level``,
        ``rank``, ``step``, ``tag`` (with its brackets, at its own column: a tag in the message is none).
    start: whether a record starts at a line; it must fit wherever ``header`` does, and tdbg's own header is added to it.
        The header itself, if not given.
    sure_start: ``header`` fits wherever ``start`` does but at tdbg's own header, so that a log is told by the one that is
        made faster.
    lead: what ``header`` says of all before the tag; a digit in it is like any other. With it headers that look alike
        are judged once, which makes a filter by tags faster.
    by_context: ``start`` looks back at the lines before (`tdbg.logs.extents`).
    column: where the tag of nearly all headers is, if such a line with a bracket there that begins like ``20??-??-??T``
        surely is a header, and any line that begins like ``20??-`` the first of a record.
    """

    _step_in_text = compile_lazily(STEP, re.IGNORECASE)
    name: ClassVar[str] = ""
    header: ClassVar[re.Pattern[bytes]]
    start: ClassVar[re.Pattern[bytes]]
    lead: ClassVar[bytes] = b""
    column: ClassVar[int] = 0
    levels: ClassVar[dict[bytes, int]] = WORDS
    needs: ClassVar[bytes] = b""
    sure_start: ClassVar[bool] = False
    _knows_own: ClassVar[bool] = False  # ``start`` fits tdbg's own header as it is, and ``header`` does not
    by_context: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if (header := cls.__dict__.get("header")) is None:  # another format with another start
            return
        start = cls.__dict__.get("start", header)
        if not cls.__dict__.get("_knows_own"):  # of a subclass nothing is known
            header, start = _except_own(header), _or_own(start)
        cls.header, cls.start = header, start

    @classmethod
    def record(cls, header: bytes) -> bytes:
        """The expression of a whole record that begins with this: up to the next one's start, or the end."""
        return header + rb"[^\n]*+(?>(?:\n(?!" + strip_group_names(cls.start.pattern) + rb"|\Z)[^\n]*+)*)\n?+"

    @classmethod
    def level(cls, found: "re.Match[bytes]") -> int | None:
        """The record's level as a number; None where the header has none."""
        word = found["level"] if "level" in cls.header.groupindex else None
        return cls.levels.get(word) if word else None

    @classmethod
    def rank(cls, found: "re.Match[bytes]") -> int | None:
        """The rank that a record itself names: the launcher's prefix, else the header, else the prefix's local rank."""
        prefix = LAUNCHED.match(found.string, found.start())
        if prefix is not None and prefix["local"] is None:
            return parse_number(prefix[1] or prefix[3])
        named = found["rank"] if "rank" in cls.header.groupindex else None
        if not named and (own := RANKED.match(found.string, found.start())) is not None:
            named = own[1]
        return parse_number(named) if named else parse_number(prefix["local"]) if prefix is not None else None

    @classmethod
    def step(cls, found: "re.Match[bytes]") -> int | None:
        """The step that the header names, else the first line's text: ``step 12``, ``iteration: 12/100``."""
        named = found["step"] if "step" in cls.header.groupindex else None
        if named:
            return parse_number(named)
        end = found.string.find(b"\n", found.end(), found.endpos)
        said = cls._step_in_text.search(found.string, found.end(), found.endpos if end < 0 else end)
        return parse_number(said[1]) if said else None

    @classmethod
    def tags(cls, found: "re.Match[bytes]") -> tuple[bytes, ...]:
        """The tags of a record, with brackets."""
        tag = found["tag"] if "tag" in cls.header.groupindex else None
        return (tag,) if tag else ()

    @classmethod
    def marks(cls, family: str) -> tuple[bytes, ...]:
        """Literals, one of which is in every record of a tag family."""
        return (b"[" + family.encode(),)

    @classmethod
    def level_marks(cls, least: int) -> tuple[bytes, ...]:
        """Literals, one of which is in every record of this level and above; none if there are no such literals."""
        if cls.levels is not WORDS:
            return ()
        return tuple(word for word, number in WORDS.items() if number >= least and word != b"WARNING")  # WARN is in it


FORMATS: Registry[type[Format]] = Registry("log format", group="tdbg.log_formats")


@FORMATS.add
class Tdbg(Format):
    """tdbg's own: ``2026-11-20T03:06:40.000299 D r0003 s00020000 [DEBUG_FORWARD] ...``; further lines are indented."""

    name = "tdbg"
    needs = b" r0"
    lead = (  # OWN, with names
        PREFIX
        + rb"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}) (?P<level>[DSIWEC]) r(?P<rank>\d{4,}+) s(?P<step>\d{8,}+) "
    )
    header = compile_lazily(lead + rb"(?P<tag>\[[^\]\n]*\])?")
    start = compile_lazily(PREFIX + rb"\S")  # whatever is not indented
    column = 45
    levels = LETTERS
    _knows_own = True

    @classmethod
    def level_marks(cls, least: int) -> tuple[bytes, ...]:
        return tuple(b" %s r" % letter for letter, number in LETTERS.items() if number >= least)


@FORMATS.add
class Json(Format):
    """One JSON object a line, as tdbg's records.jsonl and many services write it; its flags count as tags."""

    name = "json"
    needs = b'{"'
    header = compile_lazily(
        PREFIX + rb'\{(?=[^\n]*"(?:message|msg|text|event)")'
        rb'(?=(?:[^\n]*?"(?:time|timestamp|asctime|t|ts)": ?"?(?P<time>[^",}]+))?)'
        rb'(?=(?:[^\n]*?"(?:level|levelname|severity)": ?"(?P<level>[A-Za-z]+)")?)'
        rb'(?=(?:[^\n]*?"(?:rank|global_rank)": ?"?(?P<rank>\d+))?)'
        rb'(?=(?:[^\n]*?"(?:step|global_step|iteration)": ?"?(?P<step>\d+))?)'
        rb'(?=(?:[^\n]*?"flags": ?\[(?P<flags>[^\]\n]+)\])?)'
        rb'(?=(?:[^\n]*?"(?:message|msg|text|event)": ?"(?P<tag>' + TAG + rb"))?)"
    )
    start = compile_lazily(PREFIX + rb"\{")

    @classmethod
    def level(cls, found: "re.Match[bytes]") -> int | None:
        word = found["level"]
        if word == b"STDOUT":  # what the program printed, in tdbg's records of it
            return WORDS[b"INFO"]
        return cls.levels.get(word.upper()) or LETTERS.get(word) if word else None

    @classmethod
    def tags(cls, found: "re.Match[bytes]") -> tuple[bytes, ...]:
        flags = re.findall(rb'"([^"]+)"', found["flags"] or b"")
        return (*super().tags(found), *(tag(flag.decode("utf-8", "replace")).encode() for flag in flags))

    @classmethod
    def marks(cls, family: str) -> tuple[bytes, ...]:
        return (b"[" + family.encode(), family.removeprefix(tag("").strip("[]")).encode() + b'"')

    @classmethod
    def level_marks(cls, least: int) -> tuple[bytes, ...]:
        return ()


@FORMATS.add
class Stamped(Format):
    """A line that begins with a date and a time, as `logging`, loguru, DeepSpeed and most others write it."""

    name = "stamped"
    lead = (
        PREFIX + rb"(?!" + OWN + rb")[\[(]?(?P<time>" + STAMP + rb")[\])]?"
        rb"(?>(?:"
        + BEFORE
        + rb"(?:\[[ ]*+)?(?<!_)(?P<level>"
        + LEVEL
        + rb")(?!\w)[ ]*+\]?:?)?)"
        + BEHIND
        + PLACE
        + NAMED
        + BEHIND.replace(b"?P<rank>", b"")
        + GAP
    )
    header = compile_lazily(lead + rb"(?P<tag>" + TAG + rb")?")
    start = compile_lazily(PREFIX + rb"[\[(]?" + STAMP)
    sure_start = _knows_own = True


@FORMATS.add
class Glog(Format):
    """glog's, absl's and torch's: ``I1120 03:06:40.000299 1234 file.py:12] ...``, ``[W1120 03:06:40.000299 file.cpp:12] ...``."""

    name = "glog"
    lead = (
        PREFIX + rb"\[?(?P<level>[IWEFVD])(?P<time>\d{4} \d\d:\d\d:\d\d(?:\.\d+)?)"
        rb"(?>(?:[^\]\n]{0,160}+\])?)" + GAP
    )
    header = compile_lazily(lead + rb"(?P<tag>" + TAG + rb")?")
    start = compile_lazily(PREFIX + rb"\[?[IWEFVD]\d{4} \d\d:\d\d:\d\d")
    levels: ClassVar[dict[bytes, int]] = {b"V": 10, b"D": 10, b"I": 20, b"W": 30, b"E": 40, b"F": 50}


@FORMATS.add
class Transformers(Format):
    """transformers' own: ``[INFO|trainer.py:2134] 2026-11-20 03:06:40,123 >> ...``."""

    name = "transformers"
    lead = PREFIX + rb"\[(?P<level>" + LEVEL + rb")\|[^\]\n]{1,160}+\] (?P<time>" + STAMP + rb") >> "
    header = compile_lazily(lead + rb"(?P<tag>" + TAG + rb")?")


@FORMATS.add
class Detectron(Format):
    """detectron2's console: ``[11/20 03:06:40 d2.engine]: ...``, a level only from WARNING on."""

    name = "detectron2"
    lead = (
        PREFIX
        + rb"(?:(?P<level>"
        + LEVEL
        + rb"))?"
        + GAP
        + rb"\[(?P<time>\d\d/\d\d \d\d:\d\d:\d\d) [^\]\n]{1,120}+\]:"
        + GAP
    )
    header = compile_lazily(lead + rb"(?P<tag>" + TAG + rb")?")

    @classmethod
    def level(cls, found: "re.Match[bytes]") -> int | None:
        return WORDS.get(found["level"] or b"INFO")

    @classmethod
    def level_marks(cls, least: int) -> tuple[bytes, ...]:
        return super().level_marks(least) if least > WORDS[b"INFO"] else ()


@FORMATS.add
class Nccl(Format):
    """NCCL's: ``node1:1234:1301 [0] NCCL INFO ...``. The number is a device; a rank is not named."""

    name = "nccl"
    header = compile_lazily(
        PREFIX
        + rb"(?:\[(?P<time>"
        + STAMP
        + rb")\] )?[\w.-]+:\d+:\d+ \[\d+\] (?:\S+ )?NCCL (?P<level>INFO|WARN|TRACE)\b ?"
    )


@FORMATS.add
class Tagged(Format):
    """Only a tag and a message: ``[DEBUG_NULL_MASKING] 17 of 128``. No time, no level."""

    name = "tagged"
    lead = PREFIX
    header = compile_lazily(lead + rb"(?P<tag>" + TAG + rb")")


@FORMATS.add
class Leveled(Format):
    """``logging``'s own: ``INFO:root:message``."""

    name = "leveled"
    lead = PREFIX + rb"\[?(?P<level>" + LEVEL + rb")(?!\w)\]?:?(?>(?:(?<=:)[\w.]++:)?)"
    lead += rb"(?>(?: (?P<time>\d\d-\d\d \d\d:\d\d:\d\d))?)" + BEHIND + GAP
    header = compile_lazily(lead + rb"(?P<tag>" + TAG + rb")?")
    start = compile_lazily(PREFIX + rb"\[?" + LEVEL + rb"(?!\w)")


@FORMATS.add
class Lines(Format):
    """Nothing known: a record is a line that is not indented, with the indented ones and the traceback after it.

    A line of closing brackets alone ends the value that is printed above it.
    """

    name = "lines"
    lead = (
        PREFIX + rb"(?=\S)(?!Traceback \(most|During handling of the above|The above exception was"
        rb"|[\w.]+(?:Error|Exception|Interrupt|Exit)(?::|\s*$)|[)\]}]+[,;]?\s*$)"
    )
    header = compile_lazily(lead + rb"(?P<tag>" + TAG + rb")?", re.MULTILINE)


def match_header(
    form: type[Format], data: bytes | bytearray, at: int = 0, stop: int = sys.maxsize
) -> "re.Match[bytes] | None":
    """The header of a record: as the format of its log writes it, or tdbg's own. `format_of` tells which it is."""
    found = form.header.match(data, at, stop)
    return found if found is not None or form is Tdbg else Tdbg.header.match(data, at, stop)


def format_of(found: "re.Match[bytes]", form: type[Format]) -> type[Format]:
    """The format of a header in a log of this format: that one, or tdbg's own."""
    return Tdbg if found.re is vars(Tdbg)["header"].compiled else form  # not compiled for it


def normalize_time(time: bytes) -> bytes:
    """A log's time as text that sorts among others of its kind: ``T`` between date and time, a point, the year first."""
    if time[2:3] == time[5:6] == b"/":
        time = time[6:10] + b"-" + time[:5] + time[10:]
    return time.replace(b" ", b"T", 1).replace(b",", b".").replace(b"/", b"-")


def detect_format(sample: bytes) -> type[Format]:
    """The format of a log, from its beginning: the first of the list that enough lines fit.

    Lines of tdbg's own are known in any log. So where they stand among others it is the format of the others that counts.
    """
    lines = sample.split(b"\n")[:SNIFF_LINES]
    if len(lines) > 1:
        lines = lines[:-1]  # the last one may be cut
    outer_lines = [line for line in lines if line.strip() and not line.startswith((b" ", b"\t"))]  # not those indented
    others = outer_lines
    if Tdbg.needs in sample:
        others = [line for line in outer_lines if not _is_own(line)]
    rest: type[Format] = Tdbg if len(outer_lines) - len(others) >= ENOUGH * max(len(outer_lines), 1) else Lines
    for candidate in FORMATS if others else ():
        if candidate not in (Tdbg, Lines) and candidate.needs in sample and _has_enough_headers(candidate, others):
            return candidate
    return rest


def _is_own(line: bytes) -> bool:
    """True if a line has tdbg's own header."""
    at = Tdbg.column
    return (line[10:11] == b"T" and line[at : at + 1] == b"[") or Tdbg.header.match(line) is not None


def _has_enough_headers(candidate: type[Format], lines: Sequence[bytes]) -> bool:
    """True if enough of these lines are headers."""
    match, hits = (candidate.start if candidate.sure_start else candidate.header).match, 0
    for line in lines:
        hits += match(line) is not None
        if hits >= ENOUGH * len(lines):
            return True
    return False
