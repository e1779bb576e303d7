"""What comes out of one data loader over a run: waits, passes, samplers. Constant memory, no tensors."""

import itertools
import math
import os
import re
import sys
import traceback
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from tdbg.core.frames import OWN_FOLDER
from tdbg.core.guard import guarded
from tdbg.probes.dataloader.batch_rows import RowCounts

if TYPE_CHECKING:
    from tdbg.runtime.torch_compat import BatchIterator

WINDOW = 64  # batches whose waits are judged together
TIMES = 256  # waits whose spread is told
ENOUGH = 20  # batches before anything is said of waits
ENOUGH_TO_ASK = 10  # and before the reason is looked for
MOST = 0.6  # of the batches in the window must have been waited for
LEAST_BATCHES, LEAST_S = 50, 5.0  # a run that is over before both has nothing to gain from a faster loader
FLOOR_S = 0.005  # shorter waits are nobody's trouble
MAX_FEEDS = 16
MAX_PENDING = 1024  # batches asked for and not yet handed out
MAX_TEXT = 500  # of an exception
CHAIN = 4  # datasets inside datasets, samplers inside samplers


class Waits:
    """Waits for batches, and the time from one batch to the next, over the last batches of a loader.

    The first batch of a pass is left out: it waits for workers to start.
    """

    def __init__(self) -> None:
        self.count = 0
        self.said_at = 0
        self.lasted_s = 0.0  # all times from batch to batch
        self.waited_s = 0.0  # and the waits in them
        self._window: deque[tuple[float, float, bool]] = deque(maxlen=WINDOW)
        self._last_at = 0.0

    def begin_pass(self, now: float) -> None:
        """A pass begins with the batch handed out now."""
        self._last_at = now

    def add_wait(self, now: float, wait_s: float, *, idle: bool) -> None:
        """A batch was handed out after ``wait_s``. idle: the device had nothing to do when it came."""
        gap_s = max(now - self._last_at, wait_s)
        self.count += 1
        self.lasted_s += gap_s
        self.waited_s += wait_s
        self._window.append((wait_s, gap_s, idle))
        self._last_at = now

    def is_due(self) -> bool:
        """True if there are enough batches, and twice as many as when this was last said."""
        return self.count >= ENOUGH and self.count % 10 == 0 and self.count >= 2 * self.said_at

    def compute_share(self) -> float:
        """The part of the time that went into waiting."""
        total = sum(gap for _, gap, _ in self._window)
        return sum(wait for wait, _, _ in self._window) / total if total > 0 else 0.0

    def compute_whole_share(self) -> float:
        """The same over all batches."""
        return self.waited_s / self.lasted_s if self.lasted_s > 0 else 0.0

    def median_s(self) -> float:
        """The median wait."""
        waits = sorted(wait for wait, _, _ in self._window)
        return waits[len(waits) // 2] if waits else 0.0

    def is_starved(self, bound: float) -> bool:
        """True if most of the last batches took ``bound`` of their time in waiting, with an idle device."""
        if len(self._window) < ENOUGH or (self.count < LEAST_BATCHES and self.lasted_s < LEAST_S):
            return False
        return self.seems_starved(bound)

    def seems_starved(self, bound: float) -> bool:
        """The same, after fewer batches: reason enough to find out why, not to say so."""
        if len(self._window) < ENOUGH_TO_ASK:
            return False
        if self.median_s() < FLOOR_S or self.compute_share() < bound:
            return False
        waited = sum(1 for wait, gap, idle in self._window if wait >= bound * gap and idle)
        return waited >= MOST * len(self._window)


@dataclass(slots=True)
class Pass:
    """One pass over a loader."""

    begun_at: float
    step: int  # training steps done when it began
    sampler_epoch: int | None = None
    batches: int = 0
    wait_s: float = 0.0
    first_s: float = 0.0  # wait for the first batch
    looked: int = 0
    prints: dict[tuple[object, ...], int] = field(default_factory=dict)  # fingerprint -> number of the batch
    printed: int = 0
    repeats: int = 0
    constant: int = 0


class Feed:
    """One data loader, told apart by dataset and settings: many programs build a new one each epoch."""

    def __init__(self, name: str, length: int | None = None) -> None:
        self.name = name  # class of the dataset
        self.length = length  # of the dataset
        self.passes = 0
        self.now: Pass | None = None
        self.waits = Waits()
        self.times: deque[float] = deque(maxlen=TIMES)
        self.trained_epoch: tuple[int, int] | None = None  # the last trained pass, and its sampler's epoch
        self.kinds: tuple[str, ...] = ()
        self.reported_step = -1
        self.begun_at = 0.0
        self.starts_s = 0.0  # spent in waiting for the first batches of passes
        self.waited_s = 0.0  # and for all batches
        self.is_held_back = False  # what is to be said of its waits, until its slow line is known
        self.trains = False  # updates were made of its batches
        self.setup: dict[str, Any] = {}  # how its loader is set up
        self.width: int | None = None  # classes of the model that takes the labels; 0 where its output fits none
        self.label_low: int | None = None
        self.label_high: int | None = None
        self.classes: set[int] = set()
        self.reported: set[str] = set()
        self.rows = RowCounts()

    def begin_pass(self, now: float, step: int, sampler_epoch: int | None, wait_s: float) -> Pass:
        """A pass begins with the batch handed out now."""
        self.passes += 1
        self.begun_at = self.begun_at or now - wait_s
        self.starts_s += wait_s
        self.now = Pass(now - wait_s, step, sampler_epoch, first_s=wait_s)
        self.waits.begin_pass(now)
        return self.now

    def take_over_waits(self, other: "Feed") -> None:
        """Go on with the waits for another feed, which has none from here on."""
        self.waits, self.times, self.begun_at = other.waits, other.times, other.begun_at
        self.starts_s, self.waited_s, self.trains = other.starts_s, other.waited_s, other.trains
        other.waits, other.times = Waits(), deque(maxlen=TIMES)
        other.starts_s = other.waited_s = 0.0

    @property
    def batch_use(self) -> str:
        """What its batches are for, as far as it is known."""
        return "training" if self.trains else "evaluation"

    def wait_quantiles_ms(self) -> tuple[float, float, float]:
        """Median, 95th percentile and maximum of the last waits, in ms."""
        found = sorted(self.times) or [0.0]
        high = min(round(0.95 * len(found)), len(found) - 1)
        middle, most = found[len(found) // 2], found[-1]
        return round(middle * 1e3, 3), round(found[high] * 1e3, 3), round(most * 1e3, 3)


@dataclass(slots=True)
class Iteration:
    """What is known of one loader iterator, and the indices of the batches it has asked for."""

    begun_at: float = 0.0
    source: object = None  # the sampler's iterator that the pending indices came from
    pending: deque[Any] = field(default_factory=deque)
    lost: bool = False  # batches come in another order, or too many are asked for


class Feeds:
    """Every loader of the process, bounded."""

    def __init__(self) -> None:
        self._feeds: dict[tuple[object, ...], Feed] = {}
        self._owners: dict[tuple[object, ...], weakref.ref[object] | None] = {}
        self._iterations: weakref.WeakKeyDictionary[object, Iteration] = weakref.WeakKeyDictionary()
        self._made: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
        self._forget_last()
        self.began_at = 0.0  # when the first batch of any of them was asked for

    def __iter__(self) -> Iterator[Feed]:
        return iter(list(self._feeds.values()))

    def _forget_last(self) -> None:
        """Of the iterator that was asked for last nothing is at hand: most batches come from the one before them."""
        self._last_of_feed: tuple[weakref.ref[object], Feed] | None = None
        self._last_iteration: tuple[weakref.ref[object], Iteration] | None = None

    def elapsed_s(self, now: float) -> float:
        """The time since the program asked for its first batch: what waits are a share of."""
        return max(now - self.began_at, 1e-9) if self.began_at else math.inf

    def find_feed(self, loader_iter: "BatchIterator") -> Feed:
        """The feed that an iterator belongs to."""
        last = self._last_of_feed
        if last is not None and last[0]() is loader_iter:
            return last[1]
        dataset = loader_iter._dataset
        sampler = loader_iter._index_sampler
        key = id(dataset), type(sampler), getattr(sampler, "batch_size", None), loader_iter._num_workers
        feed, owner = self._feeds.get(key), self._owners.get(key)
        if feed is None or (owner is not None and owner() is not dataset):
            made = Feed(format_dataset_name(dataset), get_length(dataset))
            before = self._find_predecessor(made, key)
            if before is not None:
                made.take_over_waits(before)
            while len(self._feeds) >= MAX_FEEDS:
                oldest = next(iter(self._feeds))
                del self._feeds[oldest], self._owners[oldest]
            feed = self._feeds[key] = made
            self._owners[key] = _make_weak_reference(dataset)
        self._last_of_feed = weakref.ref(loader_iter), feed
        return feed

    def _find_predecessor(self, made: Feed, key: tuple[object, ...]) -> Feed | None:
        """The feed of a dataset that is gone and was like this one: some programs make both anew for each epoch."""
        for other, owner in reversed(self._owners.items()):
            feed = self._feeds[other]
            is_alike = other[1:] == key[1:] and (feed.name, feed.length) == (made.name, made.length)
            if is_alike and owner is not None and owner() is None:
                return feed
        return None

    def find_iteration(self, loader_iter: "BatchIterator") -> Iteration:
        """What is known of an iterator."""
        last = self._last_iteration
        if last is not None and last[0]() is loader_iter:
            return last[1]
        found = self._iterations.get(loader_iter)
        if found is None:
            found = self._iterations[loader_iter] = Iteration()
        self._last_iteration = weakref.ref(loader_iter), found
        return found

    def record_construction(self, loader: Any, now: float) -> None:
        """A DataLoader was constructed."""
        sampler = loader._index_sampler
        if _make_weak_reference(sampler) is not None:
            self._made[sampler] = now

    def find_construction_time(self, loader_iter: "BatchIterator") -> float | None:
        """When the iterator's loader was constructed, if that was seen."""
        sampler = loader_iter._index_sampler
        return self._made.get(sampler) if _make_weak_reference(sampler) is not None else None

    def list_subset_lengths(self, dataset: object) -> list[int]:
        """Lengths of all subsets of the same dataset that were read from: the split, as far as it is known."""
        parent = find_parent_dataset(dataset)
        if parent is None:
            return []
        others = [ref() for ref in self._owners.values() if ref is not None]
        found = {id(other): other for other in others if find_parent_dataset(other) is parent}
        return [length for length in map(get_length, found.values()) if length is not None]

    def record_indices(self, loader_iter: "BatchIterator", indices: object) -> None:
        """An iterator took the indices of a further batch from its sampler."""
        known = self.find_iteration(loader_iter)
        if known.source is not loader_iter._sampler_iter:  # a new pass of persistent workers
            known.source = loader_iter._sampler_iter
            known.pending.clear()
        known.lost = known.lost or len(known.pending) >= MAX_PENDING or not getattr(loader_iter, "_in_order", True)
        if known.lost:
            known.pending.clear()
        else:
            known.pending.append((getattr(loader_iter, "_send_idx", None), indices))

    def pop_indices(self, loader_iter: "BatchIterator") -> list[int]:
        """The dataset's indices in the batch just handed out (or failed); empty where they are not known."""
        return list_indices(self.pop_requested(loader_iter))

    def pop_requested(self, loader_iter: "BatchIterator") -> object:
        """What the sampler gave for the batch just handed out (or failed); None where it is not known."""
        known = self.find_iteration(loader_iter)
        if known.lost or not known.pending:
            return None
        received = getattr(loader_iter, "_rcvd_idx", None)
        if received is None:  # without workers a batch is fetched as its indices are taken
            indices = known.pending.pop()[1]
            known.pending.clear()
        else:  # batches that were asked for, or handed out, while nobody looked have no entry, or one too many
            while known.pending and known.pending[0][0] < received - 1:
                known.pending.popleft()
            if not known.pending or known.pending[0][0] != received - 1:
                return None
            indices = known.pending.popleft()[1]
        return indices

    def clear(self) -> None:
        """Forget everything."""
        self._feeds.clear()
        self._owners.clear()
        self._iterations.clear()
        self._made.clear()
        self._forget_last()
        self.began_at = 0.0


def list_indices(requested: Any) -> list[int]:
    """What a sampler gave, as indices of the dataset; empty where it is something else."""
    if isinstance(requested, int):
        return [requested]
    whole = isinstance(requested, list | tuple) and bool(requested) and isinstance(requested[0], int)
    return list(requested) if whole else []


def count_fetched(loader_iter: "BatchIterator", requested: Any) -> int:
    """How many samples the loader fetches for what its sampler gave; 0 where that is not known.

    Without automatic batching an index is the dataset's own business, and a stream gets none.
    """
    if is_stream(loader_iter) or not getattr(loader_iter, "_auto_collation", False):
        return 0
    return len(requested) if isinstance(requested, list | tuple) else 0


def format_dataset_name(dataset: object) -> str:
    """The class of a dataset; of a subset also whose, and how long: ``Subset of Images (800)``."""
    parent = find_parent_dataset(dataset)
    own = type(dataset).__name__
    return own if parent is None else f"{own} of {type(parent).__name__} ({get_length(dataset)})"


def _make_weak_reference(item: object) -> "weakref.ref[Any] | None":
    try:
        hash(item)
        return weakref.ref(item)
    except TypeError:  # a list is a dataset too
        return None


def get_length(item: Any) -> int | None:
    """Its length, if it has one."""
    with guarded("the program's own __len__ may raise anything"):
        return len(item)
    return None


def find_parent_dataset(dataset: object) -> Any:
    """The dataset that a Subset (of `random_split`, say) takes its samples from."""
    held = getattr(dataset, "__dict__", {})
    return held.get("dataset") if "indices" in held else None


def iter_samplers(loader_iter: "BatchIterator") -> Iterator[object]:
    """The batch sampler and the samplers inside it, outermost first."""
    found: object = loader_iter._index_sampler
    for _ in range(CHAIN):
        yield found
        held = getattr(found, "__dict__", {})
        found = next((held[name] for name in ("sampler", "batch_sampler") if held.get(name) is not None), None)
        if found is None:
            return


def to_parent_indices(dataset: Any, indices: list[int]) -> list[int]:
    """Indices of a subset as those of the dataset that it was taken from: two splits never share one."""
    for _ in range(CHAIN):
        whole = find_parent_dataset(dataset)
        if whole is None:
            break
        inside: list[int] | None = None
        with guarded("the program's own class may hold anything as indices"):
            inside = [int(dataset.indices[index]) for index in indices]
        if inside is None:
            break
        dataset, indices = whole, inside
    return indices


def find_padded_rows(loader_iter: "BatchIterator", taken: int, count: int) -> list[int]:
    """Which of a batch's rows a DistributedSampler drew once more, so that all ranks have as many.

    taken: how many samples this rank had before the batch, over all passes. count: of the batch.
    """
    module = sys.modules.get("torch.utils.data.distributed")
    for sampler in iter_samplers(loader_iter):
        if module is not None and isinstance(sampler, module.DistributedSampler) and not sampler.drop_last:
            length = len(sampler.dataset)
            numbers = [(taken + row) % sampler.num_samples for row in range(count)]
            return [row for row, n in enumerate(numbers) if sampler.rank + n * sampler.num_replicas >= length]
    return []


def sampler_epoch(loader_iter: "BatchIterator") -> int | None:
    """The epoch of a shuffling DistributedSampler, None where there is no such sampler."""
    module = sys.modules.get("torch.utils.data.distributed")
    for sampler in iter_samplers(loader_iter):
        if module is not None and isinstance(sampler, module.DistributedSampler) and sampler.shuffle:
            return int(sampler.epoch)
    return None


def has_replacement(loader_iter: "BatchIterator") -> bool:
    """True if a sampler may draw a sample twice on purpose."""
    return any(getattr(sampler, "replacement", False) is True for sampler in iter_samplers(loader_iter))


def read_cache_counts(dataset: object) -> tuple[int, int] | None:
    """Hits and misses of a dataset that counts them under the usual names, on it or on those inside it."""
    for _ in range(CHAIN):
        held = getattr(dataset, "__dict__", {})
        for hits, misses in (("cache_hits", "cache_misses"), ("hits", "misses"), ("_hits", "_misses")):
            hit, missed = held.get(hits), held.get(misses)
            if isinstance(hit, int) and isinstance(missed, int) and hit + missed > 0:
                return hit, missed
        dataset = held.get("dataset")
        if dataset is None:
            return None
    return None


def is_in_worker() -> bool:
    """True in a DataLoader's worker process."""
    return torch.utils.data.get_worker_info() is not None


def read_loader_settings(loader_iter: "BatchIterator") -> dict[str, Any]:
    """How a loader was set up, as plain data."""
    chain = list(iter_samplers(loader_iter))
    batched = next((s for s in chain if isinstance(getattr(s, "batch_size", None), int)), None)
    found: dict[str, Any] = {
        "length": None if is_stream(loader_iter) else get_length(loader_iter._dataset),
        "batches": None if is_stream(loader_iter) else get_length(loader_iter._index_sampler),
        "batch_size": getattr(batched, "batch_size", None),
        "samplers": [type(sampler).__name__ for sampler in chain],
        "collate": getattr(loader_iter._collate_fn, "__name__", type(loader_iter._collate_fn).__name__),
        "drop_last": bool(loader_iter._drop_last),
        "pinned": bool(loader_iter._pin_memory),
        "workers": loader_iter._num_workers,
        "replicas": next((s.num_replicas for s in chain if hasattr(s, "num_replicas")), None),
    }
    if loader_iter._num_workers > 0:
        found |= {"prefetch": loader_iter._prefetch_factor, "persistent": bool(loader_iter._persistent_workers)}
        found["start_method"] = find_start_method(loader_iter)
    return {name: value for name, value in found.items() if value is not None}


def find_start_method(loader_iter: "BatchIterator") -> str:
    """fork, spawn or forkserver; empty without workers."""
    workers = getattr(loader_iter, "_workers", None)
    if not workers:
        return ""
    own = getattr(workers[0], "_start_method", None)  # None where the default of the process was taken
    return str(own or torch.multiprocessing.get_start_method())


def is_stream(loader_iter: "BatchIterator") -> bool:
    return isinstance(loader_iter._dataset, torch.utils.data.IterableDataset)


def measure_order(indices: list[int]) -> float | None:
    """Share of the indices that follow the one before."""
    if len(indices) < 2:
        return None
    return round(sum(1 for one, other in itertools.pairwise(indices) if other == one + 1) / (len(indices) - 1), 3)


def count_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parse_loader_error(error: Exception) -> tuple[int | None, str, str]:
    """(worker, class and text of the original exception, its file:line) of what came out of a loader."""
    text = str(error.args[0]) if error.args else str(error)  # str() of a KeyError would quote it
    match = re.search(r"in DataLoader worker process (\d+)", text)
    lines = [line for line in text.splitlines() if line.strip()]
    if match is None or len(lines) < 2:
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [frame for frame in frames if not frame.filename.startswith(OWN_FOLDER)] or frames
        where = f"{theirs[-1].filename}:{theirs[-1].lineno}" if theirs else ""
        return None, f"{type(error).__name__}: {text}"[:MAX_TEXT], where
    places = re.findall(r'File "(.+)", line (\d+)', text)
    return int(match[1]), _extract_exception_text(lines)[:MAX_TEXT], ":".join(places[-1]) if places else ""


def _extract_exception_text(lines: list[str]) -> str:
    """The exception itself, after the last line of its traceback."""
    after = next((n for n in range(len(lines) - 1, 0, -1) if lines[n - 1].startswith("  ")), len(lines) - 1)
    return " ".join(lines[after:])
