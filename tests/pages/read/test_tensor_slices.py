"""Parts of tensors: the same as numpy's, and no more bytes are read than it takes."""

from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdbg.core.errors import TdbgError
from tdbg.pages.format.dtypes import DTYPES
from tdbg.pages.format.page_writer import Item, PageWriter
from tdbg.pages.read import tensor_slices
from tdbg.pages.read.datapoint import Tensor


class Memory:
    """In place of a page: bytes, and how many of them were asked for."""

    path = Path("memory")

    def __init__(self, data: bytes) -> None:
        self.data, self.taken = data, 0

    def read_range(self, offset: int, length: int) -> bytes:
        self.taken += length
        return self.data[offset : offset + length]


def make_tensor(array: Any, dtype: str = "float32") -> tuple[Tensor, Memory]:
    memory = Memory(array.tobytes())
    found = Tensor("t", DTYPES[dtype], array.shape, {}, memory, 0, array.nbytes)  # type: ignore[arg-type]
    return found, memory


BOUND = st.one_of(st.none(), st.integers(-7, 7))
WORD = st.one_of(
    st.integers(-4, 3).map(str),
    st.tuples(BOUND, BOUND, st.sampled_from([None, 1, 2, -1, -3])).map(
        lambda parts: ":".join("" if part is None else str(part) for part in parts)
    ),
    st.just(":"),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(WORD, min_size=1, max_size=3), st.booleans(), st.booleans())
def test_as_numpy_cuts(words: list[str], many: bool, dots: bool) -> None:
    """many: too many values for lists, so that arrays are cut."""
    shape = (5, 4, 4000) if many else (5, 4, 6)
    array = numpy.arange(numpy.prod(shape), dtype="f4").reshape(shape)
    text = ",".join([*words[:-1], "...", words[-1]] if dots and len(words) < 3 else words)
    wanted = eval(f"array[{text}]", {"array": array}) if "..." in text or words else array
    part = tensor_slices.read_slice(make_tensor(array)[0], text)
    assert part.shape == wanted.shape and part.to_numbers() == wanted.reshape(-1).tolist()


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("3", 4000),
        ("3,5", 4),
        ("-1,:", 4000),
        ("2:4", 8000),
        ("2:4,7", 8000),
        ("9:2:-3", 28_000),
        ("5:5", 0),
        ("", 40_000),
    ],
)
def test_only_the_rows_that_are_asked_for_are_read(text: str, nbytes: int) -> None:
    found, memory = make_tensor(numpy.zeros((10, 1000), "f4"))
    tensor_slices.read_slice(found, text)
    assert memory.taken == nbytes


@pytest.mark.parametrize("text", ["x", "1:2:3:4", "::0", "1.5", "", "...,...", "1,,2"])
def test_what_is_no_slice(text: str) -> None:
    with pytest.raises(TdbgError, match="--slice cannot be"):
        tensor_slices.parse_slice(text)


@pytest.mark.parametrize("shape", [(5, 4), (50, 4000)])
@pytest.mark.parametrize("text", ["50", "-51", "0,9999", ":,9999", "0,0,0"])
def test_what_is_not_there(shape: tuple[int, int], text: str) -> None:
    with pytest.raises(TdbgError) as caught:
        tensor_slices.read_slice(make_tensor(numpy.zeros(shape, "f4"))[0], text)
    assert caught.value.hint in ("indices start at 0", f"its shape is {list(shape)}")


def test_of_types_with_several_values_in_a_byte(tmp_path: Path) -> None:
    with PageWriter(tmp_path) as writer:
        writer.add("k", [Item("t", "float4_e2m1fn_x2", (2, 2), bytes([0x21, 0x43, 0x65, 0x07]))])
    from tdbg.pages.read.page_set import PageSet

    with PageSet.open(tmp_path) as pages:
        found = next(iter(pages)).tensors["t"]
        assert tensor_slices.read_slice(found).shape == (2, 4)
        assert tensor_slices.read_slice(found, "1,1:3").to_numbers() == [4.0, 6.0]


def test_of_quantised_rows(tmp_path: Path) -> None:
    note = {"scales": [1.0, 0.5], "zero_points": [0, 2], "axis": 0}
    with PageWriter(tmp_path) as writer:
        writer.add("k", [Item("t", "qint8", (2, 3), bytes([1, 2, 3, 4, 5, 6]), note)])
    from tdbg.pages.read.page_set import PageSet

    with PageSet.open(tmp_path) as pages:
        found = next(iter(pages)).tensors["t"]
        assert tensor_slices.read_slice(found, "1").to_numbers() == [1.0, 1.5, 2.0]
        assert tensor_slices.read_slice(found, "1:,2").to_numbers() == [2.0] and tensor_slices.read_slice(
            found, ":,0"
        ).to_numbers() == [
            1.0,
            1.0,
        ]
