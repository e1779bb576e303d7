"""One phase of a run (train, val, val_mask_meta, ...): its metrics, overall and by task and subset."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from tdbg.metrics.keys import Key
from tdbg.metrics.tracker.metric import HISTORY, Metric


class Slot(NamedTuple):
    """Where a metric stands in its phase."""

    metric: str
    task: str = ""
    subset: str = ""


Maker = Callable[[str], Metric]


class Phase:
    """The metrics of a phase, made when they are first fed.

    epoch, step: of the last finished pass. samples, batches: of the pass under way. empty: what the last finished
    pass left without a finite sample; strange: those of it that had samples, all NaN or infinite. snapshot: the values of the last finished pass, by key.
    reduced: the sums under way are those of all ranks already; of_all_ranks: so were those of the last finished pass.
    """

    def __init__(self, name: str, make: Maker | None = None) -> None:
        Key(name, "loss")  # a name that the grammar does not have is refused here
        self.name = name
        self.make: Maker = make or (lambda metric: Metric(metric, history=HISTORY))
        self.metrics: dict[Slot, Metric] = {}
        self.epoch: int | float | None = None
        self.step: int | None = None
        self.finished = 0
        self.samples = 0
        self.batches = 0
        self.reduced = False
        self.of_all_ranks = False
        self.empty: list[str] = []
        self.strange: list[str] = []
        self.snapshot: dict[Key, float] = {}

    def get_or_create_metric(self, metric: str, task: str = "", subset: str = "") -> Metric:
        """The metric at a place, made if it is new. Raises KeyGrammarError for a name that the grammar does not have."""
        return self.get_or_create_at(self.resolve_slot(metric, task, subset))

    def resolve_slot(self, metric: str, task: str = "", subset: str = "") -> Slot:
        """The place of a metric; a name that holds its task, `acc1_genus`, is parted. Raises KeyGrammarError."""
        slot = Slot(metric, task, subset)
        if slot in self.metrics:
            return slot
        key = Key(self.name, metric, task, subset)
        return Slot(key.metric, key.task, key.subset)

    def get_or_create_at(self, slot: Slot) -> Metric:
        """The metric at a place, made if it is new."""
        found = self.metrics.get(slot)
        if found is None:
            found = self.metrics[slot] = self.make(slot.metric)
        return found

    def build_key(self, slot: Slot) -> Key:
        """The key of a place."""
        return Key(self.name, slot.metric, slot.task, slot.subset)

    def start_pass(self) -> None:
        """Begin a pass: the sums under way are empty; values, bests and histories stay."""
        for metric in self.metrics.values():
            metric.start()
        self.samples = self.batches = 0
        self.reduced = False

    def close_pass(self, epoch: int | float | None, step: int | None) -> dict[Key, float]:
        """Divide, and update every metric; the sums stay until `start_pass`. Returns the values of this pass, by key.

        ``empty`` then names the metrics without a finite sample, whose values stay what they were.
        """
        self.snapshot, self.empty, self.strange = {}, [], []
        for slot, metric in self.metrics.items():
            key = self.build_key(slot)
            if metric.close(epoch, step) and metric.value is not None:
                self.snapshot[key] = metric.value
            else:
                self.empty.append(str(key))
                if metric.partial.has_samples:
                    self.strange.append(str(key))
        self.empty.sort()
        self.epoch, self.step = epoch, step
        self.of_all_ranks = self.reduced
        self.finished += 1
        return dict(self.snapshot)

    def __iter__(self) -> Iterator[tuple[Key, Metric]]:
        return ((self.build_key(slot), metric) for slot, metric in self.metrics.items())

    def select_overall_metrics(self) -> dict[str, Metric]:
        """The metrics of the whole phase, by name."""
        return {slot.metric: metric for slot, metric in self.metrics.items() if not slot.task and not slot.subset}

    def by_task(self) -> dict[str, dict[str, Metric]]:
        """The metrics of tasks: task, then metric."""
        return self._group_metrics(lambda slot: slot.task if not slot.subset else "")

    def by_subset(self) -> dict[str, dict[str, Metric]]:
        """The metrics of subsets: subset, then metric (with its task, as in the key)."""
        return self._group_metrics(lambda slot: slot.subset, with_task=True)

    def _group_metrics(self, group: Callable[[Slot], str], *, with_task: bool = False) -> dict[str, dict[str, Metric]]:
        found: dict[str, dict[str, Metric]] = {}
        for slot, metric in self.metrics.items():
            if name := group(slot):
                inner = f"{slot.metric}_{slot.task}" if with_task and slot.task else slot.metric
                found.setdefault(name, {})[inner] = metric
        return found

    def state(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "epoch": self.epoch,
            "step": self.step,
            "finished": self.finished,
            "samples": self.samples,
            "batches": self.batches,
            "reduced": self.reduced,
            "of_all_ranks": self.of_all_ranks,
            "empty": list(self.empty),
            "snapshot": {str(key): value for key, value in self.snapshot.items()},
            "metrics": [{**slot._asdict(), **metric.state()} for slot, metric in sorted_slots(self.metrics)],
        }


def sorted_slots(metrics: Mapping[Slot, Metric]) -> list[tuple[Slot, Metric]]:
    """By name, so that two states of the same content are equal."""
    return sorted(metrics.items(), key=lambda item: item[0])
