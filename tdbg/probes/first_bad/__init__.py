"""The first NaN or Inf of a rank: step, module, phase, and the batch that made it."""

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tdbg.core.events import MOMENT, REDUCED_GRADIENT, NonFinite, Step, as_float, number
from tdbg.core.guard import guarded
from tdbg.probes import PROBES, Probe
from tdbg.probes.dataloader.feeds import format_dataset_name
from tdbg.probes.dataloader.sampler_order import read_batch_indices
from tdbg.probes.first_bad.refuting import find_gradient_trace, refute_gradient, update_explains
from tdbg.runtime import tensors
from tdbg.runtime.deferred_reads import device_idle
from tdbg.runtime.device_losses import Copy, can_copy
from tdbg.runtime.rerun import Call, Located, is_finite_without, locate_backward, locate_forward
from tdbg.runtime.root_modules import Names
from tdbg.runtime.tensors import (
    Bad,
    as_real,
    find_bad_values,
    first_bad,
    is_checkable,
    iter_tensors,
    local_elements,
    name_argument,
)
from tdbg.runtime.torch_compat import modes_set_aside

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor
    from tdbg.runtime.rerun import Operation

MAX_RERUNS = 3
MAX_REPORTS = 3
MAX_NAMES = 8
MAX_HELD, HELD_BYTES = 4, 4_000_000  # calls of an evaluation at once, with inputs and outputs of so much each


@dataclass(frozen=True, slots=True)
class _HeldEvaluation:
    """A call of an evaluation whose outputs a device is still working out; copy: of a sum over them."""

    call: Call
    output: object
    copy: Copy
    step: int
    updates: int  # that had been made then


@PROBES.add
class FirstBad(Probe):
    """Names where the first non-finite value came from, at the moment it is seen.

    Reads:  nothing of its own in healthy steps, but references to the batch and to the gradients that
            arrive at the model's output. When the loss or a gradient is not finite it runs the kept batch
            once more under hooks, before the optimizer steps, and puts everything back.
    Emits:  a NonFinite event, again only after a full recovery, at most three; the batch as safetensors and JSON.
    Cost:   two references a call; one extra step when the fault is there, at most three times a run.
    Limits: on an accelerator that is behind the host, gradients are read a step late and find the weights updated;
            then the parameters whose gradients are bad are named, and the batch is looked at, and the report says so.
    """

    name = "first-bad"
    levels = ("basic", "advanced", "extreme")

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._reruns = 0
        self._reports = 0
        self._eval_reported = False
        self._held: deque[_HeldEvaluation] = deque()

    # four ways in

    def report_loss(self, value: float) -> None:
        """Called before the update (on the host before backward), with the weights of the forward pass."""
        if self.monitor.bad_seen:
            return
        event = self._build_event(self.monitor.step + 1, loss=value)
        located = self._locate_fault(lambda calls, names: locate_forward(calls, names))
        self._fill_event(event, located)
        event.origin = "here"  # a loss is local to its rank
        event.weights = "intact"
        self._name_samples(event, located)
        if located.phase in ("", "loss"):
            self._from_outputs(event, located)
        if event.phase == "optimizer":
            self._from_weights(event)
        passes = self.monitor.recorder.micro
        if not self.monitor.updates and passes > 1:
            event.note = _join_notes(f"no optimizer has stepped yet, and this is backward pass {passes}", event.note)
        self._send_event(event)

    def report_local(self, bad: list[tuple[str, Bad]]) -> None:
        """Called after backward, with gradients that are this rank's alone and the weights of the forward pass."""
        if self.monitor.bad_seen:
            return
        event = self._build_event(self.monitor.step + 1)
        event.bad_params, event.bad_param_count = [name for name, _ in bad[:MAX_NAMES]], len(bad)
        located = self._locate_fault(locate_backward)
        self._fill_event(event, located)
        if not located.found:
            self._from_gradients(event, bad, located)
            if self._list_bad_weights():
                event.phase = "optimizer"
        event.weights = "intact"
        self._name_samples(event, located)
        # Of a sharded model other ranks' weights took part; if these were bad, all ranks see it in their gradients.
        event.origin = "unknown" if located.shared and self.monitor.world_size > 1 else "here"
        if event.phase == "optimizer":
            self._from_weights(event)
        self._send_event(event)

    def report_gradients(self, bad: list[tuple[str, Bad]]) -> None:
        """Called before the update, with the weights of the forward pass."""
        if self.monitor.bad_seen:
            return
        event = self._build_event(self.monitor.step + 1)
        event.bad_params, event.bad_param_count = [name for name, _ in bad[:MAX_NAMES]], len(bad)
        event.weights = "intact"
        if self.monitor.local_gradients.finite_at == event.step:
            self._from_gradients(event, bad, Located(""))
            self._send_event(event)
            return
        located = self._locate_fault(locate_backward)
        self._fill_event(event, located)
        if located.found:
            event.origin = "here"
            self._name_samples(event, located)
            if event.phase == "optimizer":
                self._from_weights(event)
        else:
            self._from_gradients(event, bad, located)
            if event.origin == "unknown":
                event.tensor = REDUCED_GRADIENT
        self._send_event(event)

    def report_late(self, names: list[str], record: Step | None, kind: str = "") -> None:
        """Called one step later: the weights have been updated with the bad values."""
        event = self._build_event(
            record.step if record else self.monitor.step, loss=as_float(record.loss) if record else None
        )
        event.weights, event.how, event.kind = "updated", "check", kind
        event.bad_params, event.bad_param_count = names[:MAX_NAMES], len(names)
        loss_is_bad = event.loss in ("nan", "inf", "-inf")
        event.phase = "gradient" if names and not loss_is_bad else "loss"
        if names and not loss_is_bad:
            event.parameter = names[-1]
            event.module = names[-1].rpartition(".")[0]
            event.how = "bracket"
        bad_input = next(
            (found for call in self.monitor.calls.late if (found := first_bad((call.args, call.kwargs)))), None
        )
        if bad_input and not bad_input[1].only_minus_inf:
            event.phase, event.tensor = "input", f"input {name_argument(bad_input[0])}"
            _fill_bad_values(event, bad_input[1])
        event.note = "seen one step late, after the update: run with --stop-before-update to look before it"
        self._send_event(event)

    # evaluation

    def call_begins(self, module: nn.Module, call: Call) -> None:
        if call.graded and self._held:
            self._check_held_evaluations(wait=True)  # the update to come would change the weights

    def call_ended(self, module: nn.Module, call: Call, output: object) -> None:
        if call.graded or self._eval_reported:
            return
        outputs = [local_elements(tensor.detach()) for _, tensor in iter_tensors(output) if is_checkable(tensor)]
        if not all(map(tensors.on_host, outputs)):
            self._check_held_evaluations(wait=False)
            if len(self._held) < MAX_HELD and not self._eval_reported:
                self._hold_evaluation(call, output, outputs)
            return
        if all(_is_finite(as_real(tensor).sum(dtype=torch.float32)) for tensor in outputs):
            return
        self._report_evaluation(call, output, self._eval_step())

    def run_ends(self) -> None:
        with guarded("a device that failed gives no values"):
            self._check_held_evaluations(wait=True)
            self._check_last_weights()

    def _check_last_weights(self) -> None:
        """Where not all losses of the run were checked: report weights that updates have made bad."""
        monitor = self.monitor
        main = monitor.optimizers.find_main()
        if monitor.bad_seen or not monitor.duty.counted_steps or main is None or not device_idle():
            return
        held = [parameter for group in main.param_groups for parameter in group["params"] if parameter.requires_grad]
        # What never had a gradient was not updated: it may be bad on purpose. Plain SGD leaves no trace of one.
        updated = [parameter for parameter in held if parameter.grad is not None or main.state.get(parameter)]
        bad = [parameter for parameter in updated or held if _is_bad_weight(parameter)]
        if bad:
            event, found = self._build_event(monitor.step), find_bad_values(bad[0])
            event.kind = found.kind if found else ""
            self._from_weights(event, bad)
            self._send_event(event)

    def _hold_evaluation(self, call: Call, output: object, outputs: list[torch.Tensor]) -> None:
        """Have a device say whether the outputs are finite; until then the call is held, if that is no great matter."""
        is_small = call.is_small(HELD_BYTES) and sum(map(tensors.count_bytes, outputs)) <= HELD_BYTES
        if not is_small or not can_copy(outputs[0]) or len({tensor.device for tensor in outputs}) > 1:
            return
        sums = torch.stack([as_real(tensor).sum(dtype=torch.float32) for tensor in outputs])
        copy = Copy()
        copy.start_copy(sums.sum())
        self._held.append(_HeldEvaluation(call, output, copy, self._eval_step(), self.monitor.updates))

    def _check_held_evaluations(self, *, wait: bool) -> None:
        """Report the first held call of an evaluation whose outputs are not finite, as far as the device has come."""
        while self._held and (wait or self._held[0].copy.has_arrived()):
            held = self._held.popleft()
            if not math.isfinite(held.copy.wait_for_value()) and not self._eval_reported:
                is_updated = held.updates != self.monitor.updates
                self._report_evaluation(held.call, held.output, held.step, is_updated=is_updated)

    def _eval_step(self) -> int:
        return self.monitor.step or self.monitor.eval_calls + 1

    def _report_evaluation(self, call: Call, output: object, step: int, *, is_updated: bool = False) -> None:
        found = first_bad(output)
        if found is None or found[1].only_minus_inf:
            return
        event = self._build_event(step)
        self._eval_reported = True
        event.eval, event.during, event.origin = True, "eval", "here"
        event.weights = "updated" if is_updated else "intact"
        located = Located("", note="seen late: the weights have been updated since")
        if not is_updated:
            with self.monitor.calls.restrict_to([call]):
                located = self._locate_fault(locate_forward)
        self._fill_event(event, located)
        if event.phase == "optimizer" and not self.monitor.step:
            event.note = "the weights were bad before the first step"
        if event.phase in ("", "loss"):
            event.phase, event.tensor, event.how = "forward", "output", "check"
            _fill_bad_values(event, found[1])
        self._send_event(event)

    def forked(self) -> None:
        self._reruns = self._reports = 0
        self._eval_reported = False
        self._held.clear()

    # making the report

    def _build_event(self, step: int, loss: float | None = None) -> NonFinite:
        return NonFinite(step=step, loss=number(loss), last_good=self.monitor.recorder.last_good(), how="check")

    def _locate_fault(self, how: Any) -> Located:
        if self._reruns >= MAX_RERUNS:
            return Located("", note="the batch was not run again: that was done three times in this run")
        self._reruns += 1
        gradients = self.monitor.find_probe("gradient-norms")
        if gradients is not None and not self.monitor.calls and self.monitor.duty.is_away:
            return Located("", note="the batch was not run again: to save overhead, modules had no hooks then")
        if gradients is None or not self.monitor.calls:
            return Located("", note="no forward pass was seen")
        calls = list(self.monitor.calls)
        with self.monitor.own_pass():
            raised: list[str] = []
            located: Located | None = None
            with guarded(
                "the program's own forward may refuse a second call",
                lambda error: raised.append(f"{type(error).__name__}: {error}"),
            ):
                located = how(calls, gradients.model_names)
            if located is None:
                return Located("", note=f"the batch could not be run again: {raised[0]}"[:200])
            located.operation = self._find_operation(located, calls, gradients.model_names)
        if not located.module and any(call.rng is None for call in calls):
            located.note = "; ".join(
                filter(
                    None,
                    (
                        located.note,
                        "the second run may have drawn other random numbers (dropout): the state of the first was not kept",
                    ),
                )
            )
        return located

    def _name_samples(self, event: NonFinite, located: Located) -> None:
        """Name the samples of the dataset behind the bad rows, if a pass with others in their place is finite."""
        call, rows = located.call, event.rows
        dataset, indices = self._find_batch_indices()
        if call is None or not rows or not event.rows_are_samples or event.shape[0] != len(indices):
            return
        names, backward = self.monitor.find_probe("gradient-norms").model_names, event.phase == "backward"
        batch = self.monitor.find_probe("loader-wait").batch
        taken = [tensor for _, tensor in iter_tensors(batch) if tensor.dim() and len(tensor) == len(indices)]
        with self.monitor.own_pass(), guarded("the program's own forward may refuse another call"):
            for _, argument in iter_tensors((call.args, call.kwargs)):
                if not any(_is_same_data(argument, tensor) for tensor in taken):
                    continue
                if is_finite_without(call, argument, rows, names, backward=backward):
                    event.dataset, event.samples = dataset, [indices[row] for row in rows]
                    return

    def _find_batch_indices(self) -> tuple[str, list[int]]:
        """The dataset, and its indices in the batch that is held; empty if they are not known for certain."""
        loading, waiting = self.monitor.find_probe("dataloader"), self.monitor.find_probe("loader-wait")
        if waiting is None or waiting.batch is None or waiting.iterator is None:
            return "", []
        found: tuple[str, list[int]] = loading.find_indices(waiting.iterator) if loading is not None else ("", [])
        return found if found[1] else (format_dataset_name(waiting.iterator._dataset), self._read_indices(waiting))

    def _read_indices(self, waiting: Any) -> list[int]:
        with guarded("a sampler of the program's, of whatever kind, or one of another torch"):
            return read_batch_indices(waiting.iterator)
        return []

    def _find_operation(self, located: Located, calls: list[Call], names: Names) -> "Operation | None":
        """The operation and its line, by one more run; a module whose second run shows nothing has none."""
        from tdbg.runtime.operators import backward_operation, forward_operation

        if located.phase not in ("forward", "backward", "gradient") or not located.module_class:
            return None
        look = forward_operation if located.phase == "forward" else backward_operation
        with guarded("the module is known, its line is not; a third run may be refused"):
            return look(calls, names, located.module)
        return None

    def _fill_event(self, event: NonFinite, located: Located) -> None:
        event.phase, event.module, event.module_class = located.phase, located.module, located.module_class
        event.parameter, event.tensor, event.note = located.parameter, located.tensor, located.note
        if located.found:
            event.how = "rerun"
        if located.operation is not None:
            found = located.operation
            event.operation, event.line, event.code = found.name, found.where, found.code
        if located.bad:
            _fill_bad_values(event, located.bad)

    def _from_gradients(self, event: NonFinite, bad: list[tuple[str, Bad]], located: Located) -> None:
        """The second run showed nothing: speak of the gradients themselves."""
        name, found = bad[-1]  # the last in parameter order is the first in backward order
        event.phase, event.parameter, event.module = "gradient", name, name.rpartition(".")[0]
        event.tensor = "gradient"
        if 1 < self.monitor.clipped_badly <= len(bad):  # NaN times each: which were bad before is not to be told
            event.parameter = event.module = ""
            located.note = _join_notes(
                "clipping by a NaN norm made every gradient NaN, so the first bad one is unknown", located.note
            )
        elif len(bad) > 1:
            event.phase, event.how = "backward", "bracket"
        elif found.columns:
            event.phase, event.how, event.tensor = "forward", "bracket", f"what enters {event.module or 'the model'}"
            located.note = _join_notes(
                "whole columns of the gradient are bad: bad values in the module's input", located.note
            )
        _fill_bad_values(event, found)
        if located.note and not located.found:
            event.origin, event.note = ("here" if self.monitor.world_size == 1 else "unknown"), located.note
        elif self.monitor.world_size > 1:
            event.origin, event.note = (
                "other-rank",
                "this rank's own gradients are finite: the bad values came from another rank, in the reduction",
            )
        else:
            event.origin, event.note = "here", "the second run of the batch gave finite gradients"

    def _from_outputs(self, event: NonFinite, located: Located) -> None:
        """The second run showed no module, or there was none: go by what the first one left."""
        outputs = [tensor for call in self.monitor.calls for tensor in call.outputs]
        found = first_bad(outputs)
        if found is not None and not found[1].only_minus_inf:
            event.phase, event.tensor, event.how = "forward", "output", "check"
            event.note = located.note if not located.found else _format_finite_note()
            _fill_bad_values(event, found[1])
        elif located.found:
            return
        elif outputs:
            event.phase, event.how, event.note = "loss", "check", f"the model's output is finite; {located.note}"
        else:
            event.phase = "forward" if self.monitor.calls else ""
            event.tensor, event.note = "loss", located.note or _format_finite_note()
        if located.shared and event.phase != "loss":  # other ranks have a part in this one's forward pass
            event.origin = "here" if self.monitor.world_size == 1 else "unknown"
        if self._list_bad_weights():
            event.phase = "optimizer"

    def _list_bad_weights(self) -> list[nn.Parameter]:
        """Parameters of the trained roots that are not finite, as far as this rank holds them."""
        return [p for root in self.monitor.trained_roots() for p in root.parameters() if find_bad_values(p)]

    def _from_weights(self, event: NonFinite, bad: list[nn.Parameter] | None = None) -> None:
        """The weights are bad and the last loss was not: something between the two forward passes made them so.

        bad: which they are, if that is known.
        """
        monitor = self.monitor
        if monitor.step == 0:
            self._from_first_weights(event)
            return
        names = monitor.find_probe("gradient-norms").model_names
        bad = self._list_bad_weights() if bad is None else bad
        bad_names = [names.parameters.get(id(p), "") for p in bad]
        event.bad_params, event.bad_param_count = bad_names[:MAX_NAMES], len(bad)
        event.origin = "here" if monitor.world_size == 1 else "unknown"
        event.weights, event.how = "updated", "check"
        may_be_older = monitor.duty.counted_steps > 0 and not self._are_all_bad(bad)
        is_unknown = may_be_older and all(p.grad is None or find_bad_values(p.grad) is None for p in bad)
        if is_unknown or monitor.step > monitor.attended:
            self._from_unwatched(event)
        else:
            self._explain_weights(event, bad, bad_names)
        if may_be_older:
            event.note = _join_notes(
                event.note, "the step may be an earlier one: losses since then may not depend on these weights"
            )

    def _are_all_bad(self, bad: list[nn.Parameter]) -> bool:
        """True if no loss since can have been finite: all trained weights are bad, and one of them as a whole."""
        found = set(map(id, bad))
        trained = [p for root in self.monitor.trained_roots() for p in root.parameters() if p.requires_grad]
        return all(id(parameter) in found for parameter in trained) and any(map(_is_all_bad, bad))

    def _explain_weights(self, event: NonFinite, bad: list[nn.Parameter], bad_names: list[str]) -> None:
        """Whether a gradient of the last step, its update or something else made the weights bad."""
        monitor = self.monitor
        refuted = refute_gradient(monitor, bad)
        if refuted and not update_explains(monitor.optimizers, bad):
            self._from_writing(event, bad, bad_names, refuted)
            return
        event.step = monitor.step
        if refuted:
            event.note = f"{refuted}: the update itself made the weights bad"
            return
        event.parameter, event.module, event.module_class = bad_names[-1], bad_names[-1].rpartition(".")[0], ""
        trace = find_gradient_trace(monitor.optimizers, bad[-1])
        if trace:
            event.tensor = MOMENT
            _fill_bad_values(event, trace)
        event.phase, event.how = ("gradient", "check") if len(bad) == 1 else ("backward", "bracket")
        if monitor.local_gradients.finite_at == event.step:
            event.origin = "other-rank"
            event.note = "seen in the weights: this rank's own gradients were finite at this step"
        else:
            event.note = "seen one step late: the gradients were not read at this step"

    def _from_first_weights(self, event: NonFinite) -> None:
        """The weights are bad and no update was made: they were so from the beginning, or the program writes them."""
        monitor = self.monitor
        if monitor.updates or monitor.recorder.micro < 2:
            event.note = "the weights were bad before the first step"
        elif len(monitor.trained_roots()) > 1:  # the losses before may have been another model's
            event.note = "the weights were bad from the beginning, or the program has written them since"
        else:
            bad, names = self._list_bad_weights(), monitor.find_probe("gradient-norms").model_names.parameters
            last_good = f"the previous loss (backward pass {monitor.recorder.micro - 1}) was finite"
            self._from_writing(event, bad, [names.get(id(parameter), "") for parameter in bad], last_good)

    def _from_writing(self, event: NonFinite, bad: list[nn.Parameter], names: list[str], refuted: str) -> None:
        """No gradient and no update explains the weights: something wrote them after the update."""
        event.phase, event.parameter, event.origin = "weights", names[-1], "here"
        event.module, event.module_class, event.tensor = names[-1].rpartition(".")[0], "", "weight"
        found = find_bad_values(bad[-1])
        if found:
            _fill_bad_values(event, found)
        event.note = f"{refuted}, so no update wrote it"

    def _from_unwatched(self, event: NonFinite) -> None:
        """The weights went bad in a step that was only counted: neither the step nor the cause is known."""
        monitor = self.monitor
        is_range = monitor.step > monitor.attended
        event.step, event.until = (monitor.attended + 1, monitor.step) if is_range else (monitor.step, 0)
        event.phase, event.tensor = "", "weights"
        event.origin = "here" if monitor.world_size == 1 else "unknown"
        recorded = monitor.hushed_at > monitor.attended
        event.note = "not watched: " + (
            "a profiler was recording" if recorded else "tdbg only counted these steps, to stay within the budget"
        )

    def _send_event(self, event: NonFinite) -> None:
        if not event.eval:
            if self.monitor.bad_seen or self._reports >= MAX_REPORTS:
                return
            self.monitor.bad_seen, self.monitor.bad_at = True, event.step
            self._reports += 1
        event.kind = event.kind or _classify_loss(event.loss)
        event.own_finite = self.monitor.local_gradients.finite_at
        event.ring = self.monitor.recorder.list_rows()
        if event.origin != "other-rank":
            event.batch = self._save_batch(event)
        self.monitor.become_rank_now()
        self.monitor.emit(event)

    def _save_batch(self, event: NonFinite) -> str:
        """Keep the batch of the event's step, if it is at hand: once the weights are updated, small inputs alone are."""
        monitor = self.monitor
        is_running = event.weights == "intact"
        calls = monitor.calls if is_running else monitor.calls.late
        parts: dict[str, object] = {"inputs": [(call.args, call.kwargs) for call in calls]}
        loader = monitor.find_probe("loader-wait")
        if is_running and loader is not None and loader.batch is not None:
            parts["batch"] = loader.batch
            indices = self._find_batch_indices()[1]
            if indices:
                parts["indices"] = indices
        if not is_running and not calls:
            return ""
        monitor.become_rank_now()
        return monitor.save_batch(event.step, parts)


def _format_finite_note() -> str:
    """What a second run says that showed nothing bad, and what of the program's it went without."""
    aside = modes_set_aside()
    without = f", without the program's own modes ({', '.join(aside[:3])})" if aside else ""
    return f"the second run of the batch was finite{without}"


def _join_notes(text: str, note: str) -> str:
    """Both, if there is a note already."""
    return f"{text}; {note}" if note else text


def _is_bad_weight(weight: torch.Tensor) -> bool:
    """True for one that is not finite, but for a mask of -inf. Cost: a sum, and an exact look where that is not finite."""
    if not is_checkable(weight) or _is_finite(as_real(local_elements(weight.detach())).sum(dtype=torch.float32)):
        return False
    found = find_bad_values(weight)
    return found is not None and not found.only_minus_inf


def _is_all_bad(tensor: torch.Tensor) -> bool:
    """True if none of the values is finite."""
    return not bool(torch.isfinite(local_elements(tensor.detach())).any())


def _fill_bad_values(event: NonFinite, bad: Bad) -> None:
    event.kind, event.count, event.numel, event.shape, event.dtype = (
        bad.kind,
        bad.count,
        bad.numel,
        bad.shape,
        bad.dtype,
    )
    event.rows = list(bad.rows)


def _is_same_data(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if one is the other, or a copy of it that can be told from another batch."""
    if one is other:
        return True
    if one.shape != other.shape or one.dtype != other.dtype or one.layout != torch.strided:
        return False
    same = bool(torch.isclose(one.detach().to(other.device), other, 0.0, 0.0, equal_nan=True).all())
    return same and bool((other[:1] != other[1:]).any())


def _is_finite(value: torch.Tensor) -> bool:
    return bool(torch.isfinite(value))


def _classify_loss(loss: object) -> str:
    return "nan" if loss == "nan" else ("inf" if loss in ("inf", "-inf") else "")
