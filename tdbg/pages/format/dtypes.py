"""Element types: how torch names them, what safetensors calls them, and what their bytes mean.

Standard library alone: the writer in a rank and the readers that never load torch share this table.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

Kind = Literal["float", "int", "uint", "bool", "complex", "bits"]


class Dtype(NamedTuple):
    """One element type.

    name: torch's, without ``torch.``. size: bytes of one stored element. stored: safetensors' name; U8 where it has none,
    and the true name stands in the layout then. exponent, mantissa, bias: of a float. packed: values in one element.
    """

    name: str
    size: int
    stored: str
    kind: Kind
    exponent: int = 0
    mantissa: int = 0
    bias: int = 0
    packed: int = 1

    @property
    def counts_values(self) -> bool:
        """True if a shape counts values, and not stored elements: of the quantised types of less than a byte."""
        return self.packed > 1 and self.name.startswith("quint")

    def stored_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape under the safetensors name; where that is U8 for want of a name, the last dimension is bytes.

        A 0-d tensor of such a type has the shape (size,).
        """
        if self.stored != "U8":
            return tuple(shape)
        if self.counts_values:
            return (*shape[:-1], -(-shape[-1] // self.packed)) if shape else (1,)
        if self.size == 1:
            return tuple(shape)
        return (*shape[:-1], shape[-1] * self.size) if shape else (self.size,)

    def count_bytes(self, shape: Sequence[int]) -> int:
        """Bytes of a tensor of ``shape``, as torch holds it. Of packed quantised types each row starts a new byte."""
        if self.counts_values:
            return math.prod(self.stored_shape(shape))
        return math.prod(shape) * self.size


def _build_table() -> dict[str, Dtype]:
    found = [
        Dtype("float64", 8, "F64", "float", 11, 52, 1023),
        Dtype("float32", 4, "F32", "float", 8, 23, 127),
        Dtype("float16", 2, "F16", "float", 5, 10, 15),
        Dtype("bfloat16", 2, "BF16", "float", 8, 7, 127),
        Dtype("float8_e4m3fn", 1, "F8_E4M3", "float", 4, 3, 7),
        Dtype("float8_e5m2", 1, "F8_E5M2", "float", 5, 2, 15),
        Dtype("float8_e4m3fnuz", 1, "F8_E4M3FNUZ", "float", 4, 3, 8),
        Dtype("float8_e5m2fnuz", 1, "F8_E5M2FNUZ", "float", 5, 2, 16),
        Dtype("float8_e8m0fnu", 1, "F8_E8M0", "float", 8, 0, 127),
        Dtype("float4_e2m1fn_x2", 1, "U8", "float", 2, 1, 1, packed=2),
        Dtype("complex64", 8, "C64", "complex"),
        Dtype("complex128", 16, "U8", "complex"),
        Dtype("complex32", 4, "U8", "complex"),
        Dtype("bool", 1, "BOOL", "bool"),
    ]
    found += [Dtype(f"int{8 * size}", size, f"I{8 * size}", "int") for size in (1, 2, 4, 8)]
    found += [Dtype(f"uint{8 * size}", size, f"U{8 * size}", "uint") for size in (1, 2, 4, 8)]
    found += [Dtype(f"{sign}int{bits}", 1, "U8", "bits") for sign in ("", "u") for bits in range(1, 8)]
    found += [Dtype("quint8", 1, "U8", "uint"), Dtype("qint8", 1, "U8", "int"), Dtype("qint32", 4, "U8", "int")]
    found += [Dtype("quint4x2", 1, "U8", "bits", packed=2), Dtype("quint2x4", 1, "U8", "bits", packed=4)]
    found += [Dtype(name, 1, "U8", "bits") for name in ("bits8", "bits1x8", "bits2x4", "bits4x2")]
    found.append(Dtype("bits16", 2, "U8", "bits"))
    return {dtype.name: dtype for dtype in found}


DTYPES = _build_table()
BY_STORED = {dtype.stored: dtype for dtype in reversed(DTYPES.values()) if dtype.stored != "U8"} | {
    "U8": DTYPES["uint8"]
}
