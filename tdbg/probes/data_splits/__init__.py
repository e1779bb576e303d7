"""What training data and evaluation data hold, side by side."""

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tdbg.core.events import Step
from tdbg.core.observations.data_splits import InputRanges, LabelOrder, SharedSamples
from tdbg.probes import PROBES
from tdbg.probes.data_splits.input_figures import Figures, find_given, inputs_of, measure_sample, sample_input
from tdbg.probes.data_splits.label_order import Order, class_labels, is_sequential
from tdbg.probes.data_splits.shared_samples import Samples, checksum_samples, compare_indices, main_samples
from tdbg.probes.dataloader import batch_contents
from tdbg.probes.dataloader.batch_contents import Part
from tdbg.probes.dataloader.feeds import Feed, Feeds, get_length, is_in_worker, iter_samplers
from tdbg.probes.training_loop.dataset_identity import Source, is_same, source_of
from tdbg.probes.updates import EveryUpdate
from tdbg.runtime import tensors
from tdbg.runtime.listener import LATER_STEPS

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor
    from tdbg.runtime.rerun import Call
    from tdbg.runtime.torch_compat import BatchIterator

MOST_LOOKS = 16  # batches of a loader
MAX_UNPAID_LOOKS = 64  # at batches of a loader after the opening steps
MAX_SPLITS = 8
MAX_LABELS = 1024  # of a batch


@dataclass(slots=True)
class Split:
    """What is known of one loader's batches."""

    number: int
    name: str
    source: Source = None  # its dataset
    length: int | None = None  # samples that a pass over it may give, on all ranks
    trains: bool = False  # updates were made of its batches; those of others are evaluated, or not used
    looks: int = 0
    unpaid_looks: int = 0
    awaited: int = 0  # figures on their way from an accelerator
    is_due: bool = False  # something was looked at that is not told yet
    loaded: dict[str, Figures] = field(default_factory=dict)  # by path in the batch
    given: dict[str, Figures] = field(default_factory=dict)
    samples: Samples = field(default_factory=Samples)
    compared: int = 0  # so many samples had been looked at when they were compared with those of training
    order: Order | None = None  # of the labels in the pass that is going on; None where it is not followed
    has_reported_order: bool = False
    model: int = 0  # the number of the one that its batches are for; 0 before the first update

    def follow_model(self, number: int) -> None:
        """Its batches are for this model: what another one has seen, this one has not."""
        if self.model not in (0, number):
            self.samples, self.compared = Samples(), 0
        self.model = number

    @property
    def dataset(self) -> Any:
        """The dataset, while it is alive."""
        return self.source() if isinstance(self.source, weakref.ref) else None

    def add_figures(self, path: str, dtype: str, loaded: list[float], given: list[float]) -> None:
        """What one batch held, and what the model was called with."""
        for known, values in ((self.loaded, loaded), (self.given, given)):
            known.setdefault(path, Figures(dtype)).add_batch(*values)


@dataclass(slots=True)
class _Pending:
    """A batch that no model has been called with yet."""

    split: Split
    inputs: dict[str, tuple[str, int, list[float]]]  # path -> dtype, elements, figures


@dataclass(slots=True)
class _Known:
    """What outlasts the time between the opening steps and the first evaluation pass: numbers alone."""

    feeds: Feeds = field(default_factory=Feeds)
    splits: dict[int, tuple[Feed, Split]] = field(default_factory=dict)  # by the feed's id
    models: int = 0  # that were trained, one after the other
    parameter: "weakref.ref[torch.Tensor] | None" = None  # the first one of the last of them

    def count_models(self, parameter: torch.Tensor | None) -> int:
        """The number of the model that is trained. parameter: the first that its optimizer holds, None for no news."""
        if parameter is not None and (self.parameter is None or self.parameter() is not parameter):
            self.models, self.parameter = self.models + 1, weakref.ref(parameter)
        return self.models


_KNOWN: "weakref.WeakKeyDictionary[Monitor, _Known]" = weakref.WeakKeyDictionary()


@PROBES.add
class DataSplits(EveryUpdate):
    """What the loaders of training and of evaluation give, side by side.

    Reads:  batches of every DataLoader, and the arguments of the root's next call that have as many elements.
    Emits:  RANGES of the float inputs of a loader that trains after 2, 4, 8 and 16 sampled batches, of one that
            evaluates at the end of the pass; SHARED with it: which samples, by a checksum of 64 of their elements, were seen in training;
            ORDER once a loader whose labels are in order.
    Cost:   some 150 us a look. Works in the opening inspection, its later looks and the first evaluation pass alone.
    Limits: batches of other loaders, inputs on an accelerator before the call, and inputs that are cropped between the
            loader and the model are not seen. Of ranges integer inputs are left out, and so are tensors of two values,
            of fewer than four elements a sample, and those that look like targets, masks or weights. Samples that are
            augmented are not recognised.
    """

    name = "data-splits"
    inspects_evaluation = True
    comes_back = LATER_STEPS
    observations = (InputRanges, SharedSamples, LabelOrder)

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._reset_state()

    def _reset_state(self) -> None:
        self._known = _KNOWN.setdefault(self.monitor, _Known())
        self._pending: _Pending | None = None
        self._met: set[int] = set()  # numbers of splits that gave a batch since this probe is there
        self._last: Split | None = None  # whose batch came last
        self._since_update: list[Split] = []  # those whose batches came since the last update
        self._evaluating: list[Split] = []  # of these, or of the pass before, those that the model evaluated

    def forked(self) -> None:
        _KNOWN.pop(self.monitor, None)
        self._reset_state()

    # batches

    def batch_taken(self, batch: object, wait_s: float, loader_iter: "BatchIterator") -> None:
        self._pending = None
        if is_in_worker():
            return
        split = self._last = self._find_split(loader_iter)
        if split is None:
            return
        if split not in self._since_update:
            self._since_update.append(split)
        if loader_iter._num_yielded == 1 or split.number not in self._met:  # batches before this one were not seen
            self._met.add(split.number)
            split.samples.begin_pass()
            split.order = Order() if is_sequential(loader_iter) else None
        if not self._can_afford(split):
            split.order = None  # batches are no longer in a row
            return
        with self.work():
            parts = batch_contents.parts_of(batch)
            self._add_samples(split, parts)
            if split.looks < MOST_LOOKS:
                self._pending = _Pending(split, _measure_inputs(parts))

    def _add_samples(self, split: Split, parts: list[Part]) -> None:
        if not split.trains:
            split.follow_model(self._find_model())
        rows_NE = main_samples(parts)
        if rows_NE is not None:
            split.samples.add_checksums(checksum_samples(rows_NE))
        labels = class_labels(parts) if split.order is not None else None
        if labels is None or split.order is None or labels[1].numel() > MAX_LABELS:
            split.order = None
        else:
            split.order.path = labels[0]
            split.order.add_labels(labels[1].tolist())

    def _find_split(self, loader_iter: "BatchIterator") -> Split | None:
        feed, splits = self._known.feeds.find_feed(loader_iter), self._known.splits
        known = splits.get(id(feed))
        if known is None:
            if len(splits) >= MAX_SPLITS:
                return None
            split = Split(len(splits) + 1, feed.name, source_of(loader_iter), _count_samples(loader_iter))
            known = splits[id(feed)] = feed, split
        return known[1]

    def _can_afford(self, split: Split) -> bool:
        """True for the first batches of the first evaluation pass, and while the allowance lasts."""
        if self.monitor.inspection.is_open:
            return self.should_sample()
        split.unpaid_looks += 1
        return not split.trains and split.unpaid_looks <= MAX_UNPAID_LOOKS

    # calls

    def call_begins(self, module: nn.Module, call: "Call") -> None:
        if self._last is None:
            self._adopt_batch()
        is_training = call.graded and module.training
        if is_training:
            self._end_evaluation(going_on=self._last)
        elif self._last is not None and not self._last.trains and self._last not in self._evaluating:
            self._evaluating.append(self._last)
        pending = self._pending
        if pending is None:
            return
        split = pending.split
        if self._match_inputs(pending, call):
            self._pending = None
            split.looks += 1
            split.is_due = True

    def _adopt_batch(self) -> None:
        """The pass began before this probe was there: take the batch that its first call is about to get."""
        loader = self.monitor.find_probe("loader-wait")
        if loader is not None and loader.batch is not None and loader.iterator is not None:
            self.batch_taken(loader.batch, 0.0, loader.iterator)

    def _match_inputs(self, pending: _Pending, call: "Call") -> bool:
        """Find the batch's inputs among the arguments of a call; False if it has none of them."""
        arguments = [tensor for _, tensor in tensors.iter_tensors((call.args, call.kwargs))]
        found = False
        for path, (dtype, numel, loaded) in pending.inputs.items():
            given = find_given(arguments, numel)
            if given is None:
                continue
            found = True
            if tensors.on_host(given):
                sample = sample_input(given)
                if sample is not None:
                    pending.split.add_figures(path, dtype, loaded, measure_sample(sample).tolist())
            else:
                self._read_late(pending.split, path, dtype, loaded, given)
        return found

    def _read_late(self, split: Split, path: str, dtype: str, loaded: list[float], given: torch.Tensor) -> None:
        split.awaited += 1

        def record_figures(values: list[float], record: Step | None) -> None:
            split.awaited -= 1
            split.add_figures(path, dtype, loaded, values)
            if not (split.trains or split.awaited or split in self._evaluating):
                self._emit_ranges(split)

        sample = batch_contents.sample_elements(given, batch_contents.SAMPLE).to(torch.float32)
        self.monitor.read_late(measure_sample(sample), record_figures)

    # what is told

    def after_update(self, optimizer: torch.optim.Optimizer) -> None:
        """The batches since the last update were for training; those that were evaluated before its own were not."""
        batches, self._since_update = self._since_update, []
        model = self._find_model(optimizer)
        for split in batches:
            if split.trains or split is self._last or split not in self._evaluating:
                split.trains = True
                split.follow_model(model)
                if split.is_due and split.looks >= 2 and split.looks.bit_count() == 1:
                    self._emit_ranges(split)
                self._judge_order(split)
        self._end_evaluation()

    def _judge_order(self, split: Split) -> None:
        found = (
            split.order.judge_order(split.name) if split.order is not None and not split.has_reported_order else None
        )
        if found is not None:
            split.has_reported_order = True
            self.emit(found)

    def _end_evaluation(self, going_on: Split | None = None) -> None:
        """Tell of the loaders of a pass that is over. going_on: what a batch of it is for is not decided yet."""
        ended = [split for split in self._evaluating if split is not going_on]
        self._evaluating = [split for split in self._evaluating if split is going_on]
        self._since_update = [split for split in self._since_update if split not in ended]
        for split in ended:
            if split.trains:
                continue
            if split.is_due:
                self._emit_ranges(split)
            if split.samples.count > split.compared:
                split.compared = split.samples.count
                self._emit_shared(split)

    def run_ends(self) -> None:
        self._end_evaluation()

    def detach(self) -> None:
        self._end_evaluation()
        super().detach()

    def _emit_ranges(self, split: Split) -> None:
        split.is_due = False
        if not split.loaded:
            return
        ranges = InputRanges(
            dataset=split.name,
            feed=split.number,
            use="training" if split.trains else "evaluation",
            looks=split.looks,
            loaded=[figures.build_row(path) for path, figures in split.loaded.items()],
            given=[figures.build_row(path) for path, figures in split.given.items()],
        )
        self.emit(ranges)

    def _emit_shared(self, split: Split) -> None:
        """What a loader that was evaluated has in common with the one that trains on most of it."""
        trained = [other for _, other in self._known.splits.values() if other.trains and other.model == split.model]
        found = [self._compare_splits(split, other) for other in trained]
        if found:
            self.emit(max(found, key=lambda seen: (seen.shared_indices or 0, seen.shared)))

    def _find_model(self, updating: torch.optim.Optimizer | None = None) -> int:
        """The number of the model that is trained, of several one after the other (cross-validation, a search).

        updating: the optimizer that makes an update now; it counts where the main one is gone.
        """
        optimizer = self.monitor.optimizers.find_main() or updating
        groups = optimizer.param_groups if optimizer is not None else ()
        return self._known.count_models(next((parameter for group in groups for parameter in group["params"]), None))

    @staticmethod
    def _compare_splits(split: Split, trained: Split) -> SharedSamples:
        seen = SharedSamples(dataset=split.name, feed=split.number, trained=trained.name, trained_length=trained.length)
        seen.is_same = split.source is not None and is_same(split.source, trained.source)
        if split.samples.are_distinct and trained.samples.are_distinct:
            seen.samples, seen.shared = len(split.samples.found), len(split.samples.found & trained.samples.found)
            seen.trained_samples = len(trained.samples.found)
        ours, theirs = split.dataset, trained.dataset
        if ours is not None and theirs is not None:
            seen.indices, seen.shared_indices = compare_indices(theirs, ours) or (None, None)
        return seen


def _measure_inputs(parts: list[Part]) -> dict[str, tuple[str, int, list[float]]]:
    """The dtype, size and figures of each float input of a batch, by path."""
    inputs = {}
    for part in inputs_of(parts):
        sample = sample_input(part.tensor)
        if sample is not None:
            dtype = str(part.tensor.dtype).removeprefix("torch.")
            inputs[part.path] = dtype, part.tensor.numel(), measure_sample(sample).tolist()
    return inputs


def _count_samples(loader_iter: "BatchIterator") -> int | None:
    """The samples that passes over a loader take theirs from, on all ranks; None if it does not say."""
    length, batches = get_length(loader_iter._dataset), get_length(loader_iter._index_sampler)
    chain = list(iter_samplers(loader_iter))
    size = next((found for one in chain if isinstance(found := getattr(one, "batch_size", None), int)), None)
    is_shared = any(hasattr(one, "num_replicas") for one in chain)
    if length is None or batches is None or size is None or is_shared:
        return length
    return min(length, batches * size)
