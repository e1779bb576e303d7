"""`tdbg run --capture`: what chosen layers put out, in chosen steps, kept in pages, without a change to the program."""

import functools
import shutil
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import nn

from tdbg.core.capture import NOT_THE_LAST_EPOCH, PARTS, SAMPLED, DebuggerSpec, Epochs, SampleSelection, split_parts
from tdbg.core.config import Selection
from tdbg.core.errors import TdbgError
from tdbg.core.observations.capture import (
    CaptureDone,
    CaptureFailed,
    CaptureOver,
    LayersChosen,
    LayersMissing,
    LayersPlaced,
)
from tdbg.core.tables import format_count
from tdbg.debuggers.batch_matching import Batch, Batches
from tdbg.debuggers.datapoint_parts import copy_structure, find_parts
from tdbg.debuggers.hooks import seen_through
from tdbg.debuggers.ids import batch_ids
from tdbg.debuggers.layers import get_layer_by_name as part_at
from tdbg.debuggers.layers import has_forward, is_plain_sequence, place_of, places_below, scripted_parts, select
from tdbg.debuggers.pool import Pool
from tdbg.debuggers.recording_thread import Pass, Recording
from tdbg.debuggers.run_debuggers import RunDebuggers, iter_entries
from tdbg.debuggers.sample_choice import SampleChooser
from tdbg.debuggers.tap import Copied, Tap, Target
from tdbg.debuggers.waiting import Ended, Waiting
from tdbg.pages.format.page_writer import BudgetExceeded, PageWriter
from tdbg.probes import Probe
from tdbg.probes.dataloader.feeds import Feeds, find_padded_rows, to_parent_indices
from tdbg.runtime.identity_keys import IdentityKeys
from tdbg.runtime.root_modules import unwrap_module

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch.optim import Optimizer

    from tdbg.runtime.monitor import Monitor
    from tdbg.runtime.rerun import Call
    from tdbg.runtime.torch_compat import BatchIterator

P = ParamSpec("P")
R = TypeVar("R")
MAX_SKIPPED = 8  # tensors that are named
MAX_RARITY = 64  # policy sample: at the rarest one pass in so many


def charge_to_user(method: Callable[Concatenate["Capture", P], R]) -> Callable[Concatenate["Capture", P], R]:
    """Book the time of a method of `Capture` as asked for: it does not use up what pays for watching the run."""

    @functools.wraps(method)
    def call_timed(self: "Capture", /, *args: P.args, **kwargs: P.kwargs) -> R:
        begun = time.perf_counter()
        try:
            return method(self, *args, **kwargs)
        finally:
            self.monitor.budget.charge_to_user(time.perf_counter() - begun)

    return call_timed


class Capture(Probe):
    """Copies of what layers take and put out, and of the gradients there, a datapoint a call of the root module.

    Reads:  outputs (and inputs, and the gradient of the output) of the modules that `--capture` names, in the steps,
            epochs and phases asked for; what the loader gave for the call (``batch``) and what the root returned
            (``prediction``); what the debuggers that `--debugger` names give. The ids of a batch are
            ``meta_info['idx']`` of it, else the sampler's indices.
    Emits:  LAYERS once a root: what is captured; MISSING for a name that matches nothing, PLACE for one that matches
            at one place below the root alone; OVER when the bytes asked for are used up; FAILED when the disk takes no more; DONE at the end: passes, bytes, what was left out and why.
    Cost:   one copy a tensor at its hook, some 3 us beside the copy itself; a thread writes. It is asked for, so the
            budget of cost does not ration it: its share is told in the report. `--capture-budget` bounds the bytes.
    Limits: of passes that run side by side in several threads the first is captured, the others are counted; of a
            compiled model the steps that are captured run uncompiled. Quantised, sparse and nested tensors, and
            subclasses, are kept as the tensors they are made of; of a DTensor it is this rank's part. What cannot be
            kept is named and counted.
    """

    name = "capture"
    observations = (LayersChosen, LayersMissing, LayersPlaced, CaptureOver, CaptureFailed, CaptureDone)

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        settings = monitor.settings
        self.parts, self.specs = split_parts(settings.capture)
        samples = SampleSelection.parse(settings.capture_samples)
        if samples.needs_labels:
            self.parts = PARTS
        self._selected_samples = samples
        self.phases = settings.capture_phase
        self.epochs = Epochs.parse(settings.capture_epochs)
        self.selection = Selection(settings.capture_every, settings.capture_steps, settings.ranks)
        self._feeds = Feeds()
        self._reset_state()

    def _reset_state(self) -> None:
        settings = self.monitor.settings
        self.pool = Pool(policy=settings.capture_policy)
        self.tap = Tap(self.pool, self._handle_failure)
        self.waiting = Waiting(self.tap, self._hand_over)
        self.pool.relieve = self.waiting.make_room  # what waits for gradients must not be waited for
        self._targets: IdentityKeys[nn.Module, list[Target]] = IdentityKeys()
        self._recording: Recording | None = None
        self._totals = Totals()
        self._epoch: int | None = None  # whose pages are being written, where epochs have folders of their own
        self._batches = Batches()
        self._trained: int | None = None  # the epoch of the last training pass
        # samples by loader's iterator
        self._taken: weakref.WeakKeyDictionary[BatchIterator, int] = weakref.WeakKeyDictionary()
        self._graded_calls = 0  # with gradients on, before there was an optimizer: the monitor does not count them
        self._about: dict[str, Any] = {}
        self._samples = 0  # of that pass
        self._chooser = SampleChooser(self._selected_samples) if self._selected_samples.kind else None
        self._without_batch = 0  # passes
        self._key: str | int = 0
        self._passes = self._since = 0  # of policy sample: passes since the last one that was taken
        self._rarity = 1
        self._thread: threading.Thread | None = None  # whose pass is running
        self._over = False  # the bytes asked for are written
        self._sought = False  # some pass was to be captured
        self._skipped: dict[str, str] = {}
        self._skips = 0  # how many they were, over all passes
        self._idle: dict[str, None] = {}  # layers that have not run yet
        self._chosen: set[str] = set()  # paths of all layers that are captured
        self._sequences: set[str] = set()  # those of them whose parts may be called one by one
        self._captured_call: Call | None = None  # of the root whose pass is captured
        self._datapoint: dict[str, object] = {}  # parts of its batch
        self.debuggers = RunDebuggers(settings.debugger, self._find_debugged_layers, self._record_skipped)
        self._eager: AbstractContextManager[object] | None = None
        self._descended = False

    @classmethod
    def with_folder(cls, folder: Callable[[], Path | None]) -> type["Capture"]:
        """The probe with the place where its pages go: a function that knows the rank's folder once there is one."""
        return type("Capture", (cls,), {"folder": staticmethod(folder)})

    @staticmethod
    def folder() -> Path | None:
        """Where pages go; None as long as nobody knows."""
        return None

    def attach(self) -> None:
        self.patch_at("batch-asked-for", after=self._record_indices)

    def _record_indices(self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], result: object) -> None:
        self._feeds.record_indices(args[0], result)

    def detach(self) -> None:
        self.tap.remove_hooks()
        self.debuggers.detach()
        self._finish_recording()
        super().detach()

    def forked(self) -> None:
        self._reset_state()

    # which passes

    @charge_to_user
    def must_watch(self) -> bool:
        graded = torch.is_grad_enabled()
        self._batches.record_call()
        if graded:
            self._trained = self.monitor.epoch
        # Which module is called is not known yet.
        return any(
            self._is_wanted(phase)
            for phase in {self._resolve_phase(graded), self._resolve_phase(graded, training=False)}
        )

    def _is_wanted(self, phase: str) -> bool:
        if self._over:
            return False
        if self.phases and phase not in self.phases:
            return False
        if not self.selection.is_rank_selected(self.monitor.rank):
            return False
        if self.monitor.settings.capture_on and self.monitor.running_step >= self.monitor.capture_until:
            return False
        return self.selection.is_step_selected(self._resolve_step(phase))

    def _has_optimizer(self) -> bool:
        return bool(self.monitor.updates or len(self.monitor.optimizers))

    def _resolve_phase(self, graded: bool, *, training: bool = True) -> str:
        """What a call belongs to. training: the mode of the module that is called.

        Inference needs no gradients, but many programs forget to switch them off.
        """
        if graded and (training or self._has_optimizer()):
            return "train"
        return "val" if self.monitor.updates else "eval"

    def _resolve_step(self, phase: str) -> int:
        """The running step; in evaluation, and where no optimizer was made, each call of the root is one."""
        if phase == "eval" or not self._has_optimizer():
            return self.monitor.eval_calls + self._graded_calls + 1
        return self.monitor.running_step

    @charge_to_user
    def batch_taken(self, batch: Any, wait_s: float, loader_iter: "BatchIterator") -> None:
        if not self._descended:
            self._descended = True
            for top in self.monitor.roots.list_roots():
                if any(cls.__name__ == "LightningModule" for cls in type(top).__mro__):
                    self.monitor.roots.hook_children(
                        top
                    )  # it is never called itself; its parts are, from the first step on
        handed = self._feeds.pop_indices(loader_iter)
        taken = self._taken.get(loader_iter, 0)
        self._taken[loader_iter] = taken + len(handed)
        ids = [*batch_ids(batch)] or to_parent_indices(loader_iter._dataset, handed)
        content = copy_structure(batch) if self._holds_batches() else None
        self._batches.record_batch(loader_iter, batch, ids, find_padded_rows(loader_iter, taken, len(handed)), content)

    def _holds_batches(self) -> bool:
        """True if a batch that is handed out now may have to be kept."""
        if (
            not ("batch" in self.parts or self.debuggers)
            or self._over
            or not self.selection.is_rank_selected(self.monitor.rank)
            or self.selection.is_past(self.monitor.running_step)
        ):
            return False
        return not self.monitor.settings.capture_on or self.monitor.running_step < self.monitor.capture_until

    # one pass

    @charge_to_user
    def call_begins(self, module: nn.Module, call: "Call") -> None:
        phase = self._resolve_phase(call.graded, training=module.training)
        step, is_wanted = self._resolve_step(phase), self._is_wanted(phase)
        if self._is_busy():
            if is_wanted:
                self._count_dropped("beside another thread's pass")
            return
        self._pass_over()
        self._graded_calls += call.graded and not self._has_optimizer()
        if not is_wanted or not self._has_turn():
            return
        targets = self._targets_of(module)
        if not targets and not self.parts and not self.debuggers:
            return
        self._eager = seen_through(module)
        self._eager.__enter__()
        # Loaders of validation count passes of their own, which are no epochs.
        epoch = self._trained if phase == "val" else self.monitor.epoch
        self._about = {"step": step, "epoch": epoch, "phase": phase}
        batch, samples = self._batches.find_batch((call.args, call.kwargs)), call.samples
        keys = batch.ids if batch is not None and batch.ids else None
        if batch is not None and keys is not None and len(keys) == samples:
            self._about |= {"flags": ["padding"], "padding": batch.padding} if batch.padding else {}
            if samples > 1:
                self._about["keys"] = keys
        # Dimension 0 of the first argument may be channels, or time: then the ids of the batch are others.
        self._samples = (samples or 0) if keys is None or len(keys) == samples else 0
        self._key = keys[0] if keys is not None and len(keys) == 1 else f"step{step}"  # never the id of a sample
        self._thread = threading.current_thread()
        self.tap.begin_pass(targets, graded=call.graded, root=module, given=(call.args, call.kwargs))
        self._captured_call = call
        if "batch" in self.parts or self.debuggers:
            self._datapoint = self._find_datapoint(module, call, batch)
        if "batch" in self.parts:
            for name, value in self._datapoint.items():
                self.tap.copy_entry(name, value)
        if self.debuggers:
            self._attach_debuggers(module, call)

    def _find_datapoint(self, module: nn.Module, call: "Call", batch: Batch | None) -> dict[str, object]:
        """What the loader gave for this pass; where that is not certain, what the model was given."""
        content = None if batch is None else batch.content
        if content is None and "batch" in self.parts:
            self._without_batch += 1
            self._note(
                "capture-no-batch",
                "--capture batch: no DataLoader batch matches this call of the model; its arguments were kept instead",
            )
        return find_parts(content, module, call)

    def _attach_debuggers(self, module: nn.Module, call: "Call") -> None:
        self.debuggers.attach(module)
        copied = self.tap.current
        if call.graded and copied is not None:
            copied.awaited |= dict.fromkeys(self.debuggers.await_gradients(module, copied))

    def _find_debugged_layers(self, module: nn.Module, spec: DebuggerSpec) -> dict[str, nn.Module]:
        top, prefix = place_of(module, self.monitor.roots.list_roots())
        found = self._find_layers(module, top, prefix, spec.argument, f"--debugger {spec.name}")
        return {path: layer for path, layer in found.items() if has_forward(layer)}

    def _settle_debuggers(self, *, force: bool = False) -> None:
        """Gradients have arrived: ask the debuggers that wait for them."""
        for copied, name, value in self.debuggers.settle_gradients(force=force):
            for path, item in iter_entries(name, value):
                self.tap.copy_late(copied, path, item)
            copied.awaited.pop(name, None)

    @charge_to_user
    def backward_ended(self) -> None:
        if self.debuggers and not self._is_busy():
            self._settle_debuggers()

    def _note(self, code: str, text: str) -> None:
        self.monitor.when_rank(lambda: self.monitor.note(code, text))

    def _is_busy(self) -> bool:
        """True while a pass of another thread is running, forward or backward: this one's would end it too early."""
        thread = self._thread
        return (
            thread is not None and thread is not threading.current_thread() and self.tap.running and thread.is_alive()
        )

    def _has_turn(self) -> bool:
        """Policy sample: passes are taken the more rarely the fuller the memory is."""
        if self.monitor.settings.capture_policy != "sample":
            return True
        self._since += 1
        if self._since < self._rarity:
            self._count_dropped(SAMPLED)
            return False
        self._since = 0
        self._rarity = min(2 * self._rarity, MAX_RARITY) if self.pool.crowded else max(self._rarity // 2, 1)
        return True

    def _targets_of(self, module: nn.Module) -> list[Target]:
        self._sought = True
        known = self._targets.get(module)
        if known is None:
            known = self._targets[module] = list(self._iter_targets(module))
            self._report_layers_named_like_parts(module)
            if known:
                paths = [target.path for target in known]
                self._idle |= dict.fromkeys(paths)
                self._chosen.update(paths)
                layers = ((target.path, target.module()) for target in known)
                self._sequences.update(path for path, layer in layers if layer is not None and is_plain_sequence(layer))
                self.emit(LayersChosen(layers=paths[:64], count=len(paths), root=type(unwrap_module(module)).__name__))
        return known

    def _iter_targets(self, module: nn.Module) -> Iterator[Target]:
        """The modules that are asked for; what is asked for in vain is said."""
        kinds: dict[str, tuple[weakref.ref[nn.Module], tuple[str, ...]]] = {}
        top, prefix = place_of(module, self.monitor.roots.list_roots())
        for spec in self.specs:
            found = self._find_layers(module, top, prefix, spec.pattern)
            callable_layers = {path: layer for path, layer in found.items() if has_forward(layer)}
            if not callable_layers:
                for path, layer in found.items():
                    kind = type(layer).__name__
                    self._record_skipped(path, f"a {kind} is never called: capture its children, {path}.*")
            for path, layer in callable_layers.items():
                before = kinds.get(path, (None, ()))[1]
                kinds[path] = weakref.ref(layer), tuple(dict.fromkeys((*before, *spec.kinds)))
        scripted = scripted_parts(top)
        for path, (layer_ref, wanted) in kinds.items():
            if path in scripted:
                self._record_skipped(path, "it runs inside a scripted module (torch.jit), where no hook is called")
            else:
                yield Target(path or "root", layer_ref, wanted)

    def _find_layers(
        self, module: nn.Module, top: nn.Module, prefix: str, pattern: str, option: str = "--capture"
    ) -> dict[str, nn.Module]:
        """The layers of a pattern, by their paths in the whole model; where there are none, that is said."""
        try:
            return _select_below(top, prefix, pattern) if prefix else self._select_layers(module, pattern)
        except TdbgError as error:
            root, hint = type(unwrap_module(top)).__name__, error.hint or ""
            self.emit(LayersMissing(pattern=pattern, root=root, hint=hint, why=str(error), option=option))
            return {}

    def _report_layers_named_like_parts(self, module: nn.Module) -> None:
        """A word that stands for a part of the datapoint is the name of a layer too: say how to have that."""
        for part in PARTS:
            if part in self.parts and isinstance(getattr(unwrap_module(module), part, None), nn.Module):
                text = f"--capture {part} keeps the {part}; write --capture {part}:output for the layer {part!r}"
                self._note(f"capture-part-{part}", text)

    def _select_layers(self, module: nn.Module, pattern: str) -> dict[str, nn.Module]:
        """The layers of a pattern; where none fits, those at the one place below the root where it does, with a note."""
        try:
            return select(module, pattern)
        except TdbgError as error:
            places = places_below(module, pattern)
            if not places:
                raise
            if len(places) > 1:
                known = ", ".join(f"{place}.{pattern}" for place in list(places)[:4])
                more = f" and {format_count(len(places) - 4, 'more place')}" if len(places) > 4 else ""
                raise TdbgError(str(error), f"it matches below the root at {known}{more}: choose one") from None
        ((place, found),) = places.items()
        placed = LayersPlaced(pattern=pattern, place=place, root=type(unwrap_module(module)).__name__)
        self.emit(placed)
        self._note(f"capture-place-{pattern}", placed.text())
        return found

    @charge_to_user
    def call_ended(self, module: nn.Module, call: "Call", output: object) -> None:
        if self._is_busy():
            return
        self.tap.remove_hooks()
        if call is self._captured_call:
            self._copy_outputs(module, call, output)
        self._captured_call, self._datapoint = None, {}
        self._leave_eager()
        if not self.tap.awaits_gradients:  # written while backward runs, which leaves the interpreter to the writer
            self._pass_over()

    def _copy_outputs(self, module: nn.Module, call: "Call", output: object) -> None:
        """What the root returned, and what debuggers make of it."""
        if "prediction" in self.parts:
            self.tap.copy_entry("outputs", output)
        if self.debuggers:
            found = self.debuggers.collect_outputs(module, call, self._datapoint, output)
            for name, value in found.items():
                for path, item in iter_entries(name, value):
                    self.tap.copy_entry(path, item)
            self.debuggers.detach()

    @charge_to_user
    def update_begins(self, optimizer: "Optimizer") -> None:
        if not self._is_busy():
            self._settle_debuggers(force=len(self.monitor.optimizers) < 2)
            self._on_update()

    @charge_to_user
    def after_step(self, optimizer: "Optimizer") -> None:
        if not self._is_busy():
            self._on_update()

    def _on_update(self) -> None:
        """Gradients of passes before an update have come, where it is not one of several optimizers' that takes turns."""
        if len(self.monitor.optimizers) < 2:
            self._finish_passes()
        else:
            self._pass_over()
            self.waiting.hand_over_all(before_step=self.monitor.step)

    def _leave_eager(self) -> None:
        eager, self._eager = self._eager, None
        if eager is not None:
            eager.__exit__(None, None, None)

    def _finish_passes(self) -> None:
        """All passes are over, and what gradients there are have come."""
        self._pass_over()
        self.waiting.hand_over_all()

    def _pass_over(self) -> None:
        """The pass that ran is over: it is handed over once its gradients have come, after those before it."""
        self._leave_eager()
        self.debuggers.detach()
        if self.tap.running:
            copied = self.tap.end_pass(parked=True)
            self.monitor.budget.asked_s += self.tap.clock.take_s()
            if copied is None:
                self._count_dropped("no room")
            else:
                self.waiting.add_pass(Ended(copied, self._key, self._about, self._samples))
        elif self.waiting:
            self.waiting.hand_over_complete()

    def _hand_over(self, ended: Ended, missing: str) -> None:
        copied = ended.copied
        self._record_missing(copied, missing)
        if self._idle:
            for path in copied.calls:
                self._idle.pop(path, None)
        if not copied.list_forms() and not copied.scalars:
            self.tap.release_buffers(copied)
            return
        self._submit_pass(ended)

    def _record_missing(self, copied: Copied, missing: str) -> None:
        """Keep in mind what of a pass could not be kept. missing: why gradients have not come."""
        late = dict.fromkeys(copied.awaited, missing)
        for path, why in {**copied.skipped, **late}.items():
            self._record_skipped(path, why)

    def _record_skipped(self, path: str, why: str) -> None:
        self._skips += 1
        if len(self._skipped) < MAX_SKIPPED or path in self._skipped:
            self._skipped[path] = why

    def _submit_pass(self, ended: Ended) -> None:
        self.monitor.become_rank_now()
        copied = ended.copied
        about = {**ended.about, "calls": {path: count for path, count in copied.calls.items() if count > 1}}
        keys = about.get("keys")
        if keys:
            about["split"] = copied.find_row_paths(len(keys))
        about = {name: value for name, value in about.items() if value not in (None, {})}
        try:
            stats = self.monitor.settings.capture_stats
            job = Pass(copied, self.pool, ended.key, about, stats=stats, chooser=self._chooser, samples=ended.samples)
            self._recording_of(about.get("epoch")).submit_job(job)
        except BudgetExceeded as error:
            self._end_over(error)
        except (OSError, TdbgError) as error:
            self._give_up(error)

    def _end_over(self, error: BudgetExceeded) -> None:
        """No fault: it is what was asked for."""
        self._over = True
        self.emit(CaptureOver(why=str(error)))

    def _give_up(self, error: Exception) -> None:
        """The disk takes no more: what was written stays, the program goes on, and it is said."""
        if not self._over:
            self._over = True
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            self.emit(CaptureFailed(why=why))

    def _recording_of(self, epoch: int | None) -> Recording:
        """Where a datapoint goes; with a choice of epochs each of them has a folder."""
        if self.monitor.settings.capture_epochs and epoch != self._epoch:
            self._close_recording(self._find_superseded_folder())
            self._epoch = epoch
        if self._recording is None:
            self._recording = Recording(self._open_writer, self.pool)
        return self._recording

    def _find_superseded_folder(self) -> Path | None:
        """The folder of the pages; of an epoch that is there only as long as it is the last, to be removed after it."""
        epoch = self._epoch
        folder = type(self).folder() if epoch is not None and not self.epochs.is_selected(epoch) else None
        return None if folder is None else folder / "pages" / f"epoch_{epoch}"

    def _open_writer(self) -> PageWriter:
        folder = type(self).folder()
        if folder is None:
            raise TdbgError("no folder for pages: this process is not a rank", "capture in the training process")
        settings = self.monitor.settings
        return PageWriter(
            folder / "pages" if self._epoch is None else folder / "pages" / f"epoch_{self._epoch}",
            run=folder.parent.name,
            rank=self.monitor.rank,
            world_size=self.monitor.world_size,
            budget_bytes=max(settings.capture_budget_bytes - self._totals.on_disk, 1),
        )

    def _count_dropped(self, reason: str) -> None:
        self._recording_of(self._about.get("epoch")).count_dropped(1, reason)

    def _handle_failure(self, error: BaseException) -> None:
        if isinstance(error, OSError | TdbgError):
            self._give_up(error)
        else:
            self.monitor.handle_failure(self, error)

    # the end

    def switched_off(self) -> None:
        self.tap.remove_hooks()
        self._finish_passes()

    def run_ends(self) -> None:
        self._settle_debuggers(force=True)
        self._finish_passes()
        self._finish_recording()
        ran = self.monitor.step or self.monitor.eval_calls
        if ran and not self._sought and self.selection.is_rank_selected(self.monitor.rank):
            self._report_nothing()

    def _finish_recording(self) -> None:
        """Have all of it written, and say what became of it; a second call has nothing to say."""
        try:
            self._close_recording()
        except (OSError, TdbgError) as error:
            self._give_up(error)
        finally:
            if self._totals.written or self._totals.dropped or self._idle or self._skips:
                self._emit_done()
            self._totals, self._idle, self._skipped = Totals(self._totals.on_disk), {}, {}
            self._without_batch = 0
            if self._chooser is not None:
                self._chooser.unscored = self._chooser.without_rows = 0

    def _close_recording(self, superseded: Path | None = None) -> None:
        """Have all of it written. superseded: a folder that is of no use any more, as another epoch has come."""
        recording, self._recording = self._recording, None
        if recording is None:
            return
        try:
            recording.close()
        except BudgetExceeded as error:  # met by the thread after the last pass was handed over
            self._end_over(error)
        finally:
            self._totals.add_recording(recording, kept=superseded is None)
        if superseded is not None:
            shutil.rmtree(superseded, ignore_errors=True)

    def _is_iterated(self, path: str) -> bool:
        """True for a Sequential that never ran where a part of it did: the program calls the parts one by one."""
        inside = f"{path}."
        return path in self._sequences and any(
            other.startswith(inside) and other not in self._idle for other in self._chosen
        )

    def _report_nothing(self) -> None:
        """The program ran, and no pass was wanted: silence would look like a success."""
        waited = self.monitor.settings.capture_on and not self.monitor.capture_until
        why = "no finding matched --capture-on" if waited else "no pass matched the capture options"
        self.emit(CaptureDone(why=why))

    def _emit_done(self) -> None:
        found = self._totals
        done = CaptureDone(
            datapoints=found.written,
            bytes=found.bytes,
            dropped=dict(found.dropped),
            skipped=self._skipped,
            skips=self._skips,
            not_executed=[path for path in self._idle if not self._is_iterated(path)][:64],
            waited_s=round(self.pool.waited_s, 3),
            unscored=(self._chooser.unscored if self._chooser is not None else 0) or None,
            without_rows=(self._chooser.without_rows if self._chooser is not None else 0) or None,
            without_batch=self._without_batch or None,
        )
        self.emit(done)


def _select_below(top: nn.Module, prefix: str, pattern: str) -> dict[str, nn.Module]:
    """The matches inside a part of a model, by their paths in the model; of paths within the part too."""
    try:
        found = select(top, pattern)
    except TdbgError:
        try:
            return {
                f"{prefix}.{path}" if path else prefix: m for path, m in select(part_at(top, prefix), pattern).items()
            }
        except TdbgError:
            pass
        raise
    return {path: module for path, module in found.items() if path == prefix or path.startswith(f"{prefix}.")}


class Totals:
    """What became of all passes, over all recordings."""

    def __init__(self, on_disk: int = 0) -> None:
        self.written = self.bytes = 0
        self.on_disk = on_disk
        self.dropped: Counter[str] = Counter()

    def add_recording(self, recording: Recording, *, kept: bool) -> None:
        """A recording has ended. kept: what it wrote stays."""
        self.dropped.update(recording.dropped)
        if kept:
            self.written += recording.written
            self.bytes += recording.bytes
            self.on_disk += recording.on_disk
        else:
            self.dropped[NOT_THE_LAST_EPOCH] += recording.written
