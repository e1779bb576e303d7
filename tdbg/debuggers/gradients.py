"""Gradients: what arrives at a layer in backward."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from tdbg.debuggers import DEBUGGERS
from tdbg.debuggers.base import ForwardDebugger, join_calls
from tdbg.debuggers.captured_stats import compute_stats, measure_tensor
from tdbg.debuggers.copies import copy_of
from tdbg.debuggers.hooks import HookGuard, is_program_forward
from tdbg.debuggers.layers import get_layer_by_name
from tdbg.runtime.own_hooks import add_gradient_hook
from tdbg.runtime.root_modules import clean_path
from tdbg.runtime.tensors import iter_tensors

Arrived = dict[str, dict[str, Any]]
TOO_EARLY = "no gradient available: call this between backward() and zero_grad()"


@DEBUGGERS.add
class Gradients(ForwardDebugger):
    """The gradients of a layer's parameters, and that of its output, after ``backward()``.

    values: False keeps only their figures.
    Returns ``layer_name`` and

    - ``parameter_grads`` {name: tensor} and ``parameter_grad_stats`` {name: norm, mean, std, min, max, shape} of all
      parameters of the layer and the layers inside, as their ``grad`` stands when the debugger is called;
      ``without_grad`` lists those that have none;
    - ``output_grad`` and ``output_grad_stats`` of the output that a gradient reached (in the last backward), of several
      tensors the first, ``others`` by path;
    - ``note`` if there is no gradient at all.

    Gradients are taken as they are: still times the scale under a GradScaler, a shard's under FSDP. The output needs
    the debugger attached, parameters do not. Nothing of the graph is held: only copies of gradients.
    Limits: no gradient of an output inside a checkpoint with ``use_reentrant=True``.
    Cost:   a copy to the host of each gradient, which waits on an accelerator.
    """

    name = "gradients"
    after_backward = True

    def __init__(self, layer_name: str, *, values: bool = True) -> None:
        super().__init__(layer_name)
        self.values = values

    @property
    def has_arrived(self) -> bool:
        """True once a gradient has arrived at an output that was captured in this thread."""
        return any(entry for arrived in self._thread_calls.kept for entry in arrived.values())

    def _capture_output(self, module: nn.Module, input: object, output: object) -> None:
        if is_program_forward():
            self._keep_capture(self.process_forward(module, input, output))  # filled later, so it must not be a copy

    def process_forward(self, module: nn.Module, input: object, output: object) -> Arrived:
        """A table that fills when gradients arrive at the output: path -> what is told, in the output's order."""
        wanted = [(path, tensor) for path, tensor in iter_tensors(output) if tensor.requires_grad]
        arrived: Arrived = {path: {} for path, _ in wanted}
        for path, tensor in wanted:
            add_gradient_hook(tensor, _Arrival(self._hook_guard, arrived, path, values=self.values))
        return arrived

    def __call__(self, datapoint: Mapping[str, Any], model: nn.Module) -> dict[str, object]:
        calls, dropped = self.take_calls()
        kept = [_one_call(arrived) for arrived in calls]
        result = {"layer_name": self.layer_name, **(join_calls(kept, dropped) or {}), **self._of_parameters(model)}
        if self.switched_off:
            result["note"] = self.missing(model)
        elif not result["parameter_grad_stats"] and not any(kept):
            result["note"] = TOO_EARLY
        return result

    def _of_parameters(self, model: nn.Module) -> dict[str, object]:
        layer = get_layer_by_name(model, self.layer_name)
        named = {clean_path(name): parameter.grad for name, parameter in layer.named_parameters()}
        grads = {name: grad for name, grad in named.items() if grad is not None}
        found: dict[str, Any] = {"parameter_grad_stats": {name: _compute_stats(grad) for name, grad in grads.items()}}
        if self.values:
            found["parameter_grads"] = {name: copy_of(grad) for name, grad in grads.items()}
        without = [name for name, grad in named.items() if grad is None]
        return {**found, "without_grad": without} if without else found


class _Arrival:
    """The hook of one output's gradient. It holds a table of copies alone, so the graph can go when it wants to."""

    __torch_unserializable__ = True  # a pickled tensor must not carry it
    __slots__ = ("arrived", "guard", "path", "values")

    def __init__(self, guard: HookGuard, arrived: Arrived, path: str, *, values: bool) -> None:
        self.guard, self.arrived, self.path, self.values = guard, arrived, path, values

    def __call__(self, grad: Tensor | None) -> None:
        if grad is not None:
            self.guard.call_guarded(self._record_gradient, grad)

    def _record_gradient(self, grad: Tensor) -> None:
        entry: dict[str, object] = {"output_grad_stats": _compute_stats(grad)}
        self.arrived[self.path] = {**entry, "output_grad": copy_of(grad)} if self.values else entry


def _compute_stats(grad: Tensor) -> dict[str, object]:
    return {"norm": measure_tensor(grad).norm, **compute_stats(grad)}


def _one_call(arrived: Arrived) -> dict[str, object]:
    """What one call of the layer got: the first tensor's, and those of the others by path."""
    reached = {path: entry for path, entry in arrived.items() if entry}
    if not reached:
        return {}
    first, *more = reached
    others = {"others": {path: reached[path] for path in more}} if more else {}
    return {**reached[first], **others}
