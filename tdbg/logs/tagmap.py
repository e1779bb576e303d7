"""The map of a program's own spellings: which flag opens which lines of its log, taken from its source.

It serves for logs that were written without tdbg. A text is known by the constant parts of its message, in order; one
that the program also prints without the flag, or under another, is ambiguous and left out. Standard library alone.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tdbg.errors import TdbgError
from tdbg.files import read_small
from tdbg.flags import covers
from tdbg.logs.guards.facts import LogCall
from tdbg.logs.guards.flagsets import NONE, Flags, resolved
from tdbg.logs.guards.link import GuardMap
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


@dataclass(frozen=True, slots=True)
class Spelling:
    """A text that a flag opens: the constant parts of its first line."""

    parts: Shape

    @classmethod
    def of(cls, text: str) -> "Spelling":
        """From its form in a map; ``{{`` stands for a brace."""
        parts = [""]
        for token in ESCAPES.split(text):
            if token == GAP:
                parts.append("")
            else:
                parts[-1] += token[0] if token in ("{{", "}}") else token
        return cls(tuple(parts))

    @property
    def text(self) -> str:
        """Its form in a map."""
        return GAP.join(part.replace("{", "{{").replace("}", "}}") for part in self.parts)

    @property
    def literal(self) -> str:
        """The longest constant part: what to look for first."""
        return max(self.parts, key=len)

    @property
    def is_sure(self) -> bool:
        """False for a text of which too little is constant to be known by."""
        return len(WORD.findall("".join(self.parts))) >= SURE or any(TAG.search(part) for part in self.parts)

    def fits(self, other: "Spelling") -> bool:
        """True if a line of the other text may look like one of this."""
        return re.search(self.pattern, "x".join(other.parts).encode()) is not None

    @property
    def pattern(self) -> bytes:
        """An expression that fits its lines: the whole message where the text's end is constant."""
        start = BEFORE if self.parts[0] else b""
        body = rb"[^\n]*?".join(re.escape(part.encode()) for part in self.parts)
        return start + body + (AFTER if self.parts[-1] else b"")


def spelling(shape: Sequence[str]) -> Spelling:
    """The first line of a message; the rest of it follows unseen."""
    parts: list[str] = []
    for part in shape:
        line, newline, _ = part.partition("\n")
        parts.append(line)
        if newline:
            break
    while len(parts) > 2 and not parts[0] and not parts[1]:  # two gaps are one
        parts.pop(0)
    return Spelling(tuple(parts))


@dataclass(slots=True)
class Entry:
    """What one flag opens."""

    tags: list[str] = field(default_factory=list)  # bracketed words that no other lines begin with
    texts: list[Spelling] = field(default_factory=list)


@dataclass
class TagMap:
    """Flags and their lines."""

    entries: dict[str, Entry] = field(default_factory=dict)
    unflagged: list[Spelling] = field(default_factory=list)  # printed without a flag, and much like another text
    ambiguous: dict[str, list[str]] = field(default_factory=dict)  # a text -> who prints it; "" is: without a flag

    def known(self, flag: str) -> list[str]:
        """The flags of the map that ``flag`` covers."""
        return [name for name in self.entries if covers(flag, name)]

    def literals(self, flag: str) -> tuple[bytes, ...]:
        """What to look for to find every line of a flag; a hit has to be asked for by `flags_of`."""
        found = [literal for name in self.known(flag) for literal in _literals(self.entries[name])]
        return tuple(dict.fromkeys(literal.encode() for literal in found))

    def flags_of(self, first_line: bytes) -> Flags:
        """The flags that open a line like this. Cost: 4 us a line, 13 us one that fits (small maps)."""
        line = first_line.rstrip(b"\r\n")
        if not self._any.search(line) or self._others.search(line):
            return NONE
        near = [known for literal, known in self._patterns.items() if literal in line]
        return frozenset(flag for known in near for flag, pattern in known if pattern.search(line))

    @cached_property
    def _patterns(self) -> dict[bytes, list[tuple[str, re.Pattern[bytes]]]]:
        """By the literal that a line must have: the flags it may be of, each with the expression that decides."""
        found: dict[bytes, list[tuple[str, re.Pattern[bytes]]]] = {}
        for flag, entry in self.entries.items():
            for tag in entry.tags:
                found.setdefault(tag.encode(), []).append((flag, re.compile(BEFORE + re.escape(tag.encode()))))
            for text in entry.texts:
                found.setdefault(text.literal.encode(), []).append((flag, re.compile(text.pattern)))
        return found

    @cached_property
    def _others(self) -> re.Pattern[bytes]:
        return re.compile(b"|".join(b"(?:" + text.pattern + b")" for text in self.unflagged) or rb"(?!)")

    @cached_property
    def _any(self) -> re.Pattern[bytes]:
        return re.compile(b"|".join(map(re.escape, self._patterns)) or rb"(?!)")


class Spoken:
    """Some flags of a map, as a query asks for them (`tdbg.logs.query.Spelled`)."""

    def __init__(self, found: TagMap, flags: Iterable[str]) -> None:
        self._map = found
        self._flags = {name for flag in flags for name in found.known(flag)}
        self.literals = tuple(dict.fromkeys(literal for flag in self._flags for literal in found.literals(flag)))

    def fits(self, line: bytes) -> bool:
        """True if a record with this first line is of one of these flags."""
        return not self._flags.isdisjoint(self._map.flags_of(line))


def _literals(entry: Entry) -> list[str]:
    return [*entry.tags, *(text.literal for text in entry.texts)]


def build(maps: Iterable[GuardMap]) -> TagMap:
    """The map of a program from the guard maps of its files."""
    calls = [call for found in maps for call in found.calls]
    owners: dict[Spelling, set[Flags]] = {}
    for call in calls:
        owners.setdefault(spelling(call.shape), set()).add(resolved(call.flags, None))
    tags = _tags(calls)
    result = TagMap()
    for text, sets in owners.items():
        flags = NONE.union(*sets)
        if not flags or any(tag in tags for tag in _first_tag(text)):
            continue
        rivals = _rivals(text, sets, owners)
        told_apart = all(owners[other] == {NONE} and other.is_sure and not other.fits(text) for other in rivals)
        if not text.is_sure or len(sets) > 1 or not told_apart:
            whose = sets.union(*(owners[other] for other in rivals))
            result.ambiguous[text.text] = sorted({flag for found in whose for flag in (found or ("",))})
            continue
        result.unflagged += [other for other in rivals if other not in result.unflagged]
        for flag in flags:
            result.entries.setdefault(flag, Entry()).texts.append(text)
    for tag, found in tags.items():
        for flag in found:
            result.entries.setdefault(flag, Entry()).tags.append(tag)
    return result


def _rivals(text: Spelling, sets: set[Flags], owners: Mapping[Spelling, set[Flags]]) -> list[Spelling]:
    """Texts of other calls whose lines would be taken for this one's."""
    literal = text.literal
    return [
        other
        for other, found in owners.items()
        if found != sets and any(literal in part for part in other.parts) and text.fits(other)
    ]


def _first_tag(text: Spelling) -> list[str]:
    found = TAG.match(text.parts[0])
    return [found[0]] if found else []


def _tags(calls: Sequence[LogCall]) -> dict[str, Flags]:
    """Tags that begin messages, where all messages with the tag stand under the same flags."""
    owners: dict[str, set[Flags]] = {}
    for call in calls:
        for tag in _first_tag(spelling(call.shape)):
            owners.setdefault(tag, set()).add(resolved(call.flags, None))
    return {tag: flags for tag, sets in owners.items() if len(sets) == 1 for flags in sets if flags}


# The file


def dump(found: TagMap) -> str:
    """The map as TOML."""
    lines = ["# Which flag opens which lines; {} stands for what changes. Written by `tdbg flags scan`."]
    if found.unflagged:
        lines += ["", f"unflagged = {_array(sorted(text.text for text in found.unflagged))}"]
    for flag, entry in sorted(found.entries.items()):
        lines += ["", f"[{_quoted(flag)}]", f"tags = {_array(sorted(entry.tags))}"]
        lines.append(f"texts = {_array(sorted(text.text for text in entry.texts))}")
    for text, flags in sorted(found.ambiguous.items()):
        shown = [flag or "no flag" for flag in flags]
        lines += ["", "[[ambiguous]]", f"text = {_quoted(text)}", f"printed_under = {_array(shown)}"]
    return "\n".join(lines) + "\n"


def _array(items: Sequence[str]) -> str:
    if len(items) < 2:
        return f"[{', '.join(map(_quoted, items))}]"
    return "[\n" + "".join(f"    {_quoted(item)},\n" for item in items) + "]"


def _quoted(text: str) -> str:
    """A basic string of TOML."""
    body = "".join(
        f"\\{char}" if char in '"\\' else char if char.isprintable() else f"\\U{ord(char):08x}" for char in text
    )
    return f'"{body}"'


def load(path: str | Path) -> TagMap:
    """A map that `dump` wrote, or a person; TdbgError where it is none."""
    try:
        data = tomllib.loads(read_small(path).decode("utf-8"))
    except OSError as error:
        raise TdbgError(f"cannot read {path}: {error.strerror}", "`tdbg flags scan SRC -o FILE` writes a map") from None
    except (ValueError, RecursionError) as error:
        raise TdbgError(f"{path} is no map: {error}", "`tdbg flags scan SRC -o FILE` writes one") from None
    found = TagMap()
    for flag, table in data.items():
        if flag == "ambiguous":
            continue
        if flag == "unflagged" and _is_texts(table):
            found.unflagged = [Spelling.of(text) for text in table]
            continue
        tags, texts = (table.get(key, []) if isinstance(table, dict) else None for key in ("tags", "texts"))
        if not _is_texts(tags) or not _is_texts(texts):
            raise TdbgError(
                f"{path}: {flag} is no table of tags and texts", 'write [FLAG], tags = ["[TAG]"], texts = []'
            )
        entry = Entry(list(tags or ()), [Spelling.of(text) for text in texts or ()])
        if not all(_literals(entry)):
            raise TdbgError(f"{path}: {flag} has an empty text, which every line would fit", "take it out")
        found.entries[flag] = entry
    return found


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
