"""What the data loaders hand out: batches, waits, passes, errors of workers."""

import math
import time
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdbg.core.events import Step
from tdbg.core.observations import Observed
from tdbg.core.observations.dataloader import (
    SHOWN,
    BadValues,
    Batch,
    BatchRange,
    ConstantInput,
    DataWait,
    FewerRows,
    LabelsOutside,
    LoaderFailed,
    LoaderMade,
    PassEnded,
    RepeatedBatch,
    SamplerNotSet,
    SlowStart,
)
from tdbg.probes import PROBES, Probe
from tdbg.probes.dataloader import batch_contents
from tdbg.probes.dataloader.batch_contents import Part, Prints
from tdbg.probes.dataloader.batch_rows import LEAST_FETCHED, MAX_LOOKS, count_rows
from tdbg.probes.dataloader.feeds import (
    ENOUGH,
    ENOUGH_TO_ASK,
    Feed,
    Feeds,
    Pass,
    count_cores,
    count_fetched,
    find_parent_dataset,
    get_length,
    has_replacement,
    is_in_worker,
    is_stream,
    list_indices,
    measure_order,
    parse_loader_error,
    read_cache_counts,
    read_loader_settings,
    sampler_epoch,
)
from tdbg.probes.dataloader.fetch_lines import FetchLines
from tdbg.probes.forward import round_number
from tdbg.runtime import tensors
from tdbg.runtime.budget import ALWAYS_STEPS
from tdbg.runtime.deferred_reads import device_idle

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor
    from tdbg.runtime.rerun import Call
    from tdbg.runtime.torch_compat import BatchIterator

CONTENT = "dataloader"  # kinds of work in the budget: a look at a batch,
PRINT = "dataloader-print"  # its fingerprint, the range of its labels
LABELS = "dataloader-labels"
STRIDE = 2  # steps from look to look where a level alone asks, and not just for some steps
LOOKS_A_STEP = 4  # batches looked at while one step runs (accumulation, evaluation) whatever it costs
MAX_PRINTS = 4096
MAX_CLASSES = 1024
MAX_LINES = 16  # loaders described
MAX_ERRORS = 8
REPEATS = 3  # so many repeated batches in a pass, and
REPEAT_SHARE = 0.25  # this part of those compared, are no chance
CONSTANT = 3
CONSTANT_SHARE = 0.75
WHOLE_SHARE = 0.2  # of the run's time: less is not worth a word, however empty-handed a short pass is
LONG_EVALUATION_S = 30.0  # before any update: from then on the program is one that only evaluates
SHORT_PASS_S = 2.0
SLOW_START_S = 0.5  # the first batch of a pass, when workers start anew each time
IGNORED = -100  # the label that cross-entropy leaves out


@PROBES.add
class DataLoading(Probe):
    """Batches, waits, passes and errors of every DataLoader, training and validation apart.

    Reads:  the batch as the program gets it, the loader iterator's settings and the indices its sampler gave.
            Labels are compared with the width of the root's output. No sample is fetched for it.
    Emits:  LOADER once a loader; BATCH on sampled batches, for a level alone in every other step (RANGE a
            step late for those on an accelerator); EPOCH at the end of a pass (of many short ones the 1st, 2nd, 4th ...); WAIT, REPEAT, CONSTANT, NONFINITE,
            LABELS, SAMPLER and ERROR where there is cause.
    Cost:   two microseconds a batch, half of one a fetch; a look at a batch 0.1 to 1 ms, sampled. Once a loader is
            waited for, 64 samples of the stack of whoever fetches, 20 us each, from a thread that then ends.
    Limits: with workers the wait is seen, not the time a worker took; the slow line of forked workers alone. Of
            batches on an accelerator shapes and, a step late, the range; no labels, fingerprints or equal samples.
            Loaders other than torch's own are not seen. How long a dataset took to build is known only as the time up to its loader.
    """

    name = "dataloader"
    levels = ("advanced", "extreme")
    presence_s = 20e-6
    can_be_removed = False  # records tell that a loader is waited for, and not at which of its lines
    observations = (
        LoaderMade,
        Batch,
        BatchRange,
        PassEnded,
        DataWait,
        SlowStart,
        RepeatedBatch,
        ConstantInput,
        FewerRows,
        BadValues,
        LabelsOutside,
        SamplerNotSet,
        LoaderFailed,
    )

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._feeds = Feeds()
        self._prints = Prints()
        self._lines_of_fetches = FetchLines(self.guard)
        self._reset_state()

    def _reset_state(self) -> None:
        self._feeds.clear()
        self._lines = self._errors = 0
        self._step = -1
        self._looks = 0  # batches since the step changed
        self._feed: Feed | None = None  # where the last batch came from
        self._requested: object = None  # by the sampler, for the last batch,
        self._fetched = 0  # samples for it, as far as known,
        self._taken: tuple[weakref.ref[Any], int] | None = None  # its iterator, and its number there
        self._labels: Part | None = None  # of a batch whose model has not answered yet
        self._bad: dict[int, BadValues] = {}  # step -> what was not finite in a batch of it

    def forked(self) -> None:
        self._lines_of_fetches.forked()
        self._reset_state()

    def detach(self) -> None:
        self._lines_of_fetches.close()
        super().detach()

    # where it stands

    def attach(self) -> None:
        self.patch_at("loader-made", after=self._handle_construction)
        self.patch_at("pass-begins", before=self._handle_pass_start)
        self.patch_at("batch-asked-for", after=self._handle_requested_batch)
        self.patch_at("batch-failed", raised=self._handle_raised_error)
        self.patch_at("workers-begin", before=self._handle_worker_start)
        self.for_each_function("fetch", self._watch_fetches)

    def _watch_fetches(self, owner: Any, name: str) -> None:
        before, after = self._handle_fetch, self._handle_fetched
        is_asked = self._lines_of_fetches.is_asked
        self.patch_while_due(owner, name, is_asked, before=before, after=after, raised=after)

    def _handle_worker_start(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if not is_in_worker():
            self._lines_of_fetches.prepare_workers()

    def _handle_fetch(self, args: tuple[Any, ...], kwargs: dict[str, object]) -> None:
        self._lines_of_fetches.fetch_begins(args[0])

    def _handle_fetched(self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], result: object) -> None:
        self._lines_of_fetches.fetch_ended()

    def _handle_construction(
        self, seconds: float, args: tuple[object, ...], kwargs: dict[str, object], result: object
    ) -> None:
        self._feeds.record_construction(args[0], time.perf_counter())

    def _handle_pass_start(self, args: tuple[Any, ...], kwargs: dict[str, object]) -> None:
        self._feeds.find_iteration(args[0]).begun_at = time.perf_counter()

    def _handle_requested_batch(
        self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], result: object
    ) -> None:
        self._feeds.record_indices(args[0], result)

    def _handle_raised_error(
        self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], error: Exception
    ) -> None:
        if is_in_worker():
            return
        if isinstance(error, StopIteration):
            self._pass_ends(self._feeds.find_feed(args[0]), args[0])
        elif self._errors < MAX_ERRORS:
            self._errors += 1
            self._emit_failure(args[0], error)

    # one batch

    @property
    def _indices(self) -> list[int]:
        """Of the last batch, in the dataset."""
        return list_indices(self._requested)

    def batch_taken(self, batch: object, wait_s: float, loader_iter: "BatchIterator") -> None:
        now = time.perf_counter()
        feed = self._feed = self._feeds.find_feed(loader_iter)
        requested = self._requested = self._feeds.pop_requested(loader_iter)
        self._fetched = count_fetched(loader_iter, requested)
        self._taken = weakref.ref(loader_iter), loader_iter._num_yielded
        self._labels = None
        current = feed.now
        if loader_iter._num_yielded == 1 or current is None:
            current = self._pass_begins(feed, loader_iter, now, wait_s)
        else:
            feed.times.append(wait_s)
            feed.waits.add_wait(now, wait_s, idle=wait_s < 1e-3 or device_idle())
        current.batches += 1
        current.wait_s += wait_s
        feed.waited_s += wait_s
        feed.trains = feed.trains or self.monitor.step > current.step
        if feed.waits.count % ENOUGH_TO_ASK == 0:
            self._ask_for_line(feed, now)
        if feed.waits.is_due() or feed.is_held_back:
            self._judge_waits(feed, now)
        if feed.trained_epoch is not None and self.monitor.step > current.step:
            self._judge_sampler(feed, current)
        self._sample_batch(feed, current, batch, wait_s, loader_iter)

    def _sample_batch(
        self, feed: Feed, current: Pass, batch: object, wait_s: float, loader_iter: "BatchIterator"
    ) -> None:
        step = self.monitor.step
        self._looks = self._looks + 1 if step == self._step else 1
        self._step = step
        if self.monitor.duty.is_away:  # the budget pays for no look
            return
        if not self._should_skip_batch() and self._can_afford(CONTENT):
            with self.work(CONTENT):
                self._measure_batch(feed, current, batch, wait_s)
        elif feed.width and "LABELS" not in feed.reported and self._can_afford(LABELS):
            with self.work(LABELS):
                self._record_labels(feed, batch_contents.find_labels(batch_contents.parts_of(batch)))
        if "repeat" not in feed.reported and self._can_afford(PRINT):
            with self.work(PRINT):
                self._find_repeat(feed, current, batch, loader_iter)

    def _should_skip_batch(self) -> bool:
        """True if this batch is the only one of its step so far, and the level leaves out this step."""
        step = self.monitor.step + 1
        rare = self.by_level_alone and not self.monitor.level_overrides.temporary
        return rare and step > ALWAYS_STEPS and step % STRIDE > 0 and self._looks == 1

    def _can_afford(self, kind: str) -> bool:
        """True if this batch may be looked at; while one step runs (evaluation) only the first are free."""
        free = self._looks <= LOOKS_A_STEP
        return self.should_sample(kind) and (free or self.monitor.budget.allows_extra(kind, time.perf_counter()))

    def _measure_batch(self, feed: Feed, current: Pass, batch: Any, wait_s: float) -> None:
        parts = batch_contents.parts_of(batch)
        if not parts:
            self.unavailable(f"the batches of {feed.name} hold no tensors")
            return
        for part in parts:
            batch_contents.measure_part(part)
        current.looked += 1
        if feed.reported_step != self.monitor.step or current.looked.bit_count() == 1:
            feed.reported_step = self.monitor.step
            self._emit_batch(feed, current, parts, wait_s)
        if not tensors.on_host(parts[0].tensor):
            self._request_batch_range(parts)
        self._check_batch_contents(feed, current, parts)
        if self._fetched >= LEAST_FETCHED and feed.rows.looked < MAX_LOOKS:
            self._check_row_count(feed, current, batch)

    def _emit_batch(self, feed: Feed, current: Pass, parts: list[Part], wait_s: float) -> None:
        batch = Batch(
            dataset=feed.name,
            batch=current.batches,
            wait_ms=round(wait_s * 1e3, 3),
            low=[round_number(part.low) for part in parts],
            high=[round_number(part.high) for part in parts],
            mean=[round_number(part.mean) for part in parts],
            constant=[part.path for part in parts if part.constant],
            alike=[part.path for part in parts if part.alike],
            described=tuple(part.describe() for part in parts),
        )
        kinds = tuple(f"{part.path} {part.kind}" for part in parts)
        if kinds != feed.kinds:
            feed.kinds = kinds
            batch.names, batch.kinds = [part.path for part in parts], [part.kind for part in parts]
        if self._indices:
            batch.indices, batch.taken = self._indices[:SHOWN], len(self._indices)
            batch.in_order = measure_order(self._indices)
        self.emit(batch)

    def _request_batch_range(self, parts: list[Part]) -> None:
        """The range of a batch that is on an accelerator, with the step's one copy."""
        part = next((p for p in parts if p.tensor.is_floating_point() and p.tensor.numel()), None)
        if part is None or part.tensor.layout != torch.strided:
            return
        sample = batch_contents.sample_elements(part.tensor, batch_contents.SAMPLE).to(torch.float32)
        step, path = self.monitor.running_step, part.path

        def emit_range(values: list[float], record: Step | None) -> None:
            low, high, mean = ([round_number(value)] for value in values)
            self.emit(BatchRange(names=[path], low=low, high=high, mean=mean), step=step)

        self.monitor.read_late(torch.stack([sample.amin(), sample.amax(), sample.mean()]), emit_range)

    # what is wrong with it

    def _check_batch_contents(self, feed: Feed, current: Pass, parts: list[Part]) -> None:
        main = batch_contents.constant_input(parts)
        if main is not None:
            current.constant += 1
            if current.constant >= max(CONSTANT, CONSTANT_SHARE * current.looked):
                self._report_constant(feed, current, main)
        self._record_labels(feed, batch_contents.find_labels(parts))
        bad = next((part for part in parts if part.bad is not None), None)
        if bad is not None:
            if len(self._bad) >= LOOKS_A_STEP:
                self._bad.pop(next(iter(self._bad)))
            self._bad[self.monitor.running_step] = self._build_bad_values(feed, bad)

    def _warn_once(self, feed: Feed, seen: Observed, *, step: int | None = None) -> None:
        """Say once a loader that something is wrong; a rule reads it."""
        if seen.PART not in feed.reported:
            feed.reported.add(seen.PART)
            self.emit(seen, step=step)

    def _report_constant(self, feed: Feed, current: Pass, part: Part) -> None:
        constant = ConstantInput(
            dataset=feed.name,
            batch=current.batches,
            tensor=part.path,
            count=current.constant,
            looked=current.looked,
            constant=[part.path] if part.constant else [],
            low=[round_number(part.low)],
            indices=self._indices[:SHOWN],
        )
        self._warn_once(feed, constant)

    def _check_row_count(self, feed: Feed, current: Pass, batch: object) -> None:
        """Does the batch hold as many samples as were fetched?"""
        held = count_rows(batch, self._fetched)
        feed.rows.add_batch(self._fetched, held)
        if held is not None and feed.rows.is_due:
            fewer = FewerRows(
                dataset=feed.name,
                collate=feed.setup.get("collate", ""),
                batch=current.batches,
                looked=feed.rows.looked,
                count=feed.rows.short,
                fetched=feed.rows.fetched,
                held=feed.rows.held,
                shapes=[f"{part.path} {part.kind}" for part in batch_contents.parts_of(batch)],
                indices=self._indices[:SHOWN],
            )
            self._warn_once(feed, fewer)

    def _find_repeat(self, feed: Feed, current: Pass, batch: object, loader_iter: "BatchIterator") -> None:
        """Has this batch come before in this pass?"""
        parts = batch_contents.parts_of(batch)
        found = self._prints.compute_fingerprint(parts)
        if found is None:
            return
        current.printed += 1
        first = current.prints.get(found)
        if first is None and len(current.prints) < MAX_PRINTS:
            current.prints[found] = current.batches
        if first is None or not _too_soon(current.batches - first, loader_iter):
            return
        current.repeats += Prints.means_something(parts)
        if current.repeats >= max(REPEATS, REPEAT_SHARE * current.printed):
            self._report_repeat(feed, current, first, loader_iter)

    def _report_repeat(self, feed: Feed, current: Pass, first: int, loader_iter: "BatchIterator") -> None:
        repeated = RepeatedBatch(
            dataset=feed.name,
            batch=current.batches,
            first=first,
            repeats=current.repeats,
            compared=current.printed,
            iterable=is_stream(loader_iter),
            workers=loader_iter._num_workers,
            indices=self._indices[:SHOWN],
        )
        self._warn_once(feed, repeated)

    def _record_labels(self, feed: Feed, part: Part | None) -> None:
        if part is None:
            return
        low, high = batch_contents.label_range(part.tensor)
        feed.label_low = low if feed.label_low is None else min(low, feed.label_low)
        feed.label_high = high if feed.label_high is None else max(high, feed.label_high)
        if len(feed.classes) < MAX_CLASSES:
            feed.classes.update(map(int, batch_contents.sample_elements(part.tensor, 256).tolist()))
        if feed.width is None:
            self._labels = part
        else:
            self._judge_labels(feed, part, low, high)

    def call_ended(self, module: torch.nn.Module, call: "Call", output: object) -> None:
        """The model has answered: its width is known before the loss is computed from it."""
        part, self._labels = self._labels, None
        if part is None or self._feed is None:
            return
        self._feed.width = batch_contents.width_for(part.tensor, output) or 0
        self._judge_labels(self._feed, part, *batch_contents.label_range(part.tensor))

    def _judge_labels(self, feed: Feed, part: Part, low: int, high: int) -> None:
        width = feed.width or 0
        if width < 2 or (high < width and (low >= 0 or low == IGNORED)):
            return
        rows = batch_contents.find_outside_rows(part.tensor, width)
        self.monitor.become_rank_now()  # the loss may end the process at once
        outside = LabelsOutside(
            dataset=feed.name,
            label=part.path,
            label_low=low,
            label_high=high,
            width=width,
            rows=rows,
            indices=self._pick_indices(rows),
        )
        self._warn_once(feed, outside)

    def backward_begins(self, loss: Tensor | None) -> None:
        """A loss that is not finite: was the batch?"""
        if loss is None or not tensors.on_host(loss) or math.isfinite(float(loss)):
            return
        waiting = self.monitor.find_probe("loader-wait")
        if waiting is None or waiting.batch is None or self._feed is None:
            return
        for part in batch_contents.parts_of(waiting.batch):
            part.bad = tensors.find_bad_values(part.tensor) if batch_contents.is_readable(part.tensor) else None
            if part.bad is not None:
                self._report_bad_values(self._feed, self._build_bad_values(self._feed, part), None)
                return

    def record_written(self, record: Step) -> None:
        bad = self._bad.pop(record.step, None)
        if bad is not None and record.finite is False and self._feed is not None:
            self._report_bad_values(self._feed, bad, record.step)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._labels = None

    def _build_bad_values(self, feed: Feed, part: Part) -> BadValues:
        assert part.bad is not None
        rows = batch_contents.find_bad_rows(part.tensor)
        return BadValues(
            tensor=part.path,
            kind=part.bad.kind,
            count=part.bad.count,
            batch=feed.now.batches if feed.now is not None else 0,
            rows=rows,
            indices=self._pick_indices(rows),
            loss_finite=False,
        )

    def _report_bad_values(self, feed: Feed, bad: BadValues, step: int | None) -> None:
        bad.dataset = feed.name
        self._warn_once(feed, bad, step=step)

    def find_indices(self, loader_iter: "BatchIterator | None") -> tuple[str, list[int]]:
        """The dataset, and its indices in the last batch of an iterator; empty if they are not known for certain."""
        if loader_iter is None or self._taken is None or self._feed is None or is_stream(loader_iter):
            return "", []
        iterator, number = self._taken
        is_last = number == loader_iter._num_yielded and iterator() is loader_iter
        return (self._feed.name, list(self._indices)) if is_last else ("", [])

    def _pick_indices(self, rows: list[int]) -> list[int]:
        """The dataset's indices of these positions of the batch, where they are known."""
        return [self._indices[row] for row in rows if row < len(self._indices)]

    def _ask_for_line(self, feed: Feed, now: float) -> None:
        """Does the program seem to wait for this loader? Then whoever fetches its samples is to say in which line."""
        if feed.waited_s >= WHOLE_SHARE * self._feeds.elapsed_s(now) and feed.waits.seems_starved(
            self.threshold("wait_share")
        ):
            self._lines_of_fetches.request_line(feed.name, now)

    def _judge_waits(self, feed: Feed, now: float, at_the_end: bool = False) -> None:
        """Does the program wait for this loader, and for so long that it is worth a word?

        An evaluation that comes before all training (a try-out of the validation, say) is no measure of the run.
        """
        feed.is_held_back = False
        elapsed_s = self._feeds.elapsed_s(now)
        if feed.waited_s < WHOLE_SHARE * elapsed_s or not feed.waits.is_starved(self.threshold("wait_share")):
            return
        if not (self.monitor.step or at_the_end or elapsed_s > LONG_EVALUATION_S):
            return
        if not at_the_end and self._lines_of_fetches.is_pending(feed.name, now):
            feed.is_held_back = True
            return
        self._emit_wait(feed, now, run_over=at_the_end)

    def _emit_wait(self, feed: Feed, now: float, *, run_over: bool) -> None:
        waits = feed.waits
        waits.said_at = waits.count
        median_ms, p95_ms, max_ms = feed.wait_quantiles_ms()
        wait = DataWait(
            dataset=feed.name,
            use=feed.batch_use,
            share=round(waits.compute_whole_share() if run_over else waits.compute_share(), 3),
            whole_share=round(feed.waited_s / self._feeds.elapsed_s(now), 3),
            run_over=run_over,
            count=waits.count,
            cores=count_cores(),
            median_ms=median_ms,
            p95_ms=p95_ms,
            max_ms=max_ms,
            **feed.setup,
        )
        slow = self._lines_of_fetches.take_slow_line(feed.name)
        if slow is not None:
            wait.slow_line, wait.slow_function, wait.slow_callee = slow.where, slow.function, slow.callee or None
            wait.slow_share = round(slow.share, 3)
        self.emit(wait)

    def run_ends(self) -> None:
        """What was said of waits is brought up to date; a program that only evaluates is judged by all of it."""
        now = time.perf_counter()
        for feed in self._feeds:
            if 0 < feed.waits.said_at < feed.waits.count:
                self._emit_wait(feed, now, run_over=True)
            elif not feed.waits.said_at and (feed.is_held_back or not self.monitor.step):
                self._judge_waits(feed, now, at_the_end=True)

    def _judge_starts(self, feed: Feed, loader_iter: "BatchIterator", now: float) -> None:
        """The first batches of passes: workers that start anew each time."""
        starting = feed.starts_s / max(now - feed.begun_at, 1e-9)
        often = feed.passes >= 3 and feed.waits.count >= ENOUGH and feed.starts_s >= SLOW_START_S * feed.passes
        if often and starting >= self.threshold("wait_share") and loader_iter._num_workers > 0:
            mean_s = feed.starts_s / feed.passes
            slow = SlowStart(
                dataset=feed.name,
                use=feed.batch_use,
                starting=round(starting, 3),
                first_s=round(mean_s, 3),
                count=feed.passes,
                cores=count_cores(),
                **read_loader_settings(loader_iter),
            )
            self._warn_once(feed, slow)

    def _judge_sampler(self, feed: Feed, current: Pass) -> None:
        """Does this pass train with the sampler's epoch of the pass before, so with its order?"""
        before, now = feed.trained_epoch, current.sampler_epoch
        if before is None or now is None or before[1] != now or before[0] == feed.passes:
            return
        self._warn_once(feed, SamplerNotSet(dataset=feed.name, sampler_epoch=now, passes=feed.passes, before=before[0]))

    # passes

    def _pass_begins(self, feed: Feed, loader_iter: "BatchIterator", now: float, wait_s: float) -> Pass:
        if feed.now is not None:
            self._pass_ends(feed, loader_iter)
        self._feeds.began_at = self._feeds.began_at or now - wait_s
        feed.setup = feed.setup or read_loader_settings(loader_iter)
        current = feed.begin_pass(now, self.monitor.step, sampler_epoch(loader_iter), wait_s)
        if self._lines < MAX_LINES and "loader" not in feed.reported:
            feed.reported.add("loader")
            self._lines += 1
            self._emit_loader(feed, loader_iter, now)
        self._judge_starts(feed, loader_iter, now)
        return current

    def _emit_loader(self, feed: Feed, loader_iter: "BatchIterator", now: float) -> None:
        loader = LoaderMade(dataset=feed.name, **read_loader_settings(loader_iter), **self._describe_split(loader_iter))
        made, begun = self._feeds.find_construction_time(loader_iter), self._feeds.find_iteration(loader_iter).begun_at
        if made is not None:
            loader.made_s = round(made - self.monitor.budget.start, 3)
        if begun:
            loader.first_s = round(now - begun, 3)
        self.emit(loader)

    def _describe_split(self, loader_iter: "BatchIterator") -> dict[str, Any]:
        """Of a subset: how long the whole is, and the subsets of it that were read from."""
        parent = find_parent_dataset(loader_iter._dataset)
        if parent is None:
            return {}
        return {"subset_of": get_length(parent), "split": self._feeds.list_subset_lengths(loader_iter._dataset)}

    def _pass_ends(self, feed: Feed, loader_iter: "BatchIterator") -> None:
        current, feed.now = feed.now, None
        if current is None:
            return
        if current.sampler_epoch is not None and self.monitor.step > current.step:
            self._judge_sampler(feed, current)
            feed.trained_epoch = feed.passes, current.sampler_epoch
        elapsed = max(time.perf_counter() - current.begun_at, 1e-9)
        if (
            elapsed < SHORT_PASS_S
            and feed.passes.bit_count() > 1
            and self.monitor.duty.is_away
            and not self._is_requested()
        ):
            return  # the line of each would cost more than all its batches
        median_ms, p95_ms, max_ms = feed.wait_quantiles_ms()
        ended = PassEnded(
            dataset=feed.name,
            passes=feed.passes,
            batches=current.batches,
            median_ms=median_ms,
            p95_ms=p95_ms,
            max_ms=max_ms,
            share=round(current.wait_s / elapsed, 3),
            looked=current.looked,
            repeats=current.repeats,
            **self._describe_split(loader_iter),
        )
        if feed.label_low is not None:
            ended.label_low, ended.label_high, ended.classes = feed.label_low, feed.label_high, len(feed.classes)
        ended.cache_hits, ended.cache_misses = read_cache_counts(loader_iter._dataset) or (None, None)
        self.emit(ended)

    # errors

    def _emit_failure(self, loader_iter: "BatchIterator", error: Exception) -> None:
        """An exception came out of a loader instead of a batch."""
        feed = self._feeds.find_feed(loader_iter)
        indices = self._feeds.pop_indices(loader_iter)
        worker, text, where = parse_loader_error(error)
        self.monitor.become_rank_now()  # few programs outlive it
        failed = LoaderFailed(
            dataset=feed.name,
            batch=int(loader_iter._num_yielded) + 1,
            worker=worker,
            workers=loader_iter._num_workers,
            error=text,
            where=where,
            indices=indices[:SHOWN],
        )
        self.emit(failed)


def _too_soon(distance: int, loader_iter: "BatchIterator") -> bool:
    """True if no healthy loader hands out a batch again after so few others.

    An endless sampler comes round after a pass, and one with replacement at any time. A dataset that is a
    stream may repeat itself as it likes; but where the worker next to it gives the same, both read the whole.
    """
    if is_stream(loader_iter):
        return distance < max(int(loader_iter._num_workers), 2)
    length = get_length(loader_iter._index_sampler)
    return length is not None and distance < length and not has_replacement(loader_iter)
