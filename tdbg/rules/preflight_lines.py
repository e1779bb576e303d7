"""What a preflight tried, and what not and why: as data, and in two lines."""

from collections.abc import Iterable, Sequence
from typing import TypedDict

from tdbg.core.events import Observation
from tdbg.core.observations.preflight import TRIALS, Refused, Trial
from tdbg.rules import read_observations
from tdbg.rules.text import clip_text

SHOWN_CHARS = 400


class TrialRow(TypedDict):
    """One trial. reason: why it was not made; empty if it was."""

    trial: str
    tried: bool
    outcome: str
    reason: str
    refused: bool


def list_trials(events: Iterable[Observation]) -> list[TrialRow]:
    """A row for each trial, in the order that they were made in."""
    return [
        TrialRow(
            trial=seen.TITLE,
            tried=seen.was_tried,
            outcome=seen.describe_outcome() if seen.was_tried else "",
            reason=seen.reason or "",
            refused=isinstance(seen, Refused),
        )
        for event in events
        for seen in read_observations(event, TRIALS)
        if isinstance(seen, Trial)
    ]


def format_trials(rows: Sequence[TrialRow], *, failed: bool) -> list[str]:
    """``preflight tried: one sample changed, ...`` and ``not tried: last token changed (no integer input)``.

    failed: the trials failed with an error of tdbg's.
    """
    if not rows:
        return [explain_untested(failed=failed)]
    refused = next((row["reason"] for row in rows if row["refused"]), "")
    if refused:
        return [f"preflight refused: {refused}"]
    tried = [f"{row['trial']} ({row['outcome']})" for row in rows if row["tried"]]
    left = [f"{row['trial']} ({row['reason']})" for row in rows if not row["tried"]]
    lines = [clip_text(f"preflight tried: {'; '.join(tried) or 'nothing'}", SHOWN_CHARS)]
    return [*lines, clip_text(f"not tried: {'; '.join(left)}", SHOWN_CHARS)] if left else lines


def explain_untested(*, failed: bool) -> str:
    """Why there is no trial."""
    if failed:
        return "the preflight failed: nothing was tried (TD-C005)"
    return "preflight: the program ended before its first update, so nothing was tested"
