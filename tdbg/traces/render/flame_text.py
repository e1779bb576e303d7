"""A call tree on a terminal: one row per node, its bar below that of its caller."""

import sys
from typing import Any

from tdbg.core.output import is_laid_out, print_lines, print_messages
from tdbg.core.tables import format_count, format_short, safe
from tdbg.core.terminal import count_columns
from tdbg.traces.analyze.summary_figures import format_ms
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
    print_lines([safe(f"{label}: calls by {way}, ms per step (mean of {format_count(steps, 'step')})")])
    begins = _compute_begins(root)
    wide = min(WIDE, max(count_columns(sys.stdout) // 5, LEAST_WIDE)) if is_laid_out(sys.stdout) else WIDE
    print(f"{'total':>9} {'self':>9} {'calls':>9}  {'':<{wide}}")
    for row in shown:
        print_lines([safe(_format_row(row, begins[id(row)], root.total, steps, wide))])
    left = len(sort_rows(root)) - len(shown)
    if left:
        print_messages(f"{format_count(left, 'row')} with less time left out: change --top or --depth")
    lost = count_cut_calls(read, by)
    if lost:
        print_messages(f"{format_count(lost, 'call')} did not fit into the tree: their time counts as the caller's")


def _format_row(row: Row, begin: int, whole: int, steps: int, wide: int) -> str:
    start, end = (round(at / max(whole, 1) * wide) for at in (begin, begin + row.total))
    bar = " " * min(start, wide - 1) + ("█" * (end - start) or "▏")
    calls = f"{row.calls / steps:,.4g}" if row.calls else "-"
    text = f"{format_ms(row.total / steps):>9} {format_ms(row.own / steps):>9} {calls:>9}  {bar:<{wide}}"
    return f"{text} {'  ' * min(row.depth - 1, 30)}{format_short(row.display_name, 100)}"


def _compute_begins(root: Row) -> dict[int, int]:
    """Where each row begins, by its ``id``: behind its longer sisters."""
    found: dict[int, Any] = {id(root): 0}
    for row in [root, *sort_rows(root)]:
        at = found[id(row)]
        for below in sorted(row.below, key=lambda one: -one.total):
            found[id(below)] = at
            at += below.total
    return found
