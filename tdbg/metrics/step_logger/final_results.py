"""The final results of a run: best and last value of every phase."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tdbg.metrics.keys import Key, KeyGrammarError, unit_of

if TYPE_CHECKING:
    from tdbg.metrics.tracker.metrics_tracker import MetricsTracker

BEST = "best_"
NO_RESULT = ("ms", "sec", "mb", "per_sec")  # units of what is no result
STAMPS = ("epoch", "step")  # of a best, behind a dot


def final_results(tracker: "MetricsTracker") -> tuple[dict[str, float], dict[str, object]]:
    """Numbers by key (``val/loss``, ``val/best_loss``), and the same with the epoch and step of each best."""
    numbers: dict[str, float] = {}
    summary: dict[str, object] = {}
    for phase in tracker.phases.values():
        for key, metric in phase:
            if metric.value is not None:
                numbers[str(key)] = summary[str(key)] = metric.value
            if metric.best is not None:
                name = str(Key(key.phase, f"{BEST}{key.metric}", key.task, key.subset))
                numbers[name] = summary[name] = metric.best
                summary |= {f"{name}.epoch": metric.best_epoch, f"{name}.step": metric.best_step}  # `STAMPS`
    return numbers, summary


def is_best(key: str) -> bool:
    """True for the key of a best value."""
    return key.rpartition("/")[2].startswith(BEST)


class Result(NamedTuple):
    """One metric at the end of a run; what it has not is None."""

    key: str
    last: object
    best: object = None
    epoch: Any = None
    step: object = None


def results_of(summary: Mapping[str, object]) -> list[Result]:
    """A summary with a line a metric: first those of whole phases, then of tasks, then of subsets.

    Copies are left out, and so are times, rates and memory: they say how it went, not what came of it.
    """
    found = []
    for key, value in summary.items():
        if unit_of(key) in NO_RESULT:
            continue
        plain, _, stamp = key.rpartition(".")
        if key.startswith("core/") or (stamp in STAMPS and plain in summary and is_best(plain)):
            continue
        head, slash, name = key.rpartition("/")
        if is_best(key) and f"{head}{slash}{name.removeprefix(BEST)}" in summary:
            continue
        best = f"{head}{slash}{BEST}{name}"
        found.append(Result(key, value, summary.get(best), *(summary.get(f"{best}.{stamp}") for stamp in STAMPS)))
    return sorted(found, key=lambda one: _classify_key(one.key))


def _classify_key(text: str) -> int:
    """0 for a metric of a whole phase, 1 for one of a task, 2 for one of a subset or outside the grammar."""
    try:
        key = Key.parse(text)
    except KeyGrammarError:
        return 2
    return 2 if key.subset else int(bool(key.task))
