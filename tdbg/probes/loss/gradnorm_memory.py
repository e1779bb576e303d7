"""LOSS.GRADNORM_MEMORY: memory through GradNorm's extra passes, tensor by tensor, and whether it comes back."""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ClassVar

import torch
from torch import Tensor

from tdbg.core.guard import guarded
from tdbg.core.tables import format_count
from tdbg.probes.loss.arithmetic import format_number
from tdbg.probes.loss.held import Meter, Seen, build_rows, record_held, select_alive
from tdbg.probes.loss.loss_report import Fault, Report, get_state, is_on, make_report
from tdbg.runtime import run_context, torch_compat

FLAG = "LOSS.GRADNORM_MEMORY"
LEAKS = 5  # updates in a row
LEAST_MB = 0.05  # a tensor that stays; the interpreter's own lists are smaller
SHOWN = 12
MAX_PIECES = 10_000  # of an update that are followed


@dataclass(slots=True, kw_only=True)
class GradNormMemory(Report):
    """Memory through one GradNorm update, in MB (10^6 bytes)."""

    flag: ClassVar[str] = FLAG
    part: ClassVar[str] = "PASS"

    name: str
    device: str
    how: str  # where the figures come from: allocator, malloc, or resident
    before_mb: float
    after_mb: float
    stays_mb: float
    peak_mb: float | None  # of an accelerator, if this update set a new one
    saved_mb: float | None  # kept for backward by the graphs of what was given to `mark`, parameters left out
    accumulation: int
    growth_mb: float | None  # from the beginning of the update before to the beginning of this one
    updates: int
    parts: list[dict[str, Any]] = field(default_factory=list)  # name, after_mb, change_mb, tensors: name, mb, kind

    def records(self) -> list[tuple[str, str]]:
        growth = "" if self.growth_mb is None else f", {self.growth_mb:+.4g} MB since the update before"
        peak = "" if self.peak_mb is None else f", a new peak of {format_number(self.peak_mb)} MB"
        lines = [
            f"{self.name}, update {self.updates} on {self.device} ({self.how}): {format_number(self.before_mb)} MB before, "
            f"{format_number(self.after_mb)} MB after, {self.stays_mb:+.4g} MB stay{growth}{peak}"
        ]
        for part in self.parts:
            lines.append(f"  {part['name']}: {part['change_mb']:+.4g} MB, {format_number(part['after_mb'])} MB in use")
            for row in part["tensors"][:SHOWN]:
                lines.append(f"    {format_number(row['mb'])} MB {row['kind']} {row['count']} x {row['name']}")
            if len(part["tensors"]) > SHOWN:
                lines.append(f"    and {format_count(len(part['tensors']) - SHOWN, 'more kind')}")
        if self.saved_mb is None:
            lines.append(
                f"  saved for backward: unknown, torch {torch.__version__} does not show it; "
                "TD-L017 sees what was given to `mark` alone"
            )
        elif self.accumulation > 1:
            lines.append(
                f"  accumulation {self.accumulation}: {format_number(self.saved_mb)} MB saved for backward if each graph is "
                f"freed before the next, {format_number(self.saved_mb * self.accumulation)} MB if all are kept"
            )
        return [(self.part, "\n".join(lines))]

    def collect_event_values(self) -> dict[str, Any]:
        figures = {"saved_mb": self.saved_mb, "stays_mb": self.stays_mb, "peak_mb": self.peak_mb}
        return {"name": self.name, **{name: figure for name, figure in figures.items() if figure is not None}}


class MemoryWatch:
    """What `gradnorm_memory` returns: a context manager around GradNorm's extra passes.

    report: after the block, while the flag is on; else None.
    """

    report: GradNormMemory | None = None

    def __enter__(self) -> "MemoryWatch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def mark(self, part: str, tensors: Mapping[str, Tensor | Iterable[Tensor | None] | None] | None = None) -> None:
        """A part of the update is over: ``re-forward``, ``gradients of family``.

        tensors: what it made, by name: each is told with its bytes, and with what its graph keeps for backward.
        """


NOTHING = MemoryWatch()


def gradnorm_memory(
    *,
    device: torch.device | str | None = None,
    accumulation: int = 1,
    name: str = "gradnorm",
    always: bool = False,
) -> MemoryWatch:
    """Watch memory through GradNorm's re-forward and its gradients: ``with gradnorm_memory() as memory: ...``.

        with loss.gradnorm_memory(accumulation=4) as memory:
            losses = task_losses(model(x))
            memory.mark("re-forward", {"losses": losses.values()})
            grads = torch.autograd.grad(losses["family"], shared, retain_graph=True)
            memory.mark("gradients of family", {"grads": grads})

    Each part is told with the change of memory in use, and tensor by tensor with what it made: the bytes of each, and
    what its graph keeps for backward by operation, shape and dtype (each memory once; parameters left out).
    device: whose memory; the current CUDA device if CUDA is in use, else the host. On an accelerator its allocator
        tells, on the host malloc's own count, or where there is none the resident memory.
    What graphs keep is unknown where torch does not show it (2.6, 2.9): TD-L017 then sees what was given to `mark` alone.
    accumulation: micro-batches to an update; told is what it means if the graphs of all are kept.
    name: of this GradNorm, if there are several: what stays is compared from update to update under it.
    Findings: TD-L017 in 5 updates in a row memory that was given to `mark`, or saved by its graph, was still held when
    the next update began, and that one began with more (`forget` begins anew).
    Cost: off 1 us. On: 50 us, and 5 us an operation of the graphs given to `mark`. No hook is set, nothing waits.
    Source: Chen et al. 2018 (arXiv:1711.02257): a gradient per task at the shared layer.
    """
    if torch.compiler.is_compiling():
        return MemoryWatch()  # the compiler knows context managers that it sees being made
    if not always and not is_on(FLAG):
        return NOTHING
    if not always and not run_context.current.is_step_selected():
        return NOTHING
    return _Live(device, max(accumulation, 1), name, always=always)


class _Live(MemoryWatch):
    """A watch at work."""

    def __init__(self, device: torch.device | str | None, accumulation: int, name: str, *, always: bool) -> None:
        self._meter = Meter(device)
        self._accumulation = accumulation
        self._name = name
        self._always = always
        self._parts: list[dict[str, object]] = []
        self._made: Seen = {}
        self._alive: Seen = {}  # of the update before, as this one begins
        self._before_mb = self._last_mb = 0.0
        self._peak_mb: float | None = None

    def __enter__(self) -> "MemoryWatch":
        self._alive = select_alive(get_state(_Course, "gradnorm_memory", self._name).made)
        self._peak_mb = self._meter.peak_mb()
        self._before_mb = self._last_mb = self._meter.used_mb()
        return self

    def mark(self, part: str, tensors: Mapping[str, Tensor | Iterable[Tensor | None] | None] | None = None) -> None:
        now, begun = self._meter.used_mb(), time.perf_counter()
        row: dict[str, Any] = {"name": part, "after_mb": now, "change_mb": now - self._last_mb, "tensors": []}

        def refuse(error: BaseException) -> None:
            row["tensors"] = [{"name": f"{type(error).__name__}: {error}", "kind": "unknown", "count": 0, "mb": 0.0}]

        with guarded("a tensor class of somebody else's may refuse anything", refuse):
            made_here: Seen = {}
            named = tensors if isinstance(tensors, Mapping) else {part: tensors}
            for name, given in named.items():
                record_held(name, given, made_here)
            if len(self._made) < MAX_PIECES:
                self._made = made_here | self._made  # whoever made a piece names it, not who saves it later
            row["tensors"] = build_rows(made_here)
        self._parts.append(row)
        run_context.current.record_time(time.perf_counter() - begun)
        self._last_mb = self._meter.used_mb()  # less what the look itself took

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            after_mb = self._meter.used_mb()
            self.report = make_report(FLAG, lambda: self._build_report(after_mb), always=self._always)

    def _build_report(self, after_mb: float) -> GradNormMemory:
        course = get_state(_Course, "gradnorm_memory", self._name)
        stays_mb = after_mb - self._before_mb
        growth_mb = course.add_update(self._before_mb, self._alive, self._made)
        peak_mb = self._meter.peak_mb()
        report = GradNormMemory(
            name=self._name,
            device=self._meter.device,
            how=self._meter.how,
            before_mb=self._before_mb,
            after_mb=after_mb,
            stays_mb=stays_mb,
            peak_mb=peak_mb if peak_mb is not None and peak_mb > (self._peak_mb or 0.0) else None,
            saved_mb=self._saved_mb(),
            accumulation=self._accumulation,
            growth_mb=growth_mb,
            updates=course.updates,
            parts=self._parts,
        )
        report.findings = _find_memory_leaks(report, course)
        return report

    def _saved_mb(self) -> float | None:
        if not torch_compat.shows_saved_tensors:
            return None
        return sum(kept.mb for kept in self._made.values() if kept.kind == "saved")


class _Course:
    """Where memory stood from update to update."""

    def __init__(self) -> None:
        self.updates = 0
        self.began_mb = 0.0
        self.made: Seen = {}  # what the last update made and saved
        self.alive: Seen = {}  # what of the one before it was still held when it began
        self.leaks_mb: deque[float] = deque(maxlen=64)  # in a row: how much more each update began with

    def add_update(self, before_mb: float, still: Seen, made_now: Seen) -> float | None:
        """One more update; returns the growth since the one before."""
        self.updates += 1
        growth_mb = before_mb - self.began_mb if self.updates > 1 else None
        held_mb = sum(kept.mb for address, kept in still.items() if address not in made_now)
        if growth_mb is not None and growth_mb >= LEAST_MB and held_mb >= LEAST_MB:
            self.leaks_mb.append(growth_mb)
        else:
            self.leaks_mb.clear()
        self.began_mb, self.made, self.alive = before_mb, made_now, still
        return growth_mb


def _find_memory_leaks(report: GradNormMemory, course: _Course) -> list[Fault]:
    if len(course.leaks_mb) < LEAKS:
        return []
    total_mb = sum(course.leaks_mb)
    held = [
        f"{format_number(row['mb'])} MB {row['kind']} {row['count']} x {row['name']}"
        for row in build_rows(course.alive)
    ]
    return [
        Fault(
            "TD-L017",
            f"memory stays after each GradNorm update: {format_number(total_mb / len(course.leaks_mb))} MB an update",
            "error",
            what=report.name,
            evidence=[
                f"update {report.updates} began with {format_number(report.before_mb)} MB, {format_number(total_mb)} MB more than "
                f"{format_count(len(course.leaks_mb), 'update')} before",
                *(f"still held from the update before: {line}" for line in held[:4]),
            ],
            cause="losses, norms, gradients or weights are kept from update to update, with their graph or without",
            try_next="keep .item() of what goes into histories; retain_graph=True for all tasks but the last",
        )
    ]
