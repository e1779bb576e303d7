"""The distance between two tensors, and the tolerance for it.

The error of a value is |a - b| / max(|a|, |b|, rms), rms being the larger root mean square of the two tensors' finite
values. Small values, which are what is left when large ones cancel, are so measured by the tensor's own scale, and an
outlier by itself: rounding moves it by more than the rest of the tensor measures.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tdbg.pages.format.dtypes import Dtype
from tdbg.pages.read import tensor_values
from tdbg.pages.read.datapoint import Tensor
from tdbg.pages.read.tensor_slices import CHUNK_BYTES, flat_parts

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

# What another order of summation, another kernel or card does to an output, with room. Of the short types a step or
# two of their last bit: bfloat16 has 8 bits of mantissa, float8_e5m2 three. Integers, bools and codes have to be equal.
TOLERANCES = {"float64": 1e-7, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2, "float4_e2m1fn_x2": 0.5}
TOLERANCES |= {"complex128": 1e-7, "complex64": 1e-5, "complex32": 2e-3}
TOLERANCES |= {"float8_e4m3fn": 0.13, "float8_e4m3fnuz": 0.13, "float8_e5m2": 0.25, "float8_e5m2fnuz": 0.25}
TOLERANCES |= {"float8_e8m0fnu": 0.5}
SCALAR = 1e-5
TINY = 5e-324  # the error of values that differ by less than a float can say


class Distance(NamedTuple):
    """How far two tensors are apart.

    error: the largest; infinite where only one is NaN or infinite. differing: values beyond the tolerance, of ``total``.
    apart: the largest |a - b|. where: of the largest error is, and a, b: the values there. reason: why they differ
    whatever their values are.
    """

    error: float
    tolerance: float
    differing: int = 0
    total: int = 0
    apart: float = 0.0
    where: tuple[int, ...] | None = None
    a: object = None
    b: object = None
    reason: str = ""

    @property
    def differs(self) -> bool:
        """True if they are not equal within the tolerance."""
        return bool(self.reason) or self.error > self.tolerance


def resolve_tolerance(a: Dtype, b: Dtype) -> float:
    """How far tensors of these types may be apart: what the coarser one allows."""
    return max(TOLERANCES.get(a.name, 0.0), TOLERANCES.get(b.name, 0.0))


def compare_tensors(a: Tensor, b: Tensor, allowed: float | None = None) -> Distance:
    """Compare two tensors; NaN is equal to NaN, and an infinity to itself. allowed: instead of the types' tolerance.

    Cost: equal bytes at the speed of reading; else two passes in numpy, 4 MB at a time. Raises TdbgError where the
    bytes cannot be read.
    """
    within = resolve_tolerance(a.dtype, b.dtype) if allowed is None else allowed
    if a.shape != b.shape:
        return Distance(math.inf, within, reason=f"shape {list(a.shape)} became {list(b.shape)}")
    count = tensor_values.value_count(a.dtype, a.shape)
    if a.dtype == b.dtype and a.note == b.note and _same_bytes(a, b):
        return Distance(0.0, within, total=count)
    if count != tensor_values.value_count(b.dtype, b.shape):
        return Distance(math.inf, within, reason=f"{a.dtype.name} became {b.dtype.name}")
    found = _measure_distance(a, b, within)._replace(total=count)
    if a.dtype.kind != b.dtype.kind:
        return found._replace(reason=f"{a.dtype.name} became {b.dtype.name}")
    return found


def compare_scalars(a: Any, b: Any, allowed: float | None = None) -> Distance:
    """The same for two numbers; anything else has to be equal."""
    within = SCALAR if allowed is None else allowed
    if isinstance(a, bool) or isinstance(b, bool) or not (_is_number(a) and _is_number(b)):
        same = type(a) is type(b) and (a == b or repr(a) == repr(b))  # NaN inside of a list prints as NaN
        return (
            Distance(0.0, within, total=1)
            if same
            else Distance(math.inf, within, 1, 1, math.inf, (), a, b, "another value")
        )
    if a == b or (a != a and b != b):
        return Distance(0.0, within, total=1)
    error, apart = _measure_scalar_gap(a, b)
    return Distance(error, within, int(error > within), 1, apart, (), a, b)


def _measure_scalar_gap(a: Any, b: Any) -> tuple[float, float]:
    """By how much of the larger one two numbers are apart, and by how much; infinite where no float can say."""
    try:
        apart = abs(a - b)
        if isinstance(apart, int) or math.isfinite(apart):
            return apart / max(abs(a), abs(b)), apart
    except OverflowError:
        pass
    return math.inf, math.inf


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | complex)


def _same_bytes(a: Tensor, b: Tensor) -> bool:
    return all(one == other for one, other in zip(a.chunks(CHUNK_BYTES), b.chunks(CHUNK_BYTES), strict=True))


def _iter_paired_parts(a: Tensor, b: Tensor) -> "Iterator[tuple[Array, Array]]":
    """Values of both, equally many at a time."""
    if a.dtype.size == b.dtype.size and a.dtype.packed == b.dtype.packed and not (a.note or b.note):
        yield from zip(flat_parts(a), flat_parts(b), strict=True)
        return
    left: Any = None
    others = flat_parts(b)
    for one in flat_parts(a):
        at = 0
        while at < len(one):
            if left is None or not len(left):
                left = next(others)
            many = min(len(one) - at, len(left))
            yield one[at : at + many], left[:many]
            at, left = at + many, left[many:]


def _measure_distance(a: Tensor, b: Tensor, within: float) -> Distance:
    import numpy

    with numpy.errstate(all="ignore"):
        rms = max(_compute_rms(a), _compute_rms(b))
        worst = Distance(0.0, within)
        start = differing = 0
        apart = 0.0
        for one, other in _iter_paired_parts(a, b):
            errors, gaps = _compute_errors(one, other, rms)
            differing += int(numpy.count_nonzero(errors > within))
            at = int(errors.argmax())
            apart = max(apart, float(gaps.max()))
            if errors[at] > worst.error:
                index = _unravel_index(a, start + at)
                worst = Distance(float(errors[at]), within, where=index, a=one[at].item(), b=other[at].item())
            start += len(one)
    return worst._replace(differing=differing, apart=apart)


def _compute_rms(tensor: Tensor) -> float:
    """The root mean square of the finite values; scaled by the largest, as the squares may not be finite."""
    import numpy

    total, count, scale = 0.0, 0, 0.0
    for part in flat_parts(tensor):
        sizes = numpy.abs(_widen_dtype(part))
        sizes = sizes[numpy.isfinite(sizes)]
        largest = float(sizes.max()) if len(sizes) else 0.0
        if largest > scale:
            total, scale = total * (scale / largest) ** 2, largest
        if scale:
            total += float(numpy.square(sizes / scale).sum())
        count += len(sizes)
    return scale * math.sqrt(total / count) if count else 0.0


def _widen_dtype(part: "Array") -> "Array":
    return part.astype("c16" if part.dtype.kind == "c" else "f8")


def _compute_errors(one: "Array", other: "Array", rms: float) -> "tuple[Array, Array]":
    """The error of each value, and how far it is apart."""
    import numpy

    a, b = _widen_dtype(one), _widen_dtype(other)
    same = (one == other) | (numpy.isnan(a) & numpy.isnan(b))
    gaps = numpy.abs(a - b)
    errors = gaps / numpy.maximum(numpy.maximum(numpy.abs(a), numpy.abs(b)), rms)
    errors[numpy.isnan(errors)] = numpy.inf
    gaps[numpy.isnan(gaps)] = numpy.inf
    errors = numpy.maximum(errors, TINY)  # integers beyond 2**53 may differ and have one float
    errors[same] = gaps[same] = 0.0
    return errors, gaps


def _unravel_index(tensor: Tensor, flat: int) -> tuple[int, ...]:
    if tensor.dtype.packed > 1:
        return (flat,)
    found = []
    for size in reversed(tensor.shape):
        flat, at = divmod(flat, size)
        found.append(at)
    return tuple(reversed(found))
