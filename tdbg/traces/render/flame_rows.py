"""The rows of a call tree: by operator, by line of the program, or by module. Standard library alone."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tdbg.core.errors import TdbgError
from tdbg.traces.analyze.call_tree import FRAME, MODULE, OPERATOR, SPAN, THREAD
from tdbg.traces.parse import event_names
from tdbg.traces.summary import Flame, Summary

BY = ("stack", "module", "operator")
OUTSIDE = "outside of modules"
ABSENT = "record one with `tdbg profile --kind stacks -- COMMAND`"


@dataclass(slots=True)
class Row:
    """One node: nanoseconds over the whole trace. ``total`` is ``own`` and the totals of what is ``below``."""

    name: str
    kind: str
    calls: int = 0
    own: int = 0
    total: int = 0
    depth: int = 0
    below: list["Row"] = field(default_factory=list)

    @property
    def display_name(self) -> str:
        """Its name without what its kind already says."""
        return self.name.removeprefix(event_names.MODULE) or "?"


def available_views(read: Summary) -> list[str]:
    """How the calls of this trace can be shown, the most telling first."""
    there = {flame.kind: flame.kinds for flame in read.flames}
    found = {
        "stack": any(kind in there.get("python", "") for kind in (FRAME, MODULE)),
        "module": MODULE in there.get("python", ""),
        "operator": "operators" in there,
    }
    return [way for way in BY if found[way]]


def build_tree(read: Summary, by: str = "") -> Row:
    """The tree of a trace; its root has no name. by: one of `BY`; the most telling if empty.

    Raises TdbgError for a way that this trace has nothing for.
    """
    if by and by not in BY:
        raise TdbgError(f"calls cannot be shown by {by!r}", f"write one of: {', '.join(BY)}")
    there = available_views(read)
    if by and by not in there:
        raise TdbgError(f"{read.path}: it has no calls by {by}", ABSENT if by != "operator" else "show another trace")
    way = by or (there[0] if there else "operator")
    kind = "operators" if way == "operator" else "python"
    flame = next((one for one in read.flames if one.kind == kind), Flame(kind))
    root = _merge_nodes(flame, (MODULE, OPERATOR)) if way == "module" else _merge_nodes(flame, _row_kinds(flame))
    _add_totals(root)
    return root


def build_module_tree(read: Summary) -> Row:
    """Modules within modules alone: own time is that without the modules below."""
    flame = next((one for one in read.flames if one.kind == "python"), Flame("python"))
    root = _merge_nodes(flame, (MODULE,))
    root.below = [row for row in root.below if row.kind == MODULE]
    _add_totals(root)
    return root


def count_cut_calls(read: Summary, by: str = "") -> int:
    """Calls that have no node of their own in it."""
    kind = "operators" if (by or next(iter(available_views(read)), "")) in ("operator", "") else "python"
    return sum(flame.cut for flame in read.flames if flame.kind == kind)


def sort_rows(root: Row) -> list[Row]:
    """All rows but the root, each followed by those below it, the longest first."""
    found: list[Row] = []
    stack = [root]
    while stack:
        row = stack.pop()
        found.append(row)
        stack += sorted(row.below, key=lambda one: one.total)
    return found[1:]


def largest_rows(root: Row, count: int) -> set[int]:
    """The ``id`` of so many rows with most time; what is above one of them has as much, and is among them."""
    rows = sorted(sort_rows(root), key=lambda row: (-row.total, row.depth))
    return {id(row) for row in rows[:count]}


def fold_stacks(root: Row, above: Sequence[str] = (), *, top: int = 0, depth: int = 0) -> Iterable[str]:
    """Lines as flame graph tools read them: names from the outermost on, and own time in microseconds.

    top: so many lines, those with most time; depth: so many levels, the time of those below is their caller's. 0: all.
    """
    found = list(_iter_stacks(root, above, depth))
    most = sorted(range(len(found)), key=lambda at: -found[at][1])[: top or None]
    return [f"{found[at][0]} {found[at][1]}" for at in sorted(most)]


def _iter_stacks(root: Row, above: Sequence[str], depth: int) -> Iterable[tuple[str, int]]:
    """Each stack and its own microseconds, where there are any."""
    from tdbg.core.tables import safe

    names = list(above)
    for row in sort_rows(root):
        if depth and row.depth > depth:
            continue
        del names[len(above) + row.depth - 1 :]
        names.append(re.sub(r"\s+", " ", safe(row.name).replace(";", ":")) or "?")
        own = round((row.total if row.depth == depth else row.own) / 1000)
        if own:
            yield ";".join(names), own


def _row_kinds(flame: Flame) -> tuple[str, ...]:
    """All kinds; threads only where there are several."""
    return (FRAME, MODULE, OPERATOR, SPAN) + ((THREAD,) if flame.kinds.count(THREAD) > 1 else ())


def _merge_nodes(flame: Flame, kept: Sequence[str]) -> Row:
    """Rows of some kinds alone; the time of the others is that of the row above them."""
    below = [0] * len(flame.parents)
    for number, parent in enumerate(flame.parents):
        if parent >= 0:
            below[parent] += flame.totals[number]
    root = Row("", "")
    known: dict[tuple[int, str, str], Row] = {}

    def row_of(above: Row, name: str, kind: str) -> Row:
        key = (id(above), name, kind)
        if key not in known:
            known[key] = Row(name, kind, depth=above.depth + 1)
            above.below.append(known[key])
        return known[key]

    rows: list[Row] = []
    for number, parent in enumerate(flame.parents):
        row = rows[parent] if parent >= 0 else root
        name, kind, own = flame.names[flame.which[number]], flame.kinds[number], flame.totals[number] - below[number]
        if kind in kept:
            if row is root and kind == OPERATOR and FRAME not in kept:
                row = row_of(root, OUTSIDE, FRAME)
            row = row_of(row, name, kind)
            row.calls += flame.calls[number]
            row.own += max(own, 0)
        elif own > 0:
            (row_of(root, OUTSIDE, FRAME) if row is root and FRAME not in kept else row).own += own
        rows.append(row)
    return root


def _add_totals(root: Row) -> None:
    for row in reversed([root, *sort_rows(root)]):
        row.total = row.own + sum(one.total for one in row.below)
