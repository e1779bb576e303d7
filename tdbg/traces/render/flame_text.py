"""A call tree on a terminal: one row per node, its bar below that of its caller."""

import sys
from typing import Any

from tdbg.core.output import is_laid_out, print_lines, say
from tdbg.core.tables import counted, safe, short
from tdbg.core.terminal import count_columns
from tdbg.traces.analyze.summary_figures import ms
from tdbg.traces.render.flame_rows import Row, available_views, count_cut_calls, largest_rows, sort_rows
from tdbg.traces.summary import Summary

ROWS = 40  # that are shown where nobody says how many
WIDE = 30  # signs of the bar of all
LEAST_WIDE = 12  # on a narrow terminal


def print_flame(label: str, read: Summary, root: Row, *, by: str, depth: int, top: int) -> None:
    """The rows with most time, and how much was left out.

    by: what the rows are, "" for the first that the trace can tell; depth: of the lowest row, 0 for all; top: how many
    rows, 0 for 40.
    """
    steps, way = max(len(read.steps), 1), by or next(iter(available_views(read)), "operator")
    rows = [row for row in sort_rows(root) if not depth or row.depth <= depth]
    kept = largest_rows(root, top or ROWS)
    shown = [row for row in rows if id(row) in kept]
    print_lines([safe(f"{label}: calls by {way}, ms of a step (a mean of {counted(steps, 'step')})")])
    begins = _begins(root)
    wide = min(WIDE, max(count_columns(sys.stdout) // 5, LEAST_WIDE)) if is_laid_out(sys.stdout) else WIDE
    print(f"{'total':>9} {'own':>9} {'calls':>9}  {'':<{wide}}")
    for row in shown:
        print_lines([safe(_line(row, begins[id(row)], root.total, steps, wide))])
    left = len(sort_rows(root)) - len(shown)
    if left:
        say(f"{counted(left, 'row')} with less time left out: --top and --depth choose")
    lost = count_cut_calls(read, by)
    if lost:
        say(f"{counted(lost, 'call')} found no room in the tree: their time is their caller's own")


def _line(row: Row, begin: int, whole: int, steps: int, wide: int) -> str:
    start, end = (round(at / max(whole, 1) * wide) for at in (begin, begin + row.total))
    bar = " " * min(start, wide - 1) + ("█" * (end - start) or "▏")
    calls = f"{row.calls / steps:,.4g}" if row.calls else "-"
    text = f"{ms(row.total / steps):>9} {ms(row.own / steps):>9} {calls:>9}  {bar:<{wide}}"
    return f"{text} {'  ' * min(row.depth - 1, 30)}{short(row.shown, 100)}"


def _begins(root: Row) -> dict[int, int]:
    """Where each row begins, by its ``id``: behind its longer sisters."""
    found: dict[int, Any] = {id(root): 0}
    for row in [root, *sort_rows(root)]:
        at = found[id(row)]
        for below in sorted(row.below, key=lambda one: -one.total):
            found[id(below)] = at
            at += below.total
    return found
