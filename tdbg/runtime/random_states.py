"""The random states that a forward pass may draw from: the host's, Python's, numpy's and those of all devices."""

import contextlib
import random
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tdbg.runtime.torch_compat import third_backend

# Devices with generators of their own; a backend from outside of torch is asked for by the name it has taken.
KINDS = ("cuda", "xpu", "mps", "mtia")
DeviceStates = dict[tuple[str, int], Tensor]


def device_states() -> DeviceStates:
    """The random state of every device in use, by kind and index; a backend that is not in use stays so.

    Cost: 1 us without an accelerator; some 2 us a device that the process can see, and nothing waits for one.
    """
    return {
        (kind, index): module.get_rng_state(index)
        for kind, module in _in_use()
        for index in range(module.device_count())
    }


def current_device_state() -> DeviceStates:
    """The random state of the CUDA device that the program uses now, if it uses one: some 5 us."""
    if not torch.cuda.is_initialized():
        return {}
    index = torch.cuda.current_device()
    return {("cuda", index): torch.cuda.get_rng_state(index)}


def set_device_states(states: DeviceStates) -> None:
    """Have every device go on from one of the `device_states`; all are tried before the first error is raised."""
    with contextlib.ExitStack() as stack:
        for (kind, index), state in states.items():
            stack.callback(getattr(torch, kind).set_rng_state, state, index)


@contextlib.contextmanager
def same_random_states() -> Iterator[None]:
    """What draws random numbers inside leaves no trace: all random states are put back, whatever is raised."""
    with contextlib.ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        numpy_random = getattr(sys.modules.get("numpy"), "random", None)
        if numpy_random is not None:
            stack.callback(numpy_random.set_state, numpy_random.get_state())
        stack.callback(torch.set_rng_state, torch.get_rng_state())
        stack.callback(partial(set_device_states, device_states()))
        yield


def _in_use() -> list[tuple[str, Any]]:
    """The backends that the program has brought up: to ask one of the others for a state would bring it up."""
    kinds = (*KINDS, third_backend())
    found = [(kind, getattr(torch, kind, None)) for kind in kinds]
    return [(kind, module) for kind, module in found if hasattr(module, "get_rng_state") and _is_initialized(module)]


def _is_initialized(module: Any) -> bool:
    """Of a backend that cannot say so (MPS), whether there is such a device: its generator needs no bringing up."""
    ask = getattr(module, "is_initialized", None) or module.is_available
    return bool(ask())
