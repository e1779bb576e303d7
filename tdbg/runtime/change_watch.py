"""Detects changes of a training: parameters, optimizer groups, train or eval mode, wrapper, compiled state."""

from collections.abc import Callable, Hashable, Iterable

from torch import nn
from torch.optim import Optimizer

MAX_OF_KIND = 3  # changes of one kind that are reported in a run
PARAMETERS_A_CHECK = 800  # compared at each check, on average


class ChangeWatch:
    """Compares a few facts of the training with those of the last check.

    A learning rate that follows a schedule, and optimizers that take turns, are no change. Cost: 2 us a check, and at
    most 40 us on average for parameters; between the kernels of a program several times that.

    optimizer: the one whose steps are counted. roots: the modules that are called from outside. compiled: whether
    anything was compiled.
    """

    def __init__(
        self,
        optimizer: Callable[[], Optimizer | None],
        roots: Callable[[], Iterable[nn.Module]],
        compiled: Callable[[], bool],
    ) -> None:
        self._optimizer = optimizer
        self._roots = roots
        self._compiled = compiled
        self._facts: dict[str, Hashable] = {}
        self._reported: dict[str, int] = {}
        self._checks = 0
        self._read = 0  # parameters of the roots, at the last look at them

    def find_change(self) -> str:
        """A kind of change since the last check that was not reported too often yet; empty if there is none."""
        self._checks += 1
        facts = self._read_facts()
        changed = [kind for kind, fact in facts.items() if kind in self._facts and self._facts[kind] != fact]
        self._facts |= facts
        fresh = next((kind for kind in changed if self._reported.get(kind, 0) < MAX_OF_KIND), "")
        if fresh:  # one look serves all of them: an added group, which brings parameters, is no reason for two
            self._reported |= {kind: self._reported.get(kind, 0) + 1 for kind in changed}
        return fresh

    def _read_facts(self) -> dict[str, Hashable]:
        roots = list(self._roots())
        facts: dict[str, Hashable] = {"wrapper": tuple(map(id, roots)), "compiled": self._compiled()}
        if facts["wrapper"] != self._facts.get("wrapper"):  # what is known is of other modules
            self._facts.pop("mode", None)
            self._facts.pop("parameters", None)
        facts["mode"] = tuple(root.training for root in roots)
        optimizer = self._optimizer()
        if optimizer is not None:
            groups = [group["params"] for group in optimizer.param_groups]
            facts["groups"] = tuple(map(len, groups))
            pause = 1 + max(sum(map(len, groups)), self._read) // PARAMETERS_A_CHECK
            if self._checks % pause == 0 or facts["groups"] != self._facts.get("groups"):
                held = sum(p.requires_grad for group in groups for p in group)
                described = list(map(_describe_parameters, roots))
                self._read = sum(count for count, *_ in described)
                facts["parameters"] = held, *described
        return facts


def _describe_parameters(root: nn.Module) -> tuple[int, int, int]:
    """How many, which they are, and how many of them want a gradient: the optimizer may not hold those that are unfrozen.

    In one loop: ``parameters()`` goes through four generators for each.
    """
    count = identity = graded = 0
    waiting, seen = [root], {id(root)}
    for module in waiting:
        for parameter in list(module._parameters.values()):
            if parameter is not None:
                count += 1
                identity += id(parameter)
                graded += parameter.requires_grad
        for child in list(module._modules.values()):
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                waiting.append(child)
    return count, identity, graded
