"""What debuggers gave for one datapoint, as a job of the thread that writes: tensors and scalars by path, and notes."""

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tdbg.debuggers.copies import copy_of, unfit
from tdbg.debuggers.pool import Pool
from tdbg.debuggers.recording import Job, memory
from tdbg.pages.nesting import dict_note, steps
from tdbg.pages.writer import Item, PageWriter

MAX_DEPTH = 32
PLAIN = (bool, int, float, complex, str, bytes, type(None))


class Outputs(Job):
    """The outputs of one datapoint, or of a batch if there are several ids, copied, with their bytes counted in the pool.

    refused: what cannot be stored, ``path: why`` each; the rest is kept. Raises TdbgError where the pool has no room.
    """

    def __init__(self, ids: list[Any], outputs: Mapping[str, Any], pool: Pool) -> None:
        self.ids, self.pool = ids, pool
        self.tensors: dict[str, Tensor] = {}
        self.scalars: dict[str, Any] = {}
        self.notes: dict[str, dict[str, Any]] = {}  # path -> what stood there, as `tdbg.pages.nesting` reads it
        self.refused: list[str] = []
        self._take_items("", outputs, ())
        self.nbytes = sum(tensor.nbytes for tensor in self.tensors.values())
        pool.reserve(self.nbytes)

    def _take(self, path: str, value: Any, around: tuple[int, ...]) -> None:
        if isinstance(value, Tensor):
            self._take_tensor(path, value)
        elif _is_plain(value):
            self.scalars[path] = value
            if isinstance(value, tuple):
                self.notes[path] = _note_of(value)
        elif isinstance(value, Mapping | list | tuple):
            self._take_items(path, value, around)
        elif (numpy := sys.modules.get("numpy")) is not None and isinstance(value, numpy.generic | numpy.ndarray):
            self._take_array(path, value)
        else:
            self.refused.append(f"{path}: a {type(value).__name__} cannot be stored")

    def _take_items(self, path: str, value: Any, around: tuple[int, ...]) -> None:
        if id(value) in around or len(around) > MAX_DEPTH:
            self.refused.append(f"{path}: {'it contains itself' if id(value) in around else 'it lies too deep'}")
            return
        keys = steps(value) if isinstance(value, Mapping) else {str(index): index for index in range(len(value))}
        note = dict_note(keys) if isinstance(value, Mapping) else _note_of(value)
        if note and (path or value):
            self.notes[path] = note
        for step, key in keys.items():
            self._take(f"{path}/{step}" if path else step, value[key], (*around, id(value)))

    def _take_array(self, path: str, value: Any) -> None:
        """A scalar of numpy's is the number; an array is copied, as torch takes no reversed and no read-only one."""
        item = value.item() if not hasattr(value, "__setitem__") else None
        if isinstance(item, PLAIN) and item is not None:
            self.scalars[path] = item
            return
        try:
            self.tensors[path] = torch.from_numpy(value.copy())
        except (TypeError, ValueError) as error:
            self.refused.append(f"{path}: {error}")

    def _take_tensor(self, path: str, value: Tensor) -> None:
        try:
            found = copy_of(value)
            why = unfit(found) if isinstance(found, Tensor) else f"it is {found}"
        except (TypeError, ValueError, RuntimeError) as error:
            why = str(error)
        if why:
            self.refused.append(f"{path}: {why}")
        else:
            self.tensors[path] = found

    def write(self, writer: PageWriter) -> int:
        items = [
            Item(path, str(one.dtype).removeprefix("torch."), tuple(one.shape), memory(one), _scales_of(one))
            for path, one in self.tensors.items()
        ]
        keys = self.ids if len(self.ids) > 1 else None
        split = [path for path, tensor in self.tensors.items() if tensor.shape[:1] == (len(self.ids),)]
        batch = {"keys": keys, "split": split} if keys else {}
        writer.add(self.ids[0], items, scalars=self.scalars, notes=self.notes or None, **batch)
        return self.nbytes

    def release(self) -> None:
        self.pool.free(self.nbytes)


def _is_plain(value: Any) -> bool:
    return isinstance(value, PLAIN) or (
        type(value) in (list, tuple) and all(isinstance(item, PLAIN[:-1]) for item in value)
    )


def _note_of(value: list[Any] | tuple[Any, ...]) -> dict[str, Any]:
    if isinstance(value, list):
        return {"list": ""}
    return {"tuple": type(value).__name__ if hasattr(value, "_make") else ""}


def _scales_of(tensor: Tensor) -> dict[str, Any]:
    """What the integers of a quantised tensor mean; nothing of others."""
    if not tensor.is_quantized:
        return {}
    found: dict[str, Any] = {"scheme": str(tensor.qscheme()).removeprefix("torch.")}
    if not found["scheme"].startswith("per_channel"):
        return {**found, "scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
    scales, zeros = tensor.q_per_channel_scales().tolist(), tensor.q_per_channel_zero_points().tolist()
    return {**found, "scales": scales, "zero_points": zeros, "axis": tensor.q_per_channel_axis()}
