"""A text that a program prints, by the constant parts of its message; and the expressions that find it in a log."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tdbg.logs.guards.shapes import Shape

GAP = "{}"  # in a text: something that changes
ESCAPES = re.compile(r"(\{\{|\}\}|\{\})")
SURE = 4  # letters that a text must have to be known by
TAG = re.compile(r"\[[A-Z][A-Z0-9_.:-]*\]")
WORD = re.compile(r"[^\W\d_]")
# Where a message may begin in a line: at its start, after a header, a colour, or as a string of JSON; and where it ends.
COLOUR = rb"\x1b\[[0-9;]*m"
BEFORE = rb"(?:^|[\s:\])>|\"-]|" + COLOUR + rb")"
AFTER = rb"(?:\s|" + COLOUR + rb")*(?:$|\"\s*[,}])"
# Between two lines of a message: what a launcher or tdbg's own format puts before a line, or a string of JSON.
BREAK = rb"(?:[ \t]*\r?\n(?:\[(?:rank|default)\d+\]:\s?|\d+: )?[ \t]*|\\n)"
LINE_END = re.compile(rb"(?:\s|" + COLOUR + rb")+$")


@dataclass(frozen=True)
class Spelling:
    """A text that a flag opens, all its lines. printed: bare, with no header of a logger's in front of it."""

    parts: Shape
    printed: bool = field(default=False, compare=False)

    @classmethod
    def parse_text(cls, text: str, *, printed: bool = False) -> "Spelling":
        """From its form in a map; ``{{`` stands for a brace."""
        parts = [""]
        for token in ESCAPES.split(text):
            if token == GAP:
                parts.append("")
            else:
                parts[-1] += token[0] if token in ("{{", "}}") else token
        return cls(tuple(parts), printed)

    @property
    def text(self) -> str:
        """Its form in a map."""
        return GAP.join(part.replace("{", "{{").replace("}", "}}") for part in self.parts)

    @cached_property
    def line_shapes(self) -> list[Shape]:
        """The constant parts of each line."""
        found: list[list[str]] = [[]]
        for part in self.parts:
            first, *more = part.split("\n")
            found[-1].append(first)
            found += [[line] for line in more]
        return [tuple(line) for line in found]

    @property
    def is_long(self) -> bool:
        """True for a text of several lines."""
        return len(self.line_shapes) > 1

    @property
    def first_line(self) -> "Spelling":
        """Its first line that is not empty."""
        return Spelling(next((line for line in self.line_shapes if line != ("",)), ("",)), self.printed)

    @property
    def literal(self) -> str:
        """The longest constant part of a line: what to look for first."""
        return max((part for line in self.line_shapes for part in line), key=len)

    @property
    def is_sure(self) -> bool:
        """False for a text of which too little is constant to be known by."""
        return len(WORD.findall("".join(self.parts))) >= SURE or any(TAG.search(part) for part in self.parts)

    @property
    def example(self) -> bytes:
        """A record that it may make."""
        return "x".join(self.parts).encode()

    def could_match(self, other: "Spelling") -> bool:
        """True if a record of the other text may be taken for one of this."""
        if self.is_long and not other.is_long:
            return False
        example = other.example if self.is_long else other.first_line.example
        return re.search(self.pattern, example) is not None

    @cached_property
    def pattern(self) -> bytes:
        """An expression that fits its first lines, or all of its record if it has several lines."""
        if not self.is_long:
            start = BEFORE if self.parts[0] else b""
            parts = [re.escape(part.encode()) for part in self.parts]
            return start + _in_order(parts, rb"[^\n]*?", ends=bool(parts[-1])) + (AFTER if parts[-1] else b"")
        shape = (self.parts[0].lstrip("\n"), *self.parts[1:])
        begins = rb"\A[^\n]*?" + (BEFORE if shape[0] else b"")
        if shape[0] != self.parts[0]:  # what a header stands before is an empty line
            begins = rb"(?:\A[^\n]*?" + BREAK + rb"+|" + begins + rb")"
        parts = [BREAK.join(re.escape(line.encode()) for line in part.split("\n")) for part in shape]
        return begins + _in_order(parts, rb"[\s\S]*?", ends=False)


def _in_order(parts: Sequence[bytes], gap: bytes, *, ends: bool) -> bytes:
    """An expression for constant parts with gaps between them. ends: something follows that only a later last part may fit.

    Each part is held in its leftmost place: what follows is found from there, or not at all. Otherwise a line that fits
    nearly would be tried in as many ways as there are places for all the parts.
    """
    body = parts[0]
    for number, part in enumerate(parts[1:], 2):
        body += gap + part if ends and number == len(parts) else b"(?>" + gap + part + b")"
    return body


def build_spelling(shape: Sequence[str], *, printed: bool = False) -> Spelling:
    """The text of a message, without what is empty at its end."""
    parts = list(shape)
    if parts:
        parts[-1] = parts[-1].rstrip("\n")
    while len(parts) > 2 and not parts[0] and not parts[1]:  # two gaps are one
        parts.pop(0)
    return Spelling(tuple(parts), printed)


def build_alternation(lines: Iterable[Shape]) -> bytes:
    """An expression that fits a whole line of any of these shapes."""
    shapes = [[re.escape(part.encode()) for part in line] for line in lines]
    found = dict.fromkeys(_in_order(parts, rb"[^\n]*?", ends=True) for parts in shapes)
    return b"|".join(b"(?:" + line.replace(rb"\ ", b" ") + rb"\s*)" for line in found)
