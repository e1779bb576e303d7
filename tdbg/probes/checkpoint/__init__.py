"""CHECKPOINT: what is saved and loaded, which keys found their place, and whether a resumed run goes on."""

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from tdbg.core.observations import Observed
from tdbg.core.observations.checkpoint import (
    CheckpointRead,
    CheckpointSaved,
    CounterBehind,
    LoadFailed,
    OptimizerNotResumed,
    PartlyLoaded,
    RunResumed,
    SaveFailed,
    SaveMissed,
    StateLoaded,
)
from tdbg.probes import PROBES
from tdbg.probes.checkpoint import saved
from tdbg.probes.checkpoint.state_keys import (
    Difference,
    Shapes,
    collect_module_shapes,
    collect_shapes,
    compare_keys,
    list_absent_names,
)
from tdbg.probes.updates import EveryUpdate
from tdbg.runtime.root_modules import unwrap_module
from tdbg.runtime.tensors import on_host, read_version

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor
    from tdbg.runtime.rerun import Call

LIGHTNING = ("lightning.fabric.plugins.io.torch_io", "lightning_fabric.plugins.io.torch_io")
MAX_NAMES = 8
ALWAYS_REPORTED = 16  # loads into modules; later ones (a swap of averaged weights) only where it can be afforded
KEPT_FILES = 4  # whose keys are remembered
SETTLED_AFTER = 3  # updates after a load
FRESH_STEPS = 8  # a scheduler that is further has been set forward
MICRO_STEPS = 16  # an update may count so many steps, where gradients are accumulated
NOTHING_SHARE = 0.1  # of the given and of the wanted keys found their place: nothing was loaded
REGULAR = 4  # equal distances between saves are a schedule
OVERDUE = 3  # times that distance without a save
MAX_TEXT = 300
WATCHED = 8  # missing parameters that are followed until training begins


@dataclass(slots=True)
class File:
    """What was loaded from one file: names and shapes, no tensors."""

    path: str
    shapes: Shapes
    steps: dict[str, int]
    has_optimizer: bool
    scheduler_step: int | None  # last_epoch of a scheduler's state in it
    has_averages: bool = False  # of an optimizer, in a state that is not empty


@dataclass(slots=True)
class Resume:
    """What was restored since the last update, and what could have been."""

    files: list[File] = field(default_factory=list)
    optimizers: list["weakref.ref[Optimizer]"] = field(default_factory=list)
    optimizer_step: float | None = None
    schedulers: int = 0
    updates: int = 0
    modules: list[tuple["weakref.ref[nn.Module]", File]] = field(default_factory=list)  # that a file's keys went into
    began_empty: bool = True  # the optimizer that updates had no state before the first update
    stepped: bool = False  # a restored optimizer has updated
    alive: "weakref.ref[Optimizer] | None" = None  # the one that updates


@dataclass(slots=True)
class Partial:
    """A load that left parameters as they were, until it is known that nothing else fills them."""

    module: "weakref.ref[nn.Module]"
    seen: PartlyLoaded
    watched: list[tuple["weakref.ref[Tensor]", int, list[float]]]


LONG_S = 0.05  # a save or load that took so long is told also by a probe that rests: to tell it takes 0.1 ms


@PROBES.add
class Checkpoint(EveryUpdate):
    """Saves and loads: path, size, seconds, keys; and a resumed run against what was recorded.

    Reads:  ``torch.save`` and ``torch.load``, ``load_state_dict`` of modules, optimizers and schedulers; safetensors,
            ``torch.distributed.checkpoint`` and Lightning's checkpoints where they are imported. What the program
            loaded is looked at: names, shapes and whole numbers; no file is opened, nothing is unpickled.
    Emits:  SAVE, LOAD, STATE (keys of a module), RESUME, at once, up to eight a step and part; PARTIAL when training
            or evaluation begins and keys that did not fit have not been filled otherwise; FAILED
            and LOAD_FAILED; COUNTER when the save after a resume counts from less; OPTIMIZER when a run
            goes on from a file whose optimizer state was left there; MISSED once.
    Cost:   5 us a step; some 100 us a save or load, some us a key that is missing or unexpected.
    Limits: a save into memory has no path. Weights that a library copies by itself
            (transformers' ``from_pretrained``) are not seen. A schedule of saves is only taken for one after five
            at equal distances.
    """

    name = "checkpoint"
    levels = ("advanced", "extreme")
    presence_s = 5e-6
    inspects_checkpoint = True
    observations = (
        CheckpointSaved,
        CheckpointRead,
        SaveFailed,
        LoadFailed,
        StateLoaded,
        PartlyLoaded,
        RunResumed,
        CounterBehind,
        OptimizerNotResumed,
        SaveMissed,
    )

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._is_resting = False  # waits for the first checkpoint, or one that takes long, and is told of no update
        self._reset_state()

    def _reset_state(self) -> None:
        self._inside = threading.local()
        self._files: deque[File] = deque(maxlen=KEPT_FILES)
        self._resume = Resume()
        self._recorded: dict[str, int] = {}  # counters of a run that was resumed with its optimizer
        self._missed: OptimizerNotResumed | None = None  # of a run that may go on without it
        self._partial: list[Partial] = []
        self._schedulers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._loads = 0
        self._lines_by_part: dict[str, tuple[int, int]] = {}  # part -> (step, lines)
        self._saves: deque[int] = deque(maxlen=REGULAR + 1)  # steps after which something was saved
        self._overdue_at = 0
        self._reported: set[str] = set()

    def forked(self) -> None:
        self._set_resting(False)
        self._reset_state()

    def changed(self) -> None:
        is_wanted = bool(self.flags) or self.monitor.settings.level in self.levels
        self._set_resting(self.monitor.inspection.waits_with(type(self)) and not is_wanted)

    def _set_resting(self, rests: bool) -> None:
        if rests == self._is_resting:
            return
        self._is_resting = rests
        if rests:
            self._saves.clear()  # of further ones only those that take long are seen: no schedule
            self._overdue_at = 0
            self.unhook_updates()
        else:
            self.hook_updates()
        self.monitor.mute_points(self, ("call_begins",) if rests else ())

    def _is_looking_at(self, kind: str) -> bool:
        """True for any checkpoint, or of a probe that only waits for the first one of its kind after the opening steps."""
        if self.monitor.checkpoint_met(kind):
            self._set_resting(False)
        return not self._is_resting

    def attach(self) -> None:
        super().attach()
        self.for_each_function(
            "save", lambda owner, name: self._watch_calls(owner, name, saved.torch_save, self._handle_save)
        )
        self.for_each_function(
            "load", lambda owner, name: self._watch_calls(owner, name, saved.torch_load, self._handle_load)
        )
        self.for_each_function(
            "sharded-save",
            lambda owner, name: self._watch_calls(owner, name, saved.distributed_arguments, self._handle_save),
        )
        self.for_each_function(
            "sharded-load",
            lambda owner, name: self._watch_calls(owner, name, saved.distributed_arguments, self._handle_load),
        )
        self.patch_at("module-loaded", after=self._module_loaded, raised=self._module_failed)
        self.patch_at("optimizer-loaded", after=self._optimizer_loaded)
        self.patch_at("scheduler-made", after=self._scheduler_made)
        self.patch_at("scheduler-loaded", after=self._scheduler_loaded)
        self.when_imported("safetensors.torch", self._watch_safetensors)
        for name in LIGHTNING:
            self.when_imported(name, self._watch_lightning)

    def _watch_safetensors(self, module: ModuleType) -> None:
        self._watch_calls(module, "save_file", saved.safetensors_save, self._handle_save)
        self._watch_calls(module, "save_model", saved.safetensors_save, self._handle_save)
        self._watch_calls(module, "load_file", saved.safetensors_load, self._handle_load)
        self._watch_calls(module, "load_model", saved.safetensors_load_model, self._handle_load)

    def _watch_lightning(self, module: ModuleType) -> None:
        if hasattr(module, "TorchCheckpointIO"):  # it saves into memory first, and writes that
            self._watch_calls(module.TorchCheckpointIO, "save_checkpoint", saved.lightning_save, self._handle_save)
            self._watch_calls(module.TorchCheckpointIO, "load_checkpoint", saved.lightning_load, self._handle_load)

    def _watch_calls(
        self, owner: object, name: str, read: Callable[..., tuple[object, object]], then: Callable[..., None]
    ) -> None:
        """Be told of a call that saves or loads, unless it is part of another one.

        read: (result, args, kwargs) -> (where to or from, what). then: (function, seconds, where, what).
        """
        if not callable(getattr(owner, name, None)):
            return
        called = f"{getattr(owner, '__name__', owner)}.{name}"
        kind = "save" if "save" in called else "load"

        def enter_call(args: tuple[Any, ...], kwargs: dict[str, object]) -> None:
            self._inside.depth = getattr(self._inside, "depth", 0) + 1

        def leave_call() -> bool:
            self._inside.depth = max(getattr(self._inside, "depth", 0) - 1, 0)
            return bool(self._inside.depth == 0)

        def handle_result(seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], result: object) -> None:
            if leave_call() and (self._is_looking_at(kind) or seconds >= LONG_S):
                then(called, seconds, *read(result, args, kwargs))

        def handle_error(seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], error: Exception) -> None:
            if leave_call() and self._is_looking_at(kind):
                self._handle_failed_call(called, seconds, read(None, args, kwargs)[0], error)

        self.patch(owner, name, before=enter_call, after=handle_result, raised=handle_error)

    # files

    def _emit_bounded(self, seen: Observed) -> None:
        """`emit`, for things that are rare and belong on record at once; bounded all the same."""
        step = self.monitor.step
        at, lines = self._lines_by_part.get(seen.PART, (-1, 0))
        lines = lines + 1 if at == step else 1
        self._lines_by_part[seen.PART] = step, lines
        if lines <= MAX_NAMES:
            self.emit(seen, step=step)

    def _emit_file(
        self, kind: type[CheckpointSaved | CheckpointRead], called: str, seconds: float, where: object, what: object
    ) -> tuple[str, dict[str, int]]:
        """A line of what was saved or loaded; returns its path and the counters in it."""
        file = kind(
            call=called,
            path=saved.format_path(where),
            size_mb=saved.measure_size_mb(where),
            took_s=round(seconds, 4),
            entries=saved.list_entries(what),
            tensors=saved.count_tensors(what),
            steps=saved.read_step_counters(what),
        )
        self._emit_bounded(file)
        return file.path, file.steps

    def _handle_save(self, called: str, seconds: float, where: object, what: object) -> None:
        path, steps = self._emit_file(CheckpointSaved, called, seconds, where, what)
        if self._is_resting:
            return
        self._compare_counters(path, steps)
        self._await_counter(steps)
        if path and self.monitor.step not in self._saves:
            self._saves.append(self.monitor.step)
            gaps = {later - earlier for earlier, later in itertools.pairwise(self._saves)}
            regular = len(self._saves) > REGULAR and len(gaps) == 1
            self._overdue_at = self.monitor.step + OVERDUE * gaps.pop() if regular else 0

    def _handle_load(self, called: str, seconds: float, where: object, what: object) -> None:
        path, steps = self._emit_file(CheckpointRead, called, seconds, where, what)
        if isinstance(what, Mapping) and not self._is_resting:
            self._record_file(path, what, steps)

    def _record_file(self, path: str, what: Mapping[object, object], steps: dict[str, int]) -> None:
        parts = [what, *(value for value in what.values() if isinstance(value, Mapping))][:64]
        shapes: Shapes = {}
        for part in parts:
            shapes.update(collect_shapes(part))
        scheduler = next((part.get("last_epoch") for part in parts if saved.is_scheduler_state(part)), None)
        file = File(path, shapes, steps, any(map(saved.is_optimizer_state, parts)), scheduler)
        file.has_averages = any(map(saved.holds_averages, parts))
        self._files.append(file)
        if self._resume.updates:
            self._resume = Resume()
        self._resume.files = [*self._resume.files, file][-KEPT_FILES:]

    def _handle_failed_call(self, called: str, seconds: float, where: object, error: Exception) -> None:
        kind = SaveFailed if "save" in called else LoadFailed
        failed = kind(
            call=called,
            path=saved.format_path(where),
            size_mb=saved.measure_size_mb(where),
            took_s=round(seconds, 4),
            error=f"{type(error).__name__}: {error}"[:MAX_TEXT],
        )
        self._emit_bounded(failed)

    # keys of modules

    def _module_loaded(self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], result: object) -> None:
        if self._is_resting:
            return
        self._loads += 1
        missing, unexpected = getattr(result, "missing_keys", ()), getattr(result, "unexpected_keys", ())
        few = self._loads <= ALWAYS_REPORTED
        if not (few or self.should_sample()):
            return
        module, given = args[0], args[1] if len(args) > 1 else kwargs.get("state_dict")
        if not isinstance(given, Mapping):
            return
        strict = bool(args[2] if len(args) > 2 else kwargs.get("strict", True))
        with self.work():
            offered = collect_shapes(given)
            found = compare_keys(collect_module_shapes(module), offered, missing, unexpected)
            state = _build_state(module, found, strict)
            if few:
                file = self._match_file(state, offered)
                if file is not None and file.has_averages:
                    loaded = [*self._resume.modules, (weakref.ref(module), file)]
                    self._resume.modules = loaded[-MAX_NAMES:]
            self._emit_bounded(state)
        self._partial = [one for one in self._partial if one.module() is not module]
        if _is_partial(found):
            self._await_others(module, found, state.describe_keys())

    def _module_failed(
        self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], error: Exception
    ) -> None:
        given = args[1] if len(args) > 1 else kwargs.get("state_dict")
        if not isinstance(given, Mapping):
            return
        wanted, offered = collect_module_shapes(args[0]), collect_shapes(given)
        found = compare_keys(wanted, offered, list_absent_names(wanted, offered), list_absent_names(offered, wanted))
        lines = str(error).splitlines()
        state = _build_state(args[0], found, strict=True)
        state.error = f"{type(error).__name__}: {' '.join(lines)}"[:MAX_TEXT]
        self._emit_bounded(state)

    def _match_file(self, state: StateLoaded, offered: Shapes) -> File | None:
        """What became of the keys between the file they came from and the call; the file, as far as one is known."""
        for file in reversed(self._files):
            if not file.shapes:
                continue
            missing, left = list_absent_names(offered, file.shapes), list_absent_names(file.shapes, offered)
            found = compare_keys(offered, file.shapes, missing, left)
            same = len(offered) - len(found.missing) + found.prefixed + len(found.renamed)
            if 2 * same < len(offered) or not offered:
                continue
            state.file = file.path
            state.file_prefix = found.prefix or None
            state.file_renamed = found.renamed[:MAX_NAMES] or None
            state.file_resized = found.resized[:MAX_NAMES] or None
            state.file_left_out = len(left) - found.prefixed - len(found.renamed) or None
            return file
        return None

    def _await_others(self, module: nn.Module, found: Difference, described: str) -> None:
        """Keys did not fit although they were there under other names: unless something else fills them, it is told."""
        parameters = dict(module.named_parameters(remove_duplicate=False))
        watched: list[tuple[weakref.ref[Tensor], int, list[float]]] = [
            (weakref.ref(parameter), read_version(parameter), _read_first_elements(parameter))
            for parameter in (parameters.get(name) for name in found.missing[:WATCHED])
            if parameter is not None
        ]
        partly = PartlyLoaded(
            module=type(unwrap_module(module)).__name__,
            keys=found.wanted,
            given=found.given,
            placed=found.placed_count,
            missing=found.missing[:MAX_NAMES],
            missing_count=len(found.missing),
            unexpected=found.unexpected[:MAX_NAMES],
            unexpected_count=len(found.unexpected),
            prefix=found.prefix,
            lacks=found.lacks,
            prefixed=found.prefixed,
            described=described,
        )
        if watched and len(self._partial) < MAX_NAMES:
            self._partial.append(Partial(weakref.ref(module), partly, watched))

    def call_begins(self, module: nn.Module, call: "Call") -> None:
        if self._partial and not call.graded:
            self._settle_keys()

    def _settle_keys(self) -> None:
        """Training or evaluation begins: what is still as it was before the load was not loaded."""
        waiting, self._partial = self._partial, []
        for one in waiting:
            if one.module() is not None and all(_is_as_before(*watched) for watched in one.watched):
                self._emit_bounded(one.seen)

    # a resumed run

    def _optimizer_loaded(
        self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], result: object
    ) -> None:
        if self._is_resting:
            return
        optimizer = args[0]
        if self._resume.updates:
            self._resume = Resume()
        resume = self._resume
        resume.optimizers = [*resume.optimizers, weakref.ref(optimizer)][-MAX_NAMES:]
        state = next(iter(optimizer.state.values()), None) if isinstance(optimizer.state, Mapping) else None
        step = state.get("step") if isinstance(state, Mapping) else None
        if isinstance(step, Tensor):
            step = float(step) if step.numel() == 1 and on_host(step) else None
        resume.optimizer_step = step if isinstance(step, int | float) else resume.optimizer_step

    def _scheduler_made(self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], result: object) -> None:
        self._schedulers.add(args[0])

    def _scheduler_loaded(
        self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], result: object
    ) -> None:
        if self._is_resting:
            return
        if self._resume.updates:
            self._resume = Resume()
        self._resume.schedulers += 1

    def before_update(self, optimizer: Optimizer) -> None:
        if self._partial:
            self._settle_keys()
        resume = self._resume
        if not resume.files or resume.updates >= SETTLED_AFTER:
            return
        if resume.updates == 0:
            resume.began_empty = resume.began_empty and not optimizer.state
        resume.stepped = resume.stepped or any(ref() is optimizer for ref in resume.optimizers)
        resume.alive = weakref.ref(optimizer)

    def after_update(self, optimizer: Optimizer) -> None:
        self._inside.depth = 0  # a save that was interrupted never left
        step = self.monitor.step
        if self._overdue_at and step >= self._overdue_at:
            self._report_missed_save(step)
        resume = self._resume
        if resume.files and resume.updates < SETTLED_AFTER:
            resume.updates += 1
            if resume.updates == SETTLED_AFTER:
                if resume.optimizers or resume.schedulers:
                    self._emit_resume(resume)
                self._judge_optimizer(resume, optimizer)

    def _report_missed_save(self, step: int) -> None:
        last = self._saves[-1]
        every = last - self._saves[-2]
        self._overdue_at = 0
        self._saves.clear()
        if "missed" not in self._reported:
            self._reported.add("missed")
            self._emit_bounded(SaveMissed(every_steps=every, last_step=last))

    def _emit_resume(self, resume: Resume) -> None:
        # The file with the optimizer's state comes first: another may hold the weights of a teacher, trained elsewhere.
        files = sorted(resume.files, key=lambda file: not file.has_optimizer)
        steps = dict(next((file.steps for file in files if file.steps), {}))
        scheduler_step = next((file.scheduler_step for file in files if file.scheduler_step is not None), None)
        if resume.optimizers:
            self._recorded = steps
        restored = ["optimizer"] * bool(resume.optimizers) + ["scheduler"] * bool(resume.schedulers)
        fault = self._resume_fault(resume, scheduler_step)
        resumed = RunResumed(
            path=files[0].path if files[0].has_optimizer else resume.files[-1].path,
            steps=steps,
            restored=restored,
            optimizer_step=resume.optimizer_step,
            scheduler_step=scheduler_step,
            fault=fault,
        )
        self._emit_bounded(resumed)

    def _resume_fault(self, resume: Resume, scheduler_step: int | None) -> str:
        """What was in the file, is there in the program, and was not restored."""
        if not resume.optimizers or not any(file.has_optimizer for file in resume.files):
            return ""
        if not resume.stepped:
            return "optimizer"
        if scheduler_step is None or scheduler_step <= SETTLED_AFTER or resume.schedulers:
            return ""
        mine = [
            one
            for one in self._schedulers
            if any(ref() is getattr(one, "optimizer", None) for ref in resume.optimizers)
        ]
        began = [one for one in mine if isinstance(one.last_epoch, int) and one.last_epoch <= SETTLED_AFTER]
        return "scheduler" if mine and len(began) == len(mine) else ""

    def _compare_counters(self, path: str, steps: dict[str, int]) -> None:
        """The first save after a resume: its counters go on from those that were loaded, or begin anew."""
        recorded, common = self._recorded, [name for name in steps if name in self._recorded]
        if not common:
            return
        self._recorded = {}
        behind = [name for name in common if steps[name] < recorded[name]]
        if not behind or any(steps[name] > recorded[name] for name in common):
            return  # a count within the epoch begins anew with each epoch
        name = behind[0]
        self._emit_bounded(CounterBehind(path=path, name=name, recorded=recorded[name], saved=steps[name]))

    # a run that goes on without its optimizer's state

    def _judge_optimizer(self, resume: Resume, optimizer: Optimizer) -> None:
        """The trained model came out of a file with an optimizer's state, and no optimizer was given one."""
        held = self.monitor.optimizers.collect_held_ids()
        files = [
            file
            for ref, file in resume.modules
            if (module := ref()) is not None and any(id(parameter) in held for parameter in module.parameters())
        ]
        if resume.optimizers or not files or not resume.began_empty:
            return
        file = files[-1]
        missed = OptimizerNotResumed(path=file.path, optimizer=type(optimizer).__name__, steps=file.steps)
        mine = [one for one in self._schedulers if getattr(one, "optimizer", None) is optimizer]
        at = max((one.last_epoch for one in mine if isinstance(one.last_epoch, int)), default=0)
        if mine and (resume.schedulers or at > max(FRESH_STEPS, self.monitor.step)):
            missed.sign = f"its scheduler is at step {at}"
            self._emit_bounded(missed)
        else:
            self._missed = missed

    def _await_counter(self, steps: dict[str, int]) -> None:
        """A save after it: do its counters go on from the file's? None of a run that began anew is as high."""
        missed = self._missed
        common = [name for name in steps if missed is not None and name in missed.steps]
        if missed is None or not common:
            return
        self._missed = None
        fresh = {"epoch": (self.monitor.epoch or 0) + 1 if self.monitor.epoch is not None else self.monitor.step}
        usual = MICRO_STEPS * max(self.monitor.step, 1)
        name = max(common, key=lambda one: steps[one])
        if all(steps[one] >= missed.steps[one] for one in common) and steps[name] > fresh.get(name, usual):
            missed.sign = f"the next save says {name} {steps[name]}"
            self._emit_bounded(missed)


# keys that found no place


def _build_state(module: nn.Module, found: Difference, strict: bool) -> StateLoaded:
    return StateLoaded(
        module=type(unwrap_module(module)).__name__,
        strict=strict,
        keys=found.wanted,
        given=found.given,
        placed=found.placed_count,
        missing=found.missing[:MAX_NAMES] or None,
        missing_count=len(found.missing),
        unexpected=found.unexpected[:MAX_NAMES] or None,
        unexpected_count=len(found.unexpected),
        prefix=found.prefix or None,
        lacks=found.lacks or None,
        prefixed=found.prefixed or None,
        renamed=found.renamed[:MAX_NAMES] or None,
        resized=found.resized[:MAX_NAMES] or None,
    )


def _is_partial(found: Difference) -> bool:
    """True where keys were there under another prefix, or hardly any found a place: silent about the rest.

    A model without a head, with adapters or a new head is loaded in part on purpose.
    """
    if not found.missing or not found.unexpected:
        return False
    return found.prefixed > 0 or found.placed_count <= NOTHING_SHARE * min(found.given, found.wanted)


def _read_first_elements(parameter: Tensor) -> list[float]:
    """The first elements, on the host; elsewhere reading them would wait."""
    if not on_host(parameter) or parameter.is_meta or hasattr(parameter, "to_local"):
        return []
    found: list[float] = parameter.detach().flatten()[:4].tolist()
    return found


def _is_as_before(ref: "weakref.ref[Tensor]", written: int, begin: list[float]) -> bool:
    parameter = ref()
    return parameter is not None and read_version(parameter) == written and _read_first_elements(parameter) == begin
