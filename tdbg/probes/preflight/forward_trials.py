"""Running the kept batch again, with other inputs, other random numbers or in another mode, and comparing outputs."""

import contextlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tdbg.probes.preflight.batch_inputs import Input, list_inputs, replace_tensors
from tdbg.runtime.own_hooks import HookHandle, add_post_hook, can_hook
from tdbg.runtime.rerun import Call, as_before
from tdbg.runtime.tensors import has_no_data, is_sharded, iter_tensors
from tdbg.runtime.torch_compat import unseen_by_subclasses

OTHER_SEED = 20261
FILL_STD = 0.05  # of what stands in for weights that are zero
LEAST_RATIO = 1e-4  # of the change of the sample's own output, or of the changed position's
LEAST_SHARE = 1e-6  # of the largest output
MAX_MODULES = 256
NO_STATE = ("_parameters", "_buffers", "_modules", "training")

Outputs = dict[str, Tensor]
Summary = Callable[[Tensor], "Tensor | None"]  # what is kept of a module's output


class Unfit(Exception):
    """The trial cannot be made, for this reason."""


class ForwardTrials:
    """One call of the model, repeated as often as trials want it. The weights of the call must be intact.

    Random state, buffers, modes and attributes are put back after each run; weights that are all zero (gates and last
    layers begin so) have small random values while trials run, or nothing behind them would have an effect.
    """

    def __init__(self, call: Call, model: nn.Module) -> None:
        self.call = call
        self.model = model
        self.inputs: list[Input] = list_inputs(model, call.args, call.kwargs)
        self.order: list[tuple[str, str]] = []  # path and class of the modules of the last summarised run

    def run_forward(
        self, others: Mapping[int, Tensor] | None = None, *, trains: bool = False, other_numbers: bool = False
    ) -> Outputs:
        """The tensors that the model returns. others: inputs in the place of those with these identities."""
        found = {
            name: tensor.detach()
            for name, tensor in self._call_model(others or {}, trains=trains, other_numbers=other_numbers).items()
        }
        if not found:
            raise Unfit("the model returns no tensor")
        return found

    def run_graded(self) -> Outputs:
        """The same in train mode, with the graph."""
        with torch.enable_grad():
            return self._call_model({}, trains=True, other_numbers=False)

    def _call_model(self, others: Mapping[int, Tensor], *, trains: bool, other_numbers: bool) -> Outputs:
        args, kwargs = self.call.args, self.call.kwargs
        if others:
            args, kwargs = replace_tensors(args, others), replace_tensors(kwargs, others)
        with (
            as_before(self.call, self.model),
            torch.set_grad_enabled(self.call.graded),
            _switch_mode(self.model, trains=trains),
            _same_attributes(self.model),
        ):
            if other_numbers:
                _draw_others()
            output = self.model(*args, **kwargs)
        return {name: tensor for name, tensor in iter_tensors(output) if not has_no_data(tensor)}

    def summarise_outputs(self, others: Mapping[int, Tensor], summary: Summary) -> list["Tensor | None"]:
        """What ``summary`` makes of the output of each module, in the order in which they return."""
        kept: list[Tensor | None] = []
        self.order = []
        names = {id(module): (path, type(module).__name__) for path, module in self.model.named_modules()}

        @unseen_by_subclasses
        def record_output(module: nn.Module, args: object, output: object) -> None:
            if len(kept) < MAX_MODULES:
                tensor = next((one for _, one in iter_tensors(output)), None)
                kept.append(None if tensor is None else summary(tensor.detach()))
                self.order.append(names[id(module)])

        handles: list[HookHandle] = []
        try:
            for module in self.model.modules():
                if module is not self.model and can_hook(module) and not isinstance(module, torch.jit.ScriptModule):
                    handles.append(add_post_hook(module, record_output))
            self.run_forward(others)
        finally:
            for handle in handles:
                handle.remove()
        return kept

    def find_layer(self, others: Mapping[int, Tensor], summary: Summary) -> tuple[str, str] | None:
        """The first layer whose summary changes with the inputs: its path and class."""
        before, order = self.summarise_outputs({}, summary), self.order
        after = self.summarise_outputs(others, summary)
        if order != self.order:
            return None
        for place, one, other in zip(order, before, after, strict=True):
            if one is not None and other is not None and one.shape == other.shape and not torch.equal(one, other):
                return place
        return None


@contextlib.contextmanager
def no_zero_weights(model: nn.Module) -> Iterator[None]:
    """Weights that are all zero have small random values meanwhile; those of others are put back untouched."""
    zero = [
        parameter
        for parameter in model.parameters()
        if parameter.is_floating_point() and not (is_sharded(parameter) or parameter.any())
    ]
    held = [(parameter, parameter.data) for parameter in zero]
    try:
        for parameter, data in held:
            parameter.data = torch.randn_like(data) * FILL_STD
        yield
    finally:
        for parameter, data in held:
            parameter.data = data


@contextlib.contextmanager
def _switch_mode(model: nn.Module, *, trains: bool) -> Iterator[None]:
    """All modules in train mode as they were, or in eval mode."""
    before = [(module, module.training) for module in model.modules()]
    try:
        if not trains:
            model.eval()
        yield
    finally:
        for module, training in before:
            module.training = training


@contextlib.contextmanager
def _same_attributes(model: nn.Module) -> Iterator[None]:
    """What a forward keeps on its modules (hidden states, caches, counters) is put back: names, lists and dicts."""
    kept: list[tuple[nn.Module, dict[str, Any], dict[str, Any]]] = []
    for module in model.modules():
        own = {name: value for name, value in vars(module).items() if name not in NO_STATE and "_hooks" not in name}
        kept.append((module, own, {name: value.copy() for name, value in own.items() if type(value) in (list, dict)}))
    try:
        yield
    finally:
        for module, own, copies in kept:
            for name in [name for name in vars(module) if name not in own and name not in NO_STATE]:
                if "_hooks" not in name:
                    del vars(module)[name]
            vars(module).update(own)
            for name, copy in copies.items():
                own[name].clear()
                own[name].extend(copy) if type(copy) is list else own[name].update(copy)


def _draw_others() -> None:
    """Have the pass draw other numbers than the call did; `as_before` puts the states back."""
    torch.manual_seed(OTHER_SEED)
    random.seed(OTHER_SEED)
    numpy_random = getattr(sys.modules.get("numpy"), "random", None)
    if numpy_random is not None:
        numpy_random.seed(OTHER_SEED)


def are_equal(some: Outputs, others: Outputs) -> bool:
    """True if all outputs are the same, bit for bit (NaN equals NaN)."""
    return some.keys() == others.keys() and all(
        tensor.shape == others[name].shape
        and bool(torch.equal(_replace_nonfinite(tensor), _replace_nonfinite(others[name])))
        for name, tensor in some.items()
    )


def _replace_nonfinite(tensor: Tensor) -> Tensor:
    return torch.nan_to_num(tensor) if tensor.is_floating_point() else tensor


def pair_outputs(some: Outputs, others: Outputs) -> Iterator[tuple[Tensor, Tensor]]:
    """Outputs in floating point that have the same name and shape in both; Unfit if a shape has changed."""
    for name, tensor in some.items():
        other = others.get(name)
        if other is None or other.shape != tensor.shape:
            raise Unfit("the shape of the output depends on the changed values")
        if tensor.is_floating_point():
            yield tensor.float(), other.float()


def find_largest_element(change: Tensor) -> float:
    """The largest element; 0 of none, and what is not finite counts as no change."""
    return float(torch.nan_to_num(change, 0.0, 0.0, 0.0).max()) if change.numel() else 0.0


def is_change(other: float, own: float, scale: float) -> bool:
    """True for a change beside the place that was changed which is more than rounding."""
    return own > 0.0 and other > max(LEAST_RATIO * own, LEAST_SHARE * scale)
