"""What the optimizers hold of the models, and what none of them does."""

import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from tdbg.core.observations.optimizer import ForgottenModel, ParameterCoverage
from tdbg.probes import Probe
from tdbg.probes.optimizer.update_sizes import MAX_NAMES
from tdbg.runtime.root_modules import clean_path, unwrap_module
from tdbg.runtime.separate_models import ForgottenModule, SeparateModels, separate_history_of
from tdbg.runtime.unfrozen import frozen_parameters_of
from tdbg.runtime.unregistered import Unregistered, ValueWatch, find_unregistered

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from tdbg.runtime.monitor import Monitor

SETTLED_STEPS = 6  # by then gradients have been there, and all optimizers have been built
UNUSED_STEPS = 4  # from the first look at unregistered parameters with gradients to the one that tells of them
UNFROZEN_STEPS = 3  # from the first look at unfrozen parameters with gradients to the one that tells of them
MANY_PARAMETERS = 500  # of a model with more, unregistered ones are searched for more rarely while there are none
BOTH_STEP = 4  # updates back that an optimizer counts as at work
BOTH_STEPS = 5  # steps in a row in which two optimizers updated the same parameter
FORGOTTEN_SHARE = 0.5  # of the trainable parameters; more are left out on purpose


class Holders:
    """Which optimizers hold a parameter, and which of these are at work."""

    def __init__(self, monitor: "Monitor") -> None:
        self._monitor = monitor
        self._history = separate_history_of(monitor)
        self._last_update: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()

    def note_update(self, optimizer: "Optimizer") -> None:
        """An optimizer is about to update."""
        self._last_update[optimizer] = self._monitor.updates

    def collect(self) -> dict[int, list[str]]:
        """Parameters that optimizers hold, by id, with the classes of those that are at work on them."""
        at_work = {id(o) for o, at in self._last_update.items() if self._monitor.updates - at < BOTH_STEP}
        holders: dict[int, list[str]] = {}
        for optimizer in self._monitor.optimizers:
            works = [type(optimizer).__name__] if id(optimizer) in at_work else []
            for group in optimizer.param_groups:
                self._history.add_trained(group["params"])
                for parameter in group["params"]:
                    holders.setdefault(id(parameter), []).extend(works)
        return holders


class CoverageWatch:
    """Follows which trainable parameters no optimizer holds, and tells of those that look forgotten."""

    def __init__(self, probe: Probe, holders: Holders, separate: SeparateModels) -> None:
        self._probe, self._monitor, self._holders, self._separate = probe, probe.monitor, holders, separate
        self._reported: tuple[object, ...] = ()
        self._unregistered: ValueWatch | None = None
        self._unfrozen: ValueWatch | None = None
        self._frozen = frozen_parameters_of(probe.monitor)
        self._history = separate_history_of(probe.monitor)
        self._reported_unregistered = False  # and nothing has explained them since
        self._is_large = False  # the model, at the last search for them
        self._both = 0

    def check_coverage(self, looks: int, *, is_idle: bool) -> None:
        """Which trainable parameters no optimizer holds, and which two of them update.

        looks: so many were there before. is_idle: some optimizer has no gradient, and its own model is not called.
        """
        roots = self._monitor.trained_roots()
        for root in roots:
            self._frozen.add_frozen(root.parameters())
        holders = self._holders.collect()
        self._resolve_unfrozen(holders)
        unregistered = self._follow_unregistered(roots, holders, looks)
        if not is_idle:  # else it was built on something else, and that is the news
            self._look_at_separate(roots, holders)
        if self._monitor.step + 1 < SETTLED_STEPS:
            return
        named = self._monitor.find_probe("gradient-norms")
        if named is None:
            self._probe.unavailable("the probe that knows the parameters' names is off")
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
        self._report_coverage(trainable, left_out, twice, unregistered, idle, holders, named)

    def _follow_unfrozen(self, graded: Sequence[Tensor]) -> Sequence[Tensor]:
        """Of parameters that were unfrozen, get gradients and are held by no optimizer: those that nothing updates.

        A program may add them some steps later, or update them itself.
        """
        watch, step = self._unfrozen, self._monitor.step + 1
        if not graded or watch is None or not watch.is_of(graded):
            self._unfrozen = ValueWatch(graded, step) if graded else None
            return []
        watch.compare(graded, step, self._monitor.read_late)
        return graded if not watch.is_changed and watch.compared - watch.step >= UNFROZEN_STEPS else []

    def _look_at_separate(self, roots: Sequence[nn.Module], holders: Collection[int]) -> None:
        """Report models that are separate from the trained ones and whose gradients nobody uses, each once in a run."""
        of_trained = {id(p) for root in roots for p in root.parameters()} | set(holders)
        tops, step = self._monitor.roots.list_roots(), self._monitor.step + 1
        forgotten = self._separate.follow_forgotten(tops, of_trained, step, SETTLED_STEPS - 1, self._monitor.read_late)
        for found in forgotten:
            self._report_separate(found, roots)

    def _report_separate(self, found: ForgottenModule, roots: Sequence[nn.Module]) -> None:
        names = {id(p): clean_path(path) for path, p in unwrap_module(found.module).named_parameters()}
        seen = ForgottenModel(
            root=type(unwrap_module(found.module)).__name__,
            suffix=f"_{self._history.reported_count + 1}" if self._history.reported_count else "",
            number=self._history.reported_count,
            trained=[type(unwrap_module(root)).__name__ for root in roots[:MAX_NAMES]],
            since=found.since,
            graded=len(found.parameters),
            names=[names[id(p)] for p in found.parameters[:MAX_NAMES]],
            shape=list(found.parameters[0].shape),
        )
        self._history.reported_count += 1
        self._probe.emit(seen)

    def _follow_unregistered(
        self, roots: Iterable[nn.Module], holders: Collection[int], looks: int
    ) -> list[Unregistered]:
        """The parameters in plain containers that get gradients and that nothing has updated for some steps.

        Neither an optimizer nor the program: what it updates by hand changes its values.
        """
        if self._unregistered is None and self._is_large and looks.bit_count() != 1:
            return []
        trained = [root for root in roots if any(id(p) in holders for p in root.parameters())]
        registered = {id(p) for root in trained for p in root.parameters()} | set(holders)
        self._is_large = len(registered) > MANY_PARAMETERS
        everything = (one for root in trained for one in find_unregistered(root, registered))
        found = {id(one.parameter): one for one in everything if _has_gradient(one.parameter)}
        parameters = [one.parameter for one in found.values()]
        watch, step = self._unregistered, self._monitor.step + 1
        if not found or watch is None or not watch.is_of(parameters):
            self._unregistered = ValueWatch(parameters, step) if found else None
            return []
        watch.compare(parameters, step, self._monitor.read_late)
        if watch.is_changed:
            self._resolve("changed")
            return []
        return list(found.values()) if watch.compared - watch.step >= UNUSED_STEPS else []

    def _resolve(self, why: str) -> None:
        """The unregistered parameters told before turn out to be no fault."""
        if self._reported_unregistered:
            self._reported_unregistered = False
            self._probe.emit(ParameterCoverage(resolved=why))

    def _report_coverage(
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
        if key == self._reported or not (left_out or twice or unregistered or unfrozen or self._reported):
            return
        self._reported = key
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
                self._monitor.optimizers.when_held(
                    held_later, lambda: self._probe.guard.call_guarded(self._resolve, "held")
                )
        if unfrozen and self._unfrozen is not None:
            seen.unfrozen, seen.unfrozen_count = [named.name_of(p) for p in unfrozen[:MAX_NAMES]], len(unfrozen)
            seen.unfrozen_since = self._unfrozen.step
            self._frozen.reported = list(map(weakref.ref, unfrozen))
            self._await_unfrozen(unfrozen)
        self._probe.emit(seen)

    def _await_unfrozen(self, parameters: Sequence[Tensor]) -> None:
        self._monitor.optimizers.when_held(parameters, lambda: self._probe.guard.call_guarded(self._notice_held))

    def _notice_held(self) -> None:
        """An optimizer was given some of the unfrozen parameters: the others are waited for."""
        holders = self._holders.collect()
        if missing := self._resolve_unfrozen(holders):
            self._await_unfrozen(missing)

    def _resolve_unfrozen(self, holders: Collection[int]) -> list[Tensor]:
        """Tell it where optimizers hold all unfrozen parameters that were told of; else those that none holds."""
        alive = [parameter for ref in self._frozen.reported if (parameter := ref()) is not None]
        missing = [parameter for parameter in alive if id(parameter) not in holders]
        if not missing:
            self._frozen.reported = []
        if alive and not missing:
            self._probe.emit(ParameterCoverage(resolved="unfrozen held"))
        return missing

    def _were_replaced(self, left_out: Sequence[Tensor], trainable: Sequence[Tensor]) -> bool:
        """True if the optimizers hold, in place of each of these, a tensor like it that no gradient reaches.

        Like it but for the first dimension: a new head has another number of classes. Where nothing of the model is
        held, the optimizer is of another instance.
        """
        known = {id(p) for p in trainable}
        held = [
            p for optimizer in self._monitor.optimizers for group in optimizer.param_groups for p in group["params"]
        ]
        idle = Counter(p.shape[1:] for p in held if id(p) not in known and p.grad is None)
        return len(left_out) < len(trainable) and not Counter(p.shape[1:] for p in left_out) - idle


def _has_gradient(parameter: Tensor) -> bool:
    return parameter.requires_grad and parameter.grad is not None
