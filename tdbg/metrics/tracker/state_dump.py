"""Dump a tracker's state as one record for people and programs, to a file or not."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdbg.core import run_files
from tdbg.core.errors import TdbgError
from tdbg.core.flags import LEVELS
from tdbg.core.rundir import write_json
from tdbg.core.tables import to_json_value

if TYPE_CHECKING:
    from tdbg.metrics.tracker.tracker_state import TrackerState

SCHEMA = 1
KIND = "metrics_state"


def make_record(tracker: "TrackerState", phase: str | None = None, level: str = "basic") -> dict[str, Any]:
    """What is known of one phase, or of all, and the last values of the stores.

    level: basic has values and bests, advanced the sums under way too, extreme the histories too. Raises TdbgError for
    a level that there is not, UnknownPhaseError for a phase that received nothing.
    """
    word = str(getattr(level, "value", level))
    if word not in LEVELS[1:]:
        raise TdbgError(f"no state is dumped at level {word!r}", f"levels: {', '.join(LEVELS[1:])}")
    amount = LEVELS.index(word)
    phases = tracker.phases if phase is None else {phase: tracker.phase(phase)}
    return {
        "kind": KIND,
        "schema": SCHEMA,
        "level": word,
        "phase": phase,
        "epoch": tracker.epoch,
        "step": tracker.step,
        "phases": {
            name: {
                "epoch": one.epoch,
                "step": one.step,
                "finished": one.finished,
                "samples": one.samples,
                "batches": one.batches,
                "of_all_ranks": one.of_all_ranks,
                "empty": list(one.empty),
                "metrics": {
                    str(key): metric.record_of(sums=amount >= 2, history=amount >= 3)
                    for key, metric in sorted(one, key=lambda pair: pair[0])
                },
            }
            for name, one in phases.items()
        },
        "stores": {
            str(key): {"value": value, "epoch": epoch, "step": step}
            for store in tracker.stores.values()
            for key, (value, epoch, step) in store
        },
        "best_epochs": tracker.best_epochs.state(),
        "findings": [dict(finding) for finding in tracker.findings],
    }


def write_record(found: dict[str, Any], path: Path) -> None:
    """Write a record as JSON, whole or not at all; numbers that are not finite become words. Makes the folder."""
    try:
        run_files.make_folder(path.parent)
        write_json(path, to_json_value(found))
    except OSError as error:
        raise TdbgError(f"cannot write {path}: {error.strerror or error}", "choose another path") from None
