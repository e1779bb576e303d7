"""What the flags of a run really did: which spoke, which were silenced by a level, which nobody reads."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdbg.core.events import Injection, Observation
from tdbg.core.files import iter_json_lines
from tdbg.core.flags import DIAGNOSTICS, FLAGS, covers, owner
from tdbg.core.rundir import RunDir
from tdbg.core.tables import format_count
from tdbg.logs.guards.program_files import files_below, maps_below
from tdbg.logs.log_header import RECORDS

TAG = re.compile(r"\s*(\[[A-Z][A-Z0-9_]*\])")
MAX_TAGS = 20


@dataclass(frozen=True, slots=True)
class Check:
    """One thing about a flag, a logger or a prefix: ``ok``, a ``note``, or a ``problem`` and what to do about it."""

    name: str
    kind: str
    found: str
    status: str = "note"
    next: str = ""


class Tally:
    """The records of a run, counted."""

    def __init__(self, on: Sequence[str]) -> None:
        self.on = on
        self.total = 0
        self.by_flag: Counter[str] = Counter()
        self.suppressed: Counter[tuple[str, str, str]] = Counter()  # flag, logger, level
        self.while_off: Counter[str] = Counter()
        self.strange: Counter[str] = Counter()  # tags no flag owns

    def count_record(self, record: dict[str, Any]) -> None:
        """Count one record."""
        flags = [str(flag) for flag in record.get("flags", [])]
        found = TAG.match(str(record.get("message", "")))
        whose = owner(found[1]) if found else None
        self.total += 1
        for flag in flags:
            self.by_flag[flag] += 1
            if record.get("suppressed"):
                self.suppressed[flag, str(record.get("logger")), str(record.get("level"))] += 1
        named = flags or ([whose] if whose else [])
        if named and not any(covers(flag, name) or covers(name, flag) for flag in named for name in self.on):
            for flag in named:
                self.while_off[flag] += 1
        if found and not whose and not flags:
            self.strange[found[1]] += 1


def iter_log_records(run: RunDir) -> Iterator[dict[str, Any]]:
    """The log records of every rank; torn lines are passed over."""
    for path in sorted(run.path.glob(f"rank*/**/{RECORDS}*")):
        yield from iter_json_lines(path)


def collect_checks(run: RunDir, roots: Sequence[Path]) -> list[Check]:
    """Every check of a run. roots: where the program's source is; without it nothing is said of what code reads."""
    wanted = run.read_info().get("settings", {}).get("flags", {})
    injected: list[Injection] = []
    observed: Counter[str] = Counter()  # by flag: what probes saw
    for event in (event for process in run.list_processes() for event in process.iter_events()):
        if isinstance(event, Injection):
            injected.append(event)
        elif isinstance(event, Observation):
            observed[event.flag] += 1
    asked_for = [name for name, value in wanted.items() if value is not False]
    left_on = sorted({event.flag for event in injected if _is_left_on(event)})
    on = [*asked_for, *left_on]
    tally = Tally(on)
    for record in iter_log_records(run):
        tally.count_record(record)
    asked = _collect_asked_flags(roots)
    checks = [check for flag in dict.fromkeys(on) for check in _of_flag(flag, tally, injected, observed, asked)]
    for flag, count in tally.while_off.most_common():
        text = f"{format_count(count, 'record')} while the flag was off"
        checks.append(
            Check(flag, "printed while off", text, "note", "guard the logging call with the flag, or lower its level")
        )
    for mark, count in tally.strange.most_common(MAX_TAGS):
        checks.append(Check(mark, "no flag's prefix", f"{format_count(count, 'record')} begin with it", "note"))
    if not tally.total:
        checks.append(
            Check("records", "no records", "no rank wrote log records", "note", "only processes with steps write them")
        )
    return checks


def _is_left_on(event: Injection) -> bool:
    """True if the program's own config had the flag on, whoever asked for it besides."""
    return event.status in ("already", "own") and event.where.partition(" ")[0] != "env"


def _collect_asked_flags(roots: Sequence[Path]) -> set[str] | None:
    """Every flag the source asks for; None where there is no source."""
    there = [root for root in roots if root.exists() and next(files_below(root), None)]
    if not there:
        return None
    return {flag for root in there for found in maps_below(root).values() for flag in found.asked}


def _of_flag(
    flag: str, tally: Tally, injected: Sequence[Injection], observed: Counter[str], asked: set[str] | None
) -> Iterator[Check]:
    entry = next((item for item in FLAGS if item.name == flag), None)
    about = [event for event in injected if event.flag == flag]
    called = any(event.where == DIAGNOSTICS for event in about)
    found_on = any(event.status == "own" for event in about)  # nobody asked tdbg for it
    works = entry is not None and bool(entry.works_alone or entry.group == "torch")
    own = called or found_on or works or bool(observed[flag])  # without log lines
    count = tally.by_flag[flag]
    for event in about:
        if event.status == "set" and event.where != DIAGNOSTICS:
            yield Check(flag, "set", f"{event.where}: {event.old!r} became {event.new!r}", "ok")
            break
    took = any(event.status in ("set", "already") for event in about)
    for event in about:
        if event.status == "rejected" and not took:
            yield Check(flag, "rejected", f"{event.where} has no such key", "problem", event.hint)
            break
    for event in about:
        if _is_left_on(event):
            text = f"it was on in {event.where} without tdbg"
            yield Check(flag, "left on", text, "note", "switch it off there, or each run pays for it")
            break
    read = asked is None or any(covers(flag, name) or covers(name, flag) for name in asked)
    if not read and not own:
        yield Check(
            flag, "nobody reads it", "no source file asks for this flag", "problem", "it changes nothing: leave it out"
        )
    elif not count and read and asked is not None and not own:
        text = "the source reads the flag, but no record was logged under it"
        yield Check(flag, "silent", text, "problem", "was its code reached? an if around it may be false")
    for (name, logger, level), dropped in tally.suppressed.items():
        if name == flag:
            text = f"{dropped:,} of {format_count(count, 'record', 'is')} in tdbg's files alone: {logger} drops {level}"
            yield Check(flag, "suppressed by a level", text, "note", f"lower the level of the logger {logger}")
    if called and not count:
        yield Check(flag, "ok", f"the program calls {DIAGNOSTICS}", "ok")
    elif observed[flag] and not works and not count:
        yield Check(flag, "ok", f"{format_count(observed[flag], 'observation')} of torch's own losses", "ok")
    if count and not any(name == flag for name, _, _ in tally.suppressed):
        yield Check(flag, "ok", f"{format_count(count, 'record')}", "ok")
