"""A second forward pass with gradients that leaves the model, and the program, as they were."""

import contextlib
import inspect
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tdbg.debuggers.hooks import seen_through, suspend_debuggers
from tdbg.runtime.random_states import same_random_states
from tdbg.runtime.root_modules import unwrap_module


@contextlib.contextmanager
def gradients_on(model: nn.Module) -> Iterator[None]:
    """Inside, autograd records, also within ``torch.no_grad()`` and ``torch.inference_mode()``; all is put back.

    The model is in eval mode, as a whole. Put back are: the modes of all its modules, the random states of torch (of
    the host and of every device in use), Python and numpy, the caller's gradient and inference mode. Debuggers do not
    look, and a compiled model runs uncompiled.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(suspend_debuggers())
        stack.enter_context(seen_through(model))
        stack.enter_context(same_random_states())
        stack.enter_context(_eval_mode(model))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_without_autocast_cache())
        yield


@contextlib.contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    """The flags alone: a model's own ``eval()`` may do more than set them."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


@contextlib.contextmanager
def _without_autocast_cache() -> Iterator[None]:
    """Not with the copies of weights that the program's own pass left: in older versions autograd refuses them."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def run_again(model: nn.Module, inputs: object) -> object:
    """The model's output for copies of these inputs, without a trace in its buffers. Call it in `gradients_on`.

    inputs: a tensor is the one argument; a tuple or list, and a mapping, are the arguments by place and by name where
        the model's ``forward`` takes so many and these, else the one argument too.
    DDP, DataParallel and torch.compile are left out of it. What the model keeps elsewhere than in parameters and
    buffers (a counter, a cache) it may change.
    Raises what the model raises.
    """
    root = unwrap_module(model)
    args, kwargs = _split_arguments(root, _copy_inputs(inputs, _device_of(root)))
    return functional_call(root, _stand_ins(root), args, kwargs)


def _stand_ins(root: nn.Module) -> dict[str, Tensor]:
    """Copies that stand in for the buffers, which a pass may change, and for what was made in inference mode."""
    buffers = {name: buffer.detach().clone() for name, buffer in root.named_buffers()}
    born = {name: p.detach().clone() for name, p in root.named_parameters() if p.is_inference()}
    return {**buffers, **born}


def _device_of(root: nn.Module) -> torch.device | None:
    """Where the inputs belong; None if the model is on several devices, or has no parameters."""
    devices = {parameter.device for parameter in root.parameters()}
    return devices.pop() if len(devices) == 1 else None


def _copy_inputs(value: object, device: torch.device | None) -> object:
    """The same structure with copies of its tensors, which the model may change and autograd may keep."""
    if isinstance(value, Tensor):
        copied = value.detach().clone()
        return copied if device is None else copied.to(device)
    if isinstance(value, Mapping):
        return {key: _copy_inputs(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(_copy_inputs(item, device) for item in value)
    if isinstance(value, list | tuple):
        return type(value)(_copy_inputs(item, device) for item in value)
    return value


def _split_arguments(root: nn.Module, inputs: object) -> tuple[tuple[object, ...], dict[str, object]]:
    signature = inspect.signature(root.forward)
    with contextlib.suppress(TypeError):  # it does not take them so
        if isinstance(inputs, Mapping):
            signature.bind(**inputs)
            return (), dict(inputs)
        if isinstance(inputs, list | tuple):
            signature.bind(*inputs)
            return tuple(inputs), {}
    return (inputs,), {}
