"""What a run was watched by, and what it was not: as data, and in one line each."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypedDict

from tdbg.core.flags import LEVELS
from tdbg.core.tables import format_count, join_limited
from tdbg.rules.text import format_ranks
from tdbg.rules.view import ProcessView, View

SHOWN_SUBJECTS = 3  # of a level, in the line
# What the checks of a flag look at, where its name alone does not say it.
SUBJECTS = {
    "AMP": "mixed precision",
    "AUGMENTATION": "image transforms",
    "BACKWARD": "gradients by module",
    "CHECKPOINT": "checkpoints",
    "DATALOADER": "batches and their loader",
    "DEVICE": "devices and dtypes",
    "DISTRIBUTED": "collectives",
    "FORWARD": "outputs of modules",
    "GRADIENTS": "gradients by parameter",
    "LOSS": "arguments of loss functions",
    "MODEL_BUILD": "initial weights",
    "OPTIMIZER": "updates by parameter",
    "SCHEDULING": "schedules",
    "TRAINING_LOOP": "the order of calls",
    "VALIDATION": "evaluation mode",
    "WANDB_METRICS": "calls of wandb",
}
NO_LOADER = "no DataLoader gave a batch"  # why the rules for batches saw nothing
ON_REQUEST = frozenset({"PROFILER"})  # what nobody asked for is not missing


class WatchedRow(TypedDict):
    """How often a run was watched. Of several ranks the figures are those of the rank that was watched least."""

    level: str
    ranks: int
    ranks_elsewhere: list[int]
    steps: int
    steps_recorded: int
    gradient_reads: int
    eval_passes: int
    eval_calls: int
    batches: int
    checkpoints: int
    hooked_pct: float
    unchecked_losses: int
    rules: int
    rules_armed: int


class NotWatched(TypedDict):
    """Rules that could not see what they are there for. flag, level: what would arm them, where that is known."""

    codes: list[str]
    reason: str
    flag: str
    level: str


def count_watched(view: View, level: str, rules: int, rules_armed: int) -> WatchedRow:
    """What is on record of the ranks, and how many rules had what they need."""
    ranks = view.list_rank_processes()

    def find_least(count: Callable[[ProcessView], float]) -> int:
        return int(min(map(count, ranks), default=0))

    return {
        "level": level,
        "ranks": len(ranks),
        "ranks_elsewhere": view.list_ranks_elsewhere(),
        "steps": max((found.step for found in ranks), default=0),
        "steps_recorded": find_least(lambda found: found.steps_recorded),
        "gradient_reads": find_least(lambda found: max(found.gradient_reads, found.cost.sampled if found.cost else 0)),
        "eval_passes": find_least(lambda found: found.eval_passes),
        "eval_calls": find_least(lambda found: found.evals),
        "batches": find_least(lambda found: found.batches),
        "checkpoints": sum(found.checkpoints for found in ranks),
        "hooked_pct": min(map(_compute_hooked_pct, ranks), default=100.0),
        "unchecked_losses": max((found.cost.unchecked_losses for found in ranks if found.cost), default=0),
        "rules": rules,
        "rules_armed": rules_armed,
    }


def _compute_hooked_pct(found: ProcessView) -> float:
    """The share of its time in which its modules had hooks."""
    cost = found.cost
    if cost is None or cost.wall_ms <= 0:
        return 100.0
    return round(100 * (1 - min(max(cost.away_ms / cost.wall_ms, 0.0), 1.0)), 1)


def format_watched(row: WatchedRow | None, level: str) -> str:
    """``watched (--level basic): 512 of 512 steps on record, gradients read in 60, 8 evaluation passes; ...``."""
    if row is None or level == "off":
        return f"watched: nothing{f' (--level {level})' if level else ''}"
    parts = []
    least = "at least " if row["steps_recorded"] < row["steps"] else ""  # what has no record is not counted
    if row["steps"]:
        parts.append(f"{row['steps_recorded']:,} of {format_count(row['steps'], 'step')} on record")
        parts.append(f"gradients read in {format_count(row['gradient_reads'], 'step')}")
    if row["eval_passes"] and row["steps"]:
        parts.append(f"{least}{format_count(row['eval_passes'], 'evaluation pass')}")
    elif row["eval_calls"]:
        parts.append(format_count(row["eval_calls"], "evaluation call"))
    elif row["steps"]:
        parts.append("no evaluation on record")
    if row["batches"]:
        parts.append(f"{least}{row['batches']:,} {'batch' if row['batches'] == 1 else 'batches'}")
    if row["checkpoints"]:
        parts.append(f"{least}{format_count(row['checkpoints'], 'checkpoint')}")
    seen = ", ".join(parts) or "no step and no evaluation"
    seen += f", on each of {format_count(row['ranks'], 'rank')}" if row["ranks"] > 1 and parts else ""
    if row["ranks_elsewhere"]:
        seen += (
            f"; {format_ranks(row['ranks_elsewhere'])} of another host: not in this run directory (`tdbg join` adds it)"
        )
    higher = f", at times {row['level']}" if row["level"] != level else ""
    armed = f"; {row['rules_armed']} of {format_count(row['rules'], 'check')} active" if row["rules"] else ""
    return f"watched (--level {level}{higher}): {seen}{_format_short_calls(row)}{armed}"


def _format_short_calls(row: WatchedRow) -> str:
    """What calls too short for the budget have left out."""
    unchecked = f", {format_count(row['unchecked_losses'], 'loss')} not checked" if row["unchecked_losses"] else ""
    if round(row["hooked_pct"]) >= 99 and not unchecked:
        return ""
    return f"; hooks on modules for {row['hooked_pct']:.0f} % of the time{unchecked} (short calls)"


def format_not_watched(level: str, rows: Sequence[NotWatched]) -> str:
    """``not watched: schedules, checkpoints and 8 more (--level advanced); arguments of loss functions (-f LOSS)``."""
    if level == "off":
        return "not watched: everything (--level basic)"
    parts = [f"batches ({NO_LOADER})"] if any(row["reason"] == NO_LOADER for row in rows) else []
    for higher in LEVELS:
        subjects = _count_subjects([row for row in rows if row["level"] == higher])
        if subjects:
            parts.append(f"{join_limited(subjects, SHOWN_SUBJECTS)} (--level {higher})")
    named = {row["flag"] for row in rows if row["flag"] and not row["level"]} - ON_REQUEST
    for row in rows:
        if row["flag"] in named and not any(row["flag"].startswith(f"{flag}.") for flag in named):
            parts.append(f"{_name_subject(row['flag'])} (-f {row['flag']})")
    return f"not watched: {'; '.join(parts) or 'nothing that a flag or a higher level would add'}"


def _count_subjects(rows: Sequence[NotWatched]) -> list[str]:
    """What the rules look at, that of most rules first."""
    counts = Counter({_name_subject(row["flag"]): len(row["codes"]) for row in rows if row["flag"]})
    return [subject for subject, _ in counts.most_common()]


def _name_subject(flag: str) -> str:
    return SUBJECTS.get(flag, flag.rpartition(".")[2].replace("_", " ").lower())
