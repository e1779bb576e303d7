"""Tensors that are larger than what is read: claimed sizes, long rows, quantised ones; little memory, and an end."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdbg.core.errors import TdbgError
from tdbg.pages.format.dtypes import DTYPES
from tdbg.pages.read.datapoint import Tensor
from tdbg.pages.read.tensor_values import decode_array
from tdbg.pages.render import preview
from tdbg.pages.render.preview import build_preview
from tdbg.pages.render.region import Region, whole_region
from tests.pages.arrays import make_noise
from tests.pages.render.test_html_report import decode_preview, write_tensor

BUDGET = 1 << 20


def claim_shape(tmp_path: Path, *shape: int, dtype: str = "uint8") -> Tensor:
    """A tensor of this shape by its journal; its page holds 4 bytes of it."""
    known: Any = write_tensor(tmp_path, np.zeros(4, np.uint8))
    return Tensor("x", DTYPES[dtype], shape, {}, known._page, known.at, DTYPES[dtype].count_bytes(shape))


@pytest.mark.parametrize(
    "shape", [(1 << 60, 1), (1, 1 << 60), (1 << 60,), (1 << 30, 1 << 30), (1 << 20, 1 << 20, 1 << 20)]
)
def test_what_is_only_claimed_is_refused_at_once(shape: tuple[int, ...], tmp_path: Path) -> None:
    tensor = claim_shape(tmp_path, *shape)
    for region in (None, whole_region(preview.planes_of(tensor))):
        with pytest.raises(TdbgError, match="should have at least"):
            build_preview(tensor, BUDGET, region)


@pytest.mark.parametrize("shape", [(1 << 40, 1), (1 << 40,), (4, 1 << 38)])
def test_a_hole_is_not_read_to_its_end(shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "check_size", lambda self: None)  # as if a hole of that size were there
    assert build_preview(claim_shape(tmp_path, *shape), BUDGET) is None


@pytest.mark.parametrize("number", range(200))
def test_the_block_is_the_smallest_that_fits(number: int) -> None:
    rng = np.random.default_rng(number)
    whole = tuple(int(10 ** rng.uniform(0, 3.5)) for _ in range(3))
    budget = int(10 ** rng.uniform(2, 6))
    count, (rows, columns) = preview._fit_to_budget(whole, budget)

    def count_cells(block: int) -> int:
        return count * -(-whole[1] // block) * -(-whole[2] // block)

    block = max(rows, columns)
    assert count_cells(block) <= budget and (block == 1 or count_cells(block - 1) > budget)


@pytest.mark.parametrize("number", range(20))
def test_long_rows_in_pieces_are_as_in_one(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(number)
    high, wide = int(rng.integers(1, 6)), int(rng.integers(50, 900))
    tensor = write_tensor(tmp_path, make_noise(2, high, wide, seed=number))
    region = Region((0, 2), (high // 2, high), (int(rng.integers(0, 20)), wide - int(rng.integers(0, 20))))
    whole = build_preview(tensor, 200, region)
    monkeypatch.setattr(preview, "LONG_VALUES", int(rng.integers(1, 40)))
    found = build_preview(tensor, 200, region)
    assert whole and found and found._replace(data=b"") == whole._replace(data=b"")
    np.testing.assert_allclose(decode_preview(found), decode_preview(whole), atol=1e-6)


def test_a_long_row_takes_little_memory(tmp_path: Path) -> None:
    tensor = write_tensor(tmp_path, np.ones(40_000_000, np.uint8))
    tracemalloc.start()
    found = build_preview(tensor, BUDGET)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found and found.low == found.high == 1 and most < 60_000_000


def test_scales_are_applied_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.arange(-60, 60, dtype=np.int8).tobytes()
    note = {"axis": 1, "scales": [0.5, 1.0, 2.0, 3.0], "zero_points": [0, 1, -1, 5]}
    wanted = decode_array(data, DTYPES["qint8"], (6, 4, 5), note)
    monkeypatch.setattr("tdbg.pages.read.tensor_values.SCALED", 7)
    assert np.array_equal(decode_array(data, DTYPES["qint8"], (6, 4, 5), note), wanted)
    assert wanted[0, 1, 0] == (-55 - 1) * 1.0
