"""MEMORY: host and device memory step by step, what grows, and what holds it."""

import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tdbg.core.observations.memory import (
    PHASES,
    AllocationFailed,
    EvaluationMemory,
    MachineMemory,
    MemoryGrowth,
    MemoryReading,
    ModuleMemory,
)
from tdbg.core.steady_growth import Growth
from tdbg.probes import PROBES, Probe
from tdbg.probes.memory import host_memory, live_tensors
from tdbg.probes.memory.growth import Series
from tdbg.probes.memory.live_tensors import Census, Kind, is_out_of_memory
from tdbg.runtime import code_places
from tdbg.runtime.module_sampler import ModuleSampler, SampleRequest
from tdbg.runtime.root_modules import clean_path, unwrap_module
from tdbg.runtime.tensors import count_bytes
from tdbg.runtime.torch_compat import memory_snapshot

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from tdbg.runtime.monitor import Monitor
    from tdbg.runtime.rerun import Call

MB = 1e6
CREEP_STEPS = 50
SUSPECT_STEPS = 20  # half of a creep is worth a first count of the live tensors
MIN_CREEP_MB = 32.0  # a tenth of next to nothing is nothing
MIN_GRAPHS = 5  # so many more tensors with a graph
PARTS_EVERY_STEPS = 500
ACTIVATION_LOOKS = 2
ROOM_EVERY_S = 5.0
MAX_NAMES = 8
MAX_CENSUSES = 6
MAX_OOMS = 3
MAX_SEGMENTS = 2000
SAMPLE_EVERY_S, SAMPLE_AT_LEAST_S = 0.04, 1.0  # a sample costs some 100 us between the kernels of a program,
SAMPLE_PART = 0.02  # so they come at this part of the time that has gone by: in a long run a leak is as clear in fewer
TELL, PARTS = "memory", "memory-parts"  # kinds of work, in the budget
UNITS = {"bytes": 1.0, "kib": 1024.0, "mib": 1024.0**2, "gib": 1024.0**3, "tib": 1024.0**4}


@dataclass(slots=True)
class Held:
    """Bytes of the modules' own tensors, and of each module by its path."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    buffers: int = 0
    by_module: Counter[str] = field(default_factory=Counter)

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.parameters + self.gradients + self.optimizer + self.buffers


@PROBES.add
class Memory(Probe):
    """Resident and device memory, where in the step it rises, which modules hold it, and whether it creeps.

    Reads:  /proc, `resource` (psutil where there is no /proc) and torch.cuda's counters: after the first backward
            of each step (every 0.04 s at first, every second in a long run), at the borders of forward, backward and update of
            sampled steps; the bytes of parameters, gradients and optimizer state
            once in 500 steps; output sizes of the modules of two steps.
    Emits:  one line a sampled step (EVAL: a call, in a run that only evaluates); MODULES: what holds memory; CREEP, OOM and FULL when there is cause, with the
            largest live tensors, what holds the growing ones, and of CUDA the allocator's snapshot as JSON.
    Cost:   a reading takes 2-20 us on the host: those, and four more on sampled steps. Live tensors are counted (0.1 s, booked as a
            report) only when memory creeps or has run out, at most six times.
    Limits: host memory is of this process; loader workers have their own. Activations are the sizes of the leaf
            modules' outputs: what autograd saves besides is not in them. The device's peak is that of the whole run,
            since resetting it would change what the program reads.
    """

    name = "memory"
    levels = ("advanced", "extreme")
    presence_s = 10e-6
    every = 4
    observations = (MemoryReading, EvaluationMemory, ModuleMemory, MemoryGrowth, AllocationFailed, MachineMemory)

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._reset_state()

    def _reset_state(self) -> None:
        self._series = {"host": Series(), "device": Series()}
        self._marks: dict[str, float] = {}  # part of the step -> memory after it
        self._held = Held()
        self._activations: Counter[str] = Counter()  # bytes by module
        self._looks = 0
        self._parts_due = 0
        self._room_at = -ROOM_EVERY_S
        self._room: host_memory.Room | None = None
        self._first: dict[str, tuple[int, Census]] = {}  # the count when a creep was first suspected
        self._next_mb: dict[str, float] = {}  # judged already, up to here
        self._first_pass_mb = 0.0  # of the host when the first pass over the data ended: caches fill in it
        self._censuses = self._ooms = 0
        self._reported: set[str] = set()
        self._errors: list[int] = []
        self._sampled_step = 0
        self._sampled_at = 0.0
        self._began_at = time.monotonic()

    # attaching

    def attach(self) -> None:
        self.patch(sys, "excepthook", before=self._handle_uncaught_error)
        self.for_each_function("backward", self._watch_backward)

    def _watch_backward(self, owner: Any, name: str) -> None:
        self.patch_while_due(
            owner, name, self._is_sample_due, after=self._after_backward, raised=self._handle_raised_error
        )

    def changed(self) -> None:
        if self._looks < ACTIVATION_LOOKS:
            self.monitor.modules.request(self, SampleRequest(every=True))

    def detach(self) -> None:
        self.monitor.modules.withdraw_request(self)
        super().detach()

    def forked(self) -> None:
        self._reset_state()
        self.changed()  # the looks at modules were the parent's

    def history_cleared(self) -> None:
        for series in self._series.values():
            series.clear()

    # the borders of a step

    def call_begins(self, module: nn.Module, call: "Call") -> None:
        if call.graded and "begin" not in self._marks and self.should_sample(TELL):
            with self.work(TELL):
                self._marks["begin"] = self._now_mb()

    def call_ended(self, module: nn.Module, call: "Call", output: object) -> None:
        if call.graded:
            self._mark_phase("forward")
        elif self.monitor.step == 0:
            self._sample_evaluation(self.monitor.eval_calls + 1)

    def _sample_evaluation(self, number: int) -> None:
        """A run that only evaluates has no steps: its calls are counted instead, and the 1st, 2nd, 4th ... told."""
        self._sample_memory(number)
        if number & (number - 1) == 0 and self.should_sample(TELL):
            with self.work(TELL):
                now = EvaluationMemory(host_peak_mb=host_memory.peak_mb(), **_read_memory())
                self.emit(now, step=number)

    def backward_ended(self) -> None:
        self._mark_phase("backward")

    def _mark_phase(self, phase: str) -> None:
        if "begin" in self._marks:
            with self.work(TELL):
                self._marks[phase] = self._now_mb()

    def _now_mb(self) -> float:
        if torch.cuda.is_initialized():
            return torch.cuda.memory_allocated() / MB
        return host_memory.resident_mb() or 0.0

    def _after_backward(
        self, seconds: float, args: tuple[object, ...], kwargs: dict[str, object], result: object
    ) -> None:
        """One sample a step for the creep, at the same place in each, whether the step is watched or not."""
        self._sample_memory(self.monitor.step + 1)

    def _is_sample_due(self) -> bool:
        now = time.monotonic()
        interval_s = min(max(SAMPLE_EVERY_S, SAMPLE_PART * (now - self._began_at)), SAMPLE_AT_LEAST_S)
        return now - self._sampled_at >= interval_s

    def _sample_memory(self, step: int) -> None:
        if step == self._sampled_step or not self._is_sample_due():
            return
        self._sampled_step, self._sampled_at = step, time.monotonic()
        samples = {"host": host_memory.resident_mb()}
        if torch.cuda.is_initialized():
            samples["device"] = torch.cuda.memory_allocated() / MB
        if self.monitor.epoch == 0:
            self._first_pass_mb = samples["host"] or 0.0
        for kind, mb in samples.items():
            if mb is not None and self._series[kind].add_sample(step, mb):
                self._judge_growth(kind, step)

    def after_step(self, optimizer: "Optimizer") -> None:
        if not self.monitor.is_main(optimizer):
            return
        step = self.monitor.step
        if "begin" in self._marks:
            with self.work(TELL):
                self._emit_reading(step, _read_memory())
        self._marks.clear()
        if step >= self._parts_due and self._looks >= ACTIVATION_LOOKS:
            self._looks = 0
            self.monitor.modules.request(self, SampleRequest(every=True))

    def _emit_reading(self, step: int, now: dict[str, Any]) -> None:
        peak_mb = max(host_memory.peak_mb(), now.get("host_mb", 0.0))  # the system counts it lazily
        self._marks["update"] = now["device_mb"] if torch.cuda.is_initialized() else now.get("host_mb", 0.0)
        reading = MemoryReading(host_peak_mb=peak_mb, **now, **self._compute_rises())
        marks = {phase: self._marks[phase] for phase in PHASES if phase in self._marks}
        reading.highest = max(marks, key=lambda phase: marks[phase])
        self._look_for_room(step)
        if self._room is not None:
            reading.used_pct = round(self._room.used_pct, 1)
        self.emit(reading, step=step)

    def _compute_rises(self) -> dict[str, Any]:
        """What each part of the step added."""
        rises = {}
        before = self._marks["begin"]
        for phase in PHASES:
            if phase in self._marks:
                rises[f"{phase}_mb"] = round(self._marks[phase] - before, 2)
                before = self._marks[phase]
        return rises

    def _look_for_room(self, step: int) -> None:
        """How full the machine is: asked every five seconds; told once if it is nearly full and that is our doing."""
        now = time.monotonic()
        if now - self._room_at < ROOM_EVERY_S:
            return
        self._room_at, self._room = now, host_memory.find_memory_limit()
        found = self._room
        if found is None or found.used_pct < self.threshold("full_pct") or "full" in self._reported:
            return
        own_mb = host_memory.resident_mb() or 0.0
        if own_mb < 0.1 * found.limit_mb:
            return  # others fill it
        self._reported.add("full")
        full = MachineMemory(
            host_mb=own_mb,
            used_pct=round(found.used_pct, 1),
            limit_mb=round(found.limit_mb, 1),
            whose=found.whose,
        )
        self.emit(full, step=step)

    # what holds memory

    def modules_seen(self, look: ModuleSampler) -> None:
        if self._looks >= ACTIVATION_LOOKS:
            return  # another probe's look
        self._looks += 1
        leaves = [row for row in look.seen if row.leaf]
        self._activations = Counter({row.path: row.numel * row.calls * row.dtype.itemsize for row in leaves})
        if self._looks >= ACTIVATION_LOOKS:
            self.monitor.modules.withdraw_request(self)

    def update_begins(self, optimizer: "Optimizer") -> None:
        step = self.monitor.step + 1
        if step < max(self._parts_due, 2) or not self.monitor.is_main(optimizer) or not self.should_sample(PARTS):
            return  # before the second update there is no optimizer state
        with self.work(PARTS):
            self._parts_due = step + PARTS_EVERY_STEPS
            self._held = self._count_held()
            self._report_held(step)

    def _count_held(self) -> Held:
        held = Held()
        counted: set[int] = set()  # a tied weight or buffer belongs to the first module that holds it
        roots = self.monitor.trained_roots()
        for root in roots:
            prefix = f"{type(unwrap_module(root)).__name__}." if len(roots) > 1 else ""
            for path, module in unwrap_module(root).named_modules():
                own = self._count_module(module, held, counted)
                if own:
                    held.by_module[prefix + clean_path(path) or "root"] += own
        return held

    def _count_module(self, module: nn.Module, held: Held, counted: set[int]) -> int:
        before = held.total_bytes
        for parameter in module._parameters.values():
            if parameter is None or torch.nn.parameter.is_lazy(parameter) or id(parameter) in counted:
                continue
            counted.add(id(parameter))
            held.parameters += count_bytes(parameter)
            held.gradients += count_bytes(parameter.grad) if parameter.grad is not None else 0
            held.optimizer += sum(
                count_bytes(value)
                for optimizer in self.monitor.optimizers
                for value in optimizer.state.get(parameter, {}).values()
                if isinstance(value, Tensor)
            )
        for buffer in module._buffers.values():
            if buffer is None or torch.nn.parameter.is_lazy(buffer) or id(buffer) in counted:
                continue
            counted.add(id(buffer))
            held.buffers += count_bytes(buffer)
        return held.total_bytes - before

    def _report_held(self, step: int) -> None:
        holding = self._collect_holdings()
        peak, where = host_memory.peak_mb(), "host"
        if torch.cuda.is_initialized():
            peak, where = torch.cuda.max_memory_allocated() / MB, "device"
        most, outputs = self._held.by_module.most_common(MAX_NAMES), self._activations.most_common(MAX_NAMES)
        held = ModuleMemory(
            **holding,
            rest_mb=round(max(peak - sum(holding.values()), 0.0), 1),
            peak_mb=round(peak, 3),
            kind=where,
            modules=[name for name, _ in most],
            modules_mb=[round(size / MB, 3) for _, size in most],
            activation_modules=[name for name, _ in outputs],
            activation_modules_mb=[round(size / MB, 3) for _, size in outputs],
        )
        self.emit(held, step=step)

    def _collect_holdings(self) -> dict[str, Any]:
        held = self._held
        found = {
            "parameters_mb": held.parameters,
            "gradients_mb": held.gradients,
            "optimizer_mb": held.optimizer,
            "buffers_mb": held.buffers,
            "activations_mb": sum(self._activations.values()),
        }
        return {name: round(size / MB, 3) for name, size in found.items()}

    # creep

    def _judge_growth(self, kind: str, step: int) -> None:
        """Two counts of the live tensors, at half of a creep and at a whole one, tell what piles up."""
        if kind in self._reported or self._censuses >= MAX_CENSUSES:
            return
        if self._series[kind].rise_mb < 0.5 * min(MIN_CREEP_MB, self.threshold("creep_mb")):
            return
        if kind not in self._first:
            early = self._series[kind].find_growth(SUSPECT_STEPS)
            if early is not None and self._is_worth_reporting(early, 0.5):
                self._first[kind] = step, self._count_live_tensors()
            return
        growth = self._series[kind].find_growth(CREEP_STEPS)
        if growth is None or not self._is_worth_reporting(growth, 1.0) or growth.mb < self._next_mb.get(kind, 0.0):
            return
        if self._censuses == MAX_CENSUSES - 1 and not self._counts_without_graphs(kind, growth):
            return  # the last count of tensors is for what is told whatever it is made of
        since, before = self._first[kind]
        if step > since:
            bound_mb = self.threshold("creep_mb")
            self._next_mb[kind] = 2.0 * growth.mb if growth.mb >= bound_mb else min(2.0 * growth.mb, bound_mb)
            self._report_creep(kind, step, growth, before, step - since)

    def _counts_without_graphs(self, kind: str, growth: Growth) -> bool:
        """True for so much growth that it is told whatever it is made of: on the host half of that after the first pass."""
        bound_mb = self.threshold("creep_mb")
        later_mb = growth.to_mb - max(self._first_pass_mb, growth.from_mb) if kind == "host" else growth.mb
        return growth.mb >= bound_mb and later_mb >= 0.5 * bound_mb

    def _is_worth_reporting(self, growth: Growth, part: float) -> bool:
        relative = max(self.threshold("creep_pct") / 100.0 * growth.from_mb, MIN_CREEP_MB)
        return growth.mb >= part * min(relative, self.threshold("creep_mb"))

    def _count_live_tensors(self) -> Census:
        """Count the live tensors: part of a report of trouble, not of the daily cost."""
        begun = time.perf_counter()
        self._censuses += 1
        found = live_tensors.count_live_tensors()
        self._booked_as_report(begun)
        return found

    def _booked_as_report(self, begun: float) -> None:
        seconds = time.perf_counter() - begun
        self.monitor.budget.report_s += seconds
        self.monitor.budget.exclude(seconds)

    def _report_creep(self, kind: str, step: int, growth: Growth, before: Census, steps: int) -> None:
        now = self._count_live_tensors()
        more = now.more_than(before)
        graphs = sum(count for what, count in more.items() if what.keeps)
        piled_up = graphs >= max(MIN_GRAPHS, steps // 4)
        sure = piled_up or self._counts_without_graphs(kind, growth)
        if sure:
            self._reported.add(kind)
        growing = sorted(more, key=lambda what: (piled_up and not what.keeps, -more[what]))
        creep = MemoryGrowth(
            kind=kind,
            grown_mb=round(growth.mb, 1),
            grown_pct=round(growth.pct, 1),
            from_step=growth.from_step,
            steps=growth.steps,
            graphs=graphs,
            graph_steps=steps,
            piled_up=piled_up,
            growing=[f"{more[what]} more: {what}" for what in growing[:MAX_NAMES]],
            holder=self._find_holder(growing) if sure else "",
            top=now.format_largest(MAX_NAMES),
            sure=sure,
        )
        self.emit(creep, step=step)

    def _find_holder(self, growing: list[Kind]) -> str:
        begun = time.perf_counter()
        found = live_tensors.find_holder(growing)
        self._booked_as_report(begun)
        return found

    # out of memory

    def _handle_uncaught_error(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        error = args[1] if len(args) > 1 else None
        if isinstance(error, BaseException):
            self._out_of_memory(error)

    def _handle_raised_error(
        self, seconds: float, args: tuple[object, ...], kwargs: dict[str, object], error: Exception
    ) -> None:
        self._out_of_memory(error)

    def _out_of_memory(self, error: BaseException) -> None:
        if not is_out_of_memory(error) or id(error) in self._errors or self._ooms >= MAX_OOMS:
            return
        self._errors.append(id(error))  # backward tells it first, then the hook of what nobody caught
        self._ooms += 1
        self.monitor.become_rank_now()
        step, on_host = self.monitor.step + 1, "DefaultCPUAllocator" in str(error) or isinstance(error, MemoryError)
        on_device = torch.cuda.is_initialized() and not on_host
        failed = AllocationFailed(
            **_read_memory(),
            host_peak_mb=host_memory.peak_mb(),
            **self._collect_holdings(),
            error=f"{type(error).__name__}: {error}"[:300],
            tried_mb=_tried_mb(str(error)),
            total_mb=_total_mb(on_device=on_device),
            line=code_places.raising_line(error),
            kind="device" if on_device else "host",
            top=self._list_largest_tensors(),
            snapshot=self._write_snapshot(step),
        )
        self.emit(failed, step=step)

    def _list_largest_tensors(self) -> list[str]:
        """The largest live tensors; none where not even counting them finds room."""
        try:
            return self._count_live_tensors().format_largest(MAX_NAMES)
        except MemoryError:
            return []

    def _write_snapshot(self, step: int) -> str:
        """The CUDA allocator's segments and trace, as torch gives them, in JSON."""
        if not torch.cuda.is_initialized():
            return ""
        found = memory_snapshot()
        segments = sorted(found.get("segments", []), key=lambda one: -one.get("total_size", 0))[:MAX_SEGMENTS]
        traces = [trace[-MAX_SEGMENTS:] for trace in found.get("device_traces", [])]
        return self.monitor.keep(f"memory_step{step:08d}.json", {"segments": segments, "device_traces": traces})


def _read_memory() -> dict[str, Any]:
    """Memory now; of a device only if the program uses one."""
    found: dict[str, Any] = {}
    host = host_memory.resident_mb()
    if host is not None:
        found["host_mb"] = host
    if torch.cuda.is_initialized():  # one call: each of torch's named getters asks for all figures again
        stats = torch.cuda.memory_stats()
        found["device_mb"] = round(stats.get("allocated_bytes.all.current", 0) / MB, 1)
        found["device_reserved_mb"] = round(stats.get("reserved_bytes.all.current", 0) / MB, 1)
        found["device_peak_mb"] = round(stats.get("allocated_bytes.all.peak", 0) / MB, 1)
        if stats.get("num_ooms"):
            found["ooms"] = stats["num_ooms"]
    return found


def _total_mb(*, on_device: bool) -> float | None:
    """All the memory there is: of the device that the program uses now, or of the machine or container."""
    if on_device:
        return round(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory / MB, 1)
    room = host_memory.find_memory_limit()
    return round(room.limit_mb, 1) if room is not None else None


def _tried_mb(message: str) -> float | None:
    """How much was asked for, from the words of CUDA's or the CPU allocator's error."""
    found = re.search(r"tried to allocate ([\d.]+) ?(bytes|[kmgt]ib)", message, re.IGNORECASE)
    return round(float(found[1]) * UNITS[found[2].lower()] / MB, 1) if found else None
