"""`tdbg run --preflight`: what the live run must not do is tried on one batch, before the first update."""

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from tdbg.core.events import Step
from tdbg.core.guard import describe_error, guarded
from tdbg.core.observations.preflight import (
    TRIALS,
    BatchOverfitted,
    CustomGradients,
    EvaluatedTwice,
    InputsChanged,
    LastTokenChanged,
    PaddingChanged,
    Refused,
    SampleChanged,
    Trial,
)
from tdbg.core.tables import join_limited
from tdbg.probes import PROBES, Probe
from tdbg.probes.preflight.batch_inputs import Samples, find_samples
from tdbg.probes.preflight.batch_overfitted import LossRecorder, try_batch_overfitted
from tdbg.probes.preflight.custom_gradients import FunctionCalls, try_custom_gradients
from tdbg.probes.preflight.evaluated_twice import try_evaluated_twice
from tdbg.probes.preflight.forward_trials import ForwardTrials, Unfit, no_zero_weights
from tdbg.probes.preflight.input_changed import try_inputs_changed
from tdbg.probes.preflight.outermost_calls import OutermostCalls
from tdbg.probes.preflight.padding_changed import try_padding_changed
from tdbg.probes.preflight.sample_changed import try_sample_changed
from tdbg.probes.preflight.token_changed import find_targets, try_last_token_changed
from tdbg.runtime.random_states import same_random_states
from tdbg.runtime.rerun import Call
from tdbg.runtime.rerun_alone import CollectiveMet
from tdbg.runtime.root_modules import unwrap_module
from tdbg.runtime.tensors import is_sharded, iter_tensors

if TYPE_CHECKING:
    from torch.optim import Optimizer

MAX_TARGETS = 16
SHARED = ("FSDPModule", "FullyShardedDataParallel", "PipelineStage")
COMPARED = (SampleChanged, LastTokenChanged, PaddingChanged)  # outputs of two runs, which must be equal otherwise


@PROBES.add
class Preflight(Probe):
    """Runs the kept batch again with one thing changed, before the first update, and ends the process there.

    Reads:  a call of the model before the first update; losses of torch's and their targets; custom Functions.
    Emits:  one observation for each trial: its outcome, or why it was not made.
    Cost:   some 15 to 40 forward passes, and up to 180 updates (20 s) where the loss does not fall. It is asked for by `--preflight` alone, and no budget limits it.
    Limits: on rank 0 alone; where a forward needs other ranks (FSDP, tensor or pipeline parallel) it refuses.
    Source: docs/run.md
    """

    name = "preflight"
    observations = TRIALS

    def attach(self) -> None:
        self._targets: deque[Tensor] = deque(maxlen=MAX_TARGETS)  # of all accumulated gradients
        self._is_closure = False  # an update has begun that computes its loss itself
        self._functions = FunctionCalls()
        self.patch_at("backward", before=self._backward_begins)
        self._losses = LossRecorder()
        self._outermost = OutermostCalls()
        self.patch_at("compile", before=self._compile_begins)
        self.patch_at("module-compiled", before=self._compile_begins)
        self._has_backward = False
        self.patch_at("optimizer-made", after=self._optimizer_made)
        self.for_each_function("loss-computed", self._watch_loss)
        self._is_pipeline = False
        self.patch_at("stage-made", before=self._stage_made)
        self.patch_at("custom-function", before=self._functions.record_call)

    def _optimizer_made(self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        self._outermost.hook_modules()

    def _compile_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._outermost.remove_hooks()

    def _stage_made(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._is_pipeline = True

    def _watch_loss(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)
        self.patch(owner, name, before=lambda args, kwargs: self._losses.record_call(name, original, args, kwargs))

    def _backward_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the graph is freed."""
        self._losses.backward_begins()
        self._outermost.backward_begins()
        loss = args[0] if args else kwargs.get("tensors")
        if isinstance(loss, Tensor) and loss.grad_fn is not None:
            self._targets += find_targets(loss)

    def update_begins(self, optimizer: "Optimizer") -> None:
        """The first update is due, unless its closure has to compute the loss first."""
        if self._is_closure or self._has_backward or any(call.graded for call in self._list_calls()):
            self.carry_out()
        else:
            self._is_closure = True

    def backward_ended(self) -> None:
        """Within an update: the loss of its closure is there."""
        self._has_backward = True
        if self._is_closure:
            self.carry_out()

    def step_ended(self, record: Step, optimizer: "Optimizer") -> None:
        """An update was made that did not show before: its closure sets gradients itself, or it is compiled."""
        if not record.skipped:
            self.carry_out()

    def forked(self) -> None:
        self._is_closure = False
        self._targets.clear()

    def carry_out(self) -> None:
        """Try, and end: whatever happens to the trials, no update is made."""
        self.guard.call_guarded(self._try_as_rank)
        self.monitor.end_process()

    def _list_calls(self) -> list[Call]:
        """The calls of roots since the last update, and after them those of modules that no other module was running.

        Of a model that is called in parts, `body(encoder(x))`, the former are without the parts that came first.
        """
        return [*self.monitor.calls, *filter(_is_trained, self._outermost.calls)]

    def _try_as_rank(self) -> None:
        begun = time.perf_counter()
        self.monitor.become_rank_now()
        if not self.monitor.rank:
            with self.monitor.own_pass():
                self._try_all()
        self.monitor.budget.charge_to_user(time.perf_counter() - begun)

    def _try_all(self) -> None:
        self._outermost.remove_hooks()
        call = next((one for one in self._list_calls() if not _is_computed(one)), None)
        root = call.module() if call is not None else None
        if call is None or root is None:
            self._report_all("no call of a model was seen")
            return
        model = unwrap_module(root)
        shared = "a pipeline stage" if self._is_pipeline else _find_shared(model)
        if shared:
            self._emit_trial(Refused(reason=f"the forward pass needs other ranks ({shared})"), model)
            return
        if call.has_changed_arguments():
            self._report_all("the batch was changed in place after the forward pass")
            return
        trials = ForwardTrials(call, model)
        samples = find_samples(trials.inputs, model)
        with same_random_states(), no_zero_weights(model):
            twice = self._run_trial(EvaluatedTwice, lambda: try_evaluated_twice(trials, self.guard))
            self._emit_trial(twice, model)
            if isinstance(twice, Refused):
                return
            for kind, attempt in (
                (SampleChanged, lambda: try_sample_changed(trials, samples, from_loader=self._is_loaded(samples))),
                (LastTokenChanged, lambda: try_last_token_changed(trials, samples, list(self._targets))),
                (PaddingChanged, lambda: try_padding_changed(trials, samples)),
                (InputsChanged, lambda: try_inputs_changed(trials)),
                (CustomGradients, lambda: try_custom_gradients(self._functions)),
            ):
                reason = _find_obstacle(kind, twice, samples)
                self._emit_trial(kind(reason=reason) if reason else self._run_trial(kind, attempt), model)
        with same_random_states():  # on the weights of the call: by its values an output is known in the loss
            self._emit_trial(self._run_trial(BatchOverfitted, lambda: self._try_overfitting(trials)), model)

    def _try_overfitting(self, trials: ForwardTrials) -> Trial:
        if self._functions.intended:
            raise Unfit(f"gradients are changed on purpose ({join_limited(self._functions.intended, 4)})")
        return try_batch_overfitted(trials, list(self._losses.of_backwards))

    def _run_trial(self, kind: type[Trial], attempt: Callable[[], Trial]) -> Trial:
        """The trial's outcome; a forward pass that may not be repeated is a reason."""
        raised: list[BaseException] = []
        with guarded("the program's own forward may refuse to run again", raised.append, program_code=True):
            return attempt()
        error = raised[0]
        if isinstance(error, CollectiveMet):
            return Refused(reason=f"the forward pass needs other ranks ({error})")
        return kind(reason=str(error) if isinstance(error, Unfit) else describe_error(error)[:160])

    def _emit_trial(self, seen: Trial, model: nn.Module) -> None:
        seen.root = type(model).__name__
        self.emit(seen, step=0)

    def _report_all(self, reason: str) -> None:
        for kind in TRIALS[1:]:
            self.emit(kind(reason=reason), step=0)

    def _is_loaded(self, samples: Samples) -> bool:
        """True if the batch of a DataLoader shows that dimension 0 holds samples."""
        loader = self.monitor.find_probe("loader-wait")
        iterator = loader.iterator if loader is not None else None
        if loader is None or iterator is None:
            return False
        size = getattr(iterator._index_sampler, "batch_size", None)
        with guarded("a dataset may have no length", program_code=True):
            size = min(size or 0, len(iterator._dataset))
        sizes = [tensor.size(0) for _, tensor in iter_tensors(loader.batch) if tensor.dim()]
        return size == samples.size and samples.size in sizes


def _is_trained(call: Call) -> bool:
    """False for a call of what only prepares the batch."""
    module = call.module()
    return module is not None and any(parameter.requires_grad for parameter in module.parameters())


def _is_computed(call: Call) -> bool:
    """True for a call whose inputs another model has computed."""
    return any(tensor.grad_fn is not None for _, tensor in iter_tensors((call.args, call.kwargs)))


def _find_shared(model: nn.Module) -> str:
    """Why a forward of the model needs other ranks; empty if none is known."""
    for module in model.modules():
        for cls in type(module).__mro__:
            if cls.__name__ in SHARED:
                return cls.__name__
    if any(is_sharded(parameter) for parameter in model.parameters()):
        return "sharded parameters"
    return ""


def _find_obstacle(kind: type[Trial], twice: Trial, samples: Samples) -> str:
    """Why a trial cannot say anything, from what is known before it."""
    if kind not in COMPARED:
        return ""
    if twice.reason is not None:
        return twice.reason
    if isinstance(twice, EvaluatedTwice) and (twice.drew or not twice.repeats):
        return "outputs differ in eval mode without any change"
    return samples.reason
