"""The bytes of a slice, against numpy, for generated shapes, types and slices."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tdbg.core.errors import TdbgError
from tdbg.pages.format.dtypes import DTYPES
from tdbg.pages.read.datapoint import Tensor
from tdbg.pages.read.page_set import PageSet
from tdbg.pages.read.tensor_slices import JOINED_BYTES, count_slice_bytes, iter_slice_bytes, read_slice
from tests.pages.arrays import to_bfloat16, write_pages

TYPES = ["float32", "float16", "int64", "uint8", "bool", "complex64"]


def draw_part(rng: np.random.Generator, size: int) -> int | slice:
    low, high = sorted(rng.integers(-size - 2, size + 3, 2).tolist())
    step = int(rng.choice([1, 1, 2, 3, -1, -2]))
    first, last = (low, high) if step > 0 else (high, low)
    parts = [slice(None), int(rng.integers(-size, size)), slice(first, last, step), slice(None, None, step)]
    return parts[rng.integers(len(parts))]


def write_part(part: int | slice) -> str:
    if isinstance(part, int):
        return str(part)
    return ":".join("" if one is None else str(one) for one in (part.start, part.stop, part.step)).rstrip(":") or ":"


@pytest.mark.parametrize("number", range(60))
def test_a_slice_is_what_numpy_cuts(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(number)
    monkeypatch.setattr("tdbg.pages.read.tensor_slices.CHUNK_BYTES", int(rng.choice([16, 64, 4 << 20])))
    shape = tuple(rng.integers(1, 9, rng.integers(1, 5)).tolist())
    value = np.arange(math.prod(shape)).reshape(shape).astype(TYPES[number % len(TYPES)])
    tensor = next(iter(PageSet.open(write_pages(tmp_path, [(0, {"x": value}, {})])))).tensors["x"]
    parts = [draw_part(rng, size) for size in shape[: rng.integers(1, len(shape) + 1)]]
    text = ",".join(map(write_part, parts))
    wanted = value[tuple(parts)]
    found, blocks = iter_slice_bytes(tensor, text)
    assert (found, b"".join(blocks)) == (wanted.shape, wanted.tobytes()), (shape, text)


def test_types_that_numpy_lacks_keep_their_bytes(tmp_path: Path) -> None:
    value = to_bfloat16(np.arange(12).reshape(3, 4))
    tensor = next(iter(PageSet.open(write_pages(tmp_path, [(0, {"x": value}, {})])))).tensors["x"]
    shape, blocks = iter_slice_bytes(tensor, "1:,2")
    assert shape == (2,) and b"".join(blocks) == to_bfloat16([6, 10]).view(torch.int16).numpy().tobytes()
    assert b"".join(iter_slice_bytes(tensor)[1]) == tensor.read()


@pytest.mark.parametrize("text", ["3", "0,0,0", "x", "::0", "...,..."])
def test_a_slice_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    value = np.zeros((3, 4), np.float32)
    tensor = next(iter(PageSet.open(write_pages(tmp_path, [(0, {"x": value}, {})])))).tensors["x"]
    with pytest.raises(TdbgError):
        iter_slice_bytes(tensor, text)


def open_value(folder: Path, value: np.ndarray) -> Tensor:
    return next(iter(PageSet.open(write_pages(folder, [(0, {"x": value}, {})])))).tensors["x"]


def to_bound(text: str) -> int | None:
    return int(text) if text else None


class Reads:
    """How often and how much a tensor is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        read_range = Tensor.read_range

        def count(tensor: Tensor, start: int, stop: int) -> bytes:
            self.sizes.append(stop - start)
            return read_range(tensor, start, stop)

        monkeypatch.setattr(Tensor, "read_range", count)


def test_an_empty_part_of_a_huge_dimension_ends_at_once() -> None:
    tensor = Tensor("x", DTYPES["uint8"], (1 << 60, 4), {}, None, 0, 1 << 62)  # type: ignore[arg-type]
    shape, blocks = iter_slice_bytes(tensor, ":,0:0")
    assert shape == (1 << 60, 0) and list(blocks) == []
    empty = Tensor("x", DTYPES["uint8"], (0, 1 << 60), {}, None, 0, 0)  # type: ignore[arg-type]
    assert read_slice(empty, ":,:").to_numbers() == []


@pytest.mark.parametrize("text", [":,0", ":,1:3", "::3,::2", "::-1,0"])
def test_a_column_is_cut_from_many_rows_at_once(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = np.arange(400_000, dtype=np.int32).reshape(100_000, 4)
    tensor, reads = open_value(tmp_path, value), Reads(monkeypatch)
    shape, blocks = iter_slice_bytes(tensor, text)
    pieces = list(blocks)
    wanted = value[
        tuple(int(part) if ":" not in part else slice(*map(to_bound, part.split(":"))) for part in text.split(","))
    ]
    assert (shape, b"".join(pieces)) == (wanted.shape, wanted.tobytes())
    assert len(reads.sizes) < 20 and all(len(piece) >= JOINED_BYTES for piece in pieces[:-1])


@pytest.mark.parametrize("number", range(40))
def test_what_a_slice_reads_is_known_before(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(number)
    shape = tuple(rng.integers(1, 9, rng.integers(1, 5)).tolist())
    tensor = open_value(tmp_path, np.zeros(shape, np.float32))
    text = ",".join(write_part(draw_part(rng, size)) for size in shape[: rng.integers(1, len(shape) + 1)])
    reads = Reads(monkeypatch)
    known = count_slice_bytes(tensor, text)
    assert not reads.sizes
    read_slice(tensor, text)
    assert sum(reads.sizes) == known, (shape, text)
