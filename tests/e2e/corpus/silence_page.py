"""docs/silence.md: each healthy program of the corpus, what watched it and what was found at each level.

Runs replace the cells that they have made alone, so that the page can be made in parts. What was never run says so.
"""

import re
import statistics
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.corpus.runs import LEAST_STEPS, PREFLIGHT, Outcome, describe_hand_programs

PAGE = Path(__file__).parents[3] / "docs" / "silence.md"
LEVELS = ("basic", "advanced", "extreme")
NOT_RUN, SILENT = "not run", "silent"
FIGURES = ("steps", "rules armed", "looks", "notes")  # of the default level
HEAD = f"""# Where tdbg stays silent

Healthy trainings, run under `tdbg run`. Steps, armed rules (of all rules; an armed one had the signal that it judges
by), looks (observations on record, of all ranks) and notes (findings of severity `info`) are those of the default level. The
last three columns say what was found above a note at each level: it must be nothing. `{NOT_RUN}`: not run since the
program was added. Made by `python -m tests.e2e.corpus --page`.

| program | what it is | {" | ".join(FIGURES)} | {LEVELS[0]} (default) | {" | ".join(LEVELS[1:])} |
|---|---|---|---|---|---|---|---|---|
"""
GENERATED = """
## Generated programs

Each combines model, data, optimizer, schedule, precision, wrapping and style of the loop at random.

"""
NO_GENERATED = f"{NOT_RUN}: `python -m tests.e2e.corpus --generated 300 --seed 1 --page`"


def split_row(line: str) -> list[str]:
    """The cells of a row."""
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def read_rows(page: str) -> dict[str, list[str]]:
    """The cells of a page behind the description, by program."""
    rows = [split_row(line) for line in page.partition(GENERATED)[0].splitlines() if re.match(r"\| [\w-]+/", line)]
    return {row[0]: row[2:] for row in rows}


def describe_outcome(outcome: Outcome) -> str:
    """What was found above a note, or why the run counts for nothing."""
    faults = [line.split()[0] for line in outcome.above]
    faults += [f"exit code {outcome.code}"] if outcome.code else []
    faults += [f"{outcome.steps} steps"] if outcome.steps < LEAST_STEPS else []
    return ", ".join([*faults, *outcome.trouble]).replace("|", "/") or SILENT


def update_row(row: list[str], outcome: Outcome) -> list[str]:
    """The cells with what a run has made; the figures are those of the default level."""
    cells = list(row)
    if outcome.level == LEVELS[0]:
        notes = ", ".join(dict.fromkeys(outcome.notes)) or "-"
        cells[: len(FIGURES)] = [
            f"{outcome.steps:,}",
            f"{outcome.armed} of {outcome.rules}",
            f"{outcome.looks:,}",
            notes,
        ]
    cells[len(FIGURES) + LEVELS.index(outcome.level)] = describe_outcome(outcome)
    return cells


def summarize_generated(outcomes: Sequence[Outcome], seed: int) -> str:
    """One line on all generated programs at the default level."""
    armed, looks = [one.armed for one in outcomes], [one.looks for one in outcomes]
    faults = [f"{one.name}: {describe_outcome(one)}" for one in outcomes if not one.is_sound]
    notes = sorted({code for one in outcomes for code in one.notes})
    return (
        f"{len(outcomes)} programs (`python -m tests.e2e.corpus --generated {len(outcomes)} --seed {seed} --page`) at the default"
        f" level: {min(one.steps for one in outcomes)} steps at least; armed rules {min(armed)} at least,"
        f" {statistics.median(armed):g} at the median, of {max(one.rules for one in outcomes)}; {sum(looks):,} looks,"
        f" {min(looks)} at least; notes: {', '.join(notes) or 'none'}; above a note: {'; '.join(faults) or 'nothing'}."
    )


def build_page(before: str, outcomes: Sequence[Outcome] = (), generated: str = "") -> str:
    """The page with the outcomes of programs written by hand, or the line on generated ones, put in."""
    rows = read_rows(before)
    lines = []
    for name, what in describe_hand_programs().items():
        row = rows.get(name, [NOT_RUN] * (len(FIGURES) + len(LEVELS)))
        for outcome in outcomes:
            row = update_row(row, outcome) if outcome.name == name and outcome.level != PREFLIGHT else row
        lines.append(f"| {' | '.join([name, what, *row])} |\n")
    return (
        HEAD + "".join(lines) + GENERATED + (generated or before.partition(GENERATED)[2].strip() or NO_GENERATED) + "\n"
    )


def write_page(outcomes: Sequence[Outcome] = (), generated: str = "") -> None:
    """Put what was run into the page."""
    before = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    PAGE.write_text(build_page(before, outcomes, generated), encoding="utf-8")
