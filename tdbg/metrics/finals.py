"""The final results of a run: best and last of every phase that there is, read from the state."""

from typing import Any

from tdbg.metrics.keys import Key
from tdbg.metrics.tracker import MetricsTracker

BEST = "best_"


def final_results(tracker: MetricsTracker) -> tuple[dict[str, float], dict[str, Any]]:
    """Numbers by key (``val/loss``, ``val/best_loss``), and the same with the epoch and step of each best."""
    numbers: dict[str, float] = {}
    summary: dict[str, Any] = {}
    for phase in tracker.phases.values():
        for key, metric in phase:
            if metric.value is not None:
                numbers[str(key)] = summary[str(key)] = metric.value
            if metric.best is not None:
                name = str(Key(key.phase, f"{BEST}{key.metric}", key.task, key.subset))
                numbers[name] = summary[name] = metric.best
                summary |= {f"{name}.epoch": metric.best_epoch, f"{name}.step": metric.best_step}
    return numbers, summary


def is_best(key: str) -> bool:
    """True for the key of a best value."""
    return key.rpartition("/")[2].startswith(BEST)
