"""GRADIENTS: what the gradient norms of a step mean, parameter by parameter."""

import math
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tdbg.core.events import Step, as_float
from tdbg.core.observations._lasting import Lasting
from tdbg.core.observations.gradient_report import WORDS, BadGradients, BadRow, GradientNorms
from tdbg.probes import PROBES, Probe
from tdbg.probes.forward import round_number
from tdbg.probes.gradients import NO_GRADIENT
from tdbg.runtime.listener import LATER_STEPS
from tdbg.runtime.root_search import is_anything_compiled
from tdbg.runtime.tensors import Bad, find_bad_values

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from tdbg.runtime.monitor import Monitor

MAX_NAMES = 8
MAX_DUE = 4  # looks whose record is still on its way from a device
HISTORY = 16  # looks that a norm's median is taken over
MEDIAN_LOOKS = 8  # fewer say nothing about what is usual
LASTING = {  # kind of trouble -> consecutive sampled steps, and steps from first to last
    "none": (10, 12),
    "zero": (10, 12),
    "vanishing": (6, 5),
    "jumped": (3, 2),
}
CONTRAST = 1e4  # a gradient vanishes where another one is so many times larger
GROWTH = 3.0  # a small gradient that has grown so much is on its way (LoRA, gates that begin at zero)
MATRIX_DIMS = 2  # a bias before a normalisation has no gradient but rounding noise, in the best of health


@dataclass(slots=True)
class _Run:
    """Looks in a row in which one parameter had one trouble."""

    step: int  # the first of them
    norm: float  # the gradient's norm then
    looks: int = 0


@dataclass(slots=True)
class _Look:
    """What is known of a step when its update begins; the norms come with its record."""

    limit: float | None = None  # given to clip_grad_norm_
    whole: bool = False  # that clipped all of the optimizer's parameters, by their L2 norm
    frozen: set[int] = field(default_factory=set)  # indices of parameters that want no gradient, or are empty


@PROBES.add
class GradientReport(Probe):
    """Which parameters' gradients explode, vanish, jump, are zero or are not there at all.

    Reads:  the norms that gradient-norms has taken for the step's record, and the limit given to
            ``clip_grad_norm_``; the gradients themselves only to count NaN and Inf, once a fault is found.
    Emits:  one line and one observation a looked-at step; names at most eight a kind. NONFINITE: exact counts
            of NaN and Inf by parameter.
    Cost:   a pass in Python over the norms (some 0.3 us a parameter) on sampled steps.
    Limits: the norms after clipping follow from the limit, so they are known for ``clip_grad_norm_`` with the L2
            norm over all parameters. On an accelerator the gradients are gone when a fault is seen: no counts.
            Sharded gradients (FSDP) are judged by this rank's shard, and not called zero or vanishing.
    Source: Pascanu et al. 2013, "On the difficulty of training recurrent neural networks".
    """

    name = "gradient-report"
    levels = ("advanced", "extreme")
    comes_back = LATER_STEPS
    observations = (GradientNorms, BadGradients)

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._due: dict[int, _Look] = {}  # step -> what its record is awaited for
        self._clip = _Look()
        self._norm_type = 2.0
        self._key: tuple[int, ...] = ()
        self._names: list[str] = []
        self._matrix: list[bool] = []
        self._runs: dict[str, dict[int, _Run]] = {}  # kind of trouble -> index of the parameter -> its run
        self._instead: str | None = None  # the model that has the missing gradients; None: not asked yet
        self._history: deque[list[float]] = deque(maxlen=HISTORY)

    def attach(self) -> None:
        self._explosion, self._vanishing = self.threshold("explosion"), self.threshold("vanishing")
        self._jump = self.threshold("jump")
        # A compiled frame that clips is guarded on the function: one more look must not compile it anew.
        if not (self.monitor.inspection.is_repeat_open and is_anything_compiled()):
            self.patch_at("clip_grad_norm_", before=self._note_limit)

    def forked(self) -> None:
        self._due.clear()
        self._key = ()

    def history_cleared(self) -> None:
        self._key = ()

    # clipping

    def _note_limit(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        limit = args[1] if len(args) > 1 else kwargs.get("max_norm")
        kind = args[2] if len(args) > 2 else kwargs.get("norm_type", 2.0)
        self._clip = _Look(limit=float(limit) if isinstance(limit, int | float) else None)
        self._norm_type = float(kind) if isinstance(kind, int | float) else 0.0

    def clip_begins(self, parameters: list[Tensor]) -> None:
        optimizer = self.monitor.optimizers.find_owner(parameters)
        if optimizer is not None and self.monitor.is_main(optimizer):
            held = sum(len(group["params"]) for group in optimizer.param_groups)
            self._clip.whole = len(parameters) == held and self._norm_type == 2.0

    # which steps

    def update_begins(self, optimizer: "Optimizer") -> None:
        if not self.monitor.is_main(optimizer) or not self.monitor.plan.full or not self.should_sample():
            return
        if len(self._due) >= MAX_DUE:
            self._due.pop(next(iter(self._due)))
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._clip.frozen = {index for index, p in enumerate(parameters) if not (p.requires_grad and p.numel())}
        self._due[self.monitor.step + 1] = self._clip
        key = tuple(map(id, parameters))
        if key != self._key:
            self._reset_parameters(key, parameters)

    def after_step(self, optimizer: "Optimizer") -> None:
        if self.monitor.is_main(optimizer):
            self._clip = _Look()

    def _reset_parameters(self, key: tuple[int, ...], parameters: list[Tensor]) -> None:
        norms = self.monitor.find_probe("gradient-norms")
        if norms is None:
            self.unavailable("the probe that takes the gradient norms is off")
            return
        self._key = key
        self._names = [norms.name_of(parameter) for parameter in parameters]
        self._matrix = [parameter.ndim >= MATRIX_DIMS for parameter in parameters]
        self._runs, self._instead = {}, None
        self._history.clear()

    def record_written(self, record: Step) -> None:
        due = self._due.pop(record.step, None)
        if due is None or record.skipped or record.grad_norms is None or len(record.grad_norms) != len(self._names):
            return
        with self.work():
            norms = [float(value) for value in record.grad_norms]
            if not all(map(math.isfinite, norms)):
                unusable = GradientNorms(total=record.grad_norm, parameters=len(norms), finite=False)
                self.emit(unusable, step=record.step)
                return
            found = self._judge_norms(norms, record, due.frozen)
            self._emit_norms(record, norms, found, due)
            self._history.append(norms)

    # judging

    def _judge_norms(self, norms: list[float], record: Step, frozen: set[int]) -> dict[str, list[int]]:
        """Indices of the parameters in each kind of trouble, and how long it has lasted."""
        largest = max(norms, default=0.0)
        found: dict[str, list[int]] = {kind: [] for kind in WORDS}
        for index, norm in enumerate(norms):
            if norm == NO_GRADIENT:
                if index not in frozen:
                    found["none"].append(index)
            elif norm == 0.0:
                found["zero"].append(index)
            elif norm < self._vanishing:
                found["vanishing"].append(index)
            elif norm > self._explosion:
                found["exploding"].append(index)
        found["jumped"] = self._find_jumped(found["exploding"], norms)
        faint = [i for i in found["vanishing"] if self._matrix[i] and largest > CONTRAST * norms[i]]
        zero = [i for i in found["zero"] if self._matrix[i]]
        if record.sharded:
            faint, zero = [], []  # a shard may be empty
        for kind, held in (("none", found["none"]), ("zero", zero), ("vanishing", faint), ("jumped", found["jumped"])):
            self._follow_runs(kind, held, norms, record.step)
        return found

    def _follow_runs(self, kind: str, indices: list[int], norms: list[float], step: int) -> None:
        before = self._runs.get(kind, {})
        self._runs[kind] = {index: before.get(index) or _Run(step, norms[index]) for index in indices}
        for run in self._runs[kind].values():
            run.looks += 1

    def _find_jumped(self, large: list[int], norms: list[float]) -> list[int]:
        """Those far above their own course, where the total is not: that would be a jump of the whole gradient."""
        if len(self._history) < MEDIAN_LOOKS or not large:
            return []
        if _compute_total(norms) > self._jump * median(_compute_total(row) for row in self._history):
            return []
        return [index for index in large if self._is_jump(index, norms[index])]

    def _is_jump(self, index: int, norm: float) -> bool:
        run = self._runs.get("jumped", {}).get(index)
        past = list(self._history)[: len(self._history) - (run.looks if run else 0)]  # not against the jump itself
        usual = [row[index] for row in past if row[index] > 0.0]
        return len(usual) >= MEDIAN_LOOKS // 2 and norm > self._jump * median(usual) and norm > 2.0 * max(usual)

    def _collect_lasting(self, norms: list[float], step: int) -> dict[str, Lasting]:
        """What has gone on long enough to be no accident: kind -> who, since when."""
        lasting: dict[str, Lasting] = {}
        for kind, runs in self._runs.items():
            looks, steps = LASTING[kind]
            long = {i: run for i, run in runs.items() if run.looks >= looks and step - run.step >= steps}
            grows = kind == "vanishing" and any(norms[index] > GROWTH * run.norm for index, run in long.items())
            if long and not grows:
                lasting[kind] = {
                    "names": self._list_names(long),
                    "count": len(long),
                    "looks": min(run.looks for run in long.values()),
                    "since": min(run.step for run in long.values()),
                    "norm": round_number(norms[next(iter(long))]),
                }
                if kind == "none" and self._instead is None:
                    self._instead = self.monitor.search.trained_instead()
                if kind == "none" and self._instead:
                    lasting[kind]["other"] = self._instead
        return lasting

    def _list_names(self, indices: Iterable[int]) -> list[str]:
        return [self._names[index] for index in list(indices)[:MAX_NAMES]]

    # telling

    def _emit_norms(self, record: Step, norms: list[float], found: dict[str, list[int]], due: _Look) -> None:
        trouble: dict[str, Any] = {kind: self._list_names(indices) for kind, indices in found.items() if indices}
        trouble |= {f"{kind}_count": len(indices) for kind, indices in found.items() if indices}
        seen = GradientNorms(
            total=record.grad_norm,
            parameters=len(norms),
            **trouble,
            lasting=self._collect_lasting(norms, record.step) or None,
        )
        _add_clipping(seen, due)
        there = [i for i, norm in enumerate(norms) if norm > 0.0]
        if there:
            low, high = min(there, key=norms.__getitem__), max(there, key=norms.__getitem__)
            seen.largest, seen.largest_name = round_number(norms[high]), self._names[high]
            seen.smallest, seen.smallest_name = round_number(norms[low]), self._names[low]
        self.emit(seen, step=record.step)

    # a fault

    def gradients_bad(self) -> None:
        """The only moment at which they can be counted."""
        begun = time.perf_counter()
        names = self.monitor.find_probe("gradient-norms")
        optimizers = [o for o in self.monitor.optimizers if self.monitor.is_main(o)]
        held = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
        bad = [(names.name_of(p), found) for p in held if p.grad is not None and (found := find_bad_values(p.grad))]
        if bad:
            self._emit_bad_gradients(bad)
        self.monitor.budget.exclude(time.perf_counter() - begun)  # as the rest of the first-bad report

    def _emit_bad_gradients(self, bad: list[tuple[str, Bad]]) -> None:
        rows: list[BadRow] = [
            {"name": name, "kind": found.kind, "count": found.count, "numel": found.numel}
            for name, found in bad[:MAX_NAMES]
        ]
        self.emit(BadGradients(bad=rows, bad_count=len(bad)))


def _add_clipping(seen: GradientNorms, due: _Look) -> None:
    if due.limit is None:
        return
    seen.clip_limit, seen.clipped_in_part = due.limit, not due.whole
    total = as_float(seen.total)
    if due.whole and total is not None:
        factor = min(1.0, due.limit / (total + 1e-6))  # as clip_grad_norm_ computes it
        seen.clip_factor, seen.total_after = round_number(factor), round_number(total * factor)


def _compute_total(norms: list[float]) -> float:
    return math.sqrt(sum(norm * norm for norm in norms if norm > 0.0))
