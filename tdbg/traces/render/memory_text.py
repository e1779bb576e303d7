"""Memory over time on a terminal: a curve with its scale, the peak, and what held it."""

from collections.abc import Sequence

from tdbg.core.output import print_lines
from tdbg.core.tables import format_short, format_size, print_table
from tdbg.traces.analyze.summary_figures import format_ms
from tdbg.traces.summary import Memory, Summary

WIDE, HIGH = 64, 5  # signs of the curve
LEVELS = " ▁▂▃▄▅▆▇█"


def print_memory(memory: Memory, read: Summary, top: int) -> None:
    """One device's."""
    at = (memory.peak_at - read.start) / 1e6
    print_lines(
        [
            "",
            f"memory of {memory.device}: peak {format_size(memory.peak)} at {at:,.1f} ms, {format_size(memory.last)} at the end",
        ]
    )
    if memory.line:
        _print_curve(memory, read)
    if not memory.holders:
        return
    held = sum(memory.holders.values())
    rows = [
        (format_size(amount), f"{amount / max(memory.peak, 1):.1%}", format_short(name, 70))
        for name, amount in _select_largest_holders(memory, top)
    ]
    print_table(("at the peak", "share", "allocated by"), rows)
    rest = memory.peak - held
    if rest > 0.005 * memory.peak:
        print_lines([f"{format_size(rest)} more: allocated before the trace began, or not tracked"])


def _select_largest_holders(memory: Memory, top: int) -> list[tuple[str, int]]:
    return sorted(memory.holders.items(), key=lambda pair: -pair[1])[:top]


def _print_curve(memory: Memory, read: Summary) -> None:
    """Rows from the peak down to nothing; below them where steps begin, and the peak."""
    start, end = read.start, max(read.end, read.start + 1)
    tops = compute_columns(memory, start, end)
    high = max(memory.peak, 1)
    for row in range(HIGH, 0, -1):
        label = format_size(high * row / HIGH)
        signs = "".join(LEVELS[round(8 * min(max(value / high * HIGH - row + 1, 0), 1))] for value in tops)
        print(f"{label:>8} ┤{signs.rstrip()}")
    marks = [" "] * WIDE
    for step in read.steps:
        if step.number is not None:
            marks[_get_column(step.start, start, end)] = "╵"
    marks[_get_column(memory.peak_at, start, end)] = "▲"
    meaning = "▲ the peak" + (", ╵ a step begins" if "╵" in marks else "")
    print(f"{'':>8}  {''.join(marks).rstrip()}")
    print(f"{'':>8}  0 to {format_ms(end - start)} ms; {meaning}")


def compute_columns(memory: Memory, start: int, end: int) -> Sequence[int]:
    """The most that was allocated in each column of the curve; where nothing happened it stays as it was."""
    tops = [-1] * WIDE
    after = [memory.first] * WIDE
    for time, most, least in memory.line:
        at = _get_column(time, start, end)
        tops[at] = max(tops[at], most)
        after[at] = least
    tops[_get_column(memory.peak_at, start, end)] = memory.peak
    level = memory.first
    for at, value in enumerate(tops):
        if value < 0:
            tops[at] = level
        else:
            level = after[at]
    return tops


def _get_column(time: int, start: int, end: int) -> int:
    return min(max((time - start) * WIDE // (end - start), 0), WIDE - 1)
