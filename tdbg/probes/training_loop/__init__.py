"""TRAINING_LOOP: what the loop calls between two updates, in which order, and what becomes of the gradients."""

import time
import weakref
from collections import Counter
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tdbg.core.observations.training_loop import (
    AccumulationChanged,
    EpochUpdates,
    EvaluationPhase,
    LoopFault,
    Recomputation,
    StepCalls,
)
from tdbg.probes import PROBES
from tdbg.probes.training_loop.dataset_identity import Source, is_same, source_of
from tdbg.probes.training_loop.recompute import Recomputed
from tdbg.probes.training_loop.window_inputs import WindowInputs
from tdbg.probes.training_loop.windows import Track, compress_calls
from tdbg.probes.updates import EveryUpdate
from tdbg.runtime import tensors
from tdbg.runtime.compiler import hide_from_compiler
from tdbg.runtime.listener import LATER_STEPS

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor
    from tdbg.runtime.rerun import Call
    from tdbg.runtime.torch_compat import BatchIterator

MAX_CALLS = 96  # of one window that are kept in order
MAX_REPORTED = 20  # changes of the accumulation, a run
APART_STEPS = 2  # calls without gradients closer to each other are part of training
MAX_TRACKS = 16
MAX_FEEDS = 8
LATE_ELEMENTS = 64
INPUT_WINDOWS = 8  # so many first ones have their inputs compared, later ones if they have several backward calls
PARTIAL = ("grad_tensors", "inputs")  # arguments of a backward that is not the whole gradient of its loss


@PROBES.add
class TrainingLoop(EveryUpdate):
    """The calls between two updates: zero_grad, backward, clipping; accumulation, epochs, recomputation.

    Reads:  ``torch.autograd.backward``, ``zero_grad`` of optimizers and modules, clipping, batches, every update;
            of each optimizer two gradients: whether they are the same tensors as before, untouched. Of
            ``torch.utils.checkpoint.checkpoint`` the runs of its function. Without a DataLoader 16 elements of each
            input of a model, in the first 8 updates and where several backward calls go into one: which have other
            batches.
    Emits:  STEP, the calls of a sampled step in order; WINDOW when the number of backward calls an update changes;
            EPOCH at the end of one; PHASE when training goes on after calls without gradients; RECOMPUTE on sampled
            steps; FAULT once a kind and optimizer, after ``TRAINING_LOOP.lasting`` updates in a row.
    Cost:   30 to 40 us a step; gradients are followed in the first 64 updates, and then in a few of each 64.
    Limits: gradients that a program resets by hand are seen from their tensors. An optimizer that updates inside
            backward is left alone. The memory that recomputation saves is told on CUDA alone. An epoch ends with
            the next one's first batch, or the process; programs without a DataLoader have none.
    Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (recomputation).
    """

    name = "training-loop"
    levels = ("extreme",)
    comes_back = LATER_STEPS
    observations = (StepCalls, AccumulationChanged, EvaluationPhase, EpochUpdates, LoopFault, Recomputation)

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._reset_state()

    def _reset_state(self) -> None:
        self._tracks: dict[int, Track] = {}  # by id of the optimizer
        self._owners: dict[int, tuple[weakref.ref[Tensor], Track]] = {}  # by id of the parameter
        self._outer: weakref.ref[Optimizer] | None = None
        self._depth = 0
        self._thread = 0  # that is, or was last, in backward or an update
        self._loss: weakref.ref[Tensor] | None = None
        self._calls: list[str] = []
        self._batches = 0  # since the update before
        self._fresh = False  # a batch was taken since the last backward
        self._window = 0  # backward calls since the last update of any optimizer
        self._last_window = 0
        self._inputs = WindowInputs()
        self._reported_count = 0
        self._feed: Source = None  # the dataset of the last batch that was not for evaluation
        self._trained: Source = None  # that of the last backward
        self._evaluated = self.monitor.eval_calls
        self._phase = (self.monitor.eval_calls, -APART_STEPS)  # calls without gradients, and the last step with some
        self._begun: list[Source] = []  # datasets over which a new pass has begun
        self._epoch = _Epoch(self.monitor.eval_calls, 0)
        self._recomputed = Recomputed(self)

    def attach(self) -> None:
        super().attach()
        self.patch_at(
            "backward", before=self._backward_begins, after=self._backward_ends, raised=self._handle_raised_error
        )
        self.patch_at("optimizer-cleared", after=self._optimizer_zeroed)
        self.patch_at("module-cleared", after=self._module_zeroed)
        self.patch_at("scaler-step", after=self._scaler_stepped)
        # The compiler knows this function by identity. A program that has imported the wrapper of the opening would be
        # compiled with the function itself, which another wrapper in its place makes unknown: a break, or an error.
        if not self.monitor.inspection.is_repeat_open:
            self.for_each_function(
                "checkpointed", lambda owner, name: self.patches.wrap_attribute(owner, name, self._around_checkpoint)
            )

    def _around_checkpoint(self, original: Callable[..., object]) -> Callable[..., object]:
        def checkpoint(*args: Any, **kwargs: object) -> object:
            if torch.compiler.is_compiling() or not self.on or not args or self.monitor.rerunning:
                return original(*args, **kwargs)
            function = self.guard.call_guarded(self._recomputed.count_runs, args[0])
            return original(args[0] if function is None else function, *args[1:], **kwargs)

        return hide_from_compiler(checkpoint)

    def forked(self) -> None:
        self._reset_state()

    def history_cleared(self) -> None:
        self._reset_state()

    # what the loop calls

    def _record_call(self, call: str) -> None:
        if len(self._calls) < MAX_CALLS:
            self._calls.append(call)

    def batch_taken(self, batch: object, wait_s: float, loader_iter: "BatchIterator") -> None:
        if get_ident() == self._thread:  # another thread may fetch batches meanwhile
            self._outer, self._depth = None, 0  # neither an update nor backward takes batches: one of them raised
        self._leave_evaluation()
        self._feed = source_of(loader_iter)
        if int(loader_iter._num_yielded) == 1:
            self._begun = [*self._begun[-MAX_FEEDS:], self._feed]
        self._batches += 1
        self._fresh = True
        self._record_call("batch")

    def _leave_evaluation(self) -> None:
        """What fed calls without gradients, and is not training's data, is no loader whose passes are epochs."""
        evaluated, self._evaluated = self._evaluated, self.monitor.eval_calls
        if evaluated != self._evaluated and self._trained is not None and not is_same(self._feed, self._trained):
            self._begun = [begun for begun in self._begun if not is_same(begun, self._feed)]
            self._feed = self._trained

    def call_ended(self, module: nn.Module, call: "Call", output: object) -> None:
        if call.graded:
            self._record_call("forward")
            if not self._batches and self._compares_inputs():
                self._inputs.add_call(call)

    def _compares_inputs(self) -> bool:
        """True if a window may have several backward calls, and its gradients are followed."""
        may_accumulate = self._last_window > 1 or self.monitor.step < INPUT_WINDOWS
        return may_accumulate and (not self._tracks or any(track.looking for track in self._tracks.values()))

    def clip_begins(self, parameters: list[Tensor]) -> None:
        self._record_call("clip")
        for parameter in parameters[:1]:
            known, track = self._owners.get(id(parameter), (None, None))
            if known is not None and track is not None and known() is parameter:
                track.record_clipped()

    def _optimizer_zeroed(
        self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], result: object
    ) -> None:
        self._record_call("zero_grad")
        track = self._find_track(args[0])
        if track is not None:
            track.record_zeroed()

    def _module_zeroed(
        self, seconds: float, args: tuple[object, ...], kwargs: dict[str, object], result: object
    ) -> None:
        self._record_call("zero_grad")
        for track in self._tracks.values():
            if track.is_empty():
                track.record_zeroed()

    def _scaler_stepped(
        self, seconds: float, args: tuple[object, ...], kwargs: dict[str, object], result: object
    ) -> None:
        optimizer: Any = args[1] if len(args) > 1 else kwargs.get("optimizer")
        track = self._find_track(optimizer)
        if track is None or not track.backwards:
            return  # it has updated
        track.begin_window()  # skipped on purpose: what was there is dealt with
        self._window = 0
        self._inputs.clear()
        if self.monitor.is_main(optimizer):
            self._clear_window()

    # backward

    def _backward_begins(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        self._thread = get_ident()
        self._leave_evaluation()
        self._trained = self._feed
        if any(is_same(self._feed, begun) for begun in self._begun):
            self._begun = []
            self._end_epoch()
        for track in self._tracks.values():
            if track.look_before_backward() and track.streaks["unreset"] >= track.lasting - 1:
                self._confirm_leftover(track)
        self._watch_for_repeats(args, kwargs)

    def _confirm_leftover(self, track: Track) -> None:
        """The gradients left over look untouched: are they more than zeros, written behind autograd's back?"""
        on_host = track.leftover_is_zero()
        if on_host is not None:
            track.reset = on_host
        elif not track.confirmed:
            track.reset = True  # nothing is said before it is known
            rest = track.sum_leftover(LATE_ELEMENTS) if self.monitor.plan.watch else None
            if rest is not None:
                self.monitor.read_late(rest, lambda values, record: track.confirm_leftover(values[0] != 0.0))

    def _watch_for_repeats(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """The same loss sent backward again: its gradient counts twice."""
        loss = args[0] if args and isinstance(args[0], Tensor) else None
        weighed = (len(args) > 1 and args[1] is not None) or (kwargs and any(kwargs.get(name) for name in PARTIAL))
        again = self._loss is not None and loss is not None and self._loss() is loss and not weighed
        self._loss = weakref.ref(loss) if loss is not None and not weighed else None
        if again:
            for track in self._tracks.values():
                track.repeats += track.pending > 0

    def _backward_ends(
        self, seconds: float, args: tuple[object, ...], kwargs: dict[str, object], result: object
    ) -> None:
        self._depth = max(self._depth - 1, 0)
        if self._depth:
            return
        self._record_call("backward")
        self._window += 1
        self._epoch.backwards += 1
        for track in self._tracks.values():
            self._follow_gradients(track)
            track.backward_ended(fresh=self._fresh)
        if not self._batches and self._compares_inputs():
            self._inputs.end_pass()
        self._fresh = False

    def _handle_raised_error(
        self, seconds: float, args: tuple[object, ...], kwargs: dict[str, object], error: Exception
    ) -> None:
        self._depth = max(self._depth - 1, 0)

    # updates

    def before_update(self, optimizer: Optimizer) -> None:
        outer = self._outer() if self._outer is not None else None
        if outer is not None and outer is not optimizer:
            return
        self._outer = weakref.ref(optimizer)
        if not self._depth:  # inside backward it may run in a thread of autograd's
            self._thread = get_ident()
        track = self._find_track(optimizer)
        if track is None:
            track = self._new_track(optimizer)
        if track is not None:
            track.about_to_update(in_backward=self._depth > 0)

    def after_update(self, optimizer: Optimizer) -> None:
        if self._outer is None or self._outer() is not optimizer:
            return
        self._outer = None
        track = self._find_track(optimizer)
        if track is None:
            return
        self._follow_gradients(track)
        step = self.monitor.step
        if track.asks_for_inputs and "thrown" not in track.reported:
            self._compare_inputs(track)
        for kind in track.judge_window(step):
            if track.streaks[kind] >= track.lasting:
                self._report_fault(track, kind, step)
        if self._window:
            self._epoch.windows[self._window] += 1
        if self.monitor.is_main(optimizer):
            self._end_window(track, step)
        else:
            self._record_call("other step")
        self._window = 0
        track.begin_window()
        self._inputs.clear()
        for other in self._tracks.values():
            other.unused = 0

    def _compare_inputs(self, track: Track) -> None:
        """Gradients were cleared, and no DataLoader says whether they were of other batches than those that were used."""
        equal = None if self._batches else self._inputs.count_equal_pairs(track.backwards)
        if equal is None:
            track.new_inputs = False
        elif tensors.on_host(equal):
            track.compare_inputs(equal.item())
        elif self.monitor.plan.watch:
            self.monitor.read_late(equal, lambda values, record: track.compare_inputs(values[0]))

    def _follow_gradients(self, track: Track) -> None:
        """Choose the gradients to follow, as soon as there are some."""
        for parameter in track.choose_sample():
            self._owners[id(parameter)] = weakref.ref(parameter), track

    def _find_track(self, optimizer: Optimizer) -> Track | None:
        track = self._tracks.get(id(optimizer))
        return track if track is not None and track.optimizer() is optimizer else None

    def _new_track(self, optimizer: Optimizer) -> Track | None:
        self._tracks = {key: track for key, track in self._tracks.items() if track.optimizer() is not None}
        self._owners = {key: owner for key, owner in self._owners.items() if owner[0]() is not None}
        if len(self._tracks) >= MAX_TRACKS:
            return None
        track = Track(weakref.ref(optimizer), type(optimizer).__name__, int(self.threshold("lasting")))
        self._tracks[id(optimizer)] = track
        return track

    def _end_window(self, track: Track, step: int) -> None:
        """The update of the optimizer whose steps are counted: tell of the window, and begin the next one."""
        window = self._window
        if window != self._last_window and window and not track.inside and self._reported_count < MAX_REPORTED:
            self._reported_count += 1
            self.emit(AccumulationChanged(window=window, before=self._last_window), step=step)
        self._last_window = window
        self._report_phase(step)
        if self.monitor.plan.watch and self.should_sample():  # forward passes are told of on watched steps alone
            with self.work():
                self._report_step(track, step)
        self._clear_window()

    def _report_phase(self, step: int) -> None:
        """Training has gone on after evaluation; calls beside every step (a teacher) are no phase of their own."""
        evaluated, last = self._phase
        calls = self.monitor.eval_calls - evaluated
        if not calls:
            return
        self._phase = self.monitor.eval_calls, step
        if step - last >= APART_STEPS:
            self.emit(EvaluationPhase(evaluations=calls), step=step)

    def _clear_window(self) -> None:
        self._calls, self._batches, self._loss = [], 0, None
        self._recomputed.clear()

    def _report_step(self, track: Track, step: int) -> None:
        calls = StepCalls(
            order=compress_calls([*self._calls, "step"]),
            backwards=self._calls.count("backward"),
            batches=self._batches,
            zero_grads=self._calls.count("zero_grad"),
            clips=self._calls.count("clip"),
            inside=track.inside,
        )
        self.emit(calls, step=step)
        self._recomputed.report_recomputation(step)

    def _report_fault(self, track: Track, kind: str, step: int) -> None:
        if kind in track.reported:
            return
        track.reported.add(kind)
        fault = LoopFault(
            kind=kind,
            streak=track.streaks[kind],
            since=track.since[kind],
            optimizer=track.name,
            thrown=track.thrown,
            window=track.backwards,
        )
        self.emit(fault, step=step)

    # epochs

    def run_ends(self) -> None:
        if self._feed is not None:
            self._end_epoch()

    def _end_epoch(self) -> None:
        """The first batch of a pass over the training data is about to go backward: the epoch before is over."""
        epoch = self._epoch
        if not epoch.backwards:
            return
        self._epoch = _Epoch(self.monitor.eval_calls, epoch.number + 1)
        step = self.monitor.step
        tracks = list(self._tracks.values())
        dropped = carried = 0
        if len(tracks) == 1:  # with several optimizers the last backward may be another's
            usual = epoch.windows.most_common(1)[0][0] if epoch.windows else 0
            dropped, carried = tracks[0].end_epoch(usual, step)
        evaluations = self.monitor.eval_calls - epoch.evaluated
        ended = EpochUpdates(
            number=epoch.number,
            updates=epoch.windows.total(),
            backwards=epoch.backwards,
            windows={str(size): count for size, count in epoch.windows.most_common(8)},
            dropped=dropped,
            carried=carried,
            evaluations=evaluations,
            epoch_s=round(time.perf_counter() - epoch.begun_at, 4),
        )
        self.emit(ended, step=step)
        if dropped and tracks[0].streaks["tail"] >= 2:
            self._report_tail(tracks[0], dropped, epoch.backwards, step)

    def _report_tail(self, track: Track, dropped: int, backwards: int, step: int) -> None:
        if "tail" in track.reported:
            return
        track.reported.add("tail")
        fault = LoopFault(
            kind="tail",
            streak=track.streaks["tail"],
            since=track.since["tail"],
            optimizer=track.name,
            dropped=dropped,
            backwards=backwards,
        )
        self.emit(fault, step=step)


class _Epoch:
    """What an epoch has seen so far."""

    def __init__(self, evaluated: int, number: int) -> None:
        self.begun_at = time.perf_counter()
        self.number = number
        self.evaluated = evaluated
        self.backwards = 0
        self.windows: Counter[int] = Counter()
