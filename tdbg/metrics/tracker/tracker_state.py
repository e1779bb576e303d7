"""The state of a tracker, and how it is read."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar
from weakref import WeakSet

from tdbg.core.directions import direction_of, parse_direction
from tdbg.core.errors import TdbgError
from tdbg.core.output import print_messages
from tdbg.core.tables import format_count
from tdbg.metrics.keys import Key, core_alias, unit_named
from tdbg.metrics.tracker.best_epochs import BestEpochs
from tdbg.metrics.tracker.hierarchy_accuracy import Null
from tdbg.metrics.tracker.last_values import STORES, LastValues
from tdbg.metrics.tracker.metric import HISTORY, Metric
from tdbg.metrics.tracker.partial import Partial
from tdbg.metrics.tracker.phase import Phase

Values = Mapping[str, Any]
Epoch = int | float | None
N = TypeVar("N", int, float)
MAX_FINDINGS = 100
LIVE_TRACKERS: "WeakSet[Any]" = WeakSet()  # every tracker of this process


class UnknownPhaseError(TdbgError):
    """A phase that never received a value was asked for."""


class TrackerState:
    """All metrics of a run, by phase, task and subset. Phases are made by their first value.

    hierarchy: tasks of the chain, such as species, genus, family. null_label: the class that means "not labelled", one
        or by task. best, best_size: the criterion of the best epochs, and how many are kept.
    units, directions: by name of metric, where the name itself does not tell (`Key.unit`, `direction_of`). A direction is
        "min" or False, "max" or True, None for neither; a unit pct, frac, ms, sec, mb, per_sec or one word of yours.
    history: finished passes that each metric remembers.
    ``epoch`` and ``step`` are where the run is: any update may say it, and every value is stamped with it.
    """

    def __init__(
        self,
        *,
        hierarchy: Iterable[str] = (),
        null_label: Null = None,
        best: str = "val/loss",
        best_size: int = 5,
        units: Mapping[str, str] | None = None,
        directions: Mapping[str, bool | str | None] | None = None,
        history: int = HISTORY,
    ) -> None:
        self.hierarchy = tuple(hierarchy)
        self.null_label = null_label
        self.units = {_check_metric_name(name, "unit"): unit_named(unit, name) for name, unit in (units or {}).items()}
        self.directions = {
            _check_metric_name(name, "direction"): parse_direction(said, name)
            for name, said in (directions or {}).items()
        }
        self.history = history
        self.best_epochs = BestEpochs(best, best_size, self.directions.get(Key.parse(best).metric))
        self.phases: dict[str, Phase] = {}
        self.stores = {name: LastValues(prefix, history) for name, prefix in STORES.items()}
        self.val_phase = "val"  # the validation phase that was begun last
        self.epoch: Epoch = None
        self.step: int | None = None
        self.findings: list[dict[str, object]] = []  # finalised with count 0: what, phase, epoch, step, metrics
        self._warned: set[str] = set()
        LIVE_TRACKERS.add(self)

    def phase(self, name: str) -> Phase:
        """A phase that has received a value. Raises UnknownPhaseError, with the nearest names."""
        found = self.phases.get(name)
        if found is None or not found.metrics:
            raise UnknownPhaseError(f"no phase {name!r} has received a value", self._suggest_phases(name))
        return found

    def metric(self, key: str | Key) -> Metric:
        """One metric by its key. Raises UnknownPhaseError, and TdbgError for a metric that its phase does not have."""
        wanted = Key.parse(str(key))
        phase = self.phase(wanted.phase)
        for known, metric in phase:
            if (known.metric, known.task, known.subset) == (wanted.metric, wanted.task, wanted.subset):
                return metric
        raise TdbgError(f"no metric {wanted} has received a value", f"there are: {', '.join(str(k) for k, _ in phase)}")

    @property
    def phase_metrics(self) -> dict[str, dict[str, Metric]]:
        """Phase -> metric."""
        return {name: phase.select_overall_metrics() for name, phase in self.phases.items()}

    @property
    def phase_task_metrics(self) -> dict[str, dict[str, dict[str, Metric]]]:
        """Phase -> task -> metric."""
        return {name: phase.by_task() for name, phase in self.phases.items()}

    @property
    def phase_subset_metrics(self) -> dict[str, dict[str, dict[str, Metric]]]:
        """Phase -> subset -> metric."""
        return {name: phase.by_subset() for name, phase in self.phases.items()}

    @property
    def partial_task_sums(self) -> dict[str, dict[str, dict[str, float]]]:
        """Phase -> task -> metric: the sum over samples of the pass under way."""
        return self._partials_by_task(Partial.compute_total)

    @property
    def partial_task_counts(self) -> dict[str, dict[str, dict[str, int]]]:
        """Phase -> task -> metric: the samples of the pass under way."""
        return self._partials_by_task(lambda sums: sums.count)

    def _partials_by_task(self, read: Callable[[Partial], N]) -> dict[str, dict[str, dict[str, N]]]:
        return {
            name: {task: {one: read(metric.partial) for one, metric in inner.items()} for task, inner in tasks.items()}
            for name, tasks in self.phase_task_metrics.items()
        }

    @property
    def metrics(self) -> dict[str, Metric]:
        """Every metric of every phase, by key (``val/acc1_genus``)."""
        return {str(key): metric for phase in self.phases.values() for key, metric in phase}

    @property
    def lr_dict(self) -> dict[str, object]:
        """The last learning rates, by parameter group."""
        return self.stores["lr"].by_name()

    @property
    def schedule_values(self) -> dict[str, object]:
        """The last values of the schedule, by the names they were given with."""
        return self.stores["schedule"].by_name()

    @property
    def pipeline_metrics(self) -> dict[str, object]:
        """The last numbers of the data pipeline."""
        return self.stores["pipeline"].by_name()

    @property
    def gradnorm_metrics(self) -> dict[str, object]:
        """The last numbers of GradNorm; those by task as a mapping."""
        return self.stores["gradnorm"].by_name()

    @property
    def task_weights(self) -> dict[str, float]:
        """The last weights of the tasks."""
        found: dict[str, float] = self.stores["task_weights"].by_name().get("weight", {})
        return found

    def get_wandb_metrics(self, phase: str | None = None, *, core: bool = True) -> dict[str, float | str]:
        """The last values by key, with their copies for dashboards; texts under keys that end in ``_str``.

        It changes nothing.

        phase: of this phase alone, without the stores.
        """
        phases = self.phases.values() if phase is None else [self.phase(phase)]
        values: dict[Key, float | str] = {
            key: metric.value for one in phases for key, metric in one if metric.value is not None
        }
        if core:
            values |= {copy: value for key, value in values.items() if (copy := core_alias(key)) is not None}
        if phase is None:
            for store in self.stores.values():
                values |= store.select_numbers()
                values |= store.select_texts()
        return {str(key): value for key, value in values.items()}

    def make_metric(self, name: str) -> Metric:
        """A new metric as this tracker was told to make it."""
        direction = self.directions[name] if name in self.directions else direction_of(name)
        return Metric(name, higher_is_better=direction, unit=self.units.get(name, ""), history=self.history)

    def open_for(self, name: str) -> Phase:
        """A phase that takes values now; a new one is the tracker's once it is given to `keep`.

        Raises KeyGrammarError for a name that no phase can have, TdbgError for one whose sums are reduced already.
        """
        found = self.phases.get(name)
        if found is None:
            if not Key(name, "loss").of_phase:
                raise TdbgError(f"{name!r} is not a phase: its keys are for last values", "use train, val, ...")
            return Phase(name, self.make_metric)
        if found.reduced:
            raise TdbgError(f"phase {name!r} is already reduced over all ranks", "finalise it before you add more")
        return found

    def keep(self, phase: Phase) -> Phase:
        """Make a phase one of the tracker's."""
        return self.phases.setdefault(phase.name, phase)

    def _open_phase(self, name: str) -> Phase:
        """A phase, made if it is new."""
        return self.phases.get(name) or self.keep(self.open_for(name))

    def _set_position(self, epoch: Epoch, step: int | None) -> None:
        """Say where the run is; what is left out stays."""
        self.epoch = self.epoch if epoch is None else epoch
        self.step = self.step if step is None else step

    def _update_store(self, store: str, values: Values, epoch: Epoch, step: int | None) -> None:
        self._set_position(epoch, step)
        self.stores[store].update(values, self.epoch, self.step)

    def _add_fraction(self, phase: Phase, name: str, right: int, samples: int, task: str = "") -> None:
        """Add right answers to a share, in per cent or as a fraction, as its unit says; a fraction if nothing does."""
        metric = phase.get_or_create_metric(name, task)
        metric.unit = metric.unit or "frac"
        metric.partial.add_sum(float(100 * right if metric.unit == "pct" else right), samples)

    def _record_finding(self, what: str, phase: str, metrics: Iterable[str]) -> None:
        del self.findings[: max(len(self.findings) - MAX_FINDINGS + 1, 0)]
        self.findings.append(
            {"what": what, "phase": phase, "epoch": self.epoch, "step": self.step, "metrics": list(metrics)}
        )

    def _report_nan_scores(self, phase: str, task: str, wild: int, samples: int) -> None:
        """Tell of samples whose scores are NaN; they were counted as wrong."""
        self._record_finding(f"{wild} of {format_count(samples, 'sample', 'has')} NaN scores", phase, [f"acc_{task}"])
        said = f"task {task!r} of {phase!r}: {wild} of {format_count(samples, 'sample', 'has')} NaN scores and count as wrong"
        self._warn_once(said, "look at the loss and the weights: `tdbg run` names the first NaN", f"NaN {phase} {task}")

    def _warn_once(self, what: str, hint: str, once: str = "") -> None:
        """A Python warning at the line of the program that called; the same one only once a tracker."""
        import sys
        import warnings

        if (once or what) in self._warned:
            return
        self._warned.add(once or what)
        depth, frame = 1, sys._getframe()
        while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("tdbg.metrics."):
            depth, frame = depth + 1, frame.f_back
        try:
            warnings.warn(f"{what}: {hint}", stacklevel=depth)
        except Warning:  # the program makes errors of warnings: of its own, but this one must not end its training
            print_messages(f"{what}: {hint}")

    def _suggest_phases(self, name: str) -> str:
        """A hint for a phase that has no value: the nearest names."""
        import difflib

        known = [phase for phase, found in self.phases.items() if found.metrics]
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        if near:
            return f"did you mean {' or '.join(near)}?"
        return f"there are: {', '.join(known)}" if known else "nothing has received a value yet"


def _check_metric_name(name: str, what: str) -> str:
    """The name of a metric as settings take it: without phase."""
    if not isinstance(name, str) or "/" in name:
        raise TdbgError(f"a {what} is set for a metric, not for {name!r}", "leave the phase out: loss, not val/loss")
    return name
