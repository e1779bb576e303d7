"""What training data and evaluation data hold, side by side."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn

from tdbg.core.events import Step
from tdbg.core.observations.data_splits import InputRanges
from tdbg.probes import PROBES
from tdbg.probes.data_splits.input_figures import Figures, find_given, inputs_of, measure_sample, sample_input
from tdbg.probes.dataloader import batch_contents
from tdbg.probes.dataloader.feeds import Feed, Feeds, in_worker
from tdbg.probes.updates import EveryUpdate
from tdbg.runtime import tensors

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor
    from tdbg.runtime.rerun import Call
    from tdbg.runtime.torch_compat import BatchIterator

MOST_LOOKS = 16  # batches of a loader
MAX_SPLITS = 8


@dataclass(slots=True)
class Split:
    """What is known of one loader's batches."""

    number: int
    name: str
    trains: bool = False  # updates were made of its batches; those of others are evaluated, or not used
    looks: int = 0
    is_due: bool = False  # something was looked at that is not told yet
    loaded: dict[str, Figures] = field(default_factory=dict)  # by path in the batch
    given: dict[str, Figures] = field(default_factory=dict)

    def add(self, path: str, dtype: str, loaded: list[float], given: list[float]) -> None:
        """What one batch held, and what the model was called with."""
        for known, values in ((self.loaded, loaded), (self.given, given)):
            known.setdefault(path, Figures(dtype)).add(*values)


@dataclass(slots=True)
class _Pending:
    """A batch that no model has been called with yet."""

    split: Split
    inputs: dict[str, tuple[str, int, list[float]]]  # path -> dtype, elements, figures


@PROBES.add
class DataSplits(EveryUpdate):
    """Range and spread of each loader's float inputs, as they come and as the model gets them.

    Reads:  batches of every DataLoader, and the arguments of the root's next call that have as many elements.
    Emits:  RANGES of a loader that trains after 2, 4, 8 and 16 looks, of one that evaluates at the end of the pass.
    Cost:   some 60 us an input and look. Works in the opening inspection and the first evaluation pass alone.
    Limits: batches of other loaders, inputs on an accelerator before the call, and inputs that are cropped between the
            loader and the model are not seen. Integer inputs are left out, and so are tensors of two values, of fewer
            than four elements a sample, and those that look like targets, masks or weights.
    """

    name = "data-splits"
    inspects_evaluation = True
    observations = (InputRanges,)

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._forget()

    def _forget(self) -> None:
        self._feeds = Feeds()
        self._splits: dict[int, tuple[Feed, Split]] = {}  # by the feed's id
        self._pending: _Pending | None = None
        self._last: Split | None = None  # whose batch came last
        self._since_update: list[Split] = []  # those whose batches came since the last update
        self._evaluating: list[Split] = []  # of these, or of the pass before, those that the model evaluated

    def forked(self) -> None:
        self._forget()

    # batches

    def batch_taken(self, batch: object, wait_s: float, loader_iter: "BatchIterator") -> None:
        self._pending = None
        if in_worker():
            return
        split = self._last = self._split_of(loader_iter)
        if split is not None and split not in self._since_update:
            self._since_update.append(split)
        if split is None or split.looks >= MOST_LOOKS or not self._affords():
            return
        with self.work():
            inputs = {}
            for part in inputs_of(batch_contents.parts_of(batch)):
                sample = sample_input(part.tensor)
                if sample is not None:
                    dtype = str(part.tensor.dtype).removeprefix("torch.")
                    inputs[part.path] = dtype, part.tensor.numel(), measure_sample(sample).tolist()
        self._pending = _Pending(split, inputs)

    def _split_of(self, loader_iter: "BatchIterator") -> Split | None:
        feed = self._feeds.of(loader_iter)
        known = self._splits.get(id(feed))
        if known is None:
            if len(self._splits) >= MAX_SPLITS:
                return None
            known = self._splits[id(feed)] = feed, Split(len(self._splits) + 1, feed.name)
        return known[1]

    def _affords(self) -> bool:
        """True in the first evaluation pass, and while the allowance lasts."""
        return not self.monitor.inspection.is_open or self.should_sample()

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
        if self._match(pending, call):
            self._pending = None
            split.looks += 1
            split.is_due = True

    def _adopt_batch(self) -> None:
        """The pass began before this probe was there: take the batch that its first call is about to get."""
        loader = self.monitor.probe("loader-wait")
        if loader is not None and loader.batch is not None and loader.iterator is not None:
            self.batch_taken(loader.batch, 0.0, loader.iterator)

    def _match(self, pending: _Pending, call: "Call") -> bool:
        """Find the batch's inputs among the arguments of a call; False if it has none of them."""
        arguments = [tensor for _, tensor in tensors.walk((call.args, call.kwargs))]
        found = False
        for path, (dtype, numel, loaded) in pending.inputs.items():
            given = find_given(arguments, numel)
            if given is None:
                continue
            found = True
            if tensors.on_host(given):
                sample = sample_input(given)
                if sample is not None:
                    pending.split.add(path, dtype, loaded, measure_sample(sample).tolist())
            else:
                self._read_late(pending.split, path, dtype, loaded, given)
        return found

    def _read_late(self, split: Split, path: str, dtype: str, loaded: list[float], given: torch.Tensor) -> None:
        def arrived(values: list[float], record: Step | None) -> None:
            split.add(path, dtype, loaded, values)
            if not split.trains and split not in self._evaluating:
                self._tell(split)

        sample = batch_contents.spread(given, batch_contents.SAMPLE).to(torch.float32)
        self.monitor.read_late(measure_sample(sample), arrived)

    # what is told

    def after_update(self, optimizer: torch.optim.Optimizer) -> None:
        """The batches since the last update were for training; those that were evaluated before its own were not."""
        batches, self._since_update = self._since_update, []
        for split in batches:
            if split.trains or split is self._last or split not in self._evaluating:
                split.trains = True
                if split.is_due and split.looks >= 2 and split.looks.bit_count() == 1:
                    self._tell(split)
        self._end_evaluation()

    def _end_evaluation(self, going_on: Split | None = None) -> None:
        """Tell of the loaders of a pass that is over. going_on: what a batch of it is for is not decided yet."""
        ended = [split for split in self._evaluating if split is not going_on]
        self._evaluating = [split for split in self._evaluating if split is going_on]
        for split in ended:
            if split.is_due and not split.trains:
                self._tell(split)

    def run_ends(self) -> None:
        self._end_evaluation()

    def detach(self) -> None:
        self._end_evaluation()
        self._forget()
        super().detach()

    def _tell(self, split: Split) -> None:
        split.is_due = False
        if not split.loaded:
            return
        ranges = InputRanges(
            dataset=split.name,
            feed=split.number,
            use="training" if split.trains else "evaluation",
            looks=split.looks,
            loaded=[figures.row(path) for path, figures in split.loaded.items()],
            given=[figures.row(path) for path, figures in split.given.items()],
        )
        self.emit(ranges)
