"""What is copied of a tensor that is no plain data: its parts, and what a reader needs to put them together again."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tdbg.pages.format.dtypes import DTYPES
from tdbg.runtime.torch_compat import is_transformed

Note = tuple[tuple[str, Any], ...]  # of hashable values, so that layouts can be told apart by it
PLAIN = (Tensor, nn.Parameter)  # of which an operation is no more than that operation
PER_CHANNEL = (torch.per_channel_affine, torch.per_channel_affine_float_qparams)
SMALL = {getattr(torch, f"{sign}int{bits}", None): torch.uint8 for sign in ("", "u") for bits in range(1, 8)}
RAW = {
    **{dtype: raw for dtype, raw in SMALL.items() if dtype is not None},
    torch.quint8: torch.uint8,
    torch.qint8: torch.int8,
    torch.qint32: torch.int32,
}
COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


class NotPlain(ValueError):
    """There is nothing that could be copied; the text says why."""


class Part(NamedTuple):
    """A tensor of plain data. path: what stands behind the tensor's own path. dtype: what its bytes are."""

    path: str
    data: Tensor
    dtype: torch.dtype
    note: Note = ()


def to_raw_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which such elements can be copied; of most types it is the type itself."""
    return RAW.get(dtype, dtype)


def split_tensor(tensor: Tensor) -> list[Part]:
    """The tensor as plain data: itself, the part on this rank, or the tensors it is made of. Raises NotPlain.

    Quantised: the integers, with scale and zero point. Sparse: ``/indices`` and ``/values`` (of compressed layouts
    ``/compressed_indices``, ``/plain_indices``). Nested: ``/values`` and ``/sizes`` or ``/offsets``. A DTensor: this rank's part, without a
    collective. A subclass that is made of other tensors: these, by its own names for them.
    """
    with torch.no_grad():
        return list(_flatten_to_plain_tensors(tensor.detach()))


def _flatten_to_plain_tensors(tensor: Tensor) -> Iterable[Part]:
    if is_transformed(tensor):
        raise NotPlain("inside torch.func, where it has no values of its own")
    if tensor.is_meta:
        raise NotPlain("on the meta device: there are no values")
    if type(tensor).__name__ in ("FakeTensor", "FunctionalTensor"):
        raise NotPlain(f"a {type(tensor).__name__}: there are no values")
    if hasattr(tensor, "to_local"):
        return _split_shard(tensor)
    if tensor.is_nested:
        return _split_nested(tensor)
    if type(tensor) not in PLAIN and hasattr(tensor, "__tensor_flatten__"):
        return _split_subclass(tensor)
    if type(tensor) not in PLAIN:
        tensor = tensor.as_subclass(Tensor)
    if tensor.is_mkldnn:
        tensor = tensor.to_dense()
    if tensor.layout is not torch.strided:
        return _split_sparse(tensor)
    return [_split_quantised(tensor) if tensor.is_quantized else _split_strided(tensor)]


def _split_strided(tensor: Tensor) -> Part:
    if str(tensor.dtype).removeprefix("torch.") not in DTYPES:
        raise NotPlain(f"its dtype cannot be stored: {str(tensor.dtype).removeprefix('torch.')}")
    copyable = to_raw_dtype(tensor.dtype)
    return Part("", tensor if copyable is tensor.dtype else tensor.view(copyable), tensor.dtype)


def _split_quantised(tensor: Tensor) -> Part:
    if tensor.dtype not in RAW:
        raise NotPlain(f"its dtype packs several values in a byte: {str(tensor.dtype).removeprefix('torch.')}")
    scheme = tensor.qscheme()
    note: Note = (("scheme", str(scheme).removeprefix("torch.")),)
    if scheme in PER_CHANNEL:
        scales, zeros = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
        note += (("scales", tuple(scales.tolist())), ("zero_points", tuple(zeros.tolist())))
        note += (("axis", tensor.q_per_channel_axis()),)
    else:
        note += (("scale", tensor.q_scale()), ("zero_point", tensor.q_zero_point()))
    return Part("", tensor.int_repr(), tensor.dtype, note)


def _split_shard(tensor: Tensor) -> Iterable[Part]:
    placements = ", ".join(str(found) for found in getattr(tensor, "placements", ()))
    note: Note = (("whole_shape", tuple(tensor.shape)), ("placements", placements))
    local: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return [part._replace(note=note + part.note) for part in _flatten_to_plain_tensors(_wait_for_collective(local))]


def _wait_for_collective(tensor: Tensor) -> Tensor:
    """What a collective that is still on its way will give (its rank takes part in it already)."""
    wait = getattr(tensor, "wait", None)
    return wait() if type(tensor).__name__ == "AsyncCollectiveTensor" and wait is not None else tensor


def _split_nested(tensor: Tensor) -> Iterable[Part]:
    note: Note = (("nested", "jagged" if tensor.layout is torch.jagged else "strided"),)
    if tensor.layout is torch.jagged:
        jagged: Any = tensor
        found = {"values": jagged.values(), "offsets": jagged.offsets(), "lengths": jagged.lengths()}
    else:
        rows = [row.contiguous().reshape(-1) for row in tensor.unbind()]
        found = {"values": torch.cat(rows) if rows else torch.empty(0), "sizes": tensor._nested_tensor_size()}
    return _name_parts(found, note)


def _split_sparse(tensor: Tensor) -> Iterable[Part]:
    names = COMPRESSED.get(tensor.layout)
    layout = str(tensor.layout).removeprefix("torch.")
    note: Note = (("sparse", layout), ("shape", tuple(tensor.shape)))
    if names is not None:
        compressed, plain = (getattr(tensor, name)() for name in names)
        found = {"compressed_indices": compressed, "plain_indices": plain}
    elif tensor.layout is torch.sparse_coo:
        if tensor.device.type == "cpu":  # each element once, so that figures of the values are the tensor's
            tensor = tensor.coalesce()
        found = {"indices": tensor._indices()}
    else:
        raise NotPlain(f"its layout cannot be stored: {layout}")
    found["values"] = tensor.values() if names is not None else tensor._values()
    return _name_parts(found, note)


def _split_subclass(tensor: Tensor) -> Iterable[Part]:
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    note: Note = (("subclass", type(tensor).__name__), ("shape", tuple(tensor.shape)))
    return _name_parts({name.lstrip("_"): getattr(tensor, name) for name in names}, note)


def _name_parts(found: dict[str, Tensor | None], note: Note) -> Iterable[Part]:
    return [
        part._replace(path=f"/{name}{part.path}", note=note + part.note)
        for name, tensor in found.items()
        if tensor is not None
        for part in _flatten_to_plain_tensors(tensor.detach())
    ]
