"""What a preflight tried, and what not and why: as data, and in two lines."""

from collections.abc import Iterable, Sequence
from typing import TypedDict

from tdbg.core.events import Observation
from tdbg.core.observations.preflight import TRIALS, Refused, Trial
from tdbg.rules import read_observations
from tdbg.rules.text import clip

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
            tried=seen.tried,
            outcome=seen.outcome() if seen.tried else "",
            reason=seen.reason or "",
            refused=isinstance(seen, Refused),
        )
        for event in events
        for seen in read_observations(event, TRIALS)
        if isinstance(seen, Trial)
    ]


def trial_lines(rows: Sequence[TrialRow]) -> tuple[str, str]:
    """``preflight tried: one sample changed, ...`` and ``not tried: last token changed (no integer input)``."""
    if not rows:
        return "preflight tried: nothing, as no update was due", "not tried: anything"
    refused = next((row["reason"] for row in rows if row["refused"]), "")
    if refused:
        return f"preflight refused: {refused}", "not tried: anything"
    tried = [f"{row['trial']} ({row['outcome']})" for row in rows if row["tried"]]
    left = [f"{row['trial']} ({row['reason']})" for row in rows if not row["tried"]]
    return (
        clip(f"preflight tried: {'; '.join(tried) or 'nothing'}", SHOWN_CHARS),
        clip(f"not tried: {'; '.join(left) or 'nothing was left out'}", SHOWN_CHARS),
    )
