"""Progress of a run: a live line where it can be drawn (see `program_rows`), else a line every `--progress-every` seconds."""

import threading
import time
from collections import defaultdict
from collections.abc import Sequence

from tdbg.core.config import Settings
from tdbg.core.output import PREFIX, print_messages, redraw_stderr, terminal_rows
from tdbg.core.tables import format_count, join_limited
from tdbg.rules.cost_lines import compute_cost_pct
from tdbg.rules.text import format_figure, format_ranks
from tdbg.rules.view import ProcessView, View

LIVE_LINE_S = 1.0
STALL_S = 20.0  # from then on the live line says so
STALL_LINE_S = 30.0  # a line that stays comes then, and again each time that the time has doubled
SHOWN_GROUPS = 3  # of ranks at one step


class Progress:
    """Tells how far the run is, from what the view of it holds. Silent until the first step, and if asked to be."""

    def __init__(self, settings: Settings, view: View) -> None:
        self._quiet = settings.quiet
        self._view = view
        self._rows = terminal_rows()
        self._live = self._rows.passes_all
        self._every = LIVE_LINE_S if self._live else settings.progress_every
        self._shown = self._moved = time.monotonic()
        self._then = (0, 0)  # steps and evaluation calls when the run was last seen to move
        self._stall_due = STALL_LINE_S
        self._drawn = False
        self._lock = threading.Lock()

    def print_if_due(self, now: float) -> None:
        """Print, if it is time and there is something new to tell."""
        self._rows.flush()
        if self._quiet or now - self._shown < self._every or self._rows.is_terminal_read():
            return
        self._shown = now
        ranks = [found for found in self._view.list_rank_processes() if found.records]
        if not ranks:
            return
        done = max(found.step for found in ranks), max(found.evals for found in ranks)
        if done != self._then:
            self._print_line(self._format_line(ranks, done, now))
            return
        still_s = now - self._moved
        if still_s >= self._stall_due:
            while self._stall_due <= still_s:
                self._stall_due *= 2
            self._print_stall(ranks, done, still_s)
        if still_s >= STALL_S and self._live:
            self._print_line(_format_stall(done, still_s))

    def _print_line(self, text: str) -> None:
        with self._lock:
            if self._live:
                redraw_stderr(PREFIX + text)
                self._drawn = True
            else:
                print_messages(text)

    def _print_stall(self, ranks: Sequence[ProcessView], done: tuple[int, int], still_s: float) -> None:
        """A line that stays, unless the live line says the same."""
        if not self._live:
            print_messages(_format_standstill(ranks, done, still_s))

    def clear_line(self) -> None:
        """Wipe the live line."""
        with self._lock:
            if self._drawn:
                self._drawn = False
                redraw_stderr("")

    def _format_line(self, ranks: Sequence[ProcessView], done: tuple[int, int], now: float) -> str:
        moved = done[0] - self._then[0] if done[0] else done[1] - self._then[1]
        is_stopped = any(found.is_quiet for found in ranks)  # the steps of before, over the time of a standstill
        speed = 0.0 if is_stopped else moved / max(now - self._moved, 1e-3)
        self._then, self._moved, self._stall_due = done, now, STALL_LINE_S
        parts = [
            _format_with_plan(ranks[0], done),
            format_count(len(ranks), "rank") if len(ranks) > 1 else "",
            *_format_figures(ranks[0]),
        ]
        return ", ".join(
            part for part in (*parts, *_format_pace(ranks[0], done[0], speed), _format_cost(ranks[0])) if part
        )


def _format_stall(done: tuple[int, int], still_s: float) -> str:
    return f"{_format_position(done)}, nothing new recorded for {_format_duration(still_s)}"


def _format_standstill(ranks: Sequence[ProcessView], done: tuple[int, int], still_s: float) -> str:
    """Where the ranks stand, as far as it is on record."""
    world = _find_world_size(ranks)
    if world < 2 or all(map(_has_ended, ranks)):
        return _format_stall(done, still_s)
    return f"{_format_rank_steps(ranks, world, done)}; no rank has recorded {'a step' if done[0] else 'a call'} for {_format_duration(still_s)}"


def _format_rank_steps(ranks: Sequence[ProcessView], world: int, done: tuple[int, int]) -> str:
    """``step 40 on each of 2 ranks``; where they differ ``last recorded: step 40 on rank 1, step 41 on rank 0``."""
    groups: defaultdict[tuple[int, bool], list[int]] = defaultdict(list)
    for found in ranks:
        groups[found.step, _has_ended(found)].append(found.rank or 0)
    if len(groups) == 1:
        number = "each of" if len(ranks) == world else f"{len(ranks):,} of"
        return f"{_format_position(done)} on {number} {format_count(world, 'rank')}"
    parts = [
        f"step {step:,} on {format_ranks(members)}{' (ended)' if has_ended else ''}"
        for (step, has_ended), members in sorted(groups.items())
    ]
    return f"last recorded: {join_limited(parts, SHOWN_GROUPS)}"


def _find_world_size(ranks: Sequence[ProcessView]) -> int:
    return max((found.start.world_size for found in ranks if found.start is not None), default=1)


def _has_ended(found: ProcessView) -> bool:
    return found.end is not None or found.crash is not None


def _format_position(done: tuple[int, int]) -> str:
    return f"step {done[0]:,}" if done[0] else format_count(done[1], "evaluation call")


def _format_with_plan(first: ProcessView, done: tuple[int, int]) -> str:
    planned = first.plan.steps if first.plan is not None else None
    return f"{_format_position(done)} of {planned:,}" if planned and done[0] else _format_position(done)


def _format_figures(first: ProcessView) -> list[str]:
    last = first.last or first.last_eval
    if last is None:
        return []
    found = [("epoch", last.epoch), ("loss", last.loss), ("lr", last.lr or None)]
    return [f"{name} {format_figure(value)}" for name, value in found if value is not None]


def _format_pace(first: ProcessView, done: int, speed: float) -> list[str]:
    if speed <= 0:
        return []
    planned = first.plan.steps if first.plan is not None else None
    left = [f"{_format_duration((planned - done) / speed)} left"] if planned and planned > done > 0 else []
    return [f"{speed:.3g}/s", *left]


def _format_cost(first: ProcessView) -> str:
    pct = compute_cost_pct(first.cost)
    return "" if pct is None else f"tdbg {pct:.2f} %"


def _format_duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
