"""VALIDATION: the passes of evaluation between training steps: their size, mode, time and memory."""

import itertools
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from tdbg.core.observations.validation import (
    CallsEachStep,
    EvalModeUpdates,
    EvaluationPass,
    IdleAverage,
    NoEvaluation,
)
from tdbg.probes import PROBES
from tdbg.probes.training_loop.dataset_identity import Source, is_same, source_of
from tdbg.probes.updates import EveryUpdate
from tdbg.probes.validation.eval_mode_updates import LeftInEvalMode
from tdbg.probes.validation.hand_cut_batches import HandCutBatches, LossRoots, sample_first_input
from tdbg.probes.validation.random_draws import RandomDraws
from tdbg.probes.validation.short_passes import short_passes_of
from tdbg.runtime.identity_keys import IdentityKeys
from tdbg.runtime.own_hooks import add_gradient_hook
from tdbg.runtime.root_modules import unwrap_module
from tdbg.runtime.step_record import host_memory_mb
from tdbg.runtime.tensors import iter_tensors, on_host

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor
    from tdbg.runtime.rerun import Call
    from tdbg.runtime.torch_compat import BatchIterator

APART_STEPS = 2  # passes closer to each other are part of training: a teacher, a critic, a target
USUAL_STEPS = 3  # so many steps in a row with calls beside them, and it is said that they are no evaluation
MAX_ENDED = 4
MAX_OUTPUTS = 4  # of a call that are followed
MAX_PARTS = 8  # of a model that is called in parts: the roots of a pass whose layers are looked at
ALONE_CALLS = 8  # without any optimizer an evaluation is judged after so many calls
AVERAGED_STEPS = 20  # by then an average has been updated
LATE_EPOCH = 3  # an evaluation that was not seen by then is told as missing
MB = 1e6


@dataclass(slots=True)
class Pass:
    """Calls of root modules with no training between them."""

    step: int  # training steps done before it
    begun_at: float
    evaluated: int  # calls without gradients before it
    host_mb: float | None = None
    device_mb: float | None = None
    root: str = ""
    last_at: float = 0.0
    seen: int = 0  # calls looked at
    graded: int = 0  # of these, with gradients on
    built: int = 0  # of these, whose output carried a graph
    used: int = 0  # outputs that a gradient came back to
    train_mode: int = 0  # calls in train mode
    inference: int = 0  # calls under inference_mode
    repeats: int = 0  # calls with the very input of the call before
    samples: int = 0
    batches: int = 0  # taken from data loaders
    own_batches: int = 0  # of these, from the training data
    dropouts: int = 0  # layers that act otherwise in train mode, and were in it
    norms: int = 0
    parts: IdentityKeys[nn.Module, None] = field(default_factory=IdentityKeys)  # the roots called, few
    is_reported: bool = False
    input: "weakref.ref[Tensor] | None" = field(default=None)
    hand_cut: HandCutBatches | None = None  # of calls in train mode without gradients, of a model that trains
    draws: RandomDraws | None = None  # of calls in eval mode without gradients, unless a dropout layer is to draw

    def end_watch(self) -> None:
        """Put back what stands in front of functions of torch."""
        for watch in (self.draws, self.hand_cut):
            if watch is not None:
                watch.end_watch()


@PROBES.add
class Validation(EveryUpdate):
    """Passes of evaluation: calls of the model without gradients, or in eval mode, with no training between them.

    Reads:  calls of root modules that the monitor watches, the count of all calls without gradients, batches,
            updates; in a pass the mode of dropout and batch normalisation layers, once; the states of the random
            generators before and after the first 8 calls in eval mode, and from the second of these that draws
            torch's dropout functions.
    Emits:  PASS when training goes on or the process ends (without optimizer, after 8 calls); NONE if three epochs
            went by without evaluation; EACH_STEP once if every step has such calls (a teacher, a frozen critic);
            EVAL_MODE_UPDATES and AVERAGE once a process.
    Cost:   5 us a call of a pass; 15 us more in the first 8; one walk over the modules a pass.
    Limits: calls that the budget does not reach are counted, not looked at. What was in train mode or carried a graph
            is judged only where at least ``VALIDATION.calls`` calls of one pass were looked at. Batches count as
            evaluation's where a DataLoader handed them out, or where a loss was made of them.
    """

    name = "validation"
    levels = ("advanced", "extreme")
    presence_s = 10e-6
    inspects_evaluation = True
    observations = (EvaluationPass, EvalModeUpdates, IdleAverage, CallsEachStep, NoEvaluation)

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._reset_state()

    def _reset_state(self) -> None:
        self._pass: Pass | None = None
        self._ended: list[Pass] = []  # they wait for the update: their outputs may still go backward
        self._number = 0
        self._since_epoch = self.monitor.epoch or 0  # what came before is not known
        self._last_step = -APART_STEPS  # the step after which the last pass came
        self._in_a_row = 0
        self._evaluated = self.monitor.eval_calls
        self._counts_all = False
        self._has_ended = False
        self._reported: set[str] = set()
        self._short = short_passes_of(self.monitor)
        self._feed: Source = None  # the dataset of the last batch
        self._trained_feed: Source = None
        self._batches = self._own_batches = 0  # since the last update or pass
        self._left = LeftInEvalMode(self.monitor.trained_roots_in_train_mode)
        self._loss_roots = LossRoots(self.monitor.places_of_losses)

    def detach(self) -> None:
        if self._pass is not None:
            self._pass.end_watch()
        super().detach()

    def forked(self) -> None:
        short_passes_of(self.monitor, anew=True)
        self._reset_state()

    def history_cleared(self) -> None:
        number, said, since = self._number, self._reported, self._since_epoch
        self._reset_state()
        self._number, self._reported, self._since_epoch = number, said, since  # facts of the run, not its history

    # what belongs to a pass

    def batch_taken(self, batch: object, wait_s: float, loader_iter: "BatchIterator") -> None:
        self._feed = source_of(loader_iter)
        self._batches += 1
        self._own_batches += self._trained_feed is not None and not self._is_evaluation_batch()

    def call_begins(self, module: nn.Module, call: "Call") -> None:
        self._left.record_call(module, graded=call.graded, step=self.monitor.step)
        if call.graded and module.training and not self._is_evaluation_batch():
            self._end_pass()  # training goes on
            if self._short.trained is None:
                with self.work():
                    self._short.trained = sample_first_input(call)
            return
        now = self._pass
        if now is not None and call.graded and not now.graded:
            self._end_pass()  # evaluation is over; this may be training in eval mode
            now = None
        if now is None:
            now = self._pass = self._begin_pass(module)
        if now.hand_cut is not None:  # losses inside of the model are its own
            now.hand_cut.end_watch()
        _add_call(now, module, call)
        if module not in now.parts and len(now.parts) < MAX_PARTS:
            self._add_part(now, module)
        now.batches, now.own_batches = self._batches, self._own_batches
        if now.draws is not None and not call.graded:
            now.draws.begin_call()

    def _is_evaluation_batch(self) -> bool:
        """True if the last batch came from other data than training's, once that is known."""
        return self._trained_feed is not None and not is_same(self._feed, self._trained_feed)

    def _begin_pass(self, module: nn.Module) -> Pass:
        before = self.monitor.eval_calls if self._ended else self._evaluated  # the first calls may be unaffordable
        found = Pass(self.monitor.step, time.perf_counter(), before)
        found.root = type(unwrap_module(module)).__name__
        if found.step - self._last_step >= APART_STEPS:
            with self.work():
                found.host_mb, found.device_mb = host_memory_mb(), _device_mb()
                if isinstance(module, AveragedModel):
                    self._look_at_average(module)
                found.hand_cut = self._watch_hand_cut(module)
                if not module.training and not any(layer.training for layer in module.modules()):
                    found.draws = RandomDraws(self.guard)
        return found

    def _add_part(self, now: Pass, module: nn.Module) -> None:
        """Look at the layers of a root that the pass had not called before: `body(encoder(x))` has two."""
        now.parts[module] = None
        if not module.training or now.step - self._last_step < APART_STEPS:
            return
        with self.work():
            dropouts, norms = active_layers(module)
        if dropouts + norms and not now.dropouts + now.norms:
            now.root = type(unwrap_module(module)).__name__
        now.dropouts, now.norms = now.dropouts + dropouts, now.norms + norms

    def _watch_hand_cut(self, module: nn.Module) -> HandCutBatches | None:
        is_trained = unwrap_module(module) in self.monitor.trained_roots_in_train_mode
        if not (module.training and is_trained) or torch.is_grad_enabled():
            return None
        return HandCutBatches(self._loss_roots.find_place(module))

    def _look_at_average(self, module: AveragedModel) -> None:
        """Is an average evaluated that nothing has updated?"""
        step, averaged = self.monitor.step, type(unwrap_module(module.module)).__name__
        if step < AVERAGED_STEPS or "average" in self._reported:
            return

        def emit_idle_average(values: list[float], record: object) -> None:
            if values[0] == 0 and "average" not in self._reported:
                self._reported.add("average")
                self.emit(IdleAverage(averaged=averaged), step=step)

        count = module.n_averaged.detach().float().reshape(1)
        if on_host(count):
            emit_idle_average(count.tolist(), None)
        else:
            self.monitor.read_late(count, emit_idle_average)

    def call_ended(self, module: nn.Module, call: "Call", output: object) -> None:
        if call.graded and module.training:
            self._loss_roots.record_call(module, output)
        now = self._pass
        if now is None:
            return
        now.last_at = time.perf_counter()
        if call.graded:
            self._watch_output(now, output)
        elif now.draws is not None and not module.training:
            now.draws.end_call(call)
        if now.hand_cut is not None and (not self._batches or now.seen < self.threshold("calls")):
            now.hand_cut.end_call(call, output)
        if now.seen == ALONE_CALLS and self._is_alone():
            self._report_pass(now, so_far=True)
            now.is_reported = True

    def _is_alone(self) -> bool:
        """True for a program that does nothing but evaluate."""
        return not self.monitor.updates and not self.monitor.optimizers

    def _watch_output(self, now: Pass, output: object) -> None:
        carrying = (tensor for _, tensor in iter_tensors(output) if tensor.requires_grad and tensor.grad_fn is not None)
        outputs = list(itertools.islice(carrying, MAX_OUTPUTS))
        now.built += bool(outputs)
        for tensor in outputs:
            add_gradient_hook(tensor, _Arrived(now))

    def backward_begins(self, loss: Tensor | None) -> None:
        self._loss_roots.record_backward(self.monitor.sent_backward)
        self._end_pass()

    def before_update(self, optimizer: Optimizer) -> None:
        self._end_pass()
        first = None
        if "eval_mode_start" not in self._reported:
            first = self._left.record_first_updates(optimizer, self.monitor.step + 1)
        left = self._left.record_update(optimizer, self.monitor.step + 1)
        if left is not None and "eval_mode" not in self._reported:
            self._reported.add("eval_mode")
            self.emit(left, step=self.monitor.step + 1)
        elif first is not None:
            self._reported.add("eval_mode_start")
            self.emit(first, step=self.monitor.step + 1)

    # the end of a pass

    def _end_pass(self) -> None:
        ended, self._pass = self._pass, None
        if ended is not None:
            ended.end_watch()
        if ended is not None and len(self._ended) < MAX_ENDED:
            self._ended.append(ended)
        self._batches = self._own_batches = 0

    def after_update(self, optimizer: Optimizer) -> None:
        ended, self._ended = self._ended, []
        passes = [one for one in ended if not one.used]
        calls = self.monitor.eval_calls - self._evaluated
        self._evaluated = self.monitor.eval_calls
        if calls and not passes:  # none of them was affordable
            passes = [Pass(max(self.monitor.step - 1, 0), 0.0, self.monitor.eval_calls - calls)]
        for one in passes:
            if not one.is_reported:
                self._judge_place(one)
        if not passes and self.monitor.is_main(optimizer):
            self._in_a_row = 0
        self._trained_feed = self._feed
        self._batches = self._own_batches = 0
        self._miss_evaluation()

    def run_ends(self) -> None:
        self._has_ended = True
        self._counts_all = self._is_alone()  # the monitor has counted the calls with gradients on by now
        self._end_pass()
        for one in self._ended:
            if not one.used and not one.is_reported:
                self._judge_place(one)

    def _judge_place(self, ended: Pass) -> None:
        """Tell of a pass, unless the step before had one as well: then its calls belong to training."""
        apart = ended.step - self._last_step
        if apart:
            self._in_a_row = self._in_a_row + 1 if apart < APART_STEPS else 0
        self._last_step = ended.step
        if apart >= APART_STEPS:
            self._report_pass(ended)
        elif self._in_a_row >= USUAL_STEPS and "each_step" not in self._reported:
            self._reported.add("each_step")
            self.emit(CallsEachStep(root=ended.root), step=self.monitor.step)

    def _miss_evaluation(self) -> None:
        epoch = self.monitor.epoch
        if epoch is None or epoch - self._since_epoch < LATE_EPOCH or self._number or self._in_a_row:
            return
        if "none" in self._reported:
            return
        self._reported.add("none")
        self.emit(NoEvaluation(epochs=epoch - self._since_epoch), step=self.monitor.step)

    def _add_short_pass(self, ended: Pass) -> None:
        """Evaluation of one or two calls, in train mode and with a loss of each: it is judged once it has come again.

        That is, on the same held-out data: a loss of the batch that was just trained on, after the update, is none.
        """
        watch, fresh = ended.hand_cut, ended.seen - ended.repeats
        is_short = 0 < fresh < self.threshold("calls") and watch is not None and watch.losses >= fresh
        is_meant = ended.graded or ended.own_batches or ended.train_mode < ended.seen or ended.step < APART_STEPS
        self._short.add_pass(watch.first_input if watch is not None and is_short and not is_meant else None)
        self.monitor.inspection.ask_for_pass(wanted=self._short.wants_another)

    def _report_pass(self, ended: Pass, so_far: bool = False) -> None:
        self._number += 1
        self._add_short_pass(ended)
        graded = 0 if self._counts_all else ended.graded
        calls = max(self.monitor.eval_calls - ended.evaluated + graded, ended.seen)
        host_mb, device_mb = host_memory_mb(), _device_mb()
        evaluation = EvaluationPass(
            number=self._number,
            calls=calls,
            seen=ended.seen,
            samples=ended.samples,
            batches=ended.batches,
            pass_s=round(ended.last_at - ended.begun_at, 4) if ended.last_at else None,
            host_mb=host_mb,
            host_grown_mb=_subtract_rounded(host_mb, ended.host_mb),
            device_mb=device_mb,
            device_grown_mb=_subtract_rounded(device_mb, ended.device_mb),
            faults=self._find_faults(ended),
            so_far=so_far,
        )
        if ended.seen:
            evaluation.root = ended.root
            evaluation.mode = _describe_share(ended.train_mode, ended.seen, "train", "eval")
            evaluation.gradients = _describe_share(ended.graded, ended.seen, "on", "off")
            evaluation.inference_mode = ended.inference == ended.seen
            evaluation.graphs = ended.built - ended.used
            evaluation.dropouts, evaluation.norms = ended.dropouts, ended.norms
            if ended.step >= APART_STEPS or self._is_alone():  # the steps to come may all have such calls
                _add_draws(evaluation, ended)
        self._emit_pass(evaluation, ended)

    def _emit_pass(self, evaluation: EvaluationPass, ended: Pass) -> None:
        """Tell of it, once it is known whether batches that the program cuts itself differ."""
        equal = ended.hand_cut.count_equal_inputs() if self._may_be_hand_cut(ended) and ended.hand_cut else None
        if equal is not None and self._short.are_enough:
            equal = equal + self._short.count_refutations()

        def emit_pass(values: list[float], record: object) -> None:
            if values[0] == 0:
                evaluation.faults.append("train_mode")
            self.emit(evaluation, step=ended.step)

        if equal is None:
            self.emit(evaluation, step=ended.step)
        elif on_host(equal) or self._has_ended:  # no step is to come, with which it would be read
            emit_pass(equal.tolist(), None)
        else:
            self.monitor.read_late(equal, emit_pass)

    def _may_be_hand_cut(self, ended: Pass) -> bool:
        """True if a model that trains made losses in train mode, without a DataLoader and without gradients."""
        bound, watch = self.threshold("calls"), ended.hand_cut
        is_short = self._short.are_enough
        if watch is None or (ended.batches and not is_short) or ended.graded or ended.step < APART_STEPS:
            return False
        fresh = ended.seen - ended.repeats
        active = ended.train_mode == ended.seen and ended.dropouts + ended.norms > 0
        enough = min(watch.losses, fresh) >= bound or is_short
        return active and enough and ended.repeats <= fresh // 3 and watch.is_each_a_loss

    def _find_faults(self, ended: Pass) -> list[str]:
        """What is wrong with a pass; nothing where another purpose than evaluation is possible."""
        bound = self.threshold("calls")
        alone = self._is_alone()
        if not alone and ended.step < APART_STEPS:
            return []  # the steps to come may all have such calls
        fresh = ended.seen - ended.repeats
        if fresh < bound or ended.repeats > fresh // 3 or (ended.batches < bound and (ended.batches or not alone)):
            return []  # the same input again and again, or no data of its own: sampling, rollouts, MC dropout
        faults = []
        recalibrates = ended.own_batches > 0  # statistics, over training data
        if ended.train_mode == ended.seen and ended.dropouts + ended.norms and not recalibrates:
            faults.append("train_mode")
        if ended.built >= bound and not ended.used:
            faults.append("graphs")
        return faults


def _add_draws(evaluation: EvaluationPass, ended: Pass) -> None:
    """What drew random numbers, where that is the model's own doing: an input that comes again is drawn for on purpose."""
    draws = ended.draws
    if draws is None or not draws.looked or ended.train_mode or ended.repeats:
        return
    evaluation.compared, evaluation.drew = draws.looked, draws.drew
    if draws.function:
        evaluation.drawn_by, evaluation.drawn_at = draws.function, draws.line


class _Arrived:
    """A hook on an output: its gradient arrived, so the call was no evaluation."""

    __slots__ = ("whose",)
    __torch_unserializable__ = True

    def __init__(self, whose: Pass) -> None:
        self.whose = whose

    def __call__(self, grad: Tensor | None) -> None:
        self.whose.used += grad is not None


def _add_call(now: Pass, module: nn.Module, call: "Call") -> None:
    now.seen += 1
    now.graded += call.graded
    now.train_mode += module.training
    now.inference += torch.is_inference_mode_enabled()
    now.samples += call.samples or 0
    tensor = next((tensor for _, tensor in iter_tensors((call.args, call.kwargs))), None)
    now.repeats += tensor is not None and now.input is not None and now.input() is tensor
    now.input = weakref.ref(tensor) if tensor is not None else None


def active_layers(module: nn.Module) -> tuple[int, int]:
    """(dropout layers that drop, batch normalisation layers that update their statistics) in train mode.

    (0, 0) where statistics are being recalibrated: `torch.optim.swa_utils.update_bn` sets the momentum to None for
    that, others to 1.
    """
    dropouts = norms = 0
    for layer in module.modules():
        if not layer.training:
            continue
        if isinstance(layer, nn.modules.dropout._DropoutNd):
            dropouts += layer.p > 0
        elif isinstance(layer, nn.modules.batchnorm._BatchNorm):
            if layer.momentum in (None, 1):
                return 0, 0
            norms += bool(layer.track_running_stats)
    return dropouts, norms


def _device_mb() -> float | None:
    return round(torch.cuda.memory_allocated() / MB, 1) if torch.cuda.is_initialized() else None


def _subtract_rounded(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else round(after - before, 1)


def _describe_share(count: int, of: int, all_of_them: str, none: str) -> str:
    return all_of_them if count == of else none if count == 0 else "mixed"
