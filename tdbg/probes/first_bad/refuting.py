"""What the records of a step say against a gradient, or an update, as the cause of a weight that is not finite."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from tdbg.runtime.tensors import Bad, find_bad_values, to_local_part

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor

MOMENTS = ("exp_avg", "momentum_buffer")  # a NaN or Inf of a gradient stays in them
SQUARES = ("max_exp_avg_sq", "exp_avg_sq")
HUGE = 1e30  # an update of this size may overflow the weight itself


def refute_gradient(monitor: "Monitor", parameters: Iterable[Tensor]) -> str:
    """The record that shows that no gradient of the last step was bad; empty if there is none."""
    step = monitor.step
    if monitor.last_full:
        return f"every gradient of step {step} was finite"
    gradients: Any = monitor.find_probe("gradient-norms")
    if gradients is not None and gradients.total_finite_at == step:
        return f"the total gradient norm of step {step} was finite"
    found = [_find_moment(monitor.optimizers, parameter) for parameter in parameters]
    if found and all(moment is not None and find_bad_values(moment[1]) is None for moment in found):
        return f"{found[0][0] if found[0] else 'the moment'} in the optimizer is finite after step {step}"
    return ""


def find_gradient_trace(optimizers: Iterable[Optimizer], parameter: Tensor) -> Bad | None:
    """What the gradient was, from the moment the optimizer keeps of it: a weight shows NaN for either."""
    moment = _find_moment(optimizers, parameter)
    return find_bad_values(moment[1]) if moment is not None else None


def update_explains(optimizers: Iterable[Optimizer], parameters: Iterable[Tensor]) -> bool:
    """True unless the last update is known to have been a finite one for all these parameters."""
    return any(_is_ruined(optimizers, parameter) for parameter in parameters)


def _find_moment(optimizers: Iterable[Optimizer], parameter: Tensor) -> tuple[str, Tensor] | None:
    for optimizer in optimizers:
        state = optimizer.state.get(parameter, {})
        for name in MOMENTS:
            if isinstance(state.get(name), Tensor):
                return name, state[name]
    return None


def _is_ruined(optimizers: Iterable[Optimizer], parameter: Tensor) -> bool:
    """True if the update of this parameter was not finite, or cannot be worked out again."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if any(parameter is held for held in group["params"]):
                return not _is_finite_update(group, optimizer.state.get(parameter, {}))
    return True


def _is_finite_update(group: dict[str, Any], state: dict[str, Any]) -> bool:
    """Work out the size of the last update from what the optimizer keeps: rate, decay, moments."""
    numbers = [value for name in ("lr", "weight_decay") if isinstance(value := group.get(name), float | int | Tensor)]
    factor = max([abs(float(value)) for value in numbers], default=0.0)
    if not factor < HUGE:
        return False
    moment = next((state[name] for name in MOMENTS if isinstance(state.get(name), Tensor)), None)
    square = next((state[name] for name in SQUARES if isinstance(state.get(name), Tensor)), None)
    if moment is None:
        return "momentum" in group  # plain SGD keeps nothing, and its update is rate times gradient
    with torch.no_grad():
        size = to_local_part(moment).abs()
        if square is not None:
            size = size / (to_local_part(square).sqrt() + group.get("eps", 0.0))
        return bool((size * max(factor, 1.0) < HUGE).all())
