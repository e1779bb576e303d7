"""LOSS.*: what torch's own loss functions are given, in a program that knows nothing of tdbg."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdbg.core.events import Step
from tdbg.core.frames import drop_own_frames
from tdbg.core.guard import belongs_to_program
from tdbg.core.observations.loss import MaskedTargets, SmoothedRows, WeightedClasses
from tdbg.core.tables import format_count, join_limited
from tdbg.probes import PROBES, Probe
from tdbg.probes.loss.arithmetic import format_number, format_share
from tdbg.probes.loss.loss_report import Fault, called_flags
from tdbg.probes.loss_calls.call_arguments import LAYOUTS, SUM, Layout, LossCall
from tdbg.probes.loss_calls.call_faults import (
    find_bad_rows,
    find_bad_weights,
    find_counted_nulls,
    find_empty_mean,
    find_misfit,
    find_whole_smoothing,
)
from tdbg.probes.loss_calls.target_figures import Measurement, TargetFigures, measure_targets
from tdbg.runtime import tensors
from tdbg.runtime.compiler import call_outside_compiler, hide_from_compiler, is_capturing
from tdbg.runtime.torch_compat import (
    count_dispatch_modes,
    count_function_modes,
    in_backward,
    in_transform,
    is_tracing,
    register_wrapper,
    unregister_wrapper,
)

is_compiling = torch.compiler.is_compiling

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor

MASKING, WEIGHTING, SMOOTHING = "LOSS.NULL_MASKING", "LOSS.CLASS_WEIGHTING", "LOSS.TAXONOMY_SMOOTHING"
NULL_INDEX = f"{MASKING}.null_index"
MAX_HELD = 64  # calls of one step whose targets are held, in case the loss is bad
HELD_TARGETS = 1 << 19  # of one call, as indices 4 MB; larger ones are held weakly, at more cost
HELD_S = 1e-6
RESTING_STEPS = 8  # after a refusal every so many steps one is asked for; ranks have them in common
MAX_MEASURED = 16  # of one step
MAX_KINDS = 256  # losses with class weights, and steps that wait for a device
LASTING_CALLS, LASTING_TARGETS = 3, 64  # nothing but ignored targets in so many calls in a row, of so many targets
SHOWN = 6


_HeldCall = tuple[Layout, tuple[Any, ...], dict[str, object], int]  # arguments without the input, and the step


@dataclass(slots=True)
class _StepCalls:
    """The calls of one step that were measured, in training or in evaluation."""

    step: int
    graded: bool
    read: list[tuple[LossCall, TargetFigures]] = field(default_factory=list)
    waiting: int = 0  # for a device


@dataclass(slots=True)
class _ClassCounts:
    """Samples so far of the classes that have a weight."""

    weights: list[float]
    counts: list[float]
    samples: float = 0.0
    judged_at: float = 0.0


@PROBES.add
class LossCalls(Probe):
    """What the loss functions of torch leave out, weight and smooth, where eager code calls them.

    Reads:  targets, weights and settings of cross_entropy, nll_loss, binary_cross_entropy (with logits too), kl_div,
            mse_loss, l1_loss, smooth_l1_loss, huber_loss, poisson_nll_loss and the margin losses of
            torch.nn.functional, and of the criteria that call them.
    Emits:  in sampled steps one observation for each flag that is on; findings with the first of each. A mean over
            nothing is named in every step, once the loss it makes is sent backward.
    Cost:   1 us a call, 20 us in every eighth step; 50 to 200 us a measured one, at most 16 a step. Targets of at most
            4 MB a call are held for a step. On an accelerator figures are read one step late.
    Limits: functions without a part written in C (gaussian_nll_loss) and the optional weight of mse_loss and its like
            are not seen; nor are compiled regions, transforms of torch.func, and targets of a tensor subclass.
    Source: docs/loss.md
    """

    name = "loss-calls"
    observations = (MaskedTargets, WeightedClasses, SmoothedRows)

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._wrapped: list[tuple[Any, Any]] = []  # originals, and the wrappers in front of them
        self._reset_state()

    def _reset_state(self) -> None:
        self._step = self.monitor.step
        self._resting = False  # the budget refused a sample: the next steps are not asked for one
        self._held_calls = 0
        self._calls: list[LossCall | _HeldCall] = []  # of the running step
        self._calls_before: list[LossCall | _HeldCall] = []  # a device is read a step late
        self._measured: dict[tuple[int, bool], _StepCalls] = {}
        self._classes: dict[tuple[str, int], _ClassCounts] = {}
        self._ignored_in_a_row: dict[tuple[str, int], tuple[int, int]] = {}
        self._reported: set[tuple[str, str]] = set()
        self._described: set[tuple[str, object]] = set()

    def attach(self) -> None:
        self.for_each_function("loss-computed", self._wrap_loss)

    def _wrap_loss(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)
        self.patches.wrap_attribute(owner, name, partial(self._around_loss, LAYOUTS[name]), drops_frames=True)
        wrapper = getattr(owner, name)
        wrapper.__qualname__ = name  # pickle looks there for what it is given, and must find the very same
        self._wrapped.append((original, wrapper))
        register_wrapper(original, wrapper)

    def detach(self) -> None:
        for original, wrapper in self._wrapped:
            unregister_wrapper(original, wrapper)
        self._wrapped = []
        super().detach()

    # calls

    def _around_loss(self, layout: Layout, original: Callable[..., object]) -> Callable[..., object]:
        """The function itself comes first: what it refuses, it refuses as ever."""
        monitor, guard = self.monitor, self.guard

        def loss(*args: Any, **kwargs: Any) -> object:
            try:
                result = original(*args, **kwargs)
                if not is_compiling() and self.on and not monitor.rerunning:
                    try:
                        is_held = self._is_held(layout, args, kwargs)
                    except BaseException as error:  # as in `Guard.call`, which costs more than the call
                        if belongs_to_program(error):
                            raise
                        guard.handle_failure(error)
                        return result
                    if not is_held:
                        call_outside_compiler(
                            guard.call_guarded, self._run_timed, self._handle_loss_call, layout, args, kwargs
                        )
                return result
            except BaseException as error:
                drop_own_frames(error, native=True)
                raise

        return hide_from_compiler(loss)

    @hide_from_compiler
    def _is_held(self, layout: Layout, args: tuple[Any, ...], kwargs: dict[str, object]) -> bool:
        """In a step between samples: hold the targets in case the loss is bad, and do no more. Cost: 1 us.

        As in `FastPath` nothing here may raise or wait, and no code of the program's is called.
        """
        step = self.monitor.step
        if not self._resting or (step + 1) % RESTING_STEPS == 0 or self._measured:
            return False
        if count_dispatch_modes() or count_function_modes() or in_transform() or is_tracing():
            return False
        if not self.monitor.active or not torch.is_grad_enabled():
            return not self.monitor.active
        if len(args) <= layout.target or type(args[layout.target]) is not Tensor:
            return False
        count = args[layout.target].numel()
        if not 0 < count <= HELD_TARGETS:
            return False
        self._held_calls += 1
        if step != self._step:
            self._step, self._calls_before, self._calls = step, self._calls, []
        if layout.ignore_index >= 0 and len(self._calls) < MAX_HELD:
            self._calls.append((layout, args[1:], kwargs, step + 1))
        return True

    def _handle_loss_call(self, layout: Layout, args: tuple[Any, ...], kwargs: dict[str, object]) -> None:
        """A loss function has returned."""
        held, self._held_calls = self._held_calls, 0
        self.monitor.budget.charge_fast(self.name, held * HELD_S)
        if in_transform() or is_tracing() or in_backward() or is_capturing():
            return
        call = LossCall.from_arguments(layout, args, kwargs)
        if call is None:
            return
        if self._step != self.monitor.step:
            self._turn_over()
        call.step = self.monitor.running_step
        if call.graded and (call.kind == "classes" or not call.count) and len(self._calls) < MAX_HELD:
            self._calls.append(call)
        step_calls = self._measured.get((call.step, call.graded))
        if step_calls is not None and len(step_calls.read) + step_calls.waiting >= MAX_MEASURED:
            return
        is_sampled = self.should_sample()
        settings = self.monitor.settings
        self._resting = not (is_sampled or settings.steps or settings.every)
        if is_sampled:
            with self.work():
                self._measure_call(call)

    def _turn_over(self) -> None:
        """A step has ended: its calls are complete."""
        self._step = self.monitor.step
        self._calls_before, self._calls = self._calls, []
        self._emit_complete()

    def _measure_call(self, call: LossCall) -> None:
        target = call.target()
        if target is None:
            return
        key = (call.step, call.graded)
        if key not in self._measured and len(self._measured) >= MAX_KINDS:
            return
        step_calls = self._measured.setdefault(key, _StepCalls(*key))
        measured = measure_targets(call, target, self._null_index, with_classes=WEIGHTING in self.flags)
        values = measured.joined_figures
        if values is None or tensors.on_host(values):
            step_calls.read.append((call, measured.name_figures([] if values is None else values.tolist())))
            return
        step_calls.waiting += 1
        self.monitor.read_late(values, partial(self._record_figures, step_calls, call, measured))

    def _record_figures(
        self,
        step_calls: _StepCalls,
        call: LossCall,
        measured: Measurement,
        values: list[float],
        record: Step | None,
    ) -> None:
        step_calls.waiting -= 1
        step_calls.read.append((call, measured.name_figures(values)))

    @property
    def _null_index(self) -> int | None:
        if MASKING not in self.flags:
            return None
        index = self.monitor.settings.get_threshold(NULL_INDEX)
        if index != int(index):
            self.unavailable(f"null_index {index:g} is no class index, so no target is taken for null")
            return None
        return int(index) if index >= 0 else None

    # what is told

    def after_step(self, optimizer: object) -> None:
        if self._step != self.monitor.step:  # not after an update of another optimizer
            self._turn_over()

    def run_ends(self) -> None:
        self._emit_complete()

    def forked(self) -> None:
        self._reset_state()

    def loss_bad(self, step: int) -> None:
        """The loss of a step is not finite: say so if one of its means is over nothing."""
        for held in (*self._calls_before, *self._calls):
            call = held if isinstance(held, LossCall) else _read_held(held)
            target = call.target() if call is not None and call.step == step else None
            if call is None or target is None:
                continue
            measured = measure_targets(call, target, None, with_classes=False)
            values = measured.joined_figures
            figures = measured.name_figures([] if values is None else values.tolist())
            fault = find_empty_mean(call, figures)
            if fault is None:
                continue
            new = self._drop_reported([fault])
            if new:
                flag = MASKING if MASKING in self.flags else self.flags[0]
                seen = self._build_masked_targets([(call, figures)])
                seen.line = f"the loss of this step is not finite; {seen.line}"
                seen.faults, seen.training = [_as_dict(one) for one in new], True
                self.emit(seen, flag=flag, step=step)

    def _emit_complete(self) -> None:
        """Tell of every step whose figures are all there."""
        for key in [key for key, found in self._measured.items() if not found.waiting]:
            found = self._measured.pop(key)
            for flag, report in (
                (MASKING, self._report_masking),
                (WEIGHTING, self._report_weighting),
                (SMOOTHING, self._report_smoothing),
            ):
                if flag in self.flags and found.read:
                    report(found)

    def _emit_record(
        self, flag: str, seen: MaskedTargets | WeightedClasses | SmoothedRows, found: _StepCalls, faults: list[Fault]
    ) -> None:
        new = self._drop_reported(faults)
        seen.faults = [_as_dict(fault) for fault in new] or None
        seen.training = found.graded
        seen.calls = len(found.read)
        if new or flag not in called_flags:  # a program that calls the diagnostics has records of its own
            self.emit(seen, flag=flag, step=found.step)

    def _drop_reported(self, faults: list[Fault]) -> list[Fault]:
        """Those that were not told in this process."""
        new = []
        for fault in faults:
            if (fault.code, fault.what) not in self._reported:
                self._reported.add((fault.code, fault.what))
                new.append(fault)
        return new

    def _report_masking(self, found: _StepCalls) -> None:
        faults: list[Fault] = []
        for call, figures in found.read:
            index = self._null_index
            if index is not None and call.kind == "classes":
                faults += _as_list(find_counted_nulls(call, figures, index))
            if not call.graded:  # in training `loss_bad` knows whether the mean reached backward
                faults += _as_list(_as_warning(find_empty_mean(call, figures)))
            faults += _as_list(self._find_lasting(call, figures))
        if faults or any(call.can_mask for call, _ in found.read) or self._is_first(MASKING, None):
            self._emit_record(MASKING, self._build_masked_targets(found.read), found, faults)

    def _build_masked_targets(self, read: list[tuple[LossCall, TargetFigures]]) -> MaskedTargets:
        targets = sum(_count_targets(call, figures) for call, figures in read)
        ignored, zero = (sum(getattr(figures, name) for _, figures in read) for name in ("ignored", "zero_weight"))
        nulls = self._null_index is not None
        return MaskedTargets(
            line="; ".join(_masked_line(name, some) for name, some in _by_name(read).items()),
            calls=len(read),
            targets=targets,
            ignored=ignored,
            zero_weight=zero,
            share=(ignored + zero) / targets if targets else None,
            nulls=sum(figures.nulls for _, figures in read) if nulls else None,
            counted_nulls=sum(figures.counted_nulls for _, figures in read) if nulls else None,
        )

    def _find_lasting(self, call: LossCall, figures: TargetFigures) -> Fault | None:
        """TD-L004, where the sum of nothing is 0: a loss that learns nothing for several batches."""
        if call.kind != "classes" or call.reduction != SUM or not call.graded:
            return None
        key = (call.name, call.classes)
        calls, targets = self._ignored_in_a_row.get(key, (0, 0))
        if figures.ignored < call.count or not call.count:
            calls, targets = 0, 0
        else:
            calls, targets = calls + 1, targets + call.count
        if key in self._ignored_in_a_row or len(self._ignored_in_a_row) < MAX_KINDS:
            self._ignored_in_a_row[key] = calls, targets
        if calls < LASTING_CALLS or targets < LASTING_TARGETS:
            return None
        return Fault(
            "TD-L004",
            f"{call.name} ignores every target of the last {format_count(calls, 'batch')} looked at",
            "warning",
            what=call.name,
            evidence=[f"all {format_count(targets, 'target', 'is')} ignore_index {call.ignore_index}; their sum is 0"],
            cause="the task has no labels in this data, or another value stands for 'no label'",
            try_next="count the labels in a batch as it leaves the data loader, and again where the loss gets it",
        )

    def _report_weighting(self, found: _StepCalls) -> None:
        faults: list[Fault] = []
        weighted = [(call, figures) for call, figures in found.read if figures.weights]
        seen = WeightedClasses()
        lines = []
        for call, figures in weighted:
            key = (call.name, len(figures.weights))
            known = self._classes.get(key)
            if known is None or known.weights != figures.weights:
                if known is None and len(self._classes) >= MAX_KINDS:
                    continue
                known = self._classes[key] = _ClassCounts(figures.weights, [0.0] * len(figures.weights))
                faults += _as_list(find_bad_weights(call, figures.weights))
            if call.graded:  # validation data may have other shares
                known.counts = [a + b for a, b in zip(known.counts, figures.counts, strict=True)]
                each = call.count / len(figures.counts) if call.kind == "labels" else sum(figures.counts)
                known.samples += each
            if known.samples >= 2 * known.judged_at and known.samples:
                known.judged_at = known.samples
                faults += find_misfit(call, known.weights, known.counts, known.samples)
            used = [w for w, count in zip(known.weights, known.counts, strict=True) if count and w > 0]
            seen.classes, seen.seen = len(known.weights), sum(count > 0 for count in known.counts)
            seen.samples = int(known.samples)
            seen.ratio = max(used) / min(used) if used else None
            lines.append(_weighted_line(call, known))
        if weighted or faults or self._is_first(WEIGHTING, None):
            seen.line = "; ".join(dict.fromkeys(lines)) or f"{_format_names(found.read)}: no class weights"
            self._emit_record(WEIGHTING, seen, found, faults)

    def _report_smoothing(self, found: _StepCalls) -> None:
        faults: list[Fault] = []
        lines: dict[str, None] = {}
        seen = SmoothedRows()
        for call, figures in found.read:
            if call.kind == "rows":
                faults += _as_list(find_bad_rows(call, figures))
                seen.rows = (seen.rows or 0) + figures.rows
                seen.bad_rows = (seen.bad_rows or 0) + figures.bad_rows
                seen.least_sum = min(figures.least_sum, figures.least_sum if seen.least_sum is None else seen.least_sum)
                seen.largest_sum = max(
                    figures.largest_sum, figures.largest_sum if seen.largest_sum is None else seen.largest_sum
                )
                lines[_rows_line(call, figures)] = None
            elif call.smoothing:
                seen.smoothing = call.smoothing
                faults += _as_list(find_whole_smoothing(call))
                if self._is_first(SMOOTHING, (call.name, call.smoothing, call.classes)):
                    lines[_smoothing_line(call)] = None
        is_first = self._is_first(SMOOTHING, None)
        if lines or faults or is_first:
            seen.line = "; ".join(lines) or f"{_format_names(found.read)}: no label_smoothing, no soft targets"
            self._emit_record(SMOOTHING, seen, found, faults)

    def _is_first(self, flag: str, what: object) -> bool:
        """True the first time that this is asked."""
        key = (flag, what)
        if key in self._described or len(self._described) >= MAX_KINDS:
            return False
        self._described.add(key)
        return True


def _read_held(held: _HeldCall) -> LossCall | None:
    layout, args, kwargs, step = held
    call = LossCall.from_arguments(layout, (None, *args), kwargs)
    if call is not None:
        call.step = step
    return call


def _as_list(fault: Fault | None) -> list[Fault]:
    return [] if fault is None else [fault]


def _as_warning(fault: Fault | None) -> Fault | None:
    if fault is not None:
        fault.severity = "warning"
    return fault


def _as_dict(fault: Fault) -> Any:
    return fault.as_dict()


def _count_targets(call: LossCall, figures: TargetFigures) -> int:
    """Targets of a call: of soft ones the rows."""
    return figures.rows if call.kind == "rows" else call.count


def _by_name(read: list[tuple[LossCall, TargetFigures]]) -> dict[str, list[tuple[LossCall, TargetFigures]]]:
    found: dict[str, list[tuple[LossCall, TargetFigures]]] = {}
    for call, figures in read:
        found.setdefault(call.name, []).append((call, figures))
    return found


def _format_names(read: list[tuple[LossCall, TargetFigures]]) -> str:
    return join_limited(list(_by_name(read)), SHOWN)


def _masked_line(name: str, read: list[tuple[LossCall, TargetFigures]]) -> str:
    targets = sum(_count_targets(call, figures) for call, figures in read)
    ignored, zero = sum(figures.ignored for _, figures in read), sum(figures.zero_weight for _, figures in read)
    text = f"{name}: {format_count(targets, 'target')}"
    text += f" in {format_count(len(read), 'call')}" if len(read) > 1 else ""
    if not ignored and not zero:
        return f"{text}, none masked"
    call = read[0][0]
    how = "rows without any mass" if call.kind == "rows" else f"ignore_index {call.ignore_index}"
    parts = [f"{ignored} ignored ({how}, {format_share(ignored / targets)})"] if ignored else []
    parts += [f"{zero} of weight 0 ({format_share(zero / targets)})"] if zero else []
    return f"{text}, {' and '.join(parts)}, {targets - ignored - zero} count"


def _weighted_line(call: LossCall, known: _ClassCounts) -> str:
    word = "labels" if call.kind == "labels" else "classes"
    places = sorted(range(len(known.weights)), key=lambda place: -known.counts[place])[:SHOWN]
    shown = [f"{place}: weight {format_number(known.weights[place])}, {known.counts[place]:g} seen" for place in places]
    text = f"{call.name}: weights of {len(known.weights)} {word}, {format_count(int(known.samples), 'sample')} so far; "
    return text + join_limited(shown, SHOWN, len(known.weights))


def _rows_line(call: LossCall, figures: TargetFigures) -> str:
    text = f"{call.name}: {format_count(figures.rows, 'soft target')}, sums {format_number(figures.least_sum)} to "
    text += format_number(figures.largest_sum)
    text += f", {format_count(figures.ignored, 'row')} without any mass" if figures.ignored else ""
    return text + (f", label_smoothing {call.smoothing:g} besides" if call.smoothing else "")


def _smoothing_line(call: LossCall) -> str:
    keeps = 1 - call.smoothing + call.smoothing / max(call.classes, 1)
    return (
        f"{call.name}: label_smoothing {call.smoothing:g} over {format_count(call.classes, 'class')}, "
        f"the true class keeps {format_share(keeps)}"
    )


__all__ = ["LossCalls"]
