"""Decode the bytes of a tensor: to Python numbers with the standard library alone, or to a numpy array.

Floats of less than 32 bits are made from their definition (Micikevicius et al. 2022, arXiv:2209.05433, for fp8; the
OCP Microscaling formats 1.0 for e8m0 and e2m1): sign, exponent with a bias, mantissa; subnormals where the exponent is 0.
"""

import functools
import math
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tdbg.core.errors import TdbgError
from tdbg.core.tables import format_count
from tdbg.pages.format.dtypes import Dtype
from tdbg.pages.format.file_format import as_float

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

LARGEST = 1e300  # of scales and zero points
SCALED = 1 << 20  # values that are scaled at once: some 40 bytes each on the way
STRUCT = {"float64": "d", "float32": "f", "float16": "e", "complex64": "f", "complex128": "d", "complex32": "e"}
STRUCT |= {"int8": "b", "int16": "h", "int32": "i", "int64": "q", "qint8": "b", "qint32": "i", "bits16": "H"}
STRUCT |= {"uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q", "quint8": "B"}
NUMPY = {"d": "<f8", "f": "<f4", "e": "<f2", "b": "i1", "h": "<i2", "i": "<i4", "q": "<i8"}
NUMPY |= {"B": "u1", "H": "<u2", "I": "<u4", "Q": "<u8"}


def decode_numbers(
    data: bytes, dtype: Dtype, shape: Sequence[int] | None = None, note: Mapping[str, object] = {}
) -> list[object]:
    """The values in row order, as floats, ints, bools or complex numbers.

    shape: torch's; needed where a byte holds several quantised values. note: quantised values are scaled if it has
    their scale, else they are the integers that are stored. Opaque bits are unsigned integers.
    Raises TdbgError for bytes that are no whole number of values, or do not fit the shape.
    """
    found: list[Any] = _as_many(_unpack_numbers(data, dtype), dtype, shape)
    scale = _parse_scales(note, shape)
    if scale is None:
        return found
    scales, zeros, size = scale
    steps = ((i // size) % len(scales) for i in range(len(found)))
    return [
        _round_to_float32(_round_to_float32(scales[k]) * (value - zeros[k]))
        for value, k in zip(found, steps, strict=True)
    ]


def decode_array(
    data: bytes, dtype: Dtype, shape: Sequence[int] | None = None, note: Mapping[str, object] = {}
) -> "Array":
    """The same values as a numpy array of ``shape``, or flat without one.

    In numpy's own type where it has it; else the next that holds every value: float32 for bfloat16, fp8 and fp4,
    complex64 for complex32, int8 or uint8 for sub-byte integers, float32 for scaled quantised values. Values that torch
    keeps in pairs (fp4) double the last dimension. Read-only where nothing had to be computed. Raises what `decode_numbers` does.
    """
    import numpy

    with numpy.errstate(all="ignore"):
        found: Array = _as_many(_unpack_array(data, dtype), dtype, shape)
        if shape is not None:
            found = found.reshape(value_shape(dtype, shape))
        scale = _parse_scales(note, shape)
        if scale is None:
            return found
        return _apply_scales(found, *scale)


def value_count(dtype: Dtype, shape: Sequence[int]) -> int:
    """How many values a tensor of ``shape`` holds."""
    return math.prod(value_shape(dtype, shape))


def format_value(value: object) -> str:
    """A value as a person reads it: five significant digits, whole numbers whole."""
    if isinstance(value, complex):
        sign = "-" if math.copysign(1.0, value.imag) < 0 else "+"
        return f"{format_value(value.real)}{sign}{format_value(abs(value.imag))}j"
    if isinstance(value, float):
        return f"{value:.5g}"
    return str(value)


def to_real(value: object) -> float | None:
    """A number that a program gave as a float, one too large for it as infinity; None for what is no real number."""
    return as_float(value) if isinstance(value, int | float) else None


def value_shape(dtype: Dtype, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of its values: where torch keeps several in one element, the last dimension is so much longer."""
    if dtype.packed == 1 or dtype.counts_values:
        return tuple(shape)
    return (*shape[:-1], shape[-1] * dtype.packed) if shape else (dtype.packed,)


def _as_many(found: Any, dtype: Dtype, shape: Sequence[int] | None) -> Any:
    """Those values that the shape counts: the last byte of packed ones may hold more."""
    if shape is None:
        return found
    count = value_count(dtype, shape)
    if len(found) < count or (len(found) > count and not dtype.counts_values):
        raise TdbgError(
            f"a tensor of shape {list(shape)} has {format_count(count, 'value')}, and its bytes hold {len(found)}"
        )
    return found[:count]


def _check_length(data: bytes, dtype: Dtype) -> None:
    if len(data) % dtype.size:
        raise TdbgError(f"{len(data)} bytes are not a whole number of {dtype.name} values", "were some cut off?")


def _unpack_numbers(data: bytes, dtype: Dtype) -> list[object]:
    _check_length(data, dtype)
    code = STRUCT.get(dtype.name)
    if code is not None:
        found = struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data)
        if dtype.kind == "complex":
            return [complex(real, imag) for real, imag in zip(found[::2], found[1::2], strict=True)]
        return list(found)
    if dtype.name == "bfloat16":
        halves = struct.unpack(f"<{len(data) // 2}H", data)
        return list(struct.unpack(f"<{len(halves)}f", struct.pack(f"<{len(halves)}I", *(h << 16 for h in halves))))
    if dtype.kind == "bool":
        return [byte != 0 for byte in data]
    table = build_code_table(dtype)
    return [value for byte in data for value in table[byte]]


def _unpack_array(data: bytes, dtype: Dtype) -> "Array":
    import numpy

    _check_length(data, dtype)
    code = STRUCT.get(dtype.name)
    wide: Array
    if code is not None:
        wide = numpy.frombuffer(data, NUMPY[code])
        if dtype.kind == "complex":
            wide = wide.astype("<f4") if code == "e" else wide
            wide = wide.view("<c16" if code == "d" else "<c8")
        return wide
    if dtype.name == "bfloat16":
        wide = (numpy.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
        return wide
    flat = numpy.frombuffer(data, "u1")
    if dtype.kind == "bool":
        return flat.astype("bool")
    kind = "f4" if dtype.kind == "float" else "i1" if dtype.name.startswith("int") else "u1"
    wide = numpy.array(build_code_table(dtype), kind)[flat]
    return wide.reshape(-1)


@functools.cache
def build_code_table(dtype: Dtype) -> tuple[tuple[object, ...], ...]:
    """The values that each byte stands for, lowest bits first. For types of one byte an element that are no bools."""
    bits = 8 // dtype.packed
    if dtype.kind != "float":
        name = dtype.name
        width = int(name.lstrip("uint")) if name.lstrip("u").startswith("int") else bits
        return tuple(
            tuple(_decode_integer(part, width, name) for part in _split_byte(byte, dtype.packed)) for byte in range(256)
        )
    return tuple(tuple(small_float(part, dtype) for part in _split_byte(byte, dtype.packed)) for byte in range(256))


def _split_byte(byte: int, packed: int) -> list[int]:
    bits = 8 // packed
    return [byte >> at * bits & (1 << bits) - 1 for at in range(packed)]


def _decode_integer(byte: int, width: int, name: str) -> int:
    """The lowest ``width`` bits; of a signed type in two's complement."""
    low = byte & (1 << width) - 1
    return low - (1 << width) if name.startswith("int") and low >> width - 1 else low


def small_float(code: int, dtype: Dtype) -> float:
    """The value of one code of a float type of at most eight bits."""
    exponent, mantissa, name = dtype.exponent, dtype.mantissa, dtype.name
    if name == "float8_e8m0fnu":  # no sign, no mantissa, no zero: a power of two
        return math.nan if code == 0xFF else 2.0 ** (code - dtype.bias)
    sign = -1.0 if code >> exponent + mantissa & 1 else 1.0
    power, part = code >> mantissa & (1 << exponent) - 1, code & (1 << mantissa) - 1
    if name.endswith("fnuz"):
        if code == 0x80:  # what would be minus zero is the one NaN
            return math.nan
    elif name == "float8_e4m3fn":
        if code & 0x7F == 0x7F:
            return math.nan
    elif name == "float8_e5m2" and power == 0x1F:
        return math.nan if part else sign * math.inf
    if power == 0:
        return sign * math.ldexp(part, 1 - dtype.bias - mantissa)
    return sign * math.ldexp((1 << mantissa) + part, power - dtype.bias - mantissa)


def _parse_scales(note: Mapping[str, Any], shape: Sequence[int] | None) -> tuple[list[float], list[float], int] | None:
    """The scales and zero points of quantised values, and how many neighbours share one; None where there are none.

    Raises TdbgError for those that do not fit the shape.
    """
    if "scale" in note:
        size = 1
        scales: Any = [note["scale"]]
        zeros: Any = [note.get("zero_point", 0)]
    elif "scales" in note:
        axis, scales = note.get("axis", 0), note["scales"]
        zeros = note.get("zero_points")
        rows = shape is not None and type(axis) is int and 0 <= axis < len(shape) and isinstance(scales, list)
        zeros = [0] * len(scales) if rows and zeros is None else zeros
        if not rows or not isinstance(zeros, list) or not len(scales) == len(zeros) == shape[axis]:  # type: ignore[index]
            raise TdbgError("the scales of a quantised tensor do not fit its shape")
        size = math.prod(shape[axis + 1 :])  # type: ignore[index]
    else:
        return None
    if not all(isinstance(number, int | float) and abs(number) <= LARGEST for number in (*scales, *zeros)):
        raise TdbgError("the scales of a quantised tensor are not numbers, or are too large")
    return scales, zeros, max(size, 1)


def _apply_scales(found: "Array", scales: list[float], zeros: list[float], size: int) -> "Array":
    """float32: (value - zero point) * scale, rounded once."""
    import numpy

    flat, scale, zero = found.reshape(-1), numpy.array(scales, "f4").astype("f8"), numpy.array(zeros, "f8")
    wide: Array = numpy.empty(len(flat), "f4")
    for at in range(0, len(flat), SCALED):
        part = flat[at : at + SCALED].astype("f8")
        which = numpy.arange(at, at + len(part)) // size % len(scales)
        wide[at : at + SCALED] = (part - zero[which]) * scale[which]
    return wide.reshape(found.shape)


def _round_to_float32(value: float) -> float:
    """The nearest float32."""
    if not math.isfinite(value):
        return value
    try:
        found: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        found = math.copysign(math.inf, value)
    return found
