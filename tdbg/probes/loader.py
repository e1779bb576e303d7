"""The wait for batches, the epoch, and a hold on the last batch."""

import time
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from tdbg.core.events import Step
from tdbg.core.frames import drop_own_frames
from tdbg.core.guard import Guard
from tdbg.probes import PROBES, Probe

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from tdbg.runtime.monitor import Monitor
    from tdbg.runtime.torch_compat import BatchIterator


CLOCK_BATCHES = 8  # while steps are only counted, the whole way is taken by one batch in so many
MAX_INTERRUPTIONS = 8  # of stretches without hooks, for passes that may turn out not to be evaluation


@PROBES.add
class LoaderWait(Probe):
    """How long the program waited for batches, and which epoch and batch it is in.

    Reads:  ``_BaseDataLoaderIter.__next__`` (every DataLoader, with or without workers).
    Emits:  ``loader_ms``, ``epoch``, ``batch``, ``batches`` of the step record.
    Cost:   two clock reads a batch. The last batch is held (a reference) until the step is known good.
    Limits: an epoch is a pass over the loader that last fed a training step; other loaders (validation)
            are counted apart. Programs without a DataLoader have no epoch here.
    """

    name = "loader-wait"
    levels = ("basic", "advanced", "extreme")

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._wait_s = 0.0
        self._waited = False
        self._passes: dict[int, int] = {}  # id of the dataset -> passes begun
        self._now: tuple[int | None, int | None] = (None, None)  # the epoch, and how many batches it has
        self._taken: int | None = None  # of its batches
        self._unbooked = 0  # batches taken while steps were only counted, whose cost is not booked yet
        self._key: int | None = None  # of the dataset whose batch came last,
        self._trains: int | None = None  # and of the one that last fed a training step
        self._iterator: weakref.ref[BatchIterator] | None = None  # of the pass that began last
        self._interruptions = 0
        self.batch: object = None

    @property
    def iterator(self) -> "BatchIterator | None":
        """The loader's iterator that the last batch came from, if it is known."""
        found: BatchIterator | None = self._iterator() if self._iterator is not None else None
        return found if found is not None and id(found._dataset) == self._key else None

    @property
    def epoch(self) -> int | None:
        """Passes over the training loader begun, from 0."""
        return self._now[0] if self._trains is None else self._passes.get(self._trains)

    def attach(self) -> None:
        self.for_each_function(
            "batch", lambda owner, name: self.patches.wrap_attribute(owner, name, self._wrap_next, drops_frames=True)
        )

    def _wrap_next(self, original: Callable[..., object]) -> Callable[..., object]:
        monitor = self.monitor
        guard = Guard("batches", monitor.handle_failure)
        fast_path, dispatcher = monitor.fast_path, monitor.dispatcher

        def __next__(iterator: "BatchIterator") -> object:
            if (
                fast_path.is_counting
                and iterator._num_yielded
                % CLOCK_BATCHES  # not the first: with workers that stay a pass is no new object
                and self._iterator is not None
                and self._iterator() is iterator
                and len(dispatcher.subscribers["batch_taken"]) == 1
            ):
                try:
                    batch = original(iterator)  # of a step that is only counted nothing else is asked
                except BaseException as error:
                    drop_own_frames(error)
                    raise
                self.batch, self._taken = batch, iterator._num_yielded
                self._unbooked += 1
                return batch
            try:
                begun = time.perf_counter()
                batch = original(iterator)
                ended = time.perf_counter()
            except BaseException as error:
                drop_own_frames(error)
                raise
            if (
                fast_path.steps_left > 0
                and len(dispatcher.subscribers["batch_taken"]) == 1
                and guard.call_guarded(self._skip_and_book, ended, batch, ended - begun, iterator)
            ):
                return batch
            if monitor.duty.is_away:
                guard.call_guarded(self._taken_unwatched, ended, batch, ended - begun, iterator)
            else:
                guard.call_guarded(monitor.dispatch, "batch_taken", ended, batch, ended - begun, iterator)
            return batch

        return __next__

    def _skip_batch(self, now: float, batch: object, wait_s: float, loader_iter: "BatchIterator") -> bool:
        """Note one more batch of a known pass in a stretch that is hardly watched; False if a pass or full watching begins."""
        taken = loader_iter._num_yielded
        if now >= self.monitor.duty.until or self.monitor.in_update is not None:
            return False
        if taken < 2 or id(loader_iter._dataset) != self._key:
            return False
        self._wait_s += wait_s
        self._waited = True
        self.batch = batch
        self._note_taken(taken)
        return True

    def _skip_and_book(self, *taken: Any) -> bool:
        """The same on the fast path, where nothing is timed."""
        is_skipped = self._skip_batch(*taken)
        if is_skipped:
            self.monitor.budget.book_times("batch_taken", 1)
        return is_skipped

    def _note_taken(self, taken: int) -> None:
        """Book what those cost that were taken since the last time, while steps were only counted."""
        self.monitor.budget.book_times("counted_batch", self._unbooked)
        self._taken, self._unbooked = taken, 0

    def _taken_unwatched(self, begun: float, *taken: Any) -> None:
        """The same in a stretch that is hardly watched, in fewer steps than `Monitor.dispatch` takes."""
        if self.on and self.monitor.active:
            if not self._skip_batch(begun, *taken):
                self.batch_taken(*taken)
            for probe, method in self.monitor.dispatcher.subscribers["batch_taken"]:
                if probe is not self:
                    probe.guard.call_guarded(method, *taken)
            self.monitor.budget.charge_fast("batch_taken", time.perf_counter() - begun)

    def batch_taken(self, batch: object, wait_s: float, loader_iter: "BatchIterator") -> None:
        if get_ident() == self.monitor.update_thread:  # another thread may fetch batches while the update runs
            self.monitor.in_update = None  # an update that raised never ended; none takes batches
        self.monitor.duty.batch_taken(time.perf_counter())
        self._wait_s += wait_s
        self._waited = True
        self.batch = batch
        key = self._key = id(loader_iter._dataset)
        taken = int(loader_iter._num_yielded)
        if taken == 1:
            self._passes[key] = self._passes.get(key, -1) + 1
            self._iterator = weakref.ref(loader_iter)
            self._await_evaluation(key)
        try:
            length: int | None = len(loader_iter._index_sampler)
        except TypeError:  # an iterable dataset has no length
            length = None
        self._now = (self._passes.get(key, 0), length)
        self._note_taken(taken)

    def _await_evaluation(self, key: int) -> None:
        """Have the hooks back for the first pass over other data than training's: of evaluation nothing is known yet."""
        monitor = self.monitor
        if self._trains in (None, key) or monitor.eval_calls or self._interruptions >= MAX_INTERRUPTIONS:
            return
        if monitor.duty.is_away:
            self._interruptions += 1
            monitor.duty.evaluation_begins(time.perf_counter())

    def call_ended(self, module: object, call: Any, output: object) -> None:
        if not call.graded:
            self._wait_s = 0.0  # that batch was for evaluation

    def step_ended(self, record: Step, optimizer: "Optimizer") -> None:
        if self._waited:
            self._trains = self._key
            record.loader_ms = round(self._wait_s * 1e3, 4)
            (record.epoch, record.batches), record.batch = self._now, self._taken

    def after_step(self, optimizer: "Optimizer") -> None:
        if self.monitor.is_main(optimizer):
            self._wait_s, self._waited = 0.0, False
            self.batch = None

    def forked(self) -> None:
        self._passes.clear()
        self._trains = self._iterator = None
        self.batch = None
