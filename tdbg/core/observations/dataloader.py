"""What the probe `dataloader` sees."""

from tdbg.core.events import Number, doc
from tdbg.core.observations import Evidence, Observed
from tdbg.core.tables import format_count, join_limited

SHOWN = 8  # dataset indices in a line


class _OfLoader(Observed):
    """What every observation of a loader has."""

    PROBE = "dataloader"

    dataset: str = doc("class of the dataset", "")


class _Warning(_OfLoader):
    """Something that is wrong, told once a loader."""

    LEVEL = "W"


class LoaderSettings(_OfLoader):
    """How a loader was set up."""

    length: int | None = doc("length of the dataset, if it has one")
    batches: int | None = doc("number of batches in a pass, if known; at the end of a pass the number returned")
    batch_size: int | None = doc("batch_size of the loader")
    samplers: list[str] | None = doc("classes of the batch sampler and the samplers in it")
    collate: str | None = doc("the collate function")
    drop_last: bool | None = doc("an incomplete last batch is left out")
    pinned: bool | None = doc("batches are copied to pinned memory")
    workers: int | None = doc("worker processes")
    replicas: int | None = doc("ranks that a DistributedSampler shares the samples among")
    prefetch: int | None = doc("number of batches that each worker prefetches")
    persistent: bool | None = doc("workers stay alive between passes")
    start_method: str | None = doc("how workers are started: fork, spawn, forkserver")


class LoaderMade(LoaderSettings):
    """A loader, at its first pass."""

    PART = "LOADER"
    LEVEL = "I"

    subset_of: int | None = doc("length of the dataset that this is a subset of")
    split: list[int] | None = doc("lengths of the subsets of one dataset that were read from")
    made_s: float | None = doc("time from tdbg's start to the loader's creation: imports, building model and datasets")
    first_s: float | None = doc("time from creating the iterator to its first batch: workers start, first fetch")

    def text(self) -> str:
        """Every setting that is known, by name."""
        parts = (
            f"{name} {value}" for name, value in self.as_values().items() if name not in ("dataset", "start_method")
        )
        return f"{self.dataset}: {', '.join(parts)}"


class Batch(_OfLoader):
    """A batch as the program got it; each list has an entry a tensor."""

    PART = "BATCH"

    batch: int = doc("number of the batch in its pass, from 1", 0)
    wait_ms: float = doc("time spent waiting for the batch", 0.0)
    names: list[str] | None = doc("paths of the batch's tensors; given when the kinds change")
    kinds: list[str] | None = doc("dtype, shape and device of each; given when they change")
    low: list[Number | None] = doc("smallest element in a sample of each tensor", factory=list)
    high: list[Number | None] = doc("largest element in that sample", factory=list)
    mean: list[Number | None] = doc("mean of that sample", factory=list)
    constant: list[str] = doc("tensors whose elements are all equal", factory=list)
    alike: list[str] = doc("tensors whose samples are all equal", factory=list)
    indices: list[int] | None = doc("the dataset's indices in the batch, at most eight")
    in_order: float | None = doc("share of the indices that are the previous index + 1 (locality of access), 0 to 1")

    described: tuple[str, ...] = ()  # each tensor in words: for the line alone
    taken: int = 0  # how many indices there were

    def text(self) -> str:
        """Its tensors, its indices and the wait for it."""
        indices = f"; indices {join_limited(self.indices, SHOWN, self.taken)}" if self.indices else ""
        return f"{self.dataset} batch {self.batch}: {'; '.join(self.described)}{indices}; waited {self.wait_ms:.2f} ms"


class BatchRange(Observed):
    """The range of a batch on an accelerator, which arrives a step late."""

    PROBE = "dataloader"
    PART = "RANGE"

    names: list[str] = doc("paths of the batch's tensors; given when the kinds change", factory=list)
    low: list[Number | None] = doc("smallest element in a sample of each tensor", factory=list)
    high: list[Number | None] = doc("largest element in that sample", factory=list)
    mean: list[Number | None] = doc("mean of that sample", factory=list)

    def text(self) -> str:
        """The range of each tensor."""
        rows = zip(self.names, self.low, self.high, self.mean, strict=False)
        return "; ".join(f"{path}: {low} to {high}, mean {mean}" for path, low, high, mean in rows)


class PassEnded(_OfLoader):
    """A pass over a loader, at its end."""

    PART = "EPOCH"
    LEVEL = "I"

    passes: int = doc("number of passes over this loader so far, the current one included", 0)
    batches: int = doc("number of batches in a pass, if known; at the end of a pass the number returned", 0)
    median_ms: float = doc(
        "median wait over the last 256 batches; without workers this is the time to produce a batch", 0.0
    )
    p95_ms: float = doc("95th percentile of these waits", 0.0)
    max_ms: float = doc("longest of these waits", 0.0)
    share: float = doc("share of the pass spent waiting, 0 to 1", 0.0)
    looked: int = doc("number of batches of the pass that were checked", 0)
    repeats: int = doc("number of batches that repeat an earlier batch of the pass", 0)
    label_low: int | None = doc("smallest label seen")
    label_high: int | None = doc("largest label seen")
    classes: int | None = doc("number of distinct labels in the sampled batches, at most 1,024")
    cache_hits: int | None = doc("cache hits counted by the dataset")
    cache_misses: int | None = doc("cache misses counted by the dataset")
    subset_of: int | None = doc("length of the dataset that this is a subset of")
    split: list[int] | None = doc("lengths of the subsets of one dataset that were read from")

    def text(self) -> str:
        """Batches and waits, and what is known of labels, cache and split."""
        text = (
            f"{self.dataset}: pass {self.passes}, {format_count(self.batches, 'batch')}, {self.share:.0%} of it waiting,"
            f" waits {self.median_ms:.2f} ms median, {self.p95_ms:.2f} p95, {self.max_ms:.2f} max"
        )
        if self.label_low is not None:
            text += f"; labels {self.label_low} to {self.label_high}, {format_count(self.classes or 0, 'class')} seen"
        if self.cache_hits is not None:
            text += (
                f"; cache {format_count(self.cache_hits or 0, 'hit')}, {format_count(self.cache_misses or 0, 'miss')}"
            )
        if self.split is not None and len(self.split) > 1:
            text += f"; split {' / '.join(map(str, self.split))} of {self.subset_of}"
        return text


class DataWait(LoaderSettings):
    """The program waits for a loader for a good part of its time."""

    PART = "WAIT"
    EVIDENCE = Evidence.STATISTICAL
    LEVEL = "W"

    use: str = doc("training or evaluation: whether its batches led to updates", "")
    share: float = doc(
        "share of the time of the last 64 batches spent waiting, 0 to 1; once the run is over, of all batches", 0.0
    )
    whole_share: float | None = doc(
        "share of the time since the first batch of any loader spent waiting for this loader, 0 to 1"
    )
    run_over: bool | None = doc("true for the line that is written as the run ends, with the shares of all of it")
    count: int = doc("waits measured so far", 0)
    cores: int = doc("number of CPU cores this process may use", 0)
    median_ms: float = doc(
        "median wait over the last 256 batches; without workers this is the time to produce a batch", 0.0
    )
    p95_ms: float = doc("95th percentile of these waits", 0.0)
    max_ms: float = doc("longest of these waits", 0.0)
    slow_line: str | None = doc(
        "file:line of the program's own that takes most of the time to fetch samples, if it takes a third or more"
    )
    slow_function: str | None = doc("the function of that line")
    slow_callee: str | None = doc("the function that the line calls most of that time, and its file")
    slow_share: float | None = doc("the line's share of the time to fetch samples, 0 to 1")

    def text(self) -> str:
        """Both shares, and the number of workers."""
        of_the_run = f", {self.whole_share:.0%} of the run's time" if self.whole_share is not None else ""
        return (
            f"{self.dataset}, {self.use}: {self.share:.0%} of the time between batches was spent waiting"
            f" (median {self.median_ms:.1f} ms){of_the_run}, {format_count(self.workers or 0, 'worker')}"
        )


class SlowStart(LoaderSettings):
    """The first batches of passes take long: workers start anew each time."""

    PART = "START"
    EVIDENCE = Evidence.STATISTICAL
    LEVEL = "W"

    use: str = doc("training or evaluation: whether its batches led to updates", "")
    starting: float = doc("share of the time spent waiting for the first batch of a pass, 0 to 1", 0.0)
    first_s: float | None = doc("time from creating the iterator to its first batch: workers start, first fetch")
    count: int = doc("number of passes started", 0)
    cores: int = doc("number of CPU cores this process may use", 0)

    def text(self) -> str:
        """The share, and the time of each start."""
        each = f" ({self.first_s:.1f} s each)" if self.first_s is not None else ""
        return f"{self.dataset}: {self.starting:.0%} of the time was spent waiting for the first batch of a pass{each}"


class RepeatedBatch(_Warning):
    """Batches of a pass that came before in it."""

    PART = "REPEAT"

    batch: int = doc("number of the batch in its pass, from 1", 0)
    first: int = doc("number of the earlier batch that it repeats", 0)
    repeats: int = doc("number of batches that repeat an earlier batch of the pass", 0)
    compared: int = doc("number of batches of the pass that were compared with earlier ones", 0)
    iterable: bool = doc("the dataset is iterable-style: each worker must read its own part of it", False)
    workers: int = doc("worker processes", 0)
    indices: list[int] = doc("the dataset's indices in the batch, at most eight", factory=list)

    def text(self) -> str:
        """Which batch came again, and how many did."""
        return (
            f"{self.dataset}: batch {self.batch} repeats batch {self.first}: {self.repeats} of"
            f" {format_count(self.compared, 'batch')} compared are repeats in this pass"
        )


class ConstantInput(_Warning):
    """Batches whose main input is constant, or one sample over and over."""

    PART = "CONSTANT"

    batch: int = doc("number of the batch in its pass, from 1", 0)
    tensor: str = doc("path of the tensor in the batch", "")
    count: int = doc("number of batches in which the tensor is constant or repeats one sample", 0)
    looked: int = doc("number of batches of the pass that were checked", 0)
    constant: list[str] = doc("tensors whose elements are all equal", factory=list)
    low: list[Number | None] = doc("smallest element in a sample of each tensor", factory=list)
    indices: list[int] = doc("the dataset's indices in the batch, at most eight", factory=list)

    @property
    def constant_value(self) -> Number | None:
        """The one value, where all elements have it."""
        return self.low[0] if self.low else None

    def text(self) -> str:
        """Which tensor, how, and in how many batches."""
        what = f"is {self.constant_value} everywhere" if self.constant else "repeats one sample"
        return f"{self.dataset}: {self.tensor} {what} in {self.count} of {format_count(self.looked, 'batch')} checked"


class FewerRows(_OfLoader):
    """Batches that hold fewer samples than were fetched for them."""

    PART = "ROWS"
    LEVEL = "I"

    collate: str = doc("the collate function", "")
    batch: int = doc("number of the batch in its pass, from 1", 0)
    looked: int = doc("number of batches whose samples were counted", 0)
    count: int = doc("number of batches that hold fewer samples than were fetched", 0)
    fetched: int = doc("number of samples fetched for these batches", 0)
    held: int = doc("number of samples in them, by the largest leading dimension", 0)
    shapes: list[str] = doc("path, dtype, shape and device of the first tensors of the last one", factory=list)
    indices: list[int] = doc("the dataset's indices in the batch, at most eight", factory=list)

    def text(self) -> str:
        """How many batches are short, by how much, and what the last one holds."""
        return (
            f"{self.dataset}: {self.count} of {format_count(self.looked, 'batch')} hold fewer samples than were fetched"
            f" ({self.held} for {format_count(self.fetched, 'index')}): {'; '.join(self.shapes)}"
        )


class BadValues(_Warning):
    """A batch that holds NaN or Inf, and whose loss is not finite either."""

    PART = "NONFINITE"
    EVIDENCE = Evidence.LOCATED

    tensor: str = doc("path of the tensor in the batch", "")
    kind: str = doc("nan, inf or nan+inf", "")
    count: int = doc("elements that are not finite", 1)
    batch: int = doc("number of the batch in its pass, from 1", 0)
    rows: list[int] = doc("positions in the batch of samples that are not finite, at most eight", factory=list)
    indices: list[int] = doc("the dataset's indices in the batch, at most eight", factory=list)
    loss_finite: bool | None = doc("false: the loss computed from this batch was not finite")

    def text(self) -> str:
        """What and where, by the dataset's own indices if they are known."""
        where = f" (dataset indices {join_limited(self.indices, SHOWN)})" if self.indices else ""
        return (
            f"{self.dataset}: {self.tensor} of batch {self.batch} holds {self.count} {self.kind}{where}, and the loss is"
            " not finite"
        )


class LabelsOutside(_Warning):
    """Labels that the model's output has no class for."""

    PART = "LABELS"

    label: str = doc("path of the labels", "")
    label_low: int | None = doc("smallest label seen")
    label_high: int | None = doc("largest label seen")
    width: int = doc("classes of the model, from its output", 0)
    rows: list[int] = doc("positions in the batch of these labels, at most eight", factory=list)
    indices: list[int] = doc("the dataset's indices in the batch, at most eight", factory=list)

    def text(self) -> str:
        """The labels' range and the number of classes."""
        return (
            f"{self.dataset}: labels {self.label} from {self.label_low} to {self.label_high}, but the model's output"
            f" has {format_count(self.width, 'class')}"
        )


class SamplerNotSet(_Warning):
    """A pass that trains in the order of the pass before."""

    PART = "SAMPLER"
    EVIDENCE = Evidence.LOCATED

    sampler_epoch: int | None = doc("the epoch set in the DistributedSampler")
    passes: int = doc("number of passes over this loader so far, the current one included", 0)
    before: int = doc("number of the earlier training pass with the same order", 0)

    def text(self) -> str:
        """Which passes have one order."""
        return (
            f"{self.dataset}: pass {self.passes} has the same sample order as pass {self.before}: set_epoch was"
            " not called"
        )


class LoaderFailed(_OfLoader):
    """An exception that came out of a loader instead of a batch."""

    PART = "ERROR"
    EVIDENCE = Evidence.LOCATED
    ALWAYS = ("worker",)
    LEVEL = "E"

    batch: int = doc("number of the batch in its pass, from 1", 0)
    worker: int | None = doc("number of the worker that failed")
    workers: int = doc("worker processes", 0)
    error: str = doc("class and text of the original exception", "")
    where: str = doc("file and line of the original exception", "")
    indices: list[int] = doc("the dataset's indices in the batch, at most eight", factory=list)

    def text(self) -> str:
        """Who failed at which batch, with the original error."""
        who = f"worker {self.worker}" if self.worker is not None else "the loader"
        where = f" ({self.where})" if self.where else ""
        return f"{self.dataset}: {who} failed at batch {self.batch}: {self.error}{where}"
