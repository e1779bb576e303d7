"""How far each rank came and how it ended: as data, and in lines."""

from collections.abc import Sequence
from typing import TypedDict

from tdbg.core.events import Number
from tdbg.core.tables import format_count
from tdbg.rules.text import format_figure, format_ranks

GOOD_END = "ended"


class RankRow(TypedDict):
    """How far one process came, and how it ended."""

    rank: int | None
    folder: str
    host: str
    pid: int | None
    attempts: int
    steps: int
    evals: int
    evals_at_least: bool
    skipped: int
    planned: int | None
    loss: Number | None
    loss_step: int | None
    ended: str
    code: int | None
    last_t: float


def list_progress(rows: Sequence[RankRow]) -> list[tuple[str, int]]:
    """``ranks 0-3: step 60 of 100, ended``: ranks that ended alike share a line; each line with how many it is of."""
    groups: dict[str, list[RankRow]] = {}
    for row in rows:
        groups.setdefault(format_progress(row), []).append(row)
    return [(_format_group(how, alike), len(alike)) for how, alike in groups.items()]


def list_processes(rows: Sequence[RankRow]) -> list[tuple[str, int]]:
    """``process 71: step 60, ended, loss 2.31``: a line each."""
    return [(f"process {row['pid']}: {format_progress(row)}{format_loss(row)}", 1) for row in rows]


def has_ended_as_planned(rows: Sequence[RankRow]) -> bool:
    """True if all ranks came equally far, as far as planned, at the first attempt, and ended in good order."""
    done = {(row["steps"], row["evals"] if not row["steps"] else 0) for row in rows}
    return len(done) <= 1 and all(
        row["ended"] == GOOD_END and row["attempts"] <= 1 and row["steps"] >= (row["planned"] or 0) for row in rows
    )


def _format_group(how: str, rows: Sequence[RankRow]) -> str:
    return f"{format_ranks(row['rank'] or 0 for row in rows)}: {how}{format_loss(rows[0]) if len(rows) == 1 else ''}"


def format_progress(row: RankRow) -> str:
    """``step 60 of 100, ended``."""
    least = "at least " if row["evals_at_least"] else ""
    calls = f"{least}{format_count(row['evals'], 'evaluation call')}"
    done = f"step {row['steps']}" if row["steps"] or not row["evals"] else calls
    if row["steps"] and row["ended"].startswith("SIG"):  # its last steps may have no record
        done = f"on record to step {row['steps']}"
    planned = f" of {row['planned']}" if row["planned"] else ""
    again = f", after {format_count(row['attempts'] - 1, 'restart')}" if row["attempts"] > 1 else ""
    return f"{done}{planned}, {row['ended']}{again}"


def format_loss(row: RankRow) -> str:
    """``, loss 2.31 at step 9``: of the last step whose loss is known, which need not be the last done."""
    if row["loss"] is None:
        return ""
    at = f" at step {row['loss_step']}" if row["steps"] and row["loss_step"] != row["steps"] else ""
    return f", loss {format_figure(row['loss'])}{at}"
