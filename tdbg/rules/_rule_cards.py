"""What the engine knows of a rule whose file is not loaded yet: to load all of them takes longer than to judge a small run.

A card is read off the rule's class. The cards of tdbg's own rules are kept beside its byte code, and like byte code they
count only while each file that they come from has its size and time of change. Other rules always have a new card.
"""

import contextlib
import functools
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tdbg.core import observations, run_files
from tdbg.core.events import EVENT_TYPES, Event, Observation, Step
from tdbg.core.rule_base import Link, as_link
from tdbg.rules import RULES, Rule

CARDS_FILE = "rule_cards.json"
SOURCES = (Path(__file__).parent, Path(observations.__file__).parent, Path(observations.__file__).parents[1])


class RuleCard:
    """A rule without its file."""

    module: str  # the file of `tdbg.rules` that holds it
    code: str
    severity: str
    leads_to: list[Link]
    causes: list[Link]
    event_types: list[str]  # what `feed` is called for
    probes: list[str]  # of observations those of these probes; none: of all
    needed_probes: list[str]
    needed_ranks: int
    needs_training: bool
    needs_process: bool  # of a run in which no process wrote an event it has nothing to say
    has_finish: bool  # it has a `finish` of its own
    has_check: bool  # it has a `check_armed` of its own

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)
        self.leads_to, self.causes = _read_links(self.leads_to), _read_links(self.causes)

    def load_rule(self) -> Rule:
        """An instance of the rule."""
        found = {rule.code: rule for rule in RULES.load_from_files([self.module])}
        if self.code not in found:
            raise RULES.broken[f"{RULES.package}.{self.module}"]
        return found[self.code]()

    def iter_event_keys(self) -> Iterable[type[Event] | str]:
        """The events, and of observations the probes, whose arrival needs the rule."""
        for name in self.event_types:
            if name == Observation.TYPE and self.probes:
                yield from self.probes
            else:
                yield EVENT_TYPES[name]


class LoadedCard(RuleCard):
    """A rule that is there."""

    def __init__(self, rule: type[Rule]) -> None:
        self.rule = rule
        super().__init__(**describe_rule(rule))

    def load_rule(self) -> Rule:
        """An instance of the rule."""
        return self.rule()


def _read_links(rows: Iterable[Iterable[Any]]) -> list[Link]:
    """Links as they are, or as JSON keeps them."""
    return [Link(code, least, most, *map(tuple, fields)) for code, least, most, *fields in rows]


def describe_rule(rule: type[Rule]) -> dict[str, object]:
    """What is on the card of a rule."""
    return {
        "module": rule.__module__.rpartition(".")[2],
        "code": rule.code,
        "severity": rule.severity,
        "leads_to": [as_link(entry) for entry in rule.leads_to],
        "causes": [as_link(entry) for entry in rule.causes],
        "event_types": [event.TYPE for event in rule.listens],
        "probes": list(dict.fromkeys(kind.PROBE for kind in rule.observes)),
        "needed_probes": list(dict.fromkeys(kind.PROBE for kind in rule.needs.observations)),
        "needed_ranks": rule.needs.ranks,
        "needs_training": rule.needs.events[:1] == (Step,),
        "needs_process": bool(rule.needs.events) or rule.needs.ranks > 1,
        "has_finish": rule.finish is not Rule.finish,
        "has_check": rule.check_armed is not Rule.check_armed,
    }


def list_rule_cards() -> list[RuleCard]:
    """The card of every rule, in the order of the rules; those of other packages come last."""
    if RULES.is_loaded:
        return [LoadedCard(rule) for rule in RULES]
    others = [LoadedCard(rule) for rule in RULES.list_third_party()]
    own = _read_cards()
    if own and not {card.code for card in own} & {card.code for card in others}:
        return [*own, *others]
    loaded = [LoadedCard(rule) for rule in RULES]
    if not others and not RULES.broken:
        _save_cards(loaded)
    return list(loaded)


@functools.cache
def _read_cards() -> tuple[RuleCard, ...]:
    """The cards beside the byte code; none if a file has changed since, or if they cannot be read."""
    path = _get_cards_path()
    try:
        kept = json.loads(run_files.read_bytes(path)) if path else {}
        return tuple(RuleCard(**row) for row in kept["cards"]) if kept["sources"] == stamp_sources() else ()
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _save_cards(cards: Iterable[LoadedCard]) -> None:
    path = _get_cards_path()
    if path is None or sys.dont_write_bytecode:
        return
    with contextlib.suppress(OSError):  # as with byte code: where nothing may be written, the next start is as slow
        kept = {"sources": stamp_sources(), "cards": [describe_rule(card.rule) for card in cards]}
        run_files.write_atomically(path, json.dumps(kept).encode())


def _get_cards_path() -> Path | None:
    """Beside the byte code of this file; None where there is none."""
    return Path(__spec__.cached).with_name(CARDS_FILE) if __spec__ is not None and __spec__.cached else None


def stamp_sources() -> dict[str, list[int]]:
    """Size and time of change of each file that a card comes from."""
    found = {}
    for folder in SOURCES:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    status = entry.stat()
                    found[f"{folder.name}/{entry.name}"] = [status.st_size, status.st_mtime_ns]
    return found
