"""The map of a program's own spellings: which flag opens which lines of its log, taken from its source.

It serves for logs that were written without tdbg. A text is known by the constant parts of its message, in order; one
that the program also prints without the flag, or under another, is ambiguous and left out. Standard library alone.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tdbg.core.errors import TdbgError
from tdbg.core.files import read_small_file
from tdbg.core.flags import covers
from tdbg.logs.guards.facts import LogCall
from tdbg.logs.guards.flagsets import NONE, Flags, resolve_flags
from tdbg.logs.guards.link import GuardMap
from tdbg.logs.spelling import BEFORE, TAG, Spelling, build_spelling

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from tdbg.logs.formats import Format

ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}  # in a basic string of TOML
LONGEST_BYTES = 1 << 16  # of a record, as far as it is compared with texts


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
    others: list[Spelling] = field(
        default_factory=list
    )  # printed without a flag: where one begins, a message has ended
    ambiguous: dict[str, list[str]] = field(default_factory=dict)  # a text -> who prints it; "" is: without a flag

    def list_covered_flags(self, flag: str) -> list[str]:
        """The flags of the map that ``flag`` covers."""
        return [name for name in self.entries if covers(flag, name)]

    def collect_literals(self, flag: str) -> tuple[bytes, ...]:
        """What to look for to find every line of a flag; a hit has to be asked for by `flags_of`."""
        found = [literal for name in self.list_covered_flags(flag) for literal in _collect_literals(self.entries[name])]
        return tuple(dict.fromkeys(literal.encode() for literal in found))

    def flags_of(self, record: bytes) -> Flags:
        """The flags that open a record like this. Cost: 4 us a record, 13 us one that fits (small maps)."""
        record = record[:LONGEST_BYTES].rstrip(b"\r\n")
        if not self._any.search(record):
            return NONE
        line, newline, _ = record.partition(b"\n")
        line = line.rstrip(b"\r")
        found = self._find_closest_flags(self._short, line)
        if newline or b"\\n" in line:
            found = max(found, self._find_closest_flags(self._long, record), key=lambda closest: closest[0])
        elif not found[0]:
            found = self._find_closest_flags(self._first_line_patterns, line)
        return NONE if "" in found[1] else found[1]

    @staticmethod
    def _find_closest_flags(patterns: "Patterns", text: bytes) -> tuple[int, Flags]:
        """The flags of the texts that say most of this one, and how much they say; "" is no flag."""
        near = [one for literal, known in patterns.items() if literal in text for one in known]
        fits = [(size, flag) for size, flag, pattern in near if pattern.search(text)]
        most = max(fits, default=(0, ""))[0]
        return most, frozenset(flag for size, flag in fits if size == most)

    @cached_property
    def _short(self) -> "Patterns":
        found: Patterns = {}
        for flag, entry in self.entries.items():
            for tag in entry.tags:
                expression = re.compile(BEFORE + re.escape(tag.encode()))
                found.setdefault(tag.encode(), []).append((len(tag), flag, expression))
        return self._add_patterns(found, lambda text: None if text.is_long else text)

    @cached_property
    def _long(self) -> "Patterns":
        return self._add_patterns({}, lambda text: text if text.is_long else None)

    @cached_property
    def _first_line_patterns(self) -> "Patterns":
        """By the first line alone, for a log that has no more of a long text."""

        def select_first_line(text: Spelling) -> Spelling | None:
            found = text.first_line
            return found if found.is_sure else None

        return self._add_patterns({}, select_first_line)

    def _add_patterns(self, found: "Patterns", wanted: Callable[[Spelling], Spelling | None]) -> "Patterns":
        """Add texts of flags, and those without a flag that are much like them."""
        texts = [(flag, text) for flag, entry in self.entries.items() for text in entry.texts]
        for flag, known in [*texts, *(("", text) for text in self.unflagged)]:
            text = wanted(known)
            if text is not None:
                size = sum(map(len, text.parts))
                found.setdefault(text.literal.encode(), []).append((size, flag, re.compile(text.pattern)))
        return found

    @cached_property
    def _any(self) -> re.Pattern[bytes]:
        found = (literal for known in (self._short, self._long, self._first_line_patterns) for literal, flags in known.items() if any(flag for _, flag, _ in flags))  # fmt: skip
        return re.compile(b"|".join(map(re.escape, found)) or rb"(?!)")

    def refine_format(self, form: "type[Format]") -> "type[Format]":
        """A format whose records end where the messages of this map do."""
        if form not in self._formats:
            from tdbg.logs.extents import with_messages

            entries = self.entries.values()
            texts = [text for entry in entries for text in entry.texts]
            tags = [tag for entry in entries for tag in entry.tags]
            self._formats[form] = with_messages(form, [*texts, *self.others], tags)
        return self._formats[form]

    @cached_property
    def _formats(self) -> "dict[type[Format], type[Format]]":
        return {}


# By a literal that a text must have: how much is constant, the flag it may be of, and the expression that decides.
Patterns = dict[bytes, list[tuple[int, str, re.Pattern[bytes]]]]


class Spoken:
    """Some flags of a map, as a query asks for them (`tdbg.logs.query.Spelled`)."""

    def __init__(self, found: TagMap, flags: Iterable[str]) -> None:
        self._map = found
        self._flags = {name for flag in flags for name in found.list_covered_flags(flag)}
        self.literals = tuple(
            dict.fromkeys(literal for flag in self._flags for literal in found.collect_literals(flag))
        )

    def matches_record(self, record: bytes) -> bool:
        """True if a record is of one of these flags."""
        return not self._flags.isdisjoint(self._map.flags_of(record))

    def refine_format(self, form: "type[Format]") -> "type[Format]":
        """The format, with what the map knows of where records end."""
        return self._map.refine_format(form)


def _collect_literals(entry: Entry) -> list[str]:
    return [*entry.tags, *(text.literal for text in entry.texts)]


def build_map(maps: Iterable[GuardMap]) -> TagMap:
    """The map of a program from the guard maps of its files."""
    calls = [call for found in maps for call in found.calls]
    owners: dict[Spelling, set[Flags]] = {}
    printed = {build_spelling(call.shape) for call in calls if call.printed}
    for call in calls:
        text = build_spelling(call.shape)
        owners.setdefault(Spelling(text.parts, text in printed), set()).add(resolve_flags(call.flags, None))
    tags = _collect_tags(calls)
    result = TagMap()
    for text, sets in owners.items():
        flags = NONE.union(*sets)
        if not flags or (not text.is_long and any(tag in tags for tag in _first_tag(text))):
            continue
        rivals = _find_rivals(text, sets, owners)
        is_distinct = all(other.is_sure and not other.could_match(text) and len(owners[other]) == 1 for other in rivals)
        if not text.is_sure or len(sets) > 1 or not is_distinct:
            whose = sets.union(*(owners[other] for other in rivals))
            result.ambiguous[text.text] = sorted({flag for found in whose for flag in (found or ("",))})
            continue
        near = _find_rivals(text.first_line, sets, owners) if text.is_long and text.first_line.is_sure else []
        for other in (*rivals, *near):
            if owners[other] == {NONE} and other.is_sure and other not in result.unflagged:
                result.unflagged.append(other)
        for flag in flags:
            result.entries.setdefault(flag, Entry()).texts.append(text)
    for tag, found in tags.items():
        for flag in found:
            result.entries.setdefault(flag, Entry()).tags.append(tag)
    if any(text.is_long for text in owners) or any(
        text.printed for entry in result.entries.values() for text in entry.texts
    ):
        known_texts = {text for entry in result.entries.values() for text in entry.texts}
        result.others = [text for text in owners if text not in known_texts and text.is_sure]
    return result


def _find_rivals(text: Spelling, sets: set[Flags], owners: Mapping[Spelling, set[Flags]]) -> list[Spelling]:
    """Texts of other calls whose lines would be taken for this one's."""
    literal = text.literal
    return [
        other
        for other, found in owners.items()
        if found != sets and any(literal in part for part in other.parts) and text.could_match(other)
    ]


def _first_tag(text: Spelling) -> list[str]:
    found = TAG.match(text.parts[0])
    return [found[0]] if found else []


def _collect_tags(calls: Sequence[LogCall]) -> dict[str, Flags]:
    """Tags that begin messages, where all messages with the tag stand under the same flags."""
    owners: dict[str, set[Flags]] = {}
    for call in calls:
        for tag in _first_tag(build_spelling(call.shape)):
            owners.setdefault(tag, set()).add(resolve_flags(call.flags, None))
    return {tag: flags for tag, sets in owners.items() if len(sets) == 1 for flags in sets if flags}


# The file


def dump_map(found: TagMap) -> str:
    """The map as TOML."""
    lines = ["# Which flag enables which log lines; {} stands for the part that varies. Written by `tdbg flags scan`."]
    if found.unflagged:
        lines += ["", f"unflagged = {_format_array(sorted(text.text for text in found.unflagged))}"]
    if found.others:
        lines += ["", "# Texts without a flag: each one ends the record before it.", "[others]"]
        lines += _format_texts(found.others)
    for flag, entry in sorted(found.entries.items()):
        lines += [
            "",
            f"[{_quote_string(flag)}]",
            f"tags = {_format_array(sorted(entry.tags))}",
            *_format_texts(entry.texts),
        ]
    for text, flags in sorted(found.ambiguous.items()):
        shown = [flag or "no flag" for flag in flags]
        lines += ["", "[[ambiguous]]", f"text = {_quote_string(text)}", f"printed_under = {_format_array(shown)}"]
    return "\n".join(lines) + "\n"


def _format_texts(texts: Iterable[Spelling]) -> list[str]:
    """Those of loggers, and those that are printed, with no header before them."""
    found = sorted(texts, key=lambda text: text.text)
    lines = [f"texts = {_format_array([text.text for text in found if not text.printed])}"]
    printed = [text.text for text in found if text.printed]
    return [*lines, f"prints = {_format_array(printed)}"] if printed else lines


def _format_array(items: Sequence[str]) -> str:
    if len(items) < 2:
        return f"[{', '.join(map(_quote_string, items))}]"
    return "[\n" + "".join(f"    {_quote_string(item)},\n" for item in items) + "]"


def _quote_string(text: str) -> str:
    """A basic string of TOML."""
    body = "".join(ESCAPED.get(char) or (char if char.isprintable() else f"\\U{ord(char):08x}") for char in text)
    return f'"{body}"'


def load_map(path: str | Path) -> TagMap:
    """A map that `dump_map` wrote, or a person; TdbgError where it is none."""
    try:
        data = tomllib.loads(read_small_file(path).decode("utf-8"))
    except OSError as error:
        raise TdbgError(f"cannot read {path}: {error.strerror}", "`tdbg flags scan SRC -o FILE` writes a map") from None
    except (ValueError, RecursionError) as error:
        raise TdbgError(f"{path} is not a flag map: {error}", "`tdbg flags scan SRC -o FILE` writes one") from None
    found = TagMap()
    for flag, table in data.items():
        if flag == "ambiguous":
            continue
        if flag == "unflagged" and _is_texts(table):
            found.unflagged = [Spelling.parse_text(text) for text in table]
            continue
        tags, texts, prints = (
            table.get(key, []) if isinstance(table, dict) else None for key in ("tags", "texts", "prints")
        )
        if not _is_texts(tags) or not _is_texts(texts) or not _is_texts(prints):
            raise TdbgError(
                f"{path}: [{flag}] is not a table of tags and texts", 'write [FLAG], tags = ["[TAG]"], texts = []'
            )
        known = [Spelling.parse_text(text) for text in texts or ()] + [
            Spelling.parse_text(text, printed=True) for text in prints or ()
        ]
        entry = Entry(list(tags or ()), known)
        if not all(_collect_literals(entry)):
            raise TdbgError(f"{path}: {flag} has an empty text, which matches every line", "remove it")
        if flag == "others":
            found.others = entry.texts
        else:
            found.entries[flag] = entry
    return found


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
