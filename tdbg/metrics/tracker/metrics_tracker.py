"""The tracker of a run's metrics: it accumulates, averages, keeps the best, saves and restores. It never logs."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tdbg.metrics.keys import Key
from tdbg.metrics.tracker import rank_reduction, saved_state, state_dump
from tdbg.metrics.tracker.batch_parts import check_parts, format_names
from tdbg.metrics.tracker.hierarchy_accuracy import ChainCounts, chain_counts, top_counts
from tdbg.metrics.tracker.last_values import lr_dict
from tdbg.metrics.tracker.metric_values import MetricValueError, as_count, as_float
from tdbg.metrics.tracker.phase import Slot
from tdbg.metrics.tracker.tracker_state import Epoch, TrackerState, Values

BEFORE_RESET: list[
    Callable[["MetricsTracker", str], None]
] = []  # called with each finished phase, its sums still there


class MetricsTracker(TrackerState):
    """All metrics of a run: feed it batches, end its passes, save and restore it.

    Settings and questions are those of `TrackerState`. Every value is stamped with the epoch and step that were said last.
    """

    def update_train_batch(self, values: Values, samples: object, *, phase: str = "train", **more: Any) -> None:
        """Add a batch of training. values: means over the batch, by metric. samples: how many it has.

        tasks: task -> metric -> mean; task_samples: task -> samples (all of the batch, if left out), where a task has
        null labels. subsets: subset -> metric -> mean; subset_samples: subset -> samples. None has more samples than the
        batch. epoch, step: where the run is.
        A batch is added whole or, with a MetricValueError, KeyGrammarError or TdbgError, not at all. Cost: 2 us a value.
        """
        self._record_batch(phase, values, samples, **more)

    def update_val_metrics(self, values: Values, samples: object, *, phase: str | None = None, **more: Any) -> None:
        """Add a batch of a validation phase, without a name the one begun last; as `update_train_batch`."""
        self._record_batch(phase or self.val_phase, values, samples, **more)

    def update_chain(self, counts: ChainCounts, *, phase: str | None = None) -> None:
        """Add a batch's chains (`chain_counts`): chain_accuracy and partial_chain_accuracy, in the unit declared."""
        own = self.keep(self.open_for(phase or self.val_phase))
        self._add_fraction(own, "chain_accuracy", counts.right, counts.samples)
        self._add_fraction(own, "partial_chain_accuracy", counts.partial_right, counts.partial_samples)

    def update_predictions(
        self, predictions: Values, targets: Values, *, phase: str | None = None, top: Iterable[int] = (1,)
    ) -> None:
        """Add a batch's answers: accK of each task over its non-null samples, and the chains of the hierarchy.

        predictions: by task, classes (N) or scores (N, C). targets: by task, classes (N). top: the Ks. The batch's
        other values (its loss) come by `update_val_metrics`, which counts its samples. Raises MetricValueError for
        shapes that do not fit and for labels beyond the classes; then nothing is added. A sample with a NaN score is
        wrong; that there are such is one of ``findings``, and warned of once.
        """
        ks = tuple(top)
        phase = phase or self.val_phase
        if not any(task in targets for task in predictions):
            raise MetricValueError(
                f"no task in common: predictions have {format_names(predictions)}, targets {format_names(targets)}",
                "use the same task names in both",
            )
        found = {
            task: top_counts(scores, targets[task], ks, null_label=self.null_label, task=task)
            for task, scores in predictions.items()
            if task in targets
        }
        chain = chain_counts(predictions, targets, self.hierarchy or tuple(found), self.null_label)
        own = self.keep(self.open_for(phase))
        for task, (right, samples, wild) in found.items():
            for k in ks:
                self._add_fraction(own, f"acc{k}", right[k], samples, task)
            if wild:
                self._report_nan_scores(phase, task, wild, samples)
        self.update_chain(chain, phase=phase)

    def start_val_phase(self, phase: str = "val") -> None:
        """Begin a pass of a phase: its sums are empty, and validation calls that name no phase mean this one."""
        self._open_phase(phase).start_pass()
        self.val_phase = phase

    def finalize_train_epoch(self, epoch: Epoch = None, step: int | None = None, **more: Any) -> dict[Key, float]:
        """End an epoch of training; as `finalize_val_phase`."""
        return self.finalize_val_phase(more.pop("phase", "train"), epoch, step, **more)

    def finalize_val_phase(
        self,
        phase: str | None = None,
        epoch: Epoch = None,
        step: int | None = None,
        *,
        duration_sec: float | None = None,
        reduce: bool = False,
        group: object = None,
    ) -> dict[Key, float]:
        """End a pass: divide, update value and best, take the snapshot, then empty the sums. Returns the snapshot.

        duration_sec: how long it took; epoch_duration_sec and avg_samples_per_sec are made of it. reduce: add the sums
        of all ranks first (`reduce_phase`). What has no finite sample keeps its value, and is one of ``findings``; a phase
        that never received a value is warned of, once.
        """
        phase = phase or self.val_phase
        self._set_position(epoch, step)
        if phase not in self.phases or not self.phases[phase].metrics:
            self._warn_once(
                f"phase {phase!r} was finalised and has never received a value", self._suggest_phases(phase)
            )
        found = self._open_phase(phase)
        if duration_sec is not None:
            found.get_or_create_metric("epoch_duration_sec").add(duration_sec)
        if reduce and not found.reduced:
            self.reduce_phase(phase, group)
        if duration_sec is not None and (
            mean_sec := found.get_or_create_metric("epoch_duration_sec").partial.compute_mean()
        ):
            found.get_or_create_metric("avg_samples_per_sec").add(found.samples / mean_sec)
        snapshot = found.close_pass(self.epoch, self.step)
        if found.empty or not snapshot:
            self._record_finding("finalised with count 0", phase, found.empty)
        if (value := snapshot.get(self.best_epochs.criterion)) is not None:
            self.best_epochs.add_if_best(value, self.epoch, self.step)
        try:
            for listener in BEFORE_RESET:
                listener(self, phase)
        finally:
            found.start_pass()
        return snapshot

    def reduce_phase(self, phase: str, group: object = None) -> None:
        """Add up the sums of the pass under way over the ranks of a process group: every rank then holds the same.

        A collective of yours: every rank of ``group`` calls it for the same phase. Raises TdbgError if this pass is
        reduced already.
        """
        rank_reduction.reduce_phase(self._open_phase(phase), group)

    def update_learning_rates(self, source: object, epoch: Epoch = None, step: int | None = None) -> None:
        """Take the learning rates of an optimizer, a scheduler, a mapping or a sequence (`lr_dict`)."""
        self._update_store("lr", lr_dict(source), epoch, step)

    def update_schedule_values(self, values: Values, epoch: Epoch = None, step: int | None = None) -> None:
        """Take the schedule's values of this step: numbers, and texts (whose keys end in ``_str``)."""
        self._update_store("schedule", values, epoch, step)

    def update_pipeline_metrics(self, values: Values, epoch: Epoch = None, step: int | None = None) -> None:
        """Take numbers of the data pipeline."""
        self._update_store("pipeline", values, epoch, step)

    def update_gradnorm_metrics(self, values: Values, epoch: Epoch = None, step: int | None = None) -> None:
        """Take numbers of a GradNorm update; a mapping in it is by task."""
        self._update_store("gradnorm", values, epoch, step)

    def update_task_weights(self, weights: Values, epoch: Epoch = None, step: int | None = None) -> None:
        """Take the weights of the tasks: ``gradnorm/weight_TASK``."""
        self._update_store("task_weights", {"weight": weights}, epoch, step)

    def dump_metrics_state(
        self, phase: str | None = None, level: str = "basic", path: str | Path | None = None
    ) -> dict[str, object]:
        """One record of what is known, as plain data; with ``path``, also written there as JSON, whole or not at all.

        level: basic has values and bests, advanced the sums under way too, extreme the histories too.
        """
        record = state_dump.make_record(self, phase, level)
        if path is not None:
            state_dump.write_record(record, Path(path))
        return record

    def state_dict(self) -> dict[str, object]:
        """All of the state as plain data: going on from it equals never having stopped."""
        return saved_state.build_state_dict(self)

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Take a state over, whole; the sums under way are part of it. Raises StateError for one that is not sound."""
        saved_state.load_state(self, state)

    def _record_batch(
        self,
        phase: str,
        values: Values,
        samples: object,
        *,
        tasks: Mapping[str, Values] | None = None,
        task_samples: Mapping[str, object] | None = None,
        subsets: Mapping[str, Values] | None = None,
        subset_samples: Mapping[str, object] | None = None,
        epoch: Epoch = None,
        step: int | None = None,
    ) -> None:
        count = as_count(samples, f"{phase} batch")
        of_tasks = check_parts("task", tasks, task_samples, count)
        of_subsets = check_parts("subset", subsets, subset_samples, count, sized=True)
        groups: list[tuple[str, str, int, Values]] = [("", "", count, values)]
        groups += [(task, "", number, inner) for task, number, inner in of_tasks]
        groups += [("", subset, number, inner) for subset, number, inner in of_subsets]
        own = self.open_for(phase)
        ready: list[tuple[Slot, float, int]] = [
            (own.resolve_slot(name, task, subset), as_float(value, f"{phase}/{name}"), number)
            for task, subset, number, inner in groups
            for name, value in inner.items()
        ]
        self.keep(own)
        for slot, value, number in ready:  # nothing below raises: a batch is added whole
            own.get_or_create_at(slot).partial.add_mean(value, number)
        own.samples += count
        own.batches += 1
        self._set_position(epoch, step)
