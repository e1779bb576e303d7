"""Small helpers over tensors: walk a structure, tell what is not finite, and measure what a person asks for."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from tdbg.core.guard import belongs_to_program
from tdbg.runtime.torch_compat import is_transformed, norms_of

PLAIN = (str, bytes, int, float, bool)
MAX_DEPTH = 6
MAX_ITEMS = 64
MAX_ROWS = 8
CHUNK = 1 << 18  # elements worked on at a time: what is made on the way stays small, and in the cache
SMALL_STD = 1e-17  # the squares of smaller deviations are below the normal numbers of float32


def iter_tensors(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in nested tuples, lists, mappings and dataclasses, with its path (``0.mask``).

    Bounded in depth and width: a structure with thousands of entries is looked at in part. An object of the program's
    that raises when it is looked at holds none.
    """
    if type(value) is Tensor:
        yield name or "tensor", value
        return
    if depth >= MAX_DEPTH or value is None or type(value) in PLAIN:
        return
    try:
        if isinstance(value, Tensor):
            items = None
        else:
            items = [(f"{name}.{key}" if name else str(key), item) for key, item in _iter_items(value)]
    except BaseException as error:  # inline, as this runs for every item of every output
        if belongs_to_program(error):
            raise
        return
    if items is None:
        if not torch.nn.parameter.is_lazy(value):  # such a one answers no question
            yield name or "tensor", value
        return
    for path, item in items:
        yield from iter_tensors(item, path, depth + 1)


def name_argument(path: str) -> str:
    """The path of a tensor in ``(args, kwargs)`` as a call names it: ``0`` for the first argument, ``mask`` by keyword."""
    return path.partition(".")[2] or path


def _iter_items(value: object) -> Iterable[tuple[object, object]]:
    """What a container holds, of which not more than is looked at; nothing of other objects."""
    if isinstance(value, str | bytes):
        return ()
    if isinstance(value, Mapping):
        return islice(value.items(), MAX_ITEMS)
    if isinstance(value, list | tuple):
        return enumerate(value[:MAX_ITEMS])
    if is_dataclass(value) and not isinstance(value, type):
        return [(item.name, getattr(value, item.name, None)) for item in fields(value)][:MAX_ITEMS]
    return ()


def to_local_part(tensor: Tensor) -> Tensor:
    """The part of the tensor that is on this rank, without a collective (a DTensor's own shard).

    Of a sparse tensor what it stores, where one element may stand several times: `local_elements` has it once.
    """
    tensor = _shard_of(tensor)
    return tensor._values() if tensor.is_sparse else tensor


def local_elements(tensor: Tensor) -> Tensor:
    """The elements that are on this rank, of any layout, as a dense tensor of a dtype that has the usual operators.

    Those of a sparse tensor that are not stored are zero, and left out; fp8 comes as float32.
    Cost: of an uncoalesced sparse tensor a sort of its indices and a copy of its values; the tensor stays as it is.
    """
    data = _collect_elements(tensor)
    return data.to(torch.float32) if data.element_size() == 1 and data.is_floating_point() else data


def _shard_of(tensor: Tensor) -> Tensor:
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local is not None else tensor


def _summed_values(tensor: Tensor) -> Tensor:
    """The stored values of a sparse tensor with those of the same index added up, as a dense one would hold them.

    `coalesce` makes a new tensor. On a device it would wait for the number of different indices: there the sums
    are worked out in as many rows as there are values, of which some stay zero.
    """
    if tensor.is_coalesced() or tensor._nnz() < 2:
        return tensor._values()
    if on_host(tensor):
        return tensor.coalesce()._values()
    return _sum_rows(tensor)


def _sum_rows(tensor: Tensor) -> Tensor:
    """Values of a sparse tensor added up by index, in as many rows as before; nothing waits for a device."""
    indices, values = tensor._indices(), tensor._values()
    flat = indices.new_zeros(len(values))
    for size, row in zip(tensor.shape[: len(indices)], indices, strict=True):
        flat = flat * size + row
    ordered, order = flat.sort()
    starts = torch.ones_like(ordered)
    starts[1:] = (ordered[1:] != ordered[:-1]).to(ordered.dtype)
    return torch.zeros_like(values).index_add_(0, starts.cumsum(0) - 1, values[order])


def read_version(tensor: Tensor) -> int:
    """Counts the writes to the tensor's storage; -1 where nobody counts (inference mode)."""
    return -1 if tensor.is_inference() else tensor._version


def on_host(tensor: Tensor) -> bool:
    """True where reading a value waits for nothing; elsewhere it is read a step late."""
    return tensor.device.type == "cpu"


def shape_of(tensor: Tensor) -> torch.Size:
    """The shape; of a nested tensor, whose parts differ in theirs, the number of parts alone."""
    return torch.Size([tensor.size(0)]) if tensor.is_nested else tensor.shape


def has_no_data(tensor: Tensor) -> bool:
    """True for a tensor that stands for another and holds nothing: on the meta device, or fake. Cost: 0.2 us."""
    return bool(tensor.is_meta) or type(tensor).__name__ == "FakeTensor"


def is_sharded(tensor: Tensor) -> bool:
    """True for a DTensor (FSDP2, tensor parallel)."""
    return hasattr(tensor, "to_local")


def is_checkable(tensor: Tensor) -> bool:
    """True if the tensor can hold NaN or Inf and holds data of its own."""
    return (tensor.is_floating_point() or tensor.is_complex()) and not has_no_data(tensor) and tensor.numel() > 0


@dataclass(frozen=True, slots=True)
class Bad:
    """What is not finite in one tensor."""

    kind: str  # nan, inf or nan+inf
    count: int
    numel: int
    shape: list[int]
    dtype: str
    only_minus_inf: bool  # as a mask for softmax has on purpose
    columns: bool = False  # of a matrix some whole columns are bad and nothing else
    rows: tuple[int, ...] = ()  # positions along dimension 0 that hold all of it, where these are few


def find_bad_values(tensor: Tensor) -> Bad | None:
    """An exact look at one tensor: None if all of it is finite. Cost: one to three passes, one sync."""
    if not is_checkable(tensor):
        return None
    data = local_elements(tensor.detach())
    finite = torch.isfinite(data)
    if bool(finite.all()):
        return None
    nan = int(torch.isnan(data).sum())
    count = int(data.numel() - finite.sum())
    plus = count - nan > 0 and not data.is_complex() and bool((data == float("inf")).any())
    kind = "nan" if nan == count else ("inf" if nan == 0 else "nan+inf")
    return Bad(
        kind=kind,
        count=count,
        numel=data.numel(),
        shape=list(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        only_minus_inf=nan == 0 and not plus and not data.is_complex(),
        columns=_in_columns(finite),
        rows=_find_few_rows(finite) if data.shape == tensor.shape else (),
    )


def _in_columns(finite: Tensor) -> bool:
    """True if what is not finite fills some columns of a matrix, and not all: a weight's gradient has it from the
    features that entered its layer."""
    if finite.dim() != 2:
        return False
    bad = ~finite.any(0)
    return bool(bad.any()) and not bool(bad.all()) and bool((finite | bad).all())


def _find_few_rows(finite: Tensor) -> tuple[int, ...]:
    """The rows of dimension 0 that are not finite: at most eight, and at most half of them; else nothing."""
    if finite.dim() < 2:
        return ()
    rows = (~finite).flatten(1).any(1).nonzero().flatten()
    return tuple(rows.tolist()) if len(rows) <= min(MAX_ROWS, len(finite) // 2) else ()


def first_bad(value: object) -> tuple[str, Bad] | None:
    """The first tensor in a structure that is not finite, with its path; -inf-only tensors come last."""
    weak: tuple[str, Bad] | None = None
    for name, tensor in iter_tensors(value):
        bad = find_bad_values(tensor)
        if bad and not bad.only_minus_inf:
            return name, bad
        if bad and weak is None:
            weak = name, bad
    return weak


@dataclass(frozen=True, slots=True)
class Figures:
    """The exact figures of one tensor's elements; of a complex one, of their magnitudes.

    mean, std (with n - 1), low and high are those of the finite elements: None where there are none.
    """

    count: int  # elements looked at
    nan: int = 0
    inf: int = 0  # of either sign
    minus_inf: int = 0
    mean: float | None = None
    std: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def finite(self) -> bool:
        """True if no element is NaN or Inf."""
        return self.nan == 0 and self.inf == 0

    @property
    def only_minus_inf(self) -> bool:
        """True if the only bad thing is -inf, as a mask for softmax has on purpose."""
        return self.inf > 0 and self.nan == 0 and self.inf == self.minus_inf

    @property
    def norm(self) -> float | None:
        """The L2 norm of the finite elements, worked out from mean and std."""
        if self.mean is None or self.std is None:
            return None
        finite = self.count - self.nan - self.inf
        return math.hypot(self.std * math.sqrt(max(finite - 1, 0)), self.mean * math.sqrt(finite))


def count_bytes(tensor: Tensor) -> int:
    """Bytes of the elements that are on this rank, indices of sparse ones too; 0 for a meta tensor.

    An expanded tensor counts every element it shows; parameters that share storage count once each.
    """
    if tensor.is_meta:
        return 0
    return sum(part.numel() * part.element_size() for part in _list_dense_parts(_shard_of(tensor)))


def _collect_elements(tensor: Tensor) -> Tensor:
    """The elements that are on this rank, of any layout and in their own dtype."""
    tensor = _shard_of(tensor)
    return _summed_values(tensor) if tensor.is_sparse else _list_dense_parts(tensor)[0]


def _list_dense_parts(tensor: Tensor) -> list[Tensor]:
    """The dense tensors that a tensor is made of, its values first; as views, complex ones would have no real part."""
    if tensor.layout == torch.sparse_coo:
        return [tensor._values(), tensor._indices()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.values().detach(), tensor.crow_indices(), tensor.col_indices()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.values().detach(), tensor.ccol_indices(), tensor.row_indices()]
    if tensor.is_nested:
        return [tensor.values()]
    if tensor.is_mkldnn:
        return [tensor.to_dense()]
    return [tensor]


def measure_tensors(found: Sequence[Tensor]) -> list[Figures | None]:
    """Exact figures of each tensor, any dtype and layout; None where there is nothing to read (meta, exotic).

    Half precision is worked out in float32, float64 and integers in float64. Of a DTensor this rank's part is
    read, of a sparse tensor the elements it stores, each once. Results are on the host.
    Cost:   three passes over the elements, and one copy from each device for all tensors together; one more for
            those that are not finite, or whose sum overflows.
    Raises: nothing for a tensor that cannot be read.
    """
    with torch.no_grad():
        values = [_flatten_values(tensor) for tensor in found]
        result = _read_figures(values, _finite_columns, _finite_figures)
        again = [i for i, figures in enumerate(result) if figures is not None and not _is_settled(figures)]
        exact = _read_figures([values[i] for i in again], _exact_columns, _exact_figures)
    for index, figures in zip(again, exact, strict=True):
        result[index] = figures
    return result


def compute_norms(found: Sequence[Tensor]) -> Tensor:
    """The L2 norm of each tensor as a float32 vector on their `common_device`; nothing is read, nothing waits.

    A norm that is not finite may be an overflow (elements above 1e19): `measure_tensors` tells. Empty for no tensors.
    Cost: one pass, few kernels.
    """
    if not found:
        return torch.zeros(0)
    with torch.no_grad():
        data = [as_real(_collect_elements(tensor.detach())) for tensor in found]
        halves = [i for i, part in enumerate(data) if part.element_size() <= 2]
        wide = [i for i, part in enumerate(data) if part.element_size() > 2]
        result: list[Tensor] = [torch.zeros(())] * len(data)
        for chosen, dtype in ((halves, torch.float32), (wide, None)):
            if chosen:
                for index, norm in zip(chosen, norms_of([data[i] for i in chosen], dtype), strict=True):
                    result[index] = norm
        device = common_device(data)
        return torch.stack([norm.to(device, torch.float32, non_blocking=True) for norm in result])


def common_device(found: Sequence[Tensor]) -> torch.device:
    """The first device of these that is not the CPU, if there is one: a copy from there to the CPU would wait."""
    devices = [tensor.device for tensor in found]
    return next((device for device in devices if device.type != "cpu"), devices[0])


def as_real(data: Tensor) -> Tensor:
    """The same elements as plain floating-point numbers."""
    if data.is_complex():
        data = torch.view_as_real(data.resolve_conj())
    return data.to(torch.float32) if data.element_size() == 1 or not data.is_floating_point() else data


Columns = Callable[[Tensor], Tensor]


def _flatten_values(tensor: Tensor) -> Tensor | None:
    """The elements of a tensor in a row, as real numbers; None where there is nothing to read."""
    if type(tensor).__name__ == "FakeTensor" or is_transformed(tensor):
        return None
    try:
        data = _collect_elements(tensor.detach())
        if data.is_meta:
            return None
        if data.is_quantized:
            data = data.dequantize()
        if data.is_complex():
            data = data.abs()
        return data.reshape(-1)
    except (RuntimeError, NotImplementedError, TypeError):  # a layout or subclass that does not show its elements
        return None


def _choose_dtype(data: Tensor) -> torch.dtype:
    """What the figures of this tensor are worked out in."""
    exact = data.dtype == torch.float64 or not data.is_floating_point()
    return torch.float64 if exact and data.device.type != "mps" else torch.float32


def _column_dtype(data: Tensor) -> torch.dtype:
    """What counts travel in: those above 2**24 need float64, which one kind of device does not have."""
    return torch.float32 if data.device.type == "mps" else torch.float64


def _iter_chunks(data: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
    if data.numel() <= CHUNK:
        yield data.to(dtype)
        return
    for part in data.split(CHUNK):
        yield part.to(dtype)


def _reduce_chunks(rows: Sequence[Tensor], join: Callable[[Tensor], Tensor]) -> Tensor:
    """One number out of those of the chunks."""
    return rows[0] if len(rows) == 1 else join(torch.stack(list(rows)))


def _finite_columns(data: Tensor) -> Tensor:
    """low, high, mean, and the sum and norm of the deviations; NaN and Inf show in low and high.

    The sum of the deviations is what the rounded mean is off by (the corrected two-pass algorithm: Chan, Golub
    and LeVeque 1983).
    """
    dtype = _choose_dtype(data)
    ends = [torch.aminmax(part) for part in (_iter_chunks(data, dtype) if _has_few_operators(data) else (data,))]
    low = _reduce_chunks([end.min for end in ends], torch.amin).to(dtype)
    high = _reduce_chunks([end.max for end in ends], torch.amax).to(dtype)
    mean = _reduce_chunks([part.sum() for part in _iter_chunks(data, dtype)], torch.sum) / data.numel()
    off, spread = _sum_deviations(part - mean for part in _iter_chunks(data, dtype))
    return torch.stack([low, high, mean, off, spread])


def _sum_deviations(parts: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Sum and norm of what is handed over in parts."""
    found = [(part.sum(), torch.linalg.vector_norm(part)) for part in parts]
    return _reduce_chunks([row[0] for row in found], torch.sum), _reduce_chunks(
        [row[1] for row in found], torch.linalg.vector_norm
    )


def _mean_and_std(mean: float, off: float, spread: float, count: int) -> tuple[float, float]:
    variance = (spread * spread - off * off / count) / max(count - 1, 1)
    return mean + off / count, math.sqrt(max(variance, 0.0)) if math.isfinite(variance) else math.inf


def _has_few_operators(data: Tensor) -> bool:
    """True for a dtype that has few operators: fp8, unsigned integers."""
    return data.element_size() == 1 or data.dtype in (torch.uint16, torch.uint32, torch.uint64)


def _finite_figures(data: Tensor, row: list[float]) -> Figures:
    low, high, mean, off, spread = row
    mean, std = _mean_and_std(mean, off, spread, data.numel())
    return Figures(data.numel(), mean=mean, std=std, low=low, high=high)


def _is_settled(figures: Figures) -> bool:
    """True if the first look was enough: all is finite, and nothing overflowed or underflowed on the way."""
    low, high, mean, std = figures.low, figures.high, figures.mean, figures.std
    if figures.count == 0:
        return True
    if (
        low is None
        or high is None
        or mean is None
        or std is None
        or not all(map(math.isfinite, (low, high, mean, std)))
    ):
        return False
    return low == high or std > SMALL_STD


def _exact_columns(data: Tensor) -> Tensor:
    """Counts of NaN, Inf and -Inf; low, high, mean and the deviations of the finite elements, in float64."""
    to = _column_dtype(data)
    nan, inf, minus, low, high, total = (torch.stack(rows) for rows in zip(*_bad_rows(data, to), strict=True))
    mean = total.sum() / (data.numel() - nan.sum() - inf.sum())
    off, spread = _sum_deviations(
        torch.where(torch.isfinite(part), part - mean, 0.0) for part in _iter_chunks(data, to)
    )
    return torch.stack([nan.sum(), inf.sum(), minus.sum(), low.amin(), high.amax(), mean, off, spread])


def _bad_rows(data: Tensor, to: torch.dtype) -> Iterator[tuple[Tensor, ...]]:
    for part in _iter_chunks(data, to):
        finite = torch.isfinite(part)
        yield (
            torch.count_nonzero(part != part).to(to),
            torch.count_nonzero(part.abs() == math.inf).to(to),
            torch.count_nonzero(part == -math.inf).to(to),
            torch.where(finite, part, math.inf).amin(),
            torch.where(finite, part, -math.inf).amax(),
            torch.where(finite, part, 0.0).sum(),
        )


def _exact_figures(data: Tensor, row: list[float]) -> Figures:
    nan, inf, minus = (int(value) for value in row[:3])
    finite = data.numel() - nan - inf
    if not finite:
        return Figures(data.numel(), nan, inf, minus)
    low, high, mean, off, spread = row[3:]
    mean, std = _mean_and_std(mean, off, spread, finite)
    return Figures(data.numel(), nan, inf, minus, mean=mean, std=std, low=low, high=high)


def _read_figures(
    found: Sequence[Tensor | None], columns: Columns, figures: Callable[[Tensor, list[float]], Figures]
) -> list[Figures | None]:
    """Work out the columns of each tensor where it is; one copy a device brings them all to the host."""
    result: list[Figures | None] = [None] * len(found)
    by_device: dict[torch.device, list[tuple[int, Tensor]]] = {}
    for index, data in enumerate(found):
        if data is None:
            continue
        if data.numel() == 0:
            result[index] = Figures(0)
            continue
        try:
            row = columns(data)
        except (RuntimeError, NotImplementedError, TypeError):  # a dtype that has no such operators
            continue
        by_device.setdefault(data.device, []).append((index, row))
    for rows in by_device.values():
        lists = torch.cat([row for _, row in rows]).reshape(len(rows), -1).tolist()
        for (index, _), values in zip(rows, lists, strict=True):
            data = found[index]
            result[index] = figures(data, values) if data is not None else None
    return result
