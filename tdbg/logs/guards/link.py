"""Joins the facts of a package: what a function inherits from those who call it."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tdbg.logs.guards.facts import Facts, Function, LogCall, Reference
from tdbg.logs.guards.flagsets import NONE, Flags, merge_alternatives, resolve_flags
from tdbg.logs.guards.shapes import join_shapes

MAX_ROUNDS = 12  # how far a guard is handed on from function to function


class Passing(NamedTuple):
    """A function that passes a message on: where it stands among what a caller gives; what is said of the rest."""

    place: int
    adds: bool  # something is put before it
    spread: bool  # all that is given behind it is printed too
    printed: bool  # no logger puts a header in front of it


@dataclass(slots=True)
class GuardMap:
    """The flags of each line of one file."""

    lines: dict[int, Flags] = field(default_factory=dict)
    calls: list[LogCall] = field(default_factory=list)
    passing_on: Flags = NONE  # functions that only pass a message on: who calls them is the one who speaks
    passed_on: frozenset[int] = frozenset()  # the lines where they do so
    asked: Flags = NONE  # every flag that the file asks for
    broken: str = ""  # why it could not be parsed

    def flags_at(self, line: int, on: Iterable[str] | None = None) -> Flags:
        """The flags that guard the calls of a line.

        on: the flags known to be on: ``A or verbose`` counts for A among them only; None: it always counts.
        """
        found = self.lines.get(line, NONE)
        return resolve_flags(found, on) if found else NONE


def link_facts(
    files: Mapping[str, Facts], others: Iterable[bytes] = (), pause: Callable[[], object] = bool
) -> dict[str, GuardMap]:
    """The map of each file, with what its functions inherit from those who call them.

    others: texts of files that ask for no flag: a function they name is called without a guard. pause: called often.
    """
    functions: dict[str, list[Function]] = {}
    references: dict[str, list[Reference]] = {}
    for facts in files.values():
        for name, found in facts.functions.items():
            functions.setdefault(name, []).extend(found)
        for name, made in facts.references.items():
            references.setdefault(name, []).extend(made)
    single = {name: found[0] for name, found in functions.items() if len(found) == 1 and found[0].is_traceable}
    symbols = _resolve_symbols(single, references, pause)
    passing = {
        name: Passing(place - single[name].is_method, bool(adds), bool(spread), bool(printed))
        for facts in files.values()
        for name, (place, _, adds, spread, printed) in facts.wrappers.items()
        if name in single
    }
    guards: dict[str, Flags] = {}
    for _ in range(MAX_ROUNDS):
        before = dict(guards)
        for name in (
            single.keys() - passing.keys()
        ):  # whoever passes a message on speaks for the one caller, not for all
            pause()
            sides = [
                _substitute_symbols(place.flags, symbols) | guards.get(place.inside, NONE)
                for place in references.get(name, [])
                if place.inside != name
            ]
            if sides and all(sides):
                guards[name] = merge_alternatives(*sides)
        if guards == before:
            break
    for name in _find_mentioned_names(guards, others):
        del guards[name]
    maps: dict[str, GuardMap] = {}
    for path, facts in files.items():
        pause()
        maps[path] = _build_map(facts, guards, symbols, passing)
    return maps


def _find_mentioned_names(names: Mapping[str, Flags], texts: Iterable[bytes]) -> set[str]:
    """Those names that appear in one of the texts."""
    if not names:
        return set()
    search = re.compile(rb"\b(?:" + b"|".join(re.escape(name.encode()) for name in names) + rb")\b")
    return {found.decode() for text in texts for found in search.findall(text)}


def _resolve_symbols(
    single: Mapping[str, Function], references: Mapping[str, list[Reference]], pause: Callable[[], object]
) -> dict[str, Flags]:
    """What ``@name()`` and ``@name:parameter`` stand for."""
    found: dict[str, Flags] = {}
    for _ in range(3):  # a function may hand on what another gave it
        for name, function in single.items():
            pause()
            sides = [_substitute_symbols(text.split(), found) for text in function.returns]
            if sides and all(sides):
                found[f"@{name}()"] = merge_alternatives(*sides)
            sides = [_substitute_symbols(text.split(), found) for text in function.denies]
            if sides and all(sides):
                found[f"@!{name}()"] = merge_alternatives(*sides)
            places = [place for place in references.get(name, []) if place.args >= 0]
            for index, param in enumerate(function.params):
                sides = []
                for place in places:
                    given = place.given.get(param) or place.given.get(str(index - function.is_method))
                    sides.append(_substitute_symbols(given or [], found))
                if any(sides):
                    found[f"@{name}:{param}"] = NONE.union(*sides)
    return found


def _substitute_symbols(flags: Iterable[str], symbols: Mapping[str, Flags]) -> Flags:
    """Flags with their symbols replaced; those that stand for nothing vanish."""
    return NONE.union(*(symbols.get(name, NONE) if name[0] == "@" else {name} for name in flags))


def _build_map(
    facts: Facts,
    guards: Mapping[str, Flags],
    symbols: Mapping[str, Flags],
    passing: Mapping[str, Passing],
) -> GuardMap:
    lines = {line: _substitute_symbols(flags, symbols) for line, flags in facts.lines.items()}
    for name, flags in guards.items():
        for function in facts.functions.get(name, []):
            for line in range(function.first, function.last + 1):
                lines[line] = lines.get(line, NONE) | flags
    passed_on = frozenset(facts.wrappers[name][1] for name in passing.keys() & facts.wrappers.keys())
    calls = []
    for call in facts.calls:
        if call.first in passed_on and call.inside in passing:
            continue  # its text is the caller's
        shape, printed = call.shape, call.printed
        if call.callee:
            known_as = passing.get(call.callee)
            if known_as is None or known_as.place >= len(call.given):
                continue
            texts = call.given[known_as.place :] if known_as.spread else [call.given[known_as.place]]
            said = join_shapes(*(part for text in texts for part in ((" ",), tuple(text))))
            shape = ["", said[0][1:], *said[1:]][0 if known_as.adds else 1 :]
            printed = known_as.printed
        known = _substitute_symbols(call.flags, symbols) | guards.get(call.inside, NONE)
        calls.append(LogCall(call.first, call.last, list(shape), sorted(known), call.inside, printed=printed))
    return GuardMap(
        {line: flags for line, flags in lines.items() if flags},
        calls,
        frozenset(passing),
        passed_on,
        frozenset(facts.flags),
        facts.broken,
    )
