"""What each transform of an input pipeline does: order, device, time, value range before and after."""

import re
import sys
import time
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from tdbg.core.config import Selection
from tdbg.core.events import Step, number
from tdbg.core.observations import Observed
from tdbg.core.observations.augmentation import (
    PipelineMeasured,
    RangeMistaken,
    TransformIdle,
    TransformMadeNan,
    TransformSlow,
)
from tdbg.probes import PROBES, Probe
from tdbg.probes.augmentation.transforms import (
    LIBRARIES,
    Glimpse,
    Meter,
    Pipeline,
    Run,
    build_pipeline,
    find_pipelines,
    in_library,
    steps_of,
)
from tdbg.probes.augmentation.worker_pipe import WorkerPipe
from tdbg.probes.dataloader.feeds import ENOUGH, Waits, find_start_method, is_in_worker
from tdbg.probes.forward import round_number
from tdbg.runtime.deferred_reads import device_idle

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor
    from tdbg.runtime.rerun import Call
    from tdbg.runtime.torch_compat import BatchIterator

KIND = "augmentation"
SAMPLES = 2  # calls measured a fetch
MANY_STEPS = 10
FREE_FETCHES = 8  # of a process without steps (a worker) measured whatever it costs
FREE_A_STEP = 2  # fetches measured while one step runs (evaluation)
LATE_BATCH = 4
MAX_TALLIES = 8
KEPT = 64  # times kept a step
FAR = 300.0  # a normalised value so large was none of 0 to 1 before
WIDE = 0.3  # images that span less say little
TINY = 0.02  # and no normalised image spans less than this
FEW = 4  # samples before a range is judged
SURE = 40.0  # changes to be expected before a transform without one is told
UNSURE = 200  # samples, where the transform does not say how probable a change is
NORMALISING = re.compile(r"^(?!.*(de_?norm|un_?norm|inverse)).*(normali[sz]|standardi[sz])", re.IGNORECASE)
# Transforms that rightly leave many an image as it was.
SHAPING = re.compile(r"resize|pad|crop|size|ident|tensor|conver|float|dtype|image|channel|contig|noop|lambda", re.I)


@dataclass(slots=True)
class StepTally:
    """What was seen of one step of a pipeline."""

    calls: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    low_in: float | None = None
    high_in: float | None = None
    low_out: float | None = None
    high_out: float | None = None
    width_in: float = 0.0  # the widest range of a single sample
    width_out: float = 0.0
    least_peak: float | None = None  # of the samples' largest absolute values, the smallest
    ranges: int = 0  # samples whose range is known
    compared: int = 0
    changed: int = 0
    dtype_in: str = ""
    dtype_out: str = ""
    device: str = ""
    made_bad: int = 0  # finite before, not finite after

    def add_call(self, row: "Figures") -> None:
        """One more call."""
        self.calls += 1
        self.seconds.append(row.seconds)
        self.dtype_in, self.dtype_out, self.device = row.dtype_in, row.dtype_out, row.device
        self.made_bad += row.made_bad
        if row.changed is not None:
            self.compared += 1
            self.changed += row.changed
        if None in (row.low_in, row.high_in, row.low_out, row.high_out):
            return
        self.ranges += 1
        self.low_in, self.high_in = _widen_range(self.low_in, self.high_in, row.low_in, row.high_in)
        self.low_out, self.high_out = _widen_range(self.low_out, self.high_out, row.low_out, row.high_out)
        self.width_in = max(self.width_in, row.high_in - row.low_in)
        self.width_out = max(self.width_out, row.high_out - row.low_out)
        peak = max(abs(row.low_out), abs(row.high_out))
        self.least_peak = peak if self.least_peak is None else min(peak, self.least_peak)

    def median_s(self) -> float:
        """The median time of a call."""
        found = sorted(self.seconds)
        return found[len(found) // 2] if found else 0.0


@dataclass(slots=True)
class Figures:
    """One call of one step, as plain data: what a worker sends."""

    place: int
    seconds: float
    low_in: Any
    high_in: Any
    low_out: Any
    high_out: Any
    changed: bool | None
    made_bad: bool
    dtype_in: str
    dtype_out: str
    device: str

    def as_list(self) -> list[object]:
        """In the order of the fields."""
        return [getattr(self, name) for name in self.__slots__]


class Tally:
    """What was seen of one pipeline, over all processes that run it."""

    def __init__(self, name: str, names: list[str], chances: list[float | None]) -> None:
        self.name = name
        self.names = names
        self.chances = chances
        self.steps = [StepTally() for _ in names]
        self.order: list[int] = []  # of the last sample
        self.samples = 0
        self.reported_at = 0
        self.seconds: deque[float] = deque(maxlen=KEPT)  # of a fetch, for one sample
        self.where = ""  # process, workers or loop
        self.reported: set[str] = set()

    def add_fetch(self, runs: list[list[Figures]], fetch_s: float, calls: int) -> None:
        """The measured samples of one fetch, and how many there were in it."""
        for rows in runs:
            self.samples += 1
            self.order = [row.place for row in rows]
            for row in rows:
                if row.place < len(self.steps):
                    self.steps[row.place].add_call(row)
        self.seconds.append(fetch_s / max(calls, 1))

    def sample_s(self) -> float:
        """The median time of a fetch for one sample."""
        found = sorted(self.seconds)
        return found[len(found) // 2] if found else 0.0

    def find_slowest_step(self) -> tuple[int, float]:
        """(place, part of the fetch) of the step that takes most of it."""
        sample_s = self.sample_s()
        shares = [step.median_s() / sample_s if sample_s > 0 else 0.0 for step in self.steps]
        place = max(range(len(shares)), key=shares.__getitem__)
        return place, min(shares[place], 1.0)


@PROBES.add
class Augmentation(Probe):
    """Order, device, time and value range of each transform in an input pipeline.

    Reads:  every object with ``transforms`` (albumentations, torchvision, kornia, any Compose of callables) that
            hangs on the dataset or the collate function, in the process that fetches; library pipelines that
            the training loop calls itself. Of two samples in a sampled fetch: the image before and after each step.
    Emits:  PIPELINE after 1, 2, 4, 8 ... samples; NAN, RANGE, NOEFFECT and SLOW where there is cause.
    Cost:   one microsecond a fetch; some 50 us a step for each measured sample, the first 8 fetches of a process
            and then within the budget. Classes carry a wrapper only while a sampled fetch runs.
    Limits: forked workers send their figures through a pipe, and write no file; spawned ones cannot. A transform
            inside a transform (OneOf) counts as part of it. On an accelerator times are those of the host.
            A pipeline that is made anew in each ``__getitem__`` is not found.
    """

    name = "augmentation"
    levels = ("extreme",)
    observations = (PipelineMeasured, TransformMadeNan, TransformIdle, RangeMistaken, TransformSlow)

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._pipe = WorkerPipe()
        self._meter = Meter(self._handle_meter_failure)
        self._fetchers: weakref.WeakKeyDictionary[object, list[Pipeline]] = weakref.WeakKeyDictionary()
        self._tallies: dict[tuple[str, ...], Tally] = {}
        self._waits = Waits()
        self._began_at = 0.0
        self._step = -1
        self._fetches = 0  # since the step changed
        self._root: object = None  # the library pipeline that the loop is calling

    def attach(self) -> None:
        self.patch_at("fetch", before=self._fetch_begins, after=self._fetch_ended, raised=self._fetch_failed)
        self.patch_at("workers-begin", before=self._workers_begin, after=self._workers_began)

    def detach(self) -> None:
        self._meter.disarm()
        self._pipe.close()
        super().detach()

    def forked(self) -> None:
        self._meter.disarm()
        self._pipe.forked()
        self._tallies.clear()
        self._waits = Waits()
        self._fetches, self._step = 0, -1

    def _handle_meter_failure(self, error: BaseException) -> None:
        self.on = False
        if not is_in_worker():  # a worker has nobody to tell and writes no file
            self.monitor.handle_failure(self, error)

    # workers

    def _workers_begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Workers are about to be forked: if there is something to measure they need a way to tell of it."""
        loader = args[1] if len(args) > 1 else kwargs.get("loader")
        if is_in_worker() or loader is None:
            return
        if find_pipelines(loader.dataset, loader.collate_fn):
            self._pipe.open_pipe()
        else:
            self._abstain_without(loader.dataset)

    def _workers_began(self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], result: object) -> None:
        how = find_start_method(args[0])
        if how != "fork" and self._pipe.is_open:
            self.unavailable(f"transforms in workers started by {how} are not seen: use num_workers=0 or fork")

    def _abstain_without(self, dataset: object) -> None:
        if not self._tallies:
            self.unavailable(f"no object with transforms was found on {type(dataset).__name__} or its collate function")

    # one fetch, in whichever process it happens

    def _fetch_begins(self, args: tuple[Any, ...], kwargs: dict[str, object]) -> None:
        if not self._can_afford():
            return
        fetcher = args[0]
        found = self._fetchers.get(fetcher)
        if found is None:
            found = self._fetchers[fetcher] = find_pipelines(fetcher.dataset, fetcher.collate_fn)
            if not found and not is_in_worker():
                self._abstain_without(fetcher.dataset)
        if found:
            long = any(len(one.steps) > MANY_STEPS for one in found)
            self._meter.arm(found, 1 if long else SAMPLES)  # a message has to fit into the pipe in one piece
            self._began_at = time.perf_counter()

    def _can_afford(self) -> bool:
        """True if this fetch may be measured: in a worker, which has no steps, by its own budget alone."""
        worker, step = is_in_worker(), self.monitor.step
        self._fetches = self._fetches + 1 if step == self._step else 1
        self._step = step
        if worker:
            settings = self.monitor.settings
            allowed = (
                Selection.from_settings(settings).is_rank_selected(self.monitor.rank) if self._fetches == 1 else True
            )
            self.on = self.on and allowed
        free = FREE_FETCHES if worker else FREE_A_STEP
        if not worker and not self.should_sample(KIND):
            return False
        return self._fetches <= free or self.monitor.budget.allows_extra(KIND, time.perf_counter())

    def _fetch_ended(self, seconds: float, args: tuple[object, ...], kwargs: dict[str, object], result: object) -> None:
        if not self._meter.is_armed:
            return
        meter = self._meter
        runs = meter.disarm()
        begun = time.perf_counter()
        messages = [
            message
            for owner, calls in meter.calls.items()
            if (
                message := _build_message(
                    [r for r in runs if id(r.pipeline.owner) == owner], seconds, meter.spent_s, calls
                )
            )
        ]
        for message in messages:
            if not is_in_worker():
                self._add_message(message, where="process")
                self._emit_due_tallies()
            elif not self._pipe.send_message(message):
                self.on = False  # the parent no longer wants to know
        spent = meter.spent_s + time.perf_counter() - begun
        self.monitor.budget.charge(self.name, meter.spent_s)
        self.monitor.budget.record_cost(KIND, spent, extra=True)

    def _fetch_failed(
        self, seconds: float, args: tuple[object, ...], kwargs: dict[str, object], error: Exception
    ) -> None:
        self._meter.disarm()

    # a library's pipeline that the training loop calls

    def call_begins(self, module: torch.nn.Module, call: "Call") -> None:
        here = any(name in sys.modules for name in LIBRARIES)
        if not here or self._meter.is_armed or not in_library(module) or not self.should_sample(KIND):
            return
        steps = steps_of(module) or [child for child in module.children() if in_library(child)]
        if steps:
            self._root = module
            self._meter.begin_run(build_pipeline(module, steps))

    def call_ended(self, module: torch.nn.Module, call: "Call", output: object) -> None:
        if module is not self._root:
            return
        self._root = None
        runs = self._meter.disarm()
        total_s = sum(row.seconds for run in runs for row in run.rows)
        late = {
            id(seen): seen
            for run in runs
            for row in run.rows
            for seen in (row.before, row.after)
            if _has_late_values(seen)
        }

        def record_late_ranges(values: list[float], record: Step | None) -> None:
            for place, seen in enumerate(late.values()):
                if seen is not None:
                    seen.low, seen.high = values[2 * place : 2 * place + 2]
            message = _build_message(runs, total_s, 0.0, 1)
            if message:
                self._add_message(message, where="loop")
                self._emit_due_tallies()

        waiting = [seen.late for seen in late.values() if seen is not None and seen.late is not None]
        if waiting:
            self.monitor.read_late(torch.cat(waiting), record_late_ranges)
        else:
            record_late_ranges([], None)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._root is not None:  # its call raised
            self._root = None
            self._meter.disarm()

    # what has arrived

    def batch_taken(self, batch: object, wait_s: float, loader_iter: "BatchIterator") -> None:
        now = time.perf_counter()
        if loader_iter._num_yielded == 1:
            self._waits.begin_pass(now)
        else:
            self._waits.add_wait(now, wait_s, idle=wait_s < 1e-3 or device_idle())
        if loader_iter._num_workers > 0 and not self._pipe.is_open and loader_iter._num_yielded == LATE_BATCH:
            self.unavailable("the workers were started before this flag was on, or there is nothing to measure")
        for message in self._pipe.receive_messages():
            self._add_message(message, where="workers")
        self._emit_due_tallies()
        if self._waits.is_due():
            self._judge_time()

    def _add_message(self, message: dict[str, Any], *, where: str) -> None:
        key = (str(message["pipeline"]), *map(str, message["steps"]))
        tally = self._tallies.get(key)
        if tally is None:
            if len(self._tallies) >= MAX_TALLIES:
                return
            tally = self._tallies[key] = Tally(key[0], list(key[1:]), message["chance"])
        tally.where = where
        tally.add_fetch(
            [[Figures(*row) for row in rows] for rows in message["runs"]], message["fetch_s"], message["calls"]
        )
        self._judge_tally(tally)

    def _emit_due_tallies(self) -> None:
        """Tell of what has doubled since it was told."""
        for tally in self._tallies.values():
            if tally.samples >= max(2 * tally.reported_at, 1):
                tally.reported_at = tally.samples
                self._emit_pipeline(tally)

    def _emit_pipeline(self, tally: Tally) -> None:
        steps = tally.steps
        measured = PipelineMeasured(
            pipeline=tally.name,
            samples=tally.samples,
            where=tally.where,
            steps=tally.names,
            order=tally.order,
            step_ms=[round(step.median_s() * 1e3, 4) for step in steps],
            dtypes=[f"{step.dtype_in} -> {step.dtype_out}" for step in steps],
            devices=[step.device for step in steps],
            changed=[round(step.changed / step.compared, 3) if step.compared else None for step in steps],
            chance=tally.chances,
            fetch_ms=round(tally.sample_s() * 1e3, 4),
            described=tuple(_format_step(name, step) for name, step in zip(tally.names, steps, strict=True)),
            **_collect_ranges(steps),
        )
        self.emit(measured)

    # what is wrong

    def _judge_tally(self, tally: Tally) -> None:
        for place, step in enumerate(tally.steps):
            if step.made_bad:
                self._warn_once(tally, TransformMadeNan(count=step.made_bad, **_build_step_fields(tally, place)))
            if _without_effect(tally.names[place], tally.chances[place], step):
                self._warn_once(tally, TransformIdle(count=step.compared, **_build_step_fields(tally, place)))
            problem = self._range_problem(tally, place)
            if problem is not None:
                kind, other = problem
                mistaken = RangeMistaken(
                    problem=kind, other=other, count=step.ranges, **_build_step_fields(tally, place)
                )
                self._warn_once(tally, mistaken)

    def _range_problem(self, tally: Tally, place: int) -> tuple[str, str] | None:
        """(kind, the other step) if the values that leave this step cannot be meant."""
        step, name = tally.steps[place], tally.names[place]
        low, high = step.low_in, step.high_in
        if step.ranges < FEW or low is None or high is None or step.least_peak is None:
            return None
        if NORMALISING.search(name):
            before = [p for p in range(place) if NORMALISING.search(tally.names[p]) and tally.steps[p].changed]
            if before and low < 0 and step.changed:
                return "normalised-twice", tally.names[before[-1]]
            if high > 2 and low >= 0 and step.least_peak > max(FAR, 1.5 * high):
                return "not-scaled", ""
            if high <= 1.5 and low >= 0 and step.width_in > WIDE and step.width_out < 0.5 * step.width_in:
                return "scaled-twice", ""
        last = place == len(tally.steps) - 1 and step.dtype_out.startswith(("float", "bfloat"))
        ends_near_zero = 0 < step.width_out <= TINY and abs(step.high_out or 0.0) <= TINY
        if last and ends_near_zero and tally.steps[0].width_in > WIDE:
            return "scaled-twice", ""
        return None

    def _judge_time(self) -> None:
        """One transform takes most of each fetch, and the program waits for it."""
        bound = self.threshold("slow_share")
        if not self._waits.is_starved(0.5):
            return
        for tally in self._tallies.values():
            place, share = tally.find_slowest_step()
            if tally.where != "loop" and tally.samples >= ENOUGH // 2 and share >= bound:
                self._waits.said_at = self._waits.count
                slow = TransformSlow(
                    slow=tally.names[place],
                    slow_share=round(share, 3),
                    slow_ms=round(tally.steps[place].median_s() * 1e3, 4),
                    samples=tally.samples,
                    wait_share=round(self._waits.compute_share(), 3),
                    **_build_step_fields(tally, place),
                )
                self._warn_once(tally, slow)

    def _warn_once(self, tally: Tally, seen: Observed) -> None:
        """Say once a pipeline and part that something is wrong; a rule reads it."""
        if seen.PART not in tally.reported:
            tally.reported.add(seen.PART)
            self.emit(seen)


def _build_step_fields(tally: Tally, place: int) -> dict[str, Any]:
    """What is told of one step, whatever is wrong with it."""
    step = tally.steps[place]
    return {"pipeline": tally.name, "step_name": tally.names[place], "order": [place], **_collect_ranges([step])}


def _collect_ranges(steps: list[StepTally]) -> dict[str, Any]:
    """The range before and after each of these steps."""
    return {
        name: [round_number(getattr(step, name)) for step in steps]
        for name in ("low_in", "high_in", "low_out", "high_out")
    }


def _build_message(runs: list[Run], fetch_s: float, own_s: float, calls: int) -> dict[str, object] | None:
    """What was measured of one pipeline in one fetch, as plain data; tdbg's own time is taken off."""
    if not runs:
        return None
    found = runs[0].pipeline
    return {
        "pipeline": found.name,
        "steps": found.names,
        "chance": found.chances,
        "fetch_s": round(max(fetch_s - own_s, 0.0), 7),
        "calls": calls,
        "runs": [[_build_figures(row).as_list() for row in run.rows] for run in runs],
    }


def _build_figures(row: Any) -> Figures:
    before, after = row.before or Glimpse(), row.after or Glimpse()
    known = before.print is not None and after.print is not None
    same = (before.print, before.kind, before.shape) == (after.print, after.kind, after.shape)
    return Figures(
        place=row.place,
        seconds=round(row.seconds, 7),
        low_in=_round_value(before.low),
        high_in=_round_value(before.high),
        low_out=_round_value(after.low),
        high_out=_round_value(after.high),
        changed=not same if known else None,
        made_bad=before.finite is True and after.finite is False,
        dtype_in=before.kind,
        dtype_out=after.kind,
        device=after.device,
    )


def _round_value(value: float | None) -> float | None:
    return None if value is None or number(value) != value else float(f"{value:.6g}")


def _has_late_values(seen: Glimpse | None) -> bool:
    return seen is not None and seen.late is not None


def _widen_range(low: float | None, high: float | None, new_low: float, new_high: float) -> tuple[float, float]:
    return (new_low if low is None else min(low, new_low)), (new_high if high is None else max(high, new_high))


def _without_effect(name: str, chance: float | None, step: StepTally) -> bool:
    """True if a transform that should have changed something by now never did."""
    enough = step.compared >= UNSURE if chance is None else step.compared * chance >= SURE
    return step.changed == 0 and enough and step.width_in > 0 and not SHAPING.search(name)


def _format_step(name: str, step: StepTally) -> str:
    text = f"{name} {step.median_s() * 1e3:.3g} ms"
    if step.low_in is not None and step.low_out is not None:
        text += f" {step.low_in:.4g} to {step.high_in:.4g} -> {step.low_out:.4g} to {step.high_out:.4g}"
    kinds = step.dtype_out if step.dtype_in == step.dtype_out else f"{step.dtype_in} -> {step.dtype_out}"
    return f"{text} {kinds} on {step.device}"
