"""OPTIMIZER: what the optimizer holds, what it leaves out, and how far it moves the weights."""

import time
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tdbg.core.events import Step
from tdbg.core.observations._lasting import Lasting
from tdbg.core.observations.optimizer import (
    EmptyUpdates,
    ForgottenModel,
    ParameterCoverage,
    ParameterGroups,
    UpdateSizes,
)
from tdbg.probes import PROBES, Probe
from tdbg.probes.forward import round_number
from tdbg.runtime import tensors
from tdbg.runtime.beside import ForgottenModule, ModulesBeside, beside_history_of
from tdbg.runtime.root_modules import clean_path, unwrap_module
from tdbg.runtime.sampling import select_evenly, view_sample
from tdbg.runtime.torch_compat import norms_of
from tdbg.runtime.unfrozen import frozen_parameters_of
from tdbg.runtime.unregistered import Unregistered, ValueWatch, find_unregistered

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from tdbg.runtime.monitor import Monitor
    from tdbg.runtime.rerun import Call

MAX_NAMES = 8
GROUP_NAMES = 3
MAX_GROUPS = 8
MAX_OPTIMIZERS = 8
MAX_PARAMETERS = 64  # whose weights are sampled
ELEMENTS = 64  # of each
STATE_EVERY = 64  # looks between two measurements of the state's size
LASTING = {"none": (10, 12), "stuck": (10, 40)}  # consecutive sampled steps, and steps from first to last
LATER_LOOKS = 6  # in each look at doubling intervals: enough for whatever is told of coverage and of empty updates
COVERAGE_LOOKS = 16  # so many first looks ask what is held by whom, and then one in so many
SETTLED_STEPS = 6  # by then gradients have been there, and all optimizers have been built
EMPTY_LOOKS = 4  # in a row without any gradient in the optimizer, while the model has some
UNREACHED_STEPS = 12  # in a row where the optimizer's own model is called: its loss may begin some steps later
UNUSED_STEPS = 4  # from the first look at unregistered parameters with gradients to the one that tells of them
UNFROZEN_STEPS = 3  # from the first look at unfrozen parameters with gradients to the one that tells of them
MANY_PARAMETERS = 500  # of a model with more, unregistered ones are searched for more rarely while there are none
BOTH_STEP = 4  # updates back that an optimizer counts as at work
BOTH_STEPS = 5  # steps in a row in which two optimizers updated the same parameter
NOISE = 1e-6  # of the median gradient of the model: less is what rounding leaves of zero,
BIAS_NOISE = {4: 0.05, 2: 0.5}  # and in a bias, by bytes of an element, this part of its own weight's gradient
FORGOTTEN_SHARE = 0.5  # of the trainable parameters; more are left out on purpose
RATES = (
    "lr",
    "betas",
    "momentum",
    "initial_lr",
    "max_lr",
    "min_lr",
    "max_momentum",
    "base_momentum",
)  # schedules move them


@dataclass(slots=True)
class _Moved:
    """A sample of the weights before and after one update: three rows of numbers a parameter."""

    step: int
    names: list[str]
    dtypes: list[str]
    rates: list[float]  # of each parameter's group; NaN where it is not known without waiting
    views: list[Tensor] = field(default_factory=list)  # of the weights, held until the update is over
    before: Tensor | None = None
    wanted: Tensor | None = None  # where the gradient's sample is not zero, nor rounding noise
    rows: Tensor | None = None  # the index of the parameter that each element belongs to


@dataclass(slots=True)
class _Run:
    """Looks in a row in which one parameter had one trouble."""

    step: int
    looks: int = 0


@dataclass(slots=True)
class _EmptyRun(_Run):
    """Looks in a row in which an optimizer had no gradient at all."""

    called: int = 0  # steps in which its own model had been called
    called_step: int = 0  # the last of these
    is_called: bool = True  # in each of them
    watch: ValueWatch | None = None  # of what it holds: an update may clear the gradients that it had


@PROBES.add
class OptimizerReport(Probe):
    """Groups and hyperparameters, parameters left out or updated twice, and the size of each update.

    Reads:  ``param_groups``; before and after an update a sample of 64 elements of at most 64 weights and of their
            gradients; the trained roots' parameters, to see which no optimizer holds, and those in plain lists,
            tuples, sets and dicts of their modules; which other models are called with gradients on.
    Emits:  GROUPS once an optimizer and when a hyperparameter other than the rate changes; COVERAGE when
            parameters are left out or held twice; BESIDE once, for another model that gets gradients in vain; EMPTY
            once, when it updates nothing of the model; else one line and one observation a looked-at step.
    Cost:   some 15 us a sampled parameter on the steps that are looked at; a few microseconds on others.
    Limits: what an optimizer that is none of torch's subclasses updates counts as left out. Parameters whose weights
            are neither contiguous nor dense, and complex ones, are not sampled. Of sharded parameters (FSDP) the
            part of this rank.
    Source: the size of an update against the weight, |dw|/|w|, as in the stochastic-gradient notes of CS231n;
            around 1e-3 is usual.
    """

    name = "optimizer"
    levels = ("extreme",)
    every = 8
    comes_back = LATER_LOOKS
    observations = (UpdateSizes, ParameterGroups, ParameterCoverage, ForgottenModel, EmptyUpdates)

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._reset_state()

    def _reset_state(self) -> None:
        self._told: weakref.WeakKeyDictionary[Optimizer, dict[str, object]] = weakref.WeakKeyDictionary()
        self._last_update: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._coverage: tuple[object, ...] = ()
        self._unregistered: ValueWatch | None = None
        self._unfrozen: ValueWatch | None = None
        self._frozen = frozen_parameters_of(self.monitor)
        self._history = beside_history_of(self.monitor)
        self._beside = ModulesBeside(self._history)
        self._reported_unregistered = False  # and nothing has explained them since
        self._is_large = False  # the model, at the last search for them
        self._both = 0
        self._empty: weakref.WeakKeyDictionary[Optimizer, _EmptyRun] = (
            weakref.WeakKeyDictionary()
        )  # without any gradient
        self._backwards = 0
        self._backward_step = 0  # the step of the last of them
        self._seen_backwards: weakref.WeakKeyDictionary[Optimizer, int] = (
            weakref.WeakKeyDictionary()
        )  # at its last update
        self._moved: _Moved | None = None
        self._spent_s = 0.0
        self._key: tuple[int, ...] = ()
        self._anchor: Tensor | None = None  # the sample as it was when each parameter changed last
        self._rows: tuple[tuple[int, ...], Tensor] | None = None
        self._weights: dict[int, weakref.ref[Tensor]] | None = (
            None  # of each bias the weight beside it, by the bias' id
        )
        self._stuck: dict[int, _Run] = {}
        self._none: dict[str, _Run] = {}
        self._instead: str | None = None  # the model that gets the gradients of those; None: not asked yet
        self._looks = 0
        self._state_mb: float | None = None

    def forked(self) -> None:
        self._reset_state()

    def detach(self) -> None:
        self._moved, self._anchor, self._rows = None, None, None
        super().detach()

    # when

    def attach(self) -> None:
        self.patch_at("module-loaded", after=self._module_loaded)

    def _module_loaded(self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], result: object) -> None:
        self._history.add_trained(args[0].parameters())

    def call_begins(self, module: nn.Module, call: "Call") -> None:
        if torch.is_grad_enabled() and self._looks < COVERAGE_LOOKS:
            self._beside.add_call(module)

    def update_begins(self, optimizer: "Optimizer") -> None:
        self._last_update[optimizer] = self.monitor.updates
        if optimizer not in self._told and len(self._told) < MAX_OPTIMIZERS:
            self._tell_groups(optimizer)
        if not self.monitor.is_main(optimizer):
            return
        self._moved = None  # of an update that raised
        if not self.should_sample():
            return
        begun = time.perf_counter()
        self._notice_change(optimizer)
        is_new = self._looks < COVERAGE_LOOKS or self.monitor.inspection.is_repeat_open
        if is_new or self._looks % COVERAGE_LOOKS == 0:
            self._look_at_coverage()
        self._sample_weights(optimizer)
        self._spent_s = time.perf_counter() - begun

    def backward_begins(self, loss: Tensor | None) -> None:
        self._backwards += 1
        self._backward_step = self.monitor.step + 1

    def after_step(self, optimizer: "Optimizer") -> None:
        has_gradients = self._backwards > self._seen_backwards.get(optimizer, 0)
        self._seen_backwards[optimizer] = self._backwards
        if not self.monitor.is_main(optimizer):
            if has_gradients and self._looks < COVERAGE_LOOKS:
                self._look_for_gradients(optimizer)
            return
        moved, self._moved = self._moved, None
        self._beside.end_step()
        if moved is None:
            return
        begun = time.perf_counter()
        if has_gradients:
            self._look_for_gradients(optimizer, moved)
        self._compare_sample(moved, optimizer)
        self.monitor.budget.record_cost(self.name, self._spent_s + time.perf_counter() - begun, extra=True)

    # groups

    def _tell_groups(self, optimizer: "Optimizer", changed: Iterable[str] = ()) -> None:
        self._told[optimizer] = _collect_hyperparameters(optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        groups = [
            _describe_group(group) | self._summarize_trainable(group) for group in optimizer.param_groups[:MAX_GROUPS]
        ]
        seen = ParameterGroups(
            optimizer=type(optimizer).__name__,
            groups=groups,
            group_count=len(optimizer.param_groups),
            parameters=len(parameters),
            elements=sum(p.numel() for p in parameters),
            frozen=sum(not p.requires_grad for p in parameters),
            decayed_vectors=sum(
                p.ndim <= 1 for group in optimizer.param_groups if group.get("weight_decay") for p in group["params"]
            ),
            changed=list(changed) or None,
        )
        self.emit(seen)

    def _summarize_trainable(self, group: dict[str, Any]) -> dict[str, object]:
        """How many parameters of a group want a gradient, and the names of the first ones."""
        trained = [p for p in group["params"] if p.requires_grad]
        return {"trainable": len(trained), "names": [self._name_of(p) for p in trained[:GROUP_NAMES]]}

    def _notice_change(self, optimizer: "Optimizer") -> None:
        before, now = self._told.get(optimizer), _collect_hyperparameters(optimizer)
        if before is not None and before != now:
            changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
            self._tell_groups(optimizer, sorted(changed)[:MAX_NAMES])

    # coverage

    def _look_at_coverage(self) -> None:
        """Which trainable parameters no optimizer holds, and which two of them update."""
        roots = self.monitor.trained_roots()
        for root in roots:
            self._frozen.add_frozen(root.parameters())
        holders = self._collect_holders()
        self._resolve_unfrozen(holders)
        unregistered = self._follow_unregistered(roots, holders)
        self._look_beside(roots, holders)
        if self.monitor.step + 1 < SETTLED_STEPS:
            return
        named = self.monitor.find_probe("gradient-norms")
        if named is None:
            self.unavailable("the probe that knows the parameters' names is off")
            return
        trainable = list({id(p): p for root in roots for p in root.parameters() if p.requires_grad}.values())
        left_out = [p for p in trainable if id(p) not in holders]
        unfrozen = self._frozen.list_unfrozen(left_out)
        pending = set(map(id, unfrozen))
        left_out = [p for p in left_out if id(p) not in pending]
        twice = [p for p in trainable if len(holders.get(id(p), ())) > 1]
        self._both = self._both + 1 if twice else 0
        twice = twice if self._both >= BOTH_STEPS else []
        idle = self._follow_unfrozen([p for p in unfrozen if _has_gradient(p)])
        self._tell_coverage(trainable, left_out, twice, unregistered, idle, holders, named)

    def _follow_unfrozen(self, graded: Sequence[Tensor]) -> Sequence[Tensor]:
        """Of parameters that were unfrozen, get gradients and are held by no optimizer: those that nothing updates.

        A program may add them some steps later, or update them itself.
        """
        watch, step = self._unfrozen, self.monitor.step + 1
        if not graded or watch is None or not watch.is_of(graded):
            self._unfrozen = ValueWatch(graded, step) if graded else None
            return []
        watch.compare(graded, step, self.monitor.read_late)
        return graded if not watch.is_changed and watch.compared - watch.step >= UNFROZEN_STEPS else []

    def _look_beside(self, roots: Sequence[nn.Module], holders: Collection[int]) -> None:
        """Tell of models beside the trained ones whose gradients nobody uses, each once in a run."""
        if any(not run.is_called for run in self._empty.values()):
            return  # an optimizer without any gradient was built on something else: that is the news
        of_trained = {id(p) for root in roots for p in root.parameters()} | set(holders)
        tops, step = self.monitor.roots.list_roots(), self.monitor.step + 1
        forgotten = self._beside.follow_forgotten(tops, of_trained, step, SETTLED_STEPS - 1, self.monitor.read_late)
        for found in forgotten:
            self._tell_beside(found, roots)

    def _tell_beside(self, found: ForgottenModule, roots: Sequence[nn.Module]) -> None:
        names = {id(p): clean_path(path) for path, p in found.module.named_parameters()}
        seen = ForgottenModel(
            root=type(unwrap_module(found.module)).__name__,
            number=self._history.told_count,
            trained=[type(unwrap_module(root)).__name__ for root in roots[:MAX_NAMES]],
            since=found.since,
            graded=len(found.parameters),
            names=[names[id(p)] for p in found.parameters[:MAX_NAMES]],
            shape=list(found.parameters[0].shape),
        )
        self._history.told_count += 1
        self.emit(seen)

    def _follow_unregistered(self, roots: Iterable[nn.Module], holders: Collection[int]) -> list[Unregistered]:
        """The parameters in plain containers that get gradients and that nothing has updated for some steps.

        Neither an optimizer nor the program: what it updates by hand changes its values.
        """
        if self._unregistered is None and self._is_large and self._looks.bit_count() != 1:
            return []
        trained = [root for root in roots if any(id(p) in holders for p in root.parameters())]
        registered = {id(p) for root in trained for p in root.parameters()} | set(holders)
        self._is_large = len(registered) > MANY_PARAMETERS
        everything = (one for root in trained for one in find_unregistered(root, registered))
        found = {id(one.parameter): one for one in everything if _has_gradient(one.parameter)}
        parameters = [one.parameter for one in found.values()]
        watch, step = self._unregistered, self.monitor.step + 1
        if not found or watch is None or not watch.is_of(parameters):
            self._unregistered = ValueWatch(parameters, step) if found else None
            return []
        watch.compare(parameters, step, self.monitor.read_late)
        if watch.is_changed:
            self._resolve("changed")
            return []
        return list(found.values()) if watch.compared - watch.step >= UNUSED_STEPS else []

    def _resolve(self, why: str) -> None:
        """The unregistered parameters told before turn out to be no fault."""
        if self._reported_unregistered:
            self._reported_unregistered = False
            self.emit(ParameterCoverage(resolved=why))

    def _collect_holders(self) -> dict[int, list[str]]:
        """Parameters that optimizers hold, by id, with the classes of those that are at work on them."""
        at_work = {id(o) for o, at in self._last_update.items() if self.monitor.updates - at < BOTH_STEP}
        holders: dict[int, list[str]] = {}
        for optimizer in self.monitor.optimizers:
            works = [type(optimizer).__name__] if id(optimizer) in at_work else []
            for group in optimizer.param_groups:
                self._history.add_trained(group["params"])
                for parameter in group["params"]:
                    holders.setdefault(id(parameter), []).extend(works)
        return holders

    def _tell_coverage(
        self,
        trainable: Sequence[Tensor],
        left_out: Sequence[Tensor],
        twice: Sequence[Tensor],
        unregistered: Sequence[Unregistered],
        unfrozen: Sequence[Tensor],
        holders: Any,
        named: Any,
    ) -> None:
        graded = sum(p.grad is not None for p in left_out)
        key = (len(trainable), len(left_out), graded > 0, len(twice), len(unregistered), len(unfrozen))
        if key == self._coverage or not (left_out or twice or unregistered or unfrozen or self._coverage):
            return
        self._coverage = key
        seen = ParameterCoverage(trainable=len(trainable), left_out_count=len(left_out), left_out_graded=graded)
        if left_out:
            seen.left_out = [named.name_of(p) for p in left_out[:MAX_NAMES]]
            few = len(left_out) < FORGOTTEN_SHARE * len(trainable)
            seen.forgotten = graded > 0 and (few or self._were_replaced(left_out, trainable))
        if twice:
            seen.twice, seen.twice_count = [named.name_of(p) for p in twice[:MAX_NAMES]], len(twice)
            seen.optimizers = holders[id(twice[0])][:MAX_NAMES]
        if unregistered:
            seen.unregistered, seen.unregistered_count = (
                [one.name for one in unregistered[:MAX_NAMES]],
                len(unregistered),
            )
            seen.containers = list(dict.fromkeys(one.container for one in unregistered))[:MAX_NAMES]
            if not self._reported_unregistered:
                self._reported_unregistered = True
                held_later = [one.parameter for one in unregistered]
                self.monitor.optimizers.when_held(held_later, lambda: self.guard.call_guarded(self._resolve, "held"))
        if unfrozen and self._unfrozen is not None:
            seen.unfrozen, seen.unfrozen_count = [named.name_of(p) for p in unfrozen[:MAX_NAMES]], len(unfrozen)
            seen.unfrozen_since = self._unfrozen.step
            self._frozen.reported = list(map(weakref.ref, unfrozen))
            self._await_unfrozen(unfrozen)
        self.emit(seen)

    def _await_unfrozen(self, parameters: Sequence[Tensor]) -> None:
        self.monitor.optimizers.when_held(parameters, lambda: self.guard.call_guarded(self._notice_held))

    def _notice_held(self) -> None:
        """An optimizer was given some of the unfrozen parameters: the others are waited for."""
        holders = self._collect_holders()
        if missing := self._resolve_unfrozen(holders):
            self._await_unfrozen(missing)

    def _resolve_unfrozen(self, holders: Collection[int]) -> list[Tensor]:
        """Tell it where optimizers hold all unfrozen parameters that were told of; else those that none holds."""
        alive = [parameter for ref in self._frozen.reported if (parameter := ref()) is not None]
        missing = [parameter for parameter in alive if id(parameter) not in holders]
        if not missing:
            self._frozen.reported = []
        if alive and not missing:
            self.emit(ParameterCoverage(resolved="unfrozen held"))
        return missing

    def _were_replaced(self, left_out: Sequence[Tensor], trainable: Sequence[Tensor]) -> bool:
        """True if the optimizers hold, in place of each of these, a tensor like it that no gradient reaches.

        Like it but for the first dimension: a new head has another number of classes. Where nothing of the model is
        held, the optimizer is of another instance.
        """
        known = {id(p) for p in trainable}
        held = [p for optimizer in self.monitor.optimizers for group in optimizer.param_groups for p in group["params"]]
        idle = Counter(p.shape[1:] for p in held if id(p) not in known and p.grad is None)
        return len(left_out) < len(trainable) and not Counter(p.shape[1:] for p in left_out) - idle

    # updates of nothing

    def _look_for_gradients(self, optimizer: "Optimizer", moved: _Moved | None = None) -> None:
        """Follow updates in which no parameter of the optimizer has a gradient, while others of a model have one.

        After the update, as a closure computes gradients inside it. Copies in another precision, to which a program
        moves gradients itself, have some.
        """
        held = [p for group in optimizer.param_groups for p in group["params"]]
        if (moved is not None and moved.names) or any(p.grad is not None for p in held):
            self._empty.pop(optimizer, None)
            return
        run = self._empty.setdefault(optimizer, _EmptyRun(self._backward_step))
        run.looks += 1
        self._follow_calls(run, held)
        if run.looks == EMPTY_LOOKS and held:
            self._tell_empty(optimizer, held, run)
        if run.is_called and run.called >= UNREACHED_STEPS and optimizer not in self._history.unreached:
            self._tell_unreached(optimizer, held, run)

    def _follow_calls(self, run: _EmptyRun, held: Sequence[Tensor]) -> None:
        """Whether the model that the optimizer holds was called in each step, and what it holds has stayed."""
        if not run.is_called or run.called_step == self._backward_step:
            return
        run.is_called = self._beside.find_called({id(p) for p in held}) is not None
        if not run.is_called:
            return
        run.called, run.called_step = run.called + 1, self._backward_step
        if run.watch is None:
            run.watch = ValueWatch(held, self._backward_step)
        else:
            run.watch.compare(held, self._backward_step, self.monitor.read_late)

    def _tell_unreached(self, optimizer: "Optimizer", held: Sequence[Tensor], run: _EmptyRun) -> None:
        """The optimizer's own model is called with gradients on in each step, and none reaches it."""
        model = self._beside.find_called({id(p) for p in held})
        if model is None or run.watch is None or run.watch.is_changed:
            return
        seen = EmptyUpdates(
            optimizer=type(optimizer).__name__,
            root=type(unwrap_module(model)).__name__,
            number=self._history.unreached_count,
            since=run.step,
            updates=run.looks,
            held=len(held),
            frozen=sum(not p.requires_grad for p in held),
            called=True,
        )
        self._history.unreached.add(optimizer)
        self._history.unreached_count += 1
        self.emit(seen, step=self._backward_step)

    def _tell_empty(self, optimizer: "Optimizer", held: Sequence[Tensor], run: _EmptyRun) -> None:
        is_main = self.monitor.is_main(optimizer)
        if not is_main and self._may_rest(held):
            return
        root, graded = self._find_unused_gradients(None if is_main else {p.shape[1:] for p in held if p.ndim > 1})
        other = "" if graded or not is_main else self.monitor.search.trained_instead()
        if not graded and not other:
            return
        paths = {id(p): path for path, p in root.named_parameters()} if root is not None and graded else {}
        seen = EmptyUpdates(
            optimizer=type(optimizer).__name__,
            root=type(unwrap_module(root)).__name__ if root is not None and graded else other,
            since=run.step,
            updates=run.looks,
            held=len(held),
            frozen=sum(not p.requires_grad for p in held),
            strangers=sum(id(p) not in paths for p in held),
            graded=len(graded),
            names=[clean_path(paths.get(id(p), "")) or self._name_of(p) for p in graded[:MAX_NAMES]],
        )
        self.emit(seen, step=run.step)

    def _may_rest(self, held: Sequence[Tensor]) -> bool:
        """True if what an optimizer beside the main one holds is frozen for a while, or part of a model that is there.

        A task head or an encoder has its turn later. What was replaced is part of no model any more.
        """
        there = {id(p) for root in self.monitor.roots.list_roots() for p in root.parameters()}
        return any(not p.requires_grad or id(p) in there for p in held)

    def _find_unused_gradients(self, shapes: Collection[torch.Size] | None) -> tuple[nn.Module | None, list[Tensor]]:
        """The root with the most parameters that have a gradient and no optimizer, and these.

        With ``shapes`` only models with one of such a shape but for the first dimension: beside several optimizers a
        model may get gradients that the program does not train.
        """
        taken = self._collect_holders()
        found: list[tuple[nn.Module, list[Tensor]]] = [
            (root, [p for p in root.parameters() if p.grad is not None and id(p) not in taken])
            for root in self.monitor.roots.list_roots()
        ]
        if shapes is not None:
            found = [
                (root, graded)
                for root, graded in found
                if any(p.ndim > 1 and p.shape[1:] in shapes for p in graded)
                and not any(id(p) in taken for p in root.parameters())  # else `_look_at_coverage` tells of it
            ]
        return max(found, key=lambda one: len(one[1])) if found else (None, [])

    # the size of an update

    def _sample_weights(self, optimizer: "Optimizer") -> None:
        """A sample of the weights as they are before the update."""
        graded, none = [], []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    graded.append((parameter, group))
                elif parameter.requires_grad and parameter.numel():  # FSDP gives an empty shard no gradient
                    none.append(parameter)
        self._follow_none(none)
        moved = _Moved(self.monitor.step + 1, [], [], [])
        grads, sizes, key = [], [], []
        for parameter, group in select_evenly(graded, MAX_PARAMETERS):
            if parameter.grad.layout != torch.strided:  # its rows are not the weight's
                continue
            weight, grad = view_sample(parameter, ELEMENTS), view_sample(parameter.grad, ELEMENTS)
            if weight is None or grad is None or weight.shape != grad.shape or weight.stride() != grad.stride():
                continue
            moved.views.append(weight)
            grads.append(grad)
            sizes.append(weight.numel())
            key.append(id(parameter))
            moved.names.append(self._name_of(parameter))
            moved.dtypes.append(str(parameter.dtype).removeprefix("torch."))
            moved.rates.append(_read_rate(group))
        self._moved = moved
        if not sizes or len({view.device for view in moved.views}) > 1:
            moved.views.clear()
            return
        moved.before = torch.cat(moved.views).float()
        moved.rows = self._rows_of(tuple(sizes), moved.before.device)
        if tuple(key) != self._key or self._anchor is None:
            self._key, self._anchor, self._stuck, self._weights, self._instead = (
                tuple(key),
                moved.before,
                {},
                None,
                None,
            )
        magnitudes = torch.cat(grads).abs().float()
        moved.wanted = magnitudes > self._noise_floors(magnitudes, key)[moved.rows]

    def _noise_floors(self, magnitudes: Tensor, key: Sequence[int]) -> Tensor:
        """Per sampled parameter the size up to which its gradient says nothing.

        A bias before a normalisation, or of the keys of an attention, has no effect, and a gradient of what the sums
        were rounded by: 1e-6 to 1e-2 of its weight's in float32, more in half precision.
        """
        there = torch.where(magnitudes > 0, magnitudes, torch.nan)
        floors = (NOISE * there.nanmedian().nan_to_num()).expand(len(key)).clone()
        if self._weights is None:
            self._weights = _weights_beside(self.monitor.trained_roots())
        pairs = []
        for index, parameter in enumerate(key):
            beside = self._weights.get(parameter)
            weight = beside() if beside is not None else None
            grad = view_sample(weight.grad, ELEMENTS) if weight is not None and weight.grad is not None else None
            if grad is not None and grad.device == floors.device:
                pairs.append((index, grad, BIAS_NOISE.get(grad.element_size(), BIAS_NOISE[4])))
        for (index, grad, share), norm in zip(pairs, _float_norms([grad for _, grad, _ in pairs]), strict=True):
            floors[index] = torch.maximum(floors[index], share * norm / grad.numel() ** 0.5)
        return floors

    def _rows_of(self, sizes: tuple[int, ...], device: torch.device) -> Tensor:
        if self._rows is None or self._rows[0] != sizes or self._rows[1].device != device:
            self._rows = sizes, torch.repeat_interleave(torch.tensor(sizes)).to(device)
        return self._rows[1]

    def _name_of(self, parameter: Tensor) -> str:
        named = self.monitor.find_probe("gradient-norms")
        return str(named.name_of(parameter)) if named is not None else f"parameter{list(parameter.shape)}"

    def _follow_none(self, parameters: list[Tensor]) -> None:
        names = [self._name_of(parameter) for parameter in parameters]
        step = self.monitor.step + 1
        self._none = {name: self._none.get(name) or _Run(step) for name in names}
        for run in self._none.values():
            run.looks += 1

    def _compare_sample(self, moved: _Moved, optimizer: "Optimizer") -> None:
        self._looks += 1
        if self._looks % STATE_EVERY == 1:
            self._state_mb = _state_mb(optimizer)
        if moved.before is None or moved.rows is None or moved.wanted is None or self._anchor is None:
            self._emit_update_sizes(moved, optimizer, [])
            return
        after = torch.cat(moved.views).float()
        moved.views.clear()
        changed = after != self._anchor
        columns = torch.stack(
            [
                (after - moved.before).square(),
                moved.before.square(),
                (moved.wanted & (after == moved.before)).float(),
                moved.wanted.float(),
                changed.float(),
            ]
        )
        sums = columns.new_zeros(5, len(moved.names)).index_add_(1, moved.rows, columns)
        self._anchor = torch.where((sums[4] > 0)[moved.rows], after, self._anchor)
        read = _Read(self, moved, optimizer)
        if tensors.on_host(sums):
            read(sums.flatten().tolist(), None)
        else:
            self.monitor.read_late(sums.flatten(), read)

    def judge_update(self, moved: _Moved, optimizer: "Optimizer", sums: list[list[float]]) -> None:
        """Figures of one look have arrived: squares of update and weight, unmoved, wanted and changed elements."""
        before, self._stuck = self._stuck, {}
        for index, (wanted, changed, rate) in enumerate(zip(sums[3], sums[4], moved.rates, strict=True)):
            if wanted > 0 and changed == 0 and not rate <= 0.0:  # a rate of zero freezes on purpose
                self._stuck[index] = before.get(index) or _Run(moved.step)
                self._stuck[index].looks += 1
        self._emit_update_sizes(moved, optimizer, sums)

    # telling

    def _emit_update_sizes(self, moved: _Moved, optimizer: "Optimizer", sums: list[list[float]]) -> None:
        sizes = UpdateSizes(
            optimizer=type(optimizer).__name__,
            sampled=len(moved.names),
            state_mb=self._state_mb,
            lasting=self._collect_lasting(moved) or None,
        )
        if sums:
            _add_ratios(sizes, moved, sums)
        if self._none:
            names = list(self._none)
            sizes.without_gradient, sizes.without_gradient_count = names[:MAX_NAMES], len(names)
        self.emit(sizes, step=moved.step)

    def _collect_lasting(self, moved: _Moved) -> dict[str, Lasting]:
        lasting: dict[str, Lasting] = {}
        none = {name: run for name, run in self._none.items() if _is_lasting("none", run, moved.step)}
        if none:
            lasting["none"] = _build_lasting(list(none), list(none.values()))
            if self._instead is None:
                self._instead = self.monitor.search.trained_instead()
            if self._instead:
                lasting["none"]["other"] = self._instead
        stuck = {index: run for index, run in self._stuck.items() if _is_lasting("stuck", run, moved.step)}
        if stuck:
            first = next(iter(stuck))
            lasting["stuck"] = _build_lasting([moved.names[index] for index in stuck], list(stuck.values()))
            lasting["stuck"]["dtype"], lasting["stuck"]["lr"] = moved.dtypes[first], round_number(moved.rates[first])
        return lasting


class _Read:
    """What to do with the figures of one look, now or when they have come from the device."""

    def __init__(self, probe: OptimizerReport, moved: _Moved, optimizer: "Optimizer") -> None:
        self.probe, self.moved, self.optimizer = probe, moved, weakref.ref(optimizer)

    def __call__(self, values: list[float], record: Step | None) -> None:
        optimizer, count = self.optimizer(), len(self.moved.names)
        if optimizer is not None and self.probe.on:
            rows = [values[start : start + count] for start in range(0, 5 * count, count)]
            self.probe.judge_update(self.moved, optimizer, rows)


def _weights_beside(roots: Iterable[nn.Module]) -> "dict[int, weakref.ref[Tensor]]":
    """Of each bias that is added to a matrix product or a convolution the weight, by the bias' id."""
    found: dict[int, weakref.ref[Tensor]] = {}
    for module in (module for root in roots for module in root.modules()):
        weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
        if weight is not None and bias is not None and weight.ndim > bias.ndim:
            found[id(bias)] = weakref.ref(weight)
    return found


def _has_gradient(parameter: Tensor) -> bool:
    return parameter.requires_grad and parameter.grad is not None


def _float_norms(found: list[Tensor]) -> Sequence[Tensor]:
    return norms_of([one.float() for one in found])


def _add_ratios(sizes: UpdateSizes, moved: _Moved, sums: list[list[float]]) -> None:
    ratios = {
        name: (update / weight) ** 0.5
        for name, update, weight in zip(moved.names, sums[0], sums[1], strict=True)
        if weight > 0.0
    }
    wanted = sum(sums[3])
    sizes.unmoved_share = round_number(sum(sums[2]) / wanted) if wanted else None
    sizes.compared = True
    if not ratios:
        return
    order = sorted(ratios, key=ratios.__getitem__)
    low, high, middle = order[0], order[-1], ratios[order[len(order) // 2]]
    sizes.ratio_median = round_number(middle)
    sizes.ratio_largest, sizes.ratio_largest_name = round_number(ratios[high]), high
    sizes.ratio_smallest, sizes.ratio_smallest_name = round_number(ratios[low]), low


def _is_lasting(kind: str, run: _Run, step: int) -> bool:
    looks, steps = LASTING[kind]
    return run.looks >= looks and step - run.step >= steps


def _build_lasting(names: list[str], runs: list[_Run]) -> Lasting:
    return {
        "names": names[:MAX_NAMES],
        "count": len(names),
        "looks": min(run.looks for run in runs),
        "since": min(run.step for run in runs),
    }


def _read_rate(group: dict[str, object]) -> float:
    rate = group.get("lr")
    if isinstance(rate, Tensor):
        return float(rate) if tensors.on_host(rate) else float("nan")
    return float(rate) if isinstance(rate, int | float) else float("nan")


def _simplify_value(value: object) -> object:
    """A hyperparameter as data that can be compared and written; None where it is neither."""
    if isinstance(value, Tensor):
        return float(value) if tensors.on_host(value) and value.numel() == 1 else None
    if isinstance(value, tuple | list) and len(value) <= 4:
        return [_simplify_value(item) for item in value]
    return value if isinstance(value, bool | int | float | str) else None


def _describe_group(group: dict[str, Any]) -> dict[str, object]:
    """One group: its hyperparameters, and how much it holds."""
    found = {
        str(name): _simplify_value(value) for name, value in group.items() if name not in ("params", "param_names")
    }
    held = group["params"]
    return {name: value for name, value in found.items() if value is not None} | {
        "parameters": len(held),
        "elements": sum(p.numel() for p in held),
    }


def _collect_hyperparameters(optimizer: "Optimizer") -> dict[str, object]:
    """What a change of is worth telling: all but the rates, which schedules move in every step."""
    found: dict[str, object] = {}
    for index, group in enumerate(optimizer.param_groups[:MAX_GROUPS]):
        for name, value in group.items():
            if name not in RATES and name not in ("params", "param_names"):
                found[f"{name}[{index}]"] = _simplify_value(value)
        found[f"parameters[{index}]"] = len(group["params"])
        found[f"trainable[{index}]"] = sum(p.requires_grad for p in group["params"])
    return found


def _state_mb(optimizer: "Optimizer") -> float:
    total = 0
    for state in optimizer.state.values():
        if isinstance(state, dict):
            held = (tensors.to_local_part(value) for value in state.values() if isinstance(value, Tensor))
            total += sum(value.numel() * value.element_size() for value in held)
    return round(total / 1e6, 3)
