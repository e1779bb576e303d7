"""Custom `autograd.Function`s: their backward against differences of their forward, in float64."""

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tdbg.core.guard import describe_error, guarded
from tdbg.core.observations.preflight import CustomGradients
from tdbg.probes.preflight.forward_trials import Unfit
from tdbg.runtime.random_states import same_random_states
from tdbg.runtime.tensors import count_bytes

MAX_FUNCTIONS = 16
MAX_BYTES = 64_000_000  # of the inputs of one call, which are copied
STEPS = (1e-4, 1e-6)  # of the differences: two that agree show that the forward is smooth there
SMOOTH_SHARE = 1e-3  # how far the two may differ
WRONG_SHARE = 1e-2  # how far the backward may be from them
NOTHING = 1e-9  # a derivative below it, as a share of the largest, is 0
SEED = 7
OF_TORCH = ("torch.", "torchvision.", "functorch.")


class FunctionCall(NamedTuple):
    """The first call of a custom function, with copies of its tensors."""

    function: Any
    args: tuple[Any, ...]
    tracked: tuple[int, ...]  # arguments that need a gradient


class _Difference(NamedTuple):
    """One input's derivative in one direction."""

    backward: float
    differences: float


class FunctionCalls:
    """The first call of each custom function that is not torch's own."""

    def __init__(self) -> None:
        self.calls: dict[type, FunctionCall] = {}
        self.skipped: dict[str, str] = {}
        self.intended: list[str] = []  # those that the trial left alone

    def record_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the arguments of ``Function.apply``, the class first, before it runs."""
        function, *given = args
        if function in self.calls or len(self.calls) >= MAX_FUNCTIONS or kwargs or not torch.is_grad_enabled():
            return
        if f"{function.__module__}.".startswith(OF_TORCH):
            return
        tracked = tuple(
            place
            for place, value in enumerate(given)
            if isinstance(value, Tensor) and value.requires_grad and value.is_floating_point()
        )
        if not tracked:
            return
        if sum(count_bytes(value) for value in given if isinstance(value, Tensor)) > MAX_BYTES:
            self.skipped[function.__name__] = "inputs are too large"
            return
        copies = tuple(value.detach().clone() if isinstance(value, Tensor) else value for value in given)
        self.calls[function] = FunctionCall(function, copies, tracked)


def try_custom_gradients(calls: FunctionCalls) -> CustomGradients:
    """Which functions have another derivative than their backward says."""
    if not calls.calls and not calls.skipped:
        raise Unfit("no custom autograd.Function was called")
    seen = CustomGradients(
        intended=calls.intended, unchecked=[f"{name} ({reason})" for name, reason in calls.skipped.items()]
    )
    for call in calls.calls.values():
        name = call.function.__name__
        raised: list[BaseException] = []
        with guarded("a custom function may refuse float64", raised.append, program_code=True):
            _check_function(call, seen)
        if raised:
            error = raised[0]
            reason = str(error) if isinstance(error, Unfit) else describe_error(error)[:80]
            seen.unchecked.append(f"{name} ({reason})")
    if not seen.checked and not seen.intended:
        raise Unfit(f"could not be compared: {', '.join(seen.unchecked)}")
    return seen


def _check_function(call: FunctionCall, seen: CustomGradients) -> None:
    name = call.function.__name__
    doubles = [
        value.double() if isinstance(value, Tensor) and value.is_floating_point() else value for value in call.args
    ]
    if _returns_input(call, doubles):
        seen.intended.append(name)
        return
    found = {place: _compare_derivatives(call, doubles, place) for place in call.tracked}
    scale = max(max(abs(one.backward), abs(one.differences)) for one in found.values())
    if any(
        abs(one.differences) <= NOTHING * scale < abs(one.backward) and abs(one.backward) > WRONG_SHARE * scale
        for one in found.values()
    ):
        seen.intended.append(name)  # straight-through and surrogate gradients
        return
    seen.checked.append(name)
    for place, one in found.items():
        largest = max(abs(one.backward), abs(one.differences))
        if largest <= NOTHING * scale or abs(one.backward - one.differences) <= WRONG_SHARE * largest:
            continue
        if not seen.wrong:
            seen.input = _name_input(call.function, place)
            seen.backward, seen.differences = float(f"{one.backward:.4g}"), float(f"{one.differences:.4g}")
            seen.defined_at = _find_definition(call.function)
        seen.wrong.append(name)
        return


def _apply_function(call: FunctionCall, values: list[Any]) -> list[Tensor]:
    """The outputs in floating point; what the function draws is the same each time."""
    with same_random_states():
        torch.manual_seed(SEED)
        output = call.function.apply(*(value.clone() if isinstance(value, Tensor) else value for value in values))
    found = [one for one in (output if isinstance(output, tuple) else (output,)) if isinstance(one, Tensor)]
    found = [one for one in found if one.is_floating_point()]
    if not found:
        raise Unfit("it returns no numbers")
    if any(one.dtype is not torch.float64 for one in found):
        raise Unfit("it computes in another precision than its input's")
    return found


def _returns_input(call: FunctionCall, values: list[Any]) -> bool:
    """True for a function that only changes gradients: reversal, scaling, clipping."""
    with torch.no_grad():
        outputs = _apply_function(call, values)
    tracked = [values[place] for place in call.tracked]
    return any(one.shape == value.shape and torch.equal(one, value) for one in outputs for value in tracked)


def _compare_derivatives(call: FunctionCall, values: list[Any], place: int) -> _Difference:
    """The derivative in one direction, by backward and by differences."""
    generator = torch.Generator().manual_seed(SEED + place)

    def draw_normal(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.device)

    direction = draw_normal(values[place])
    with torch.enable_grad():
        needed = {other: values[other].clone().requires_grad_() for other in call.tracked}
        outputs = [
            one
            for one in _apply_function(call, [needed.get(at, value) for at, value in enumerate(values)])
            if one.requires_grad
        ]
        if not outputs:
            raise Unfit("no output needs a gradient")
        weights = [draw_normal(one) for one in outputs]
        total = sum((one * weight).sum() for one, weight in zip(outputs, weights, strict=True))
        gradient = torch.autograd.grad(total, needed[place], allow_unused=True)[0]  # type: ignore[arg-type]
    backward = 0.0 if gradient is None else float((gradient * direction).sum())
    count = len(outputs)

    def compute_weighted_sum(moved: float) -> float:
        shifted = [value + moved * direction if at == place else value for at, value in enumerate(values)]
        with torch.no_grad():
            found = _apply_function(call, shifted)
        if len(found) != count:
            raise Unfit("it returns outputs without a gradient as well")
        return float(sum((one * weight).sum() for one, weight in zip(found, weights, strict=True)))

    coarse, fine = ((compute_weighted_sum(step) - compute_weighted_sum(-step)) / (2 * step) for step in STEPS)
    if abs(coarse - fine) > SMOOTH_SHARE * max(abs(coarse), abs(fine), abs(backward)):
        raise Unfit("its forward is not smooth here")
    return _Difference(backward, fine)


def _name_input(function: Any, place: int) -> str:
    """The name in ``forward``, which has a context before it unless there is a ``setup_context``."""
    names: list[str] = []
    with guarded("a forward may have no signature", program_code=True):
        names = list(inspect.signature(function.forward).parameters)
    if function.setup_context is torch.autograd.Function.setup_context:
        names = names[1:]
    return names[place] if place < len(names) else f"input {place}"


def _find_definition(function: Any) -> str:
    code = getattr(function.backward, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
