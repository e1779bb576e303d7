"""The tensors that are alive: how many of each kind, how large, and what holds them.

A look goes over every object of the process (some 0.1 s): only for a report, never in a healthy step.
Nothing of what it returns is a tensor of the program.
"""

import gc
import sys
from collections import Counter, deque
from dataclasses import dataclass
from itertools import islice
from types import CellType, FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from tdbg.core.guard import guarded
from tdbg.runtime import tensors

MAX_OBJECTS = 3_000_000
MAX_TENSORS = 100_000
MAX_ASKED = 64  # kinds whose holder is looked for
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

    def format_largest(self, limit: int) -> list[str]:
        """The kinds that hold most bytes, a line each."""
        return [
            f"{size / MB:.1f} MB in {self.counts[kind]:,} x {kind}" for kind, size in self.nbytes.most_common(limit)
        ]

    def more_than(self, before: "Census") -> Counter[Kind]:
        """How many more of each kind than before; kinds that became fewer are left out."""
        return self.counts - before.counts


REFUSING = guarded("a tensor class of somebody else's may refuse anything")


def count_live_tensors() -> Census:
    """Count the live tensors. Memory that several share is counted once, for the kind met first."""
    census = Census(Counter(), Counter())
    seen: set[int] = set()
    for tensor in _collect_live_tensors():
        with REFUSING:
            kind = _build_kind(tensor)
            storage = tensors.to_local_part(tensor).untyped_storage()
            if storage.device.type == "meta":  # what the compiler keeps of its tracing has sizes and no memory
                continue
            address, size = storage.data_ptr(), storage.nbytes()
            census.counts[kind] += 1
            if address not in seen:
                seen.add(address)
                census.nbytes[kind] += size
    return census


def find_holder(kinds: list[Kind]) -> str:
    """What holds tensors of these kinds, as far as Python knows: ``a list of 60 (history in __main__)``.

    Intermediate results are held by the graph alone, so most kinds have no container; the largest one is told, of
    those with a graph first.
    """
    some = _sample_tensors(kinds[:MAX_ASKED])
    asked = [tensor for held in some.values() for tensor in held]
    keeps = {id(tensor): bool(kind.keeps) for kind, held in some.items() for tensor in held}
    found = [box for box in _find_containers(asked) if not any(box is own for own in (asked, *some.values()))]
    if not found:
        return ""
    box = max(found, key=lambda box: (_has_graph_tensor(box, keeps), len(box)))
    return f"a {type(box).__name__} of {len(box):,}{_find_container_name(box, (some, found))}"


def _sample_tensors(kinds: list[Kind]) -> dict[Kind, list[Tensor]]:
    """Three tensors of each kind, none of them the newest: that one is not kept yet by whoever keeps the others."""
    found: dict[Kind, list[Tensor]] = {}
    asked = set(kinds)
    for tensor in _collect_live_tensors():
        kind = _kind_of(tensor)
        if kind in asked:
            found.setdefault(kind, []).append(tensor)
    return {kind: [held[place * len(held) // 4] for place in (1, 2, 3)] for kind, held in found.items()}


def _find_containers(asked: list[Tensor]) -> list[Any]:
    """The containers of more than two items that refer to one of the tensors: one walk over all objects."""
    held = [item for item in gc.get_referrers(*asked) if type(item) in (list, dict, set, deque)]
    return [item for item in held if len(item) > 2 and not _is_namespace(item)]


def _has_graph_tensor(box: Any, keeps: dict[int, bool]) -> bool:
    """True if one of the tensors in a container keeps its graph."""
    return any(keeps.get(id(item), False) for item in (box.values() if isinstance(box, dict) else box))


def _collect_live_tensors() -> list[Tensor]:
    # type(), not isinstance(): the latter asks every object in memory for its __class__, and some warn
    found = []
    for item in islice(gc.get_objects(), MAX_OBJECTS):
        if issubclass(type(item), Tensor) and type(item).__name__ != "FakeTensor":
            found.append(item)
            if len(found) >= MAX_TENSORS:
                break
    return found


def _build_kind(tensor: Tensor) -> Kind:
    node = tensor.grad_fn if tensor.requires_grad else None
    return Kind(
        tuple(tensor.shape),
        str(tensor.dtype).removeprefix("torch."),
        str(tensor.device),
        node.name() if node is not None else "",
        isinstance(tensor, nn.Parameter),
    )


def _kind_of(tensor: Tensor) -> Kind | None:
    with REFUSING:
        return _build_kind(tensor)
    return None


def _find_container_name(box: object, ours: tuple[object, ...]) -> str:
    """Where a container is kept: the name of a module's variable, of an object's attribute, or of a closure's."""
    modules: dict[int, str] = {}
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType):
            modules.setdefault(id(vars(module)), name)  # __main__ before its other names
    for owner in gc.get_referrers(box):
        if isinstance(owner, FrameType) or any(owner is one for one in ours):
            continue
        if isinstance(owner, CellType) and (said := _of_closure(owner)):
            return said
        space = owner if isinstance(owner, dict) else getattr(owner, "__dict__", None)
        if not isinstance(space, dict):
            continue
        for name, value in list(space.items()):
            if value is box and isinstance(name, str):
                if id(space) in modules:
                    return f" ({name} in {modules[id(space)]})"
                return f" ({name}" + ("" if isinstance(owner, dict) else f" of a {type(owner).__name__}") + ")"
    return ""


def _of_closure(cell: CellType) -> str:
    """The name of a variable that a function has from around it."""
    for cells in gc.get_referrers(cell):
        if type(cells) is not tuple:
            continue
        for function in gc.get_referrers(cells):
            if isinstance(function, FunctionType) and function.__closure__ is cells:
                at = next(place for place, one in enumerate(cells) if one is cell)
                return f" ({function.__code__.co_freevars[at]} of {function.__qualname__}())"
    return ""


def is_out_of_memory(error: BaseException) -> bool:
    """True for what torch and Python raise when memory ran out, on an accelerator or on the host."""
    known = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
    if isinstance(error, known | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _is_namespace(item: object) -> bool:
    """True for the variables of a Python module, which are no container in the program's sense."""
    return type(item) is dict and "__builtins__" in item
