"""The tensors that are alive: how many of each kind, how large, and what holds them.

A look goes over every object of the process (some 0.1 s): only for a report, never in a healthy step.
Nothing of what it returns is a tensor of the program.
"""

import gc
import sys
from collections import Counter, deque
from dataclasses import dataclass
from itertools import islice
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from tdbg.probes import tensors

MAX_OBJECTS = 3_000_000
MAX_TENSORS = 100_000
MAX_ASKED = 4  # kinds whose holder is looked for
MB = 1e6


@dataclass(frozen=True, slots=True)
class Kind:
    """What tensors have in common."""

    shape: tuple[int, ...]
    dtype: str
    device: str
    keeps: str  # the operation whose graph it keeps alive; "" for none
    parameter: bool

    def __str__(self) -> str:
        what = "parameter" if self.parameter else "tensor"
        text = f"{what} {list(self.shape)} {self.dtype} on {self.device}"
        return f"{text} with its graph ({self.keeps})" if self.keeps else text


@dataclass(slots=True)
class Census:
    """The live tensors by kind."""

    counts: Counter[Kind]
    nbytes: Counter[Kind]

    def largest(self, limit: int) -> list[str]:
        """The kinds that hold most bytes, a line each."""
        return [
            f"{size / MB:.1f} MB in {self.counts[kind]:,} x {kind}" for kind, size in self.nbytes.most_common(limit)
        ]

    def more_than(self, before: "Census") -> Counter[Kind]:
        """How many more of each kind than before; kinds that became fewer are left out."""
        return self.counts - before.counts


def take() -> Census:
    """Count the live tensors. Memory that several share is counted once, for the kind met first."""
    census = Census(Counter(), Counter())
    seen: set[int] = set()
    for tensor in _alive():
        try:
            kind = _kind(tensor)
            storage = tensors.local(tensor).untyped_storage()
            if storage.device.type == "meta":  # what the compiler keeps of its tracing has sizes and no memory
                continue
            address, size = storage.data_ptr(), storage.nbytes()
        except Exception:  # guard: a tensor class of somebody else's may refuse anything
            continue
        census.counts[kind] += 1
        if address not in seen:
            seen.add(address)
            census.nbytes[kind] += size
    return census


def holder(kinds: list[Kind]) -> str:
    """What holds tensors of one of these kinds, as far as Python knows: ``a list of 60 (history in __main__)``.

    Intermediate results are held by the graph alone; the first kind that a container holds is told.
    """
    some = _some(kinds[:MAX_ASKED])
    for kind in kinds[:MAX_ASKED]:
        for tensor in some.get(kind, ()):
            found = _boxes(tensor, some[kind])
            if found:
                box = max(found, key=len)
                return f"a {type(box).__name__} of {len(box):,}{_name(box, (some, found))}"
    return ""


def _some(kinds: list[Kind]) -> dict[Kind, list[Tensor]]:
    """Three tensors of each kind, none of them the newest: that one is not kept yet by whoever keeps the others."""
    found: dict[Kind, list[Tensor]] = {}
    for tensor in _alive():
        kind = _kind_of(tensor)
        if kind in kinds:
            found.setdefault(kind, []).append(tensor)
    return {kind: [held[place * len(held) // 4] for place in (1, 2, 3)] for kind, held in found.items()}


def _boxes(tensor: Tensor, ours: Any) -> list[Any]:
    """The containers of more than two items that refer to a tensor."""
    held = [item for item in gc.get_referrers(tensor) if type(item) in (list, dict, set, deque)]
    return [item for item in held if item is not ours and len(item) > 2 and not _is_namespace(item)]


def _alive() -> list[Tensor]:
    # type(), not isinstance(): the latter asks every object in memory for its __class__, and some warn
    found = []
    for item in islice(gc.get_objects(), MAX_OBJECTS):
        if issubclass(type(item), Tensor) and type(item).__name__ != "FakeTensor":
            found.append(item)
            if len(found) >= MAX_TENSORS:
                break
    return found


def _kind(tensor: Tensor) -> Kind:
    node = tensor.grad_fn if tensor.requires_grad else None
    return Kind(
        tuple(tensor.shape),
        str(tensor.dtype).removeprefix("torch."),
        str(tensor.device),
        node.name() if node is not None else "",
        isinstance(tensor, nn.Parameter),
    )


def _kind_of(tensor: Tensor) -> Kind | None:
    try:
        return _kind(tensor)
    except Exception:  # guard: as in `take`
        return None


def _name(box: Any, ours: tuple[Any, ...]) -> str:
    """Where a container is kept: the name of a module's variable or of an object's attribute."""
    modules: dict[int, str] = {}
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType):
            modules.setdefault(id(vars(module)), name)  # __main__ before its other names
    for owner in gc.get_referrers(box):
        if isinstance(owner, FrameType) or any(owner is one for one in ours):
            continue
        space = owner if isinstance(owner, dict) else getattr(owner, "__dict__", None)
        if not isinstance(space, dict):
            continue
        for name, value in list(space.items()):
            if value is box and isinstance(name, str):
                if id(space) in modules:
                    return f" ({name} in {modules[id(space)]})"
                return f" ({name}" + ("" if isinstance(owner, dict) else f" of a {type(owner).__name__}") + ")"
    return ""


def is_out_of_memory(error: BaseException) -> bool:
    """True for what torch and Python raise when memory ran out, on an accelerator or on the host."""
    known = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
    if isinstance(error, known | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _is_namespace(item: Any) -> bool:
    """True for the variables of a Python module, which are no container in the program's sense."""
    return type(item) is dict and "__builtins__" in item
