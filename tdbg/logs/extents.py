"""Where records begin in a log whose messages are known from a map of the program.

A format alone judges each line by itself: in a log without headers every line that is not indented begins a record, and
in a log with headers none without one does. A map knows which lines a message goes on with, and which texts the program
prints bare. So a line is judged by what stands before it, back to where a known message begins.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from tdbg.logs.formats import FORMATS, PREFIX, Format
from tdbg.logs.guards.shapes import Shape
from tdbg.logs.spelling import LINE_END, Spelling, build_alternation

LONGEST_LINES = 200  # of a message that is followed
WEAK = {"lines", "tagged"}  # a line that begins like theirs may as well be the next one of a message
HEADED = ("stamped", "glog", "transformers", "leveled")  # a log with few headers may still have some of these
OWN = {"tdbg"}  # every further line is indented: nothing is left to find out
SKIPPED = re.compile(PREFIX)
Buffer = bytes | bytearray


class _Message:
    """A message of several lines, ready to be followed through a log."""

    def __init__(self, text: Spelling) -> None:
        lines = _skip_leading_empty_lines(text)
        self.first = re.compile(Spelling(lines[0]).pattern) if lines[0] != ("", "") else None
        self.lines = [re.compile(build_alternation([line])) for line in lines]
        self.has_gap = [line[-1] == "" and len(line) > 1 for line in lines]
        self.is_gap = [not any(line) and len(line) > 1 for line in lines]

    def goes_on(self, lines: Sequence[bytes], begins: Sequence[bool]) -> bool:
        """True if these lines after its first one are all its own. begins: whether each is the first of a known text."""
        at, last = 0, len(self.lines) - 1
        for line, known in zip(lines, begins, strict=True):
            if at < last and self.lines[at + 1].fullmatch(line) and not (known and self.is_gap[at + 1]):
                at += 1
            elif not line.strip() or line[:1] in b" \t":
                continue
            elif known or not self.has_gap[at] or (at == last and not self.is_gap[at]):
                return False
        return True


class MessageStarts:
    """Answers, like an expression's ``match``, whether a record begins at a line of a buffer."""

    def __init__(self, form: type[Format], texts: Iterable[Spelling], tags: Iterable[str]) -> None:
        self._base = form.start.match
        self._weak = form.name in WEAK
        self._headers = [FORMATS[name].start.match for name in HEADED] if self._weak else [self._base]
        known = list(texts)
        long = [text for text in known if len(text.line_shapes) > 1]
        self._messages = [message for message in map(_Message, long) if message.first is not None]
        self._first = re.compile(b"|".join(b"(?:" + one.first.pattern + b")" for one in self._messages if one.first) or rb"(?!)")  # fmt: skip
        later = [line for text in long for line in text.line_shapes[1:] if any(line)]
        self._later = re.compile(build_alternation(later) or rb"(?!)")
        self._open = any(any(message.is_gap) or any(message.has_gap[:-1]) for message in self._messages)
        starts = [first for text in known if text.is_sure and any(first := _skip_leading_empty_lines(text)[0])]
        bare = [
            first
            for text in known
            if text.printed and text.is_sure and any(first := _skip_leading_empty_lines(text)[0])
        ]
        marks = [(tag, "") for tag in tags]
        self._begins = re.compile(build_alternation([*starts, *marks]) or rb"(?!)")
        self._bare = re.compile(build_alternation([*bare, *marks]) or rb"(?!)")

    def match(self, buffer: Buffer, at: int = 0, stop: int | None = None) -> Any:
        """Something that is true if a record begins at ``at``."""
        stop = len(buffer) if stop is None else stop
        found = self._base(buffer, at, stop)
        if at == 0 or (found and self._has_header(buffer, at, stop)):
            return found or (at == 0 and self._bare.fullmatch(_extract_line(buffer, at, stop)))
        if buffer[at : at + 1] in (b" ", b"\t", b"\n", b"\r", b""):
            return None
        line = _extract_line(buffer, at, stop)
        found = found or self._bare.fullmatch(line)
        if not found or not self._messages:
            return found
        if not self._open and not self._later.fullmatch(line):
            return found
        return None if self._is_continuation(buffer, at, line) else found

    def _has_header(self, buffer: Buffer, at: int, stop: int) -> bool:
        return any(match(buffer, at, stop) for match in self._headers)

    def _is_continuation(self, buffer: Buffer, at: int, line: bytes) -> bool:
        """True if the line belongs to a message that begins before it."""
        lines = [line]
        begins = [self._is_begin(line)]
        for _ in range(LONGEST_LINES):
            if at == 0:
                return False
            end, at = at - 1, buffer.rfind(b"\n", 0, at - 1) + 1
            head = _extract_line(buffer, at, end)
            is_header = self._has_header(buffer, at, end)
            if self._first.search(head) and self._matches_message(head, lines[::-1], begins[::-1]):
                return True
            if is_header:  # its message may begin with an empty line
                return False
            begins.append(self._is_begin(head))
            if begins[-1] and not self._later.fullmatch(head):
                return False
            lines.append(head)
        return False

    def _is_begin(self, line: bytes) -> bool:
        return (self._begins if self._weak else self._bare).fullmatch(line) is not None

    def _matches_message(self, head: bytes, lines: Sequence[bytes], begins: Sequence[bool]) -> bool:
        return any(
            message.goes_on(lines, begins)
            for message in self._messages
            if message.first is not None and message.first.search(head)
        )


def _skip_leading_empty_lines(text: Spelling) -> list[Shape]:
    """The lines of a text from the first that is not empty: without a header before it, there a record begins."""
    lines = text.line_shapes
    first = next((place for place, line in enumerate(lines) if line != ("",)), 0)
    return lines[first:]


def _extract_line(buffer: Buffer, at: int, stop: int) -> bytes:
    """A line without its end, and without what a launcher puts before it."""
    end = buffer.find(b"\n", at, stop)
    line = bytes(buffer[at : stop if end < 0 else end]).rstrip(b"\r")
    found = SKIPPED.match(line)
    return LINE_END.sub(b"", line[found.end() :] if found else line)


def with_messages(form: type[Format], texts: Sequence[Spelling], tags: Sequence[str]) -> type[Format]:
    """A format whose records begin where those of these messages do."""
    if form.name in OWN or not (texts or tags) or form.by_context:
        return form
    fields: dict[str, Any] = {"start": MessageStarts(form, texts, tags), "by_context": True, "sure_start": False}
    return type(form.__name__, (form,), fields)
