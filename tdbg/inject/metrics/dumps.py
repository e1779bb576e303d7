"""DUMP_METRICS and VALIDATION_METRICS: the full state of the metrics at each validation, in a file of the rank's.

The state is that of the program's own trackers, if it has any, else of one that is kept from the rows of the feed.
"""

import threading
import time
from collections import deque
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tdbg.core.events import Observation
from tdbg.core.flags import tag
from tdbg.core.tables import join_limited
from tdbg.inject.imports import when_imported
from tdbg.metrics.rows.row import COUNT_0, MOST_NAMED, Row

if TYPE_CHECKING:
    from tdbg.inject.metrics import RowFeed
    from tdbg.metrics.tracker.metrics_tracker import MetricsTracker

FOLDER = "metrics_state"
PROBE = "metrics-state"
APART = 64  # rows that wait
FLAGS = ("DUMP_METRICS", "VALIDATION_METRICS")
TRAIN = "train"
SHOWN = 12  # values in a line of the log


class Dumps:
    """Listens to every tracker of the process, and writes dumps while a flag is on."""

    def __init__(self, feed: "RowFeed") -> None:
        self.feed = feed
        self._own: MetricsTracker | None = None  # the feed's tracker, while a flag is on
        self._foreign = False  # the program has finalised a phase of a tracker of its own
        self._listening = False
        # A pass is told once training has gone on. Any thread may add; rows are taken out under the lock, one by one.
        self._waiting: deque[tuple[Row, int]] = deque()
        self._lock = threading.RLock()  # of the feed's tracker

    def listen_when_imported(self) -> None:
        """Listen as soon as the program has trackers."""
        guard = self.feed.guard
        when_imported(
            "tdbg.metrics.tracker.metrics_tracker", lambda module: guard.call_guarded(self._start_listening, module)
        )

    def _start_listening(self, module: ModuleType) -> None:
        if not self._listening and not self.feed.is_off:
            self._listening = True
            module.BEFORE_RESET.append(self._handle_phase_finalized)

    def stop_listening(self) -> None:
        """Listen no more."""
        import sys

        module = sys.modules.get("tdbg.metrics.tracker.metrics_tracker")
        if module is not None and self._handle_phase_finalized in module.BEFORE_RESET:
            module.BEFORE_RESET.remove(self._handle_phase_finalized)

    def forked(self) -> None:
        """A new process, which has seen nothing."""
        self._own, self._foreign = None, False
        self._waiting.clear()
        self._lock = threading.RLock()

    @property
    def requested_flags(self) -> tuple[str, ...]:
        """The flags that are on now."""
        flags = self.feed.monitor.settings.flags
        return tuple(name for name in FLAGS if flags.get(name))

    def _handle_phase_finalized(self, tracker: "MetricsTracker", phase: str) -> None:
        """A phase of a tracker was finalised; its sums are still there. Nothing reaches the program."""
        self.feed.guard.call_guarded(self._look_at, tracker, phase)

    def _look_at(self, tracker: "MetricsTracker", phase: str) -> None:
        feed = self.feed
        if tracker is self._own or not feed.is_listening:
            return
        begun = time.perf_counter()
        self._foreign = True
        found = tracker.phases[phase]
        if missing := [key for key in found.empty if key not in found.strange]:
            self._report_empty(phase, found, missing)  # of those that had samples, all NaN, TD-K011 tells
        if phase != TRAIN and self.requested_flags:
            self._dump_state(tracker, phase, feed.monitor.user_facing_step)
        feed.monitor.budget.charge("metrics", time.perf_counter() - begun, asked=bool(self.requested_flags))

    def _report_empty(self, phase: str, found: Any, missing: list[str]) -> None:
        """Metrics without a sample: TD-K003 reads it."""
        names = ", ".join(missing[:MOST_NAMED])
        step = self.feed.monitor.user_facing_step
        row = Row(time.time(), step, found.epoch, phase, text={f"{phase}/{COUNT_0}": names}, source="tdbg")
        self.feed.record_own_row(row)

    def _dump_state(self, tracker: "MetricsTracker", phase: str, step: int) -> None:
        """Write the state, and say so."""
        monitor, me = self.feed.monitor, self.feed.me
        monitor.become_rank_now()
        if me.folder is None:
            return
        path = _find_free_path(me.folder / FOLDER, f"step{step:08d}_{phase}")
        tracker.dump_metrics_state(level="extreme", path=path)
        me.charge_disk(path.stat().st_size)
        kept = f"{FOLDER}/{path.name}"
        reports = {
            "VALIDATION_METRICS": ("SUMMARY", _format_values(tracker, phase)),
            "DUMP_METRICS": ("STATE", f"{phase}: {kept}"),
        }
        for flag in self.requested_flags:
            part, text = reports[flag]
            values = {"phase": phase, "file": kept}
            event = Observation(
                t=time.time(),
                probe=PROBE,
                flag=flag,
                part=part,
                step=step,
                epoch=monitor.epoch,
                text=text,
                values=values,
            )
            monitor.emit(event)
            me.log("D", step, tag(flag, part), text)

    # without a tracker of the program's own

    def buffer_row(self, row: Row, samples: int = 0) -> None:
        """Keep what a row says, while a flag is on. samples: of a training step."""
        if not self.requested_flags or self._foreign:
            return
        begun = time.perf_counter()
        self._waiting.append((row, samples))
        if len(self._waiting) > APART:
            with self._lock:
                if len(self._waiting) > APART:  # else another thread was quicker
                    _add_row(self._own or self._create_tracker(), *self._waiting.popleft())
        self.feed.monitor.budget.charge_to_user(time.perf_counter() - begun)

    def dump_validation_state(self, step: int) -> None:
        """A pass of evaluation is over, which came after this step."""
        if not self.requested_flags or self._foreign:
            return
        begun = time.perf_counter()
        with self._lock:
            tracker = self._own or self._create_tracker()
            after = []
            for _ in range(len(self._waiting)):  # what another thread adds meanwhile comes behind them
                row, samples = self._waiting.popleft()
                if row.step <= step:
                    _add_row(tracker, row, samples)
                else:
                    after.append((row, samples))
            self._waiting.extendleft(reversed(after))
            if TRAIN in tracker.phases and tracker.phases[TRAIN].batches:
                tracker.finalize_train_epoch()
            self._dump_state(tracker, "val", step)
        self.feed.monitor.budget.charge_to_user(time.perf_counter() - begun)

    def _create_tracker(self) -> "MetricsTracker":
        """The tracker of the feed; the program's list of trackers does not know it."""
        from tdbg.metrics.tracker import tracker_state
        from tdbg.metrics.tracker.metrics_tracker import MetricsTracker

        self._own = MetricsTracker()
        tracker_state.LIVE_TRACKERS.discard(self._own)
        return self._own


def _add_row(tracker: "MetricsTracker", row: Row, samples: int) -> None:
    """Have the feed's tracker take a row."""
    if row.source != "tdbg" or row.phase != TRAIN:
        _record_values(tracker, row)
        return
    names = [name for name in ("loss", "grad_norm") if f"{TRAIN}/{name}" in row.values]
    means = {name: row.values[f"{TRAIN}/{name}"] for name in names}
    tracker.update_train_batch(means, samples or 1, epoch=row.epoch, step=row.step)
    for prefix, update in (("lr/", tracker.update_learning_rates), ("pipeline/", tracker.update_pipeline_metrics)):
        found = {key.removeprefix(prefix): value for key, value in row.values.items() if key.startswith(prefix)}
        update(found)


def _record_values(tracker: "MetricsTracker", row: Row) -> None:
    """Values that are whole already, each as a pass of one sample; names outside the grammar go below their phase."""
    from tdbg.metrics.keys import CATEGORIES, Key, KeyGrammarError

    for name, value in row.values.items():
        try:
            key = Key.parse(name if "/" in name else f"{row.phase or row.source}/{name}")
        except KeyGrammarError:
            continue
        if key.phase in CATEGORIES or key.core or key.text:
            continue
        tracker._open_phase(key.phase).get_or_create_metric(key.metric, key.task, key.subset).record(
            value, row.epoch, row.step
        )


def _find_free_path(folder: Path, stem: str) -> Path:
    """A name that no dump has."""
    path, number = folder / f"{stem}.json", 1
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number}.json"
    return path


def _format_values(tracker: "MetricsTracker", phase: str) -> str:
    """What the pass computed, in a line."""
    found = tracker.phases.get(phase) or ()
    values = [f"{key} {metric.value:g}" for key, metric in found if metric.value is not None]
    return f"{phase}: {join_limited(values, SHOWN) or 'no values'}"
