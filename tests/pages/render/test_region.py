"""A part of a tensor, against numpy: planes, rows and columns of generated shapes; and ranges that are none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdbg.core.errors import TdbgError
from tdbg.pages.read.page_set import PageSet
from tdbg.pages.render.preview import build_preview, planes_of
from tdbg.pages.render.region import Region, parse_region
from tests.pages.arrays import make_noise, to_bfloat16, write_pages
from tests.pages.render.test_html_report import decode_preview, write_tensor

BUDGET = 1 << 20


def draw_range(rng: np.random.Generator, size: int) -> tuple[int, int]:
    start, stop = sorted(rng.choice(size + 1, 2, replace=False).tolist())
    return start, stop


def draw_shape(rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(rng.integers(1, 24, rng.integers(1, 6)).tolist())


@pytest.mark.parametrize("number", range(40))
def test_a_part_is_what_numpy_cuts(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(number)
    monkeypatch.setattr("tdbg.pages.render.preview.CHUNK_BYTES", int(rng.choice([64, 1000, 4 << 20])))
    value = make_noise(*draw_shape(rng), seed=number)
    tensor = write_tensor(tmp_path, value)
    whole = planes_of(tensor)
    region = Region(*(draw_range(rng, size) for size in whole))
    found = build_preview(tensor, BUDGET, region)
    assert found and found.region == region and found.whole == whole
    wanted = value.reshape(whole)[tuple(slice(*one) for one in region)]
    assert found.exact and np.array_equal(decode_preview(found), wanted)
    for name, (start, stop), size in zip(("rows", "columns"), region[1:], whole[1:], strict=True):
        assert (f"{name} {start} to {stop - 1} of {size}" in found.reduction_note) == (stop - start < size)


@pytest.mark.parametrize("number", range(12))
def test_a_part_that_is_too_large_is_means_of_blocks_within_it(number: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(number)
    value = make_noise(3, *rng.integers(60, 200, 2).tolist(), seed=number)
    tensor = write_tensor(tmp_path, value)
    region = Region((1, 3), (int(rng.integers(0, 20)), 55), (5, 58))
    found = build_preview(tensor, 300, region)
    assert found and found.block[1] > 1 and found.region.planes[0] == 1
    count, high, wide = found.shape
    _, rows, columns = found.block
    part = value[1 : 1 + count, region.rows[0] : 55, 5:58].astype("f8")
    wanted = [
        [[p[r * rows :][:rows, c * columns :][:, :columns].mean() for c in range(wide)] for r in range(high)]
        for p in part
    ]
    np.testing.assert_allclose(decode_preview(found), wanted, atol=0.02)


def test_a_sample_behind_the_first_is_drawn_alone(tmp_path: Path) -> None:
    value = np.arange(8 * 64 * 20 * 20, dtype=np.float32).reshape(8, 64, 20, 20)
    found = build_preview(write_tensor(tmp_path, value), BUDGET, parse_region((512, 20, 20), "192:256", "", ""))
    assert found and found.leading == (8, 64) and np.array_equal(decode_preview(found), value[3])
    assert "planes 192 to 255 of 512" in found.reduction_note


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("leading", [(), (1,), (8,)])
def test_bytes_with_channels_last_are_pictures(leading: tuple[int, ...], channels: int, tmp_path: Path) -> None:
    value = np.random.default_rng(channels).integers(0, 256, (*leading, 16, 24, channels)).astype(np.uint8)
    tensor = write_tensor(tmp_path, value)
    found = build_preview(tensor, BUDGET)
    wanted = np.moveaxis(value[..., :3], -1, -3).reshape(-1, 16, 24)
    assert found and found.image and found.leading == (*leading, 3) and found.kind == "raw"
    assert np.array_equal(decode_preview(found), wanted)
    region = Region((len(wanted) - 2, len(wanted)), (3, 9), (1, 20))
    part = build_preview(tensor, BUDGET, region)
    assert part and not part.image and np.array_equal(decode_preview(part), wanted[-2:, 3:9, 1:20])


@pytest.mark.parametrize("shape", [(8, 7, 24, 3), (8, 16, 24, 5), (3, 16, 24, 24)])
def test_other_bytes_are_no_pictures_with_channels_last(shape: tuple[int, ...], tmp_path: Path) -> None:
    found = build_preview(write_tensor(tmp_path, np.zeros(shape, np.uint8)), BUDGET)
    assert found and not found.image and found.leading == shape[:-2]


def test_large_pictures_keep_the_range_of_bytes(tmp_path: Path) -> None:
    value = np.full((2, 900, 900, 3), 200, np.uint8)
    found = build_preview(write_tensor(tmp_path, value), BUDGET)
    assert found and found.image and found.block[1] > 1 and found.kind == "raw" and set(found.data) == {200}


def test_three_heads_of_attention_are_no_picture(tmp_path: Path) -> None:
    write_pages(tmp_path, [(0, {"attn/attention_map": make_noise(3, 16, 16), "image": make_noise(3, 16, 16)}, {})])
    tensors = next(iter(PageSet.open(tmp_path))).tensors
    drawn = [build_preview(tensors[path], BUDGET) for path in ("attn/attention_map", "image")]
    assert [found.image for found in drawn if found] == [False, True]


def test_a_part_of_narrow_floats(tmp_path: Path) -> None:
    value = to_bfloat16(np.arange(4 * 12 * 10).reshape(4, 12, 10) % 250)
    found = build_preview(write_tensor(tmp_path, value), BUDGET, Region((1, 3), (2, 7), (4, 9)))
    assert found and np.array_equal(decode_preview(found), value.float().numpy()[1:3, 2:7, 4:9])


@pytest.mark.parametrize(
    "text", ["5", "-1:3", "3:2", "4:4", ":0", "0:13", "12:", "13:", "a:b", "1:2:3", " 1:2", "1.5:2"]
)
@pytest.mark.parametrize("name", ["planes", "rows", "columns"])
def test_a_range_that_is_none_is_refused(name: str, text: str) -> None:
    asked: dict[str, Any] = {"planes": "", "rows": "", "columns": "", name: text}
    with pytest.raises(TdbgError, match=name):
        parse_region((12, 12, 12), **asked)


@pytest.mark.parametrize("text", ["9" * 18 + ":", "0:" + "9" * 18, "0:" + "9" * 4000, "\u0661:\u0662"])
def test_a_huge_range_is_refused(text: str) -> None:
    with pytest.raises(TdbgError, match="rows") as refused:
        parse_region((12, 12, 12), "", text, "")
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(("text", "wanted"), [(":", (0, 12)), ("3:", (3, 12)), (":5", (0, 5)), ("011:12", (11, 12))])
def test_ends_may_be_left_out(text: str, wanted: tuple[int, int]) -> None:
    assert parse_region((12, 12, 12), "", text, "") == ((0, 12), wanted, (0, 12))
