"""Updates in which nothing that an optimizer holds has a gradient."""

import weakref
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tdbg.core.observations.optimizer import EmptyUpdates
from tdbg.probes import Probe
from tdbg.probes.optimizer.coverage import Holders
from tdbg.probes.optimizer.update_sizes import MAX_NAMES, name_parameter
from tdbg.runtime.root_modules import clean_path, unwrap_module
from tdbg.runtime.separate_models import SeparateModels, separate_history_of
from tdbg.runtime.unregistered import ValueWatch

if TYPE_CHECKING:
    from torch.optim import Optimizer

EMPTY_LOOKS = 4  # in a row without any gradient in the optimizer, while the model has some
TWIN_LOOKS = 2  # where a model of the very shapes that it holds has a gradient in each parameter, and no optimizer
UNREACHED_STEPS = 12  # in a row where the optimizer's own model is called: its loss may begin some steps later


@dataclass(slots=True)
class EmptyRun:
    """Looks in a row in which an optimizer had no gradient at all."""

    step: int
    looks: int = 0
    called: int = 0  # steps in a row in which its own model had been called
    called_step: int = 0  # the last of these
    was_called: bool = False  # in one of them
    was_reached: bool = False  # by a gradient, which was gone before the update
    is_reported: bool = False
    watch: ValueWatch | None = None  # of what it holds: an update may clear the gradients that it had


class EmptyUpdateWatch:
    """Follows optimizers without any gradient, and tells of those that look built on something else, or cut off."""

    def __init__(self, probe: Probe, holders: Holders, separate: SeparateModels) -> None:
        self._probe, self._monitor, self._holders, self._separate = probe, probe.monitor, holders, separate
        self._history = separate_history_of(probe.monitor)
        self._empty: weakref.WeakKeyDictionary[Optimizer, EmptyRun] = weakref.WeakKeyDictionary()

    @property
    def is_idle(self) -> bool:
        """True if some optimizer has no gradient, and its own model is not called either."""
        return any(not run.was_called for run in self._empty.values())

    def note_backward(self) -> None:
        """A backward has returned: gradients that are gone before the update have been there."""
        for optimizer, run in self._empty.items():
            run.was_reached = run.was_reached or any(
                p.grad is not None for group in optimizer.param_groups for p in group["params"]
            )

    def follow_update(self, optimizer: "Optimizer", step: int, *, is_sampled: bool = False) -> None:
        """Follow updates in which no parameter of the optimizer has a gradient, while others of a model have one.

        After the update, as a closure computes gradients inside it. Copies in another precision, to which a program
        moves gradients itself, have some.

        step: of the last backward. is_sampled: gradients of its parameters were read before the update.
        """
        held = [p for group in optimizer.param_groups for p in group["params"]]
        if is_sampled or any(p.grad is not None for p in held):
            self._empty.pop(optimizer, None)
            return
        run = self._empty.setdefault(optimizer, EmptyRun(step))
        run.looks += 1
        self._follow_calls(run, held, step)
        if run.was_reached:
            return
        is_twin = run.looks == TWIN_LOOKS and self._monitor.is_main(optimizer) and self._is_twin_trained(held)
        if (is_twin or run.looks == EMPTY_LOOKS) and held and not (run.was_called or run.is_reported):
            self._report_empty(optimizer, held, run)
        if run.called >= UNREACHED_STEPS and optimizer not in self._history.unreached:
            self._report_unreached(optimizer, held, run, step)

    def _follow_calls(self, run: EmptyRun, held: Sequence[Tensor], step: int) -> None:
        """In how many steps in a row the model that the optimizer holds was called, and whether it has stayed."""
        if run.called_step == step:
            return
        run.called_step = step
        if self._separate.find_called({id(p) for p in held}) is None:
            run.called, run.watch = 0, None
            return
        run.called, run.was_called = run.called + 1, True
        if run.watch is None:
            run.watch = ValueWatch(held, step)
        else:
            run.watch.compare(held, step, self._monitor.read_late)

    def _report_unreached(self, optimizer: "Optimizer", held: Sequence[Tensor], run: EmptyRun, step: int) -> None:
        """The optimizer's own model is called with gradients enabled in each step, and none reaches it."""
        model = self._separate.find_called({id(p) for p in held})
        if model is None or run.watch is None or run.watch.is_changed:
            return
        seen = EmptyUpdates(
            optimizer=type(optimizer).__name__,
            root=type(unwrap_module(model)).__name__,
            number=self._history.unreached_count,
            since=step - UNREACHED_STEPS + 1,
            updates=run.looks,
            held=len(held),
            frozen=sum(not p.requires_grad for p in held),
            called=True,
        )
        self._history.unreached.add(optimizer)
        self._history.unreached_count += 1
        self._probe.emit(seen, step=step)

    def _report_empty(self, optimizer: "Optimizer", held: Sequence[Tensor], run: EmptyRun) -> None:
        is_main = self._monitor.is_main(optimizer)
        if not is_main and self._may_rest(held):
            return
        root, graded = self._find_unused_gradients(None if is_main else {p.shape[1:] for p in held if p.ndim > 1})
        other = "" if graded or not is_main else self._monitor.search.trained_instead()
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
            names=[clean_path(paths.get(id(p), "")) or name_parameter(self._monitor, p) for p in graded[:MAX_NAMES]],
        )
        run.is_reported = True
        self._probe.emit(seen, step=run.step)

    def _is_twin_trained(self, held: Sequence[Tensor]) -> bool:
        """True if another instance of the model that the optimizer holds gets all the gradients.

        As where each fold of a cross-validation builds a model, and the first one's optimizer is kept.
        """
        taken, shapes = self._holders.collect(), Counter(p.shape for p in held if p.requires_grad)
        for root in self._monitor.roots.list_roots():
            trainable = [p for p in root.parameters() if p.requires_grad]
            is_twin = bool(trainable) and Counter(p.shape for p in trainable) == shapes
            if is_twin and all(p.grad is not None and id(p) not in taken for p in trainable):
                return True
        return False

    def _may_rest(self, held: Sequence[Tensor]) -> bool:
        """True if what an optimizer beside the main one holds is frozen for a while, or part of a model that is there.

        A task head or an encoder has its turn later. What was replaced is part of no model any more.
        """
        there = {id(p) for root in self._monitor.roots.list_roots() for p in root.parameters()}
        return any(not p.requires_grad or id(p) in there for p in held)

    def _find_unused_gradients(self, shapes: Collection[torch.Size] | None) -> tuple[nn.Module | None, list[Tensor]]:
        """The root with the most parameters that have a gradient and no optimizer, and these.

        With ``shapes`` only models with one of such a shape but for the first dimension: beside several optimizers a
        model may get gradients that the program does not train.
        """
        taken = self._holders.collect()
        found: list[tuple[nn.Module, list[Tensor]]] = [
            (root, [p for p in root.parameters() if p.grad is not None and id(p) not in taken])
            for root in self._monitor.roots.list_roots()
        ]
        if shapes is not None:
            found = [
                (root, graded)
                for root, graded in found
                if any(p.ndim > 1 and p.shape[1:] in shapes for p in graded)
                and not any(id(p) in taken for p in root.parameters())  # else `CoverageWatch` tells of it
            ]
        return max(found, key=lambda one: len(one[1])) if found else (None, [])
