"""What bytes mean: the standard library, numpy and torch agree on every code."""

import math
import struct
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tdbg.core.errors import TdbgError
from tdbg.pages.format.dtypes import DTYPES, Dtype
from tdbg.pages.read.tensor_values import decode_array, decode_numbers, format_value

FP8 = [name for name in DTYPES if name.startswith("float8")]
TORCH = [name for name in DTYPES if hasattr(torch, name)]
BYTES = bytes(range(256))
HALVES = np.arange(65536, dtype="<u2").tobytes()


def assert_same(mine: list[Any], theirs: list[Any]) -> None:
    """Bit for bit, but for the payload of NaN."""
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        assert (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))


def as_torch(data: bytes, name: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(getattr(torch, name))


def test_the_table_knows_every_dtype_of_torch() -> None:
    found = {str(value).removeprefix("torch.") for value in vars(torch).values() if isinstance(value, torch.dtype)}
    assert found - {"bit"} <= DTYPES.keys()
    for name in TORCH:
        assert DTYPES[name].size == getattr(torch, name).itemsize


@pytest.mark.parametrize("name", FP8)
def test_all_codes_of_fp8_are_what_torch_says(name: str) -> None:
    theirs = as_torch(BYTES, name).float().tolist()
    assert_same(decode_numbers(BYTES, DTYPES[name]), theirs)
    assert_same(decode_array(BYTES, DTYPES[name]).tolist(), theirs)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_all_codes_of_the_halves_are_what_torch_says(name: str) -> None:
    theirs = as_torch(HALVES, name).float().tolist()
    assert_same(decode_numbers(HALVES, DTYPES[name]), theirs)
    assert_same(decode_array(HALVES, DTYPES[name]).tolist(), theirs)


def test_fp4_is_two_values_a_byte_the_low_half_first() -> None:
    fp4 = DTYPES["float4_e2m1fn_x2"]
    halves = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    codes = halves + [-value for value in halves]
    expected = [value for byte in BYTES for value in (codes[byte & 15], codes[byte >> 4])]
    assert_same(decode_numbers(BYTES, fp4), expected)
    assert decode_array(b"\x21\x43", fp4, (1, 2)).tolist() == [[0.5, 1.0, 1.5, 2.0]]


@pytest.mark.parametrize(
    ("name", "data", "values"),
    [
        ("bool", b"\0\1\2", [False, True, True]),
        ("int4", b"\x07\x08\x0f\xf3", [7, -8, -1, 3]),
        ("uint3", b"\x07\x08\xff", [7, 0, 7]),
        ("int1", b"\0\1", [0, -1]),
        ("uint1", b"\0\1", [0, 1]),
        ("quint4x2", b"\x21\x43", [1, 2, 3, 4]),
        ("quint2x4", b"\xe4", [0, 1, 2, 3]),
        ("bits8", b"\xff", [255]),
        ("bits4x2", b"\xff", [255]),
        ("bits16", b"\x01\x02", [513]),
        ("complex32", struct.pack("<ee", 1.5, -2.0), [1.5 - 2j]),
        ("complex64", struct.pack("<ff", 1.5, -0.0), [complex(1.5, -0.0)]),
        ("uint64", b"\xff" * 8, [2**64 - 1]),
        ("float8_e4m3fnuz", b"\x80\x00", [math.nan, 0.0]),
    ],
)
def test_small_types_by_hand(name: str, data: bytes, values: list[Any]) -> None:
    for found in (decode_numbers(data, DTYPES[name]), decode_array(data, DTYPES[name]).tolist()):
        assert repr(found) == repr(values)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(DTYPES)), st.binary(max_size=200))
def test_the_standard_library_and_numpy_agree(name: str, data: bytes) -> None:
    dtype = DTYPES[name]
    data = data[: len(data) // dtype.size * dtype.size]
    one, other = decode_numbers(data, dtype), decode_array(data, dtype)
    assert all(type(value) in (bool, int, float, complex) for value in one)
    assert other.dtype.kind in "biufc"
    assert repr(one).replace("-nan", "nan") == repr(other.tolist()).replace("-nan", "nan")


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_bytes_that_do_not_fit_are_an_error(name: str) -> None:
    dtype = DTYPES[name]
    for read in (decode_numbers, decode_array):
        with pytest.raises(TdbgError):
            read(bytes(3 * dtype.size), dtype, (40, 2))
        if dtype.size > 1:
            with pytest.raises(TdbgError):
                read(bytes(dtype.size + 1), dtype)
        assert list(read(b"", dtype, (0, 4))) == []


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["quint8", "qint8", "qint32"])
def test_quantised_values_are_scaled_as_torch_does(name: str) -> None:
    dtype, values = getattr(torch, name), torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    whole = torch.quantize_per_tensor(values, 0.05, 3, dtype)
    rows = torch.quantize_per_channel(values, torch.rand(5) + 0.01, torch.zeros(5, dtype=torch.long) + 2, 1, dtype)
    notes = [
        {"scale": whole.q_scale(), "zero_point": whole.q_zero_point()},
        {"axis": 1, "scales": rows.q_per_channel_scales().tolist(), "zero_points": [2] * 5},
    ]
    for quantised, note in zip((whole, rows), notes, strict=True):
        data = quantised.int_repr().numpy().tobytes()
        theirs = quantised.dequantize()
        mine = torch.tensor(decode_numbers(data, DTYPES[name], (6, 5), note)).reshape(6, 5)
        assert torch.allclose(mine, theirs, rtol=1e-6, atol=0)
        assert decode_array(data, DTYPES[name], (6, 5), note).tolist() == mine.tolist()
    assert decode_numbers(data, DTYPES[name], (6, 5)) == quantised.int_repr().flatten().tolist()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_packed_quantised_values_with_an_odd_row() -> None:
    values = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    scales, zeros = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([4.0, 5.0, 6.0])
    found = torch.quantize_per_channel(values, scales, zeros, 0, torch.quint4x2)
    data = bytes(found.untyped_storage().tolist())
    dtype = DTYPES["quint4x2"]
    assert len(data) == dtype.count_bytes((3, 5)) == 9
    note = {"axis": 0, "scales": scales.tolist(), "zero_points": zeros.tolist()}
    mine = torch.tensor(decode_array(data, dtype, (3, 5), note))
    assert torch.allclose(mine, found.dequantize(), rtol=1e-6, atol=0)
    assert decode_numbers(data, dtype, (3, 5), note) == mine.flatten().tolist()


@pytest.mark.parametrize(
    "note",
    [{"scale": "x"}, {"scales": [1.0], "axis": 0}, {"scales": [1.0, 2.0], "axis": 7}, {"scales": 3}, {"scale": None}],
)
def test_scales_that_do_not_fit_are_an_error(note: dict[str, Any]) -> None:
    for read in (decode_numbers, decode_array):
        with pytest.raises(TdbgError):
            read(bytes(4), DTYPES["quint8"], (4,), note)


def test_shapes_are_kept() -> None:
    assert decode_array(bytes(24), DTYPES["float32"], (2, 3)).shape == (2, 3)
    assert decode_array(bytes(4), DTYPES["float32"], ()).shape == ()
    assert decode_array(bytes(24), DTYPES["bfloat16"], (3, 2, 2)).dtype == np.float32


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (0.1234567, "0.12346"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (7, "7"),
        (True, "True"),
        (1e-9, "1e-09"),
        (2**60, str(2**60)),
        (1.5 - 2j, "1.5-2j"),
        (complex(0, math.nan), "0+nanj"),
        (-0.0, "-0"),
    ],
)
def test_values_as_a_person_reads_them(value: Any, text: str) -> None:
    assert format_value(value) == text


def test_every_dtype_says_how_many_bytes_a_shape_takes() -> None:
    for name in TORCH:
        dtype: Dtype = DTYPES[name]
        for shape in ((), (3,), (2, 5), (0, 4)):
            tensor = torch.empty(shape, dtype=getattr(torch, name))
            if dtype.counts_values and not shape:
                continue  # torch gives a 0-d one a whole byte; there is none in practice
            assert dtype.count_bytes(shape) == tensor.untyped_storage().nbytes(), (name, shape)
