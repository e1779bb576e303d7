"""Two epochs of a datapoint: both pictures have the same cells, and the difference is that of the values."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdbg.pages.read.page_set import PageSet
from tdbg.pages.render.region import Region
from tdbg.pages.render.tensor_pair import describe_region_difference, describe_tensor_pair
from tests.pages.arrays import make_noise, write_pages

BUDGET = 1 << 16


def describe_pair(folder: Path, first: Any, second: Any, budget: int = BUDGET) -> dict[str, Any]:
    """Two epochs of one datapoint."""
    pages = write_pages(folder / "pages", [("a", {"x": first}, {"epoch": 0}), ("a", {"x": second}, {"epoch": 1})])
    with PageSet.open(str(pages)) as opened:
        one, other = (datapoint.tensors["x"] for datapoint in opened.find("a"))
        return describe_tensor_pair(one, other, budget)


def read_cells(preview: dict[str, Any]) -> Any:
    assert preview["kind"] == "f4"
    return np.frombuffer(base64.b64decode(preview["data"]), "<f4").reshape(preview["shape"])


def test_the_difference_is_the_second_minus_the_first(tmp_path: Path) -> None:
    first, second = make_noise(4, 6), make_noise(4, 6, seed=1)
    found = describe_pair(tmp_path, first, second)
    assert np.array_equal(read_cells(found["first"]["preview"])[0], first)
    assert np.allclose(read_cells(found["difference"]["preview"])[0], second - first)
    assert found["distance"]["differing"] == 24
    assert np.isclose(found["distance"]["apart"], np.abs(second - first).max())


def test_equal_tensors_have_no_difference(tmp_path: Path) -> None:
    values = np.array([[1.0, np.inf], [-np.inf, 0.0]], "<f4")
    found = describe_pair(tmp_path, values, values)
    assert not read_cells(found["difference"]["preview"]).any()
    assert found["distance"]["differing"] == 0


def test_the_difference_of_bytes_may_be_negative(tmp_path: Path) -> None:
    found = describe_pair(tmp_path, np.full((2, 2), 200, "u1"), np.full((2, 2), 10, "u1"))
    assert read_cells(found["difference"]["preview"]).tolist() == [[[-190, -190], [-190, -190]]]


def test_large_ones_are_reduced_alike(tmp_path: Path) -> None:
    first = make_noise(300, 300)
    found = describe_pair(tmp_path, first, first + np.float32(1), 4096)
    shapes = {tuple(found[side]["preview"]["shape"]) for side in ("first", "second", "difference")}
    assert len(shapes) == 1 and found["difference"]["preview"]["block"][1] > 1


def test_other_shapes_have_a_reason_instead(tmp_path: Path) -> None:
    found = describe_pair(tmp_path, make_noise(4, 6), make_noise(4, 5))
    assert found["why"] == "shape [4, 6] became [4, 5]" and "difference" not in found


def test_an_empty_one_has_a_reason_instead(tmp_path: Path) -> None:
    assert describe_pair(tmp_path, make_noise(0, 3), make_noise(0, 3))["why"]


@pytest.mark.parametrize(
    "area", [((0, 1), (250, 270), (3, 20)), ((2, 3), (0, 300), (299, 300)), ((1, 3), (7, 8), (0, 5))]
)
def test_a_part_of_the_difference_has_the_values(tmp_path: Path, area: Any) -> None:
    first, second = make_noise(3, 300, 300), make_noise(3, 300, 300, seed=1)
    fields = [("a", {"x": values}, {"epoch": epoch}) for epoch, values in enumerate((first, second))]
    with PageSet.open(str(write_pages(tmp_path / "pages", fields))) as opened:
        one, other = (datapoint.tensors["x"] for datapoint in opened.find("a"))
        preview = describe_region_difference(one, other, BUDGET, Region(*area))["difference"]["preview"]
    planes, rows, columns = (slice(*side) for side in area)
    assert np.allclose(read_cells(preview), (second - first)[planes, rows, columns], atol=1e-6)
    assert preview["region"] == area and preview["block"] == (1, 1, 1)


def test_a_part_of_tensors_of_other_shapes_has_a_reason_instead(tmp_path: Path) -> None:
    fields = [("a", {"x": make_noise(4, size)}, {"epoch": size}) for size in (5, 6)]
    with PageSet.open(str(write_pages(tmp_path / "pages", fields))) as opened:
        one, other = (datapoint.tensors["x"] for datapoint in opened.find("a"))
        found = describe_region_difference(one, other, BUDGET, Region((0, 1), (0, 2), (0, 2)))
    assert found == {"path": "x", "why": "their shapes differ"}
