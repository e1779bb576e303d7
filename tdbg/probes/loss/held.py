"""How much memory is in use, and what tensors and their graphs hold of it; without a hook, and without a copy."""

import ctypes
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from tdbg.probes.memory import host_memory
from tdbg.runtime import tensors, torch_compat

MB = 1e6
FIGURES = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
MAX_NODES = 100_000
PROBE_ELEMENTS = 1 << 19  # 2 MB in float32: what malloc has to show when it is asked whether it counts


@dataclass(slots=True)
class Kept:
    """One piece of memory: who holds it."""

    name: str
    kind: str  # made (given to `mark`) or saved (for backward)
    mb: float
    storage: StorageWeakRef  # keeps nothing alive, and knows whether it still is


Seen = dict[int, Kept]  # by address, so that memory that several share counts once


def record_held(name: str, given: Tensor | Iterable[Tensor | None] | None, seen: Seen) -> None:
    """Enter what was made, and what its graphs keep for backward."""
    listed = [given] if isinstance(given, Tensor) or not isinstance(given, Iterable) else given
    made = [item for item in listed if item is not None and not isinstance(item, int | float)]
    for tensor in made:
        _record_tensor(tensor, name, "made", seen)
    for operation, tensor in _iter_saved_tensors([tensor.grad_fn for tensor in made if tensor.grad_fn is not None]):
        _record_tensor(tensor, operation, "saved", seen)


def select_alive(seen: Seen) -> Seen:
    """The pieces that somebody still holds."""
    return {address: kept for address, kept in seen.items() if not kept.storage.expired()}


def build_rows(seen: Seen) -> list[dict[str, Any]]:
    """The pieces by name, the largest first: name, kind, count, mb."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for kept in seen.values():
        row = rows.setdefault((kept.name, kept.kind), {"name": kept.name, "kind": kept.kind, "count": 0, "mb": 0.0})
        row["count"] += 1
        row["mb"] += kept.mb
    return sorted(rows.values(), key=lambda row: -float(row["mb"]))


def _record_tensor(tensor: Tensor, name: str, kind: str, seen: Seen) -> None:
    storage = tensors.to_local_part(tensor).untyped_storage()
    address, size = storage.data_ptr(), storage.nbytes()
    if not address or address in seen:
        return
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    seen[address] = Kept(
        f"{name} {shape} {str(tensor.dtype).removeprefix('torch.')}", kind, size / MB, StorageWeakRef(storage)
    )


def _iter_saved_tensors(roots: Iterable[Any]) -> Iterator[tuple[str, Tensor]]:
    """(operation, tensor) of all that a graph keeps, parameters and their views left out.

    What somebody packed (checkpointing, offloading) is not unpacked. Empty where torch does not show what graphs keep.
    """
    if not torch_compat.shows_saved_tensors:
        return
    todo = list(roots)
    met: dict[Any, None] = {}  # in the order of the walk
    while todo and len(met) < MAX_NODES:
        node = todo.pop()
        if node not in met:
            met[node] = None
            todo += [other for other, _ in node.next_functions if other is not None]
    leaves = (getattr(node, "variable", None) for node in met)  # of AccumulateGrad
    parameters = {tensors.to_local_part(leaf).untyped_storage().data_ptr() for leaf in leaves if leaf is not None}
    for node in met:
        for name in _raw_names(type(node)):
            found = getattr(node, name)
            for saved in found if isinstance(found, tuple) else (found,):
                data = getattr(saved, "data", None)
                if (
                    isinstance(data, Tensor)
                    and tensors.to_local_part(data).untyped_storage().data_ptr() not in parameters
                ):
                    yield node.name(), data


_NAMES: dict[object, tuple[str, ...]] = {}  # class of a node -> under which names it keeps what it saves


def _raw_names(kind: object) -> tuple[str, ...]:
    if kind not in _NAMES:
        _NAMES[kind] = tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))
    return _NAMES[kind]


class Meter:
    """Memory in use on one device."""

    def __init__(self, device: torch.device | str | None) -> None:
        if device is None:
            device = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_initialized() else "cpu"
        self._device = torch.device(device)
        self.device = str(self._device)
        if self._device.type == "cuda":
            self.how = "allocator"
        else:
            self.how = "malloc" if _malloc_counts() else "resident"

    def used_mb(self) -> float:
        """Now. Cost: 2 to 20 us."""
        if self.how == "allocator":
            return torch.cuda.memory_allocated(self._device) / MB
        return _read_malloc_mb() if self.how == "malloc" else host_memory.resident_mb() or 0.0

    def peak_mb(self) -> float | None:
        """The most so far, of an accelerator."""
        return torch.cuda.max_memory_allocated(self._device) / MB if self.how == "allocator" else None


class _Mallinfo(ctypes.Structure):
    """glibc's mallinfo2."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in FIGURES)


@cache
def _load_mallinfo() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):  # an older glibc, or another C library
        return None
    function.restype = _Mallinfo
    return function


def _read_malloc_mb() -> float:
    """What malloc has handed out and not taken back, mapped pieces included."""
    found = _load_mallinfo()()
    return float(found.uordblks + found.hblkhd) / MB


@cache
def _malloc_counts() -> bool:
    """True if torch's memory comes from the malloc that can be asked: not so with jemalloc or tcmalloc in front."""
    if _load_mallinfo() is None:
        return False
    before = _read_malloc_mb()
    piece = torch.empty(PROBE_ELEMENTS)
    return _read_malloc_mb() - before > 0.9 * piece.numel() * piece.element_size() / MB
