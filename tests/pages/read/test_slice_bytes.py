"""The bytes of a slice, against numpy, for generated shapes, types and slices."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tdbg.core.errors import TdbgError
from tdbg.pages.read.page_set import PageSet
from tdbg.pages.read.tensor_slices import iter_slice_bytes
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
