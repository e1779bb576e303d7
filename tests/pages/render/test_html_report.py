"""`tdbg inspect-pages html`: one file, safe from what is in it, whose script shows what was captured."""

import base64
import hashlib
import html.parser
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tdbg.pages.read.page_set import PageSet, Tensor
from tdbg.pages.render.html_report import token_lists
from tdbg.pages.render.preview import LARGEST_BYTES, Preview, build_preview, wanted_bytes
from tests.pages.arrays import ENVIRONMENT, make_noise, run_inspect_pages, to_bfloat16, write_pages

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\u2028'\""
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="no node here to run the page's script")


def write_page(tmp_path: Path, values: dict[str, Any], *words: object, key: Any = "k", **fields: Any) -> Path:
    """The page of one datapoint."""
    write_pages(tmp_path / "p", [(key, values, fields)])
    done = run_inspect_pages("html", tmp_path / "p", "-o", tmp_path / "x.html", *words)
    assert done.returncode == 0, done.stderr
    return tmp_path / "x.html"


def read_page_data(path: Path) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL)
    assert found
    return json.loads(found[1])


def evaluate_in_page(path: Path, expression: str) -> Any:
    """What an expression is worth in the page, in node and a document of our own."""
    assert NODE
    command = [NODE, str(Path(__file__).parents[1] / "dom.js"), str(path), expression]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def write_tensor(tmp_path: Path, value: Any) -> Tensor:
    return next(iter(PageSet.open(write_pages(tmp_path, [(0, {"x": value}, {})])))).tensors["x"]


def decode_preview(found: Preview) -> Any:
    """What the page makes of a preview."""
    if found.kind == "u1":
        codes = np.frombuffer(found.data, "u1").astype("f8")
        worth = found.low + codes * (found.high - found.low) / 252
        worth[codes == 253], worth[codes == 254], worth[codes == 255] = -math.inf, math.inf, math.nan
    else:
        worth = (
            np.frombuffer(found.data, {"f4": "<f4", "f2": "<f2", "raw": "u1"}[found.kind]).astype("f8") * found.scale
        )
    return worth.reshape(found.shape)


# previews


def test_a_small_tensor_is_kept_as_it_is(tmp_path: Path) -> None:
    value = make_noise(2, 3, 4, 5)
    found = build_preview(write_tensor(tmp_path, value), LARGEST_BYTES)
    assert found and found.exact and found.reduction_note == "" and found.shape == found.whole == (6, 4, 5)
    assert np.array_equal(decode_preview(found), value.reshape(6, 4, 5))


@pytest.mark.parametrize("shape", [(1000, 700), (3, 501, 303), (7, 5, 130, 90), (100_000,), (64, 9, 9), (1, 1_000_000)])
@pytest.mark.parametrize("budget", [500, 10_000, 60_000])
def test_what_is_too_large_is_means_of_blocks(shape: tuple[int, ...], budget: int, tmp_path: Path) -> None:
    value = make_noise(*shape)
    found = build_preview(write_tensor(tmp_path, value), budget)
    assert found and len(found.data) <= budget
    planes, high, wide = found.shape
    _, rows, columns = found.block
    whole = value.reshape(found.whole)[:planes].astype("f8")
    wanted = np.array(
        [
            [
                [p[r * rows : (r + 1) * rows, c * columns : (c + 1) * columns].mean() for c in range(wide)]
                for r in range(high)
            ]
            for p in whole
        ]
    )
    np.testing.assert_allclose(decode_preview(found), wanted, atol=(wanted.max() - wanted.min()) / 400 + 1e-6)
    assert -(-found.whole[1] // rows) == high and -(-found.whole[2] // columns) == wide
    assert ("mean of" in found.reduction_note) == (rows * columns > 1) and ("the first" in found.reduction_note) == (
        planes < found.whole[0]
    )


@pytest.mark.parametrize("chunk", [64, 4000])
def test_blocks_do_not_reach_into_the_next_plane(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tdbg.pages.render.preview.CHUNK_BYTES", chunk)
    monkeypatch.setattr("tdbg.pages.render.preview.LEAST_SIDE", 4)
    value = np.arange(6)[:, None, None] * np.ones((6, 50, 40), np.float32)
    found = build_preview(write_tensor(tmp_path, value), 6 * 8 * 8)
    assert found and found.shape[0] == 6 and found.block[1] > 1
    assert np.ptp(decode_preview(found), axis=(1, 2)).max() < 0.02


def test_what_is_not_finite_is_seen(tmp_path: Path) -> None:
    value = make_noise(1000, 1000)
    value[0, 0], value[0, 999], value[999, 0] = np.nan, np.inf, -np.inf
    for budget in (LARGEST_BYTES, 2_000_000, 1_000_000, 90_000):
        found = build_preview(write_tensor(tmp_path / str(budget), value), budget)
        assert found
        cells = decode_preview(found)
        assert math.isnan(cells[0, 0, 0]) and cells[0, 0, -1] == math.inf and cells[0, -1, 0] == -math.inf
        assert np.isfinite(cells).sum() == cells.size - 3
    assert found and found.kind == "u1"


@pytest.mark.parametrize("budget", [4_000_000, 2_000_000, 1_000_000])
def test_values_of_every_size_in_fewer_bits(budget: int, tmp_path: Path) -> None:
    for scale in (1e-30, 1e30):
        value = make_noise(1000, 1000) * np.float32(scale)
        found = build_preview(write_tensor(tmp_path / str(scale), value), budget)
        assert found and found.kind == {4_000_000: "f4", 2_000_000: "f2", 1_000_000: "u1"}[budget]
        np.testing.assert_allclose(decode_preview(found)[0], value, atol=scale * 0.03)


def test_previews_of_other_types(tmp_path: Path) -> None:
    flags = build_preview(write_tensor(tmp_path / "b", np.array([[True, False]])), 10_000)
    assert flags and flags.kind == "raw" and decode_preview(flags).tolist() == [[[1, 0]]]
    ids = build_preview(write_tensor(tmp_path / "i", np.array([50257, 2**24 + 1])), 10_000)
    assert ids and not ids.exact and decode_preview(ids)[0, 0, 0] == 50257
    brain = build_preview(write_tensor(tmp_path / "h", to_bfloat16([1.5, -2])), 10_000)
    assert brain and brain.exact and decode_preview(brain).tolist() == [[[1.5, -2]]]
    z = build_preview(write_tensor(tmp_path / "z", torch.tensor([3 + 4j])), 10_000)
    assert z and decode_preview(z).item() == 5
    fp4 = torch.tensor([0x21, 0x43], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    packed = build_preview(write_tensor(tmp_path / "p", fp4), 10_000)
    assert packed and decode_preview(packed).tolist() == [[[0.5, 1, 1.5, 2]]]
    assert build_preview(write_tensor(tmp_path / "e", np.zeros((0, 3))), 10_000) is None
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 4), dtype=np.uint8)
    last = build_preview(write_tensor(tmp_path / "c", image), 10_000)
    assert last and last.image and np.array_equal(decode_preview(last), image[..., :3].transpose(2, 0, 1))


# the file


class Markup(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_nothing_in_a_file_becomes_markup(tmp_path: Path) -> None:
    folder = tmp_path / EVIL.replace("/", "_")
    write_pages(
        folder, [(EVIL, {EVIL: make_noise(2, 2), "s": EVIL, EVIL + "2": 1.0, "tokens": [EVIL, "b"]}, {"phase": EVIL})]
    )
    done = run_inspect_pages("html", folder, "-o", tmp_path / "x.html")
    assert done.returncode == 0
    text = (tmp_path / "x.html").read_text()
    parser = Markup()
    parser.feed(text)
    plain = Markup()
    plain.feed(write_page(tmp_path / "plain", {"a": make_noise(2, 2)}).read_text())
    assert [tag for tag, _ in parser.tags] == [tag for tag, _ in plain.tags]
    assert not any(name.startswith("on") for _, attributes in parser.tags for name in attributes)
    assert text.count("</script>") == 2 and text.count("<script") == 2 and "<img" not in text
    (point,) = read_page_data(tmp_path / "x.html")["datapoints"]
    assert point["key"] == point["tensors"][0]["path"] == point["phase"] == EVIL
    assert point["scalars"][0] == ["s", EVIL] and point["tokens"][0]["words"][0] == EVIL[:40]


@needs_node
def test_hostile_text_reaches_the_page_as_text(tmp_path: Path) -> None:
    path = write_page(tmp_path, {EVIL: make_noise(2, 2), "s": EVIL}, key=EVIL)  # the document refuses innerHTML
    assert evaluate_in_page(path, "ids.detail.all('h2')[0].textContent") == EVIL
    assert evaluate_in_page(path, "ids.datapoints.textContent").startswith(EVIL)
    assert evaluate_in_page(path, "page.choose(0, null), ids.detail.all('td')[0].textContent") == EVIL
    assert evaluate_in_page(path, "ids.detail.all('script').length + ids.detail.all('img').length") == 0


def test_the_page_is_by_itself_and_runs_its_own_script_alone(tmp_path: Path) -> None:
    text = write_page(tmp_path, {"a": make_noise(2, 2)}).read_text()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    for kind, name in (("script", "<script>"), ("style", "<style>")):
        (inner,) = re.findall(f"{name}(.*?)</{kind}>", text, re.DOTALL)
        found = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{found}'" in policy
    assert not re.findall(r"(?:src|href)=|https?://|@import|url\(|fetch\(|XMLHttpRequest|innerHTML|eval\(", text)
    assert "prefers-color-scheme: dark" in text


def test_figures_histogram_and_scalars(tmp_path: Path) -> None:
    value = make_noise(30, 40)
    value[0, 0] = np.nan
    data = read_page_data(
        write_page(tmp_path, {"a:output": value, "loss": 0.25, "inf": math.inf}, step=7, epoch=2, phase="val")
    )
    (point,) = data["datapoints"]
    assert (point["step"], point["epoch"], point["phase"], point["rank"]) == (7, 2, "val", 0)
    (tensor,) = point["tensors"]
    known = value[np.isfinite(value)]
    assert tensor["figures"]["nan"] == 1 and tensor["figures"]["count"] == 1200
    assert tensor["figures"]["mean"] == pytest.approx(known.astype("f8").mean(), rel=1e-6)
    assert sum(tensor["bars"]) == 1199 and tensor["high"] == pytest.approx(known.max())
    assert point["scalars"] == [["loss", "0.25"], ["inf", "inf"]]
    assert data["summary"] == "1 datapoint, 1 tensor"


def test_the_size_is_bounded_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    values = {f"l{n}": make_noise(4, 300, 300, seed=n) for n in range(6)} | {"small": make_noise(5)}
    write_pages(tmp_path / "p", [(n, values, {}) for n in range(4)])
    done = run_inspect_pages(
        "html", tmp_path / "p", "-o", tmp_path / "x.html", "--limit", "2", "--size", "1MB", "--json"
    )
    assert done.returncode == 0 and "2 datapoints left out" in done.stderr and "12 tensors shown in part" in done.stderr
    report = json.loads(done.stdout)["data"]
    assert (report["datapoints"], report["left_out"], report["tensors"], report["shrunk"]) == (2, 2, 14, 12)
    size = (tmp_path / "x.html").stat().st_size
    assert report["bytes"] == size and 0.6e6 < size < 1.45e6
    tensors = read_page_data(tmp_path / "x.html")["datapoints"][0]["tensors"]
    assert [bool(t["preview"]["said"]) for t in tensors] == [True] * 6 + [False]
    assert "2 datapoints left out" in read_page_data(tmp_path / "x.html")["summary"]


def test_tokens(tmp_path: Path) -> None:
    values = {
        "tokens": ["a", "b"],
        "D/words/0": "x",
        "D/words/1": "y",
        "D/name": "no list",
        "numbers": [1, 2],
        "input_ids": np.array([[5, 6, 7]]),
        "other": np.array([5, 6]),
    }
    point = next(iter(PageSet.open(write_pages(tmp_path, [(0, values, {})]))))
    assert list(token_lists(point)) == [
        ("tokens", ["a", "b"]),
        ("D/words", ["x", "y"]),
        ("input_ids", ["5", "6", "7"]),
    ]


# its script


@needs_node
@pytest.mark.parametrize("budget", ["24MB", "2.1MB", "1.1MB"])
def test_the_script_reads_the_values(budget: str, tmp_path: Path) -> None:
    value = make_noise(1000, 1000)
    value[1, 2], value[3, 4], value[5, 6] = np.nan, np.inf, -np.inf
    path = write_page(tmp_path, {"a": value}, "--size", budget)
    found = evaluate_in_page(
        path, "[[0, 0], [1, 2], [3, 4], [5, 6], [999, 998]].map(([r, c]) => page.heat.value(0, r, c))"
    )
    assert found[1:4] == ["NaN", "Infinity", "-Infinity"]
    assert found[0] == pytest.approx(value[0, 0], abs=0.03) and found[4] == pytest.approx(value[999, 998], abs=0.03)


@needs_node
def test_hovering_tells_the_value(tmp_path: Path) -> None:
    path = write_page(tmp_path, {"a": np.arange(12, dtype=np.float32).reshape(3, 4) / 8})
    hover = "page.heat.canvas.fire('mousemove', {offsetX: page.heat.zoom * 2.5, offsetY: page.heat.zoom * 1.5})"
    assert evaluate_in_page(path, f"{hover}, page.heat.readout.textContent") == "[1, 2] = 0.75"
    assert (
        evaluate_in_page(path, f"page.heat.zoomBy(2, 0, 0), {hover}, page.heat.readout.textContent") == "[1, 2] = 0.75"
    )
    outside = "page.heat.canvas.fire('mousemove', {offsetX: 1e6, offsetY: 0})"
    assert evaluate_in_page(path, f"{hover}, {outside}, page.heat.readout.textContent") == ""


@needs_node
def test_the_picture_has_the_colours_of_the_values(tmp_path: Path) -> None:
    path = write_page(tmp_path, {"a": np.array([[0.0, 1.0], [np.nan, np.inf]], np.float32)})
    image = evaluate_in_page(path, "Array.from(page.heat.picture.image.data)")
    pixels = [tuple(image[at : at + 4]) for at in range(0, 16, 4)]
    assert pixels == [(68, 1, 84, 255), (253, 231, 37, 255), (255, 0, 255, 255), (255, 128, 0, 255)]


@needs_node
def test_attention_has_its_tokens_beyond_512(tmp_path: Path) -> None:
    tokens = [f"t{n}" for n in range(600)]
    weights = np.random.default_rng(0).random((2, 600, 600), dtype=np.float32)
    weights[1, 513] = 0
    weights[1, 513, 590] = 1
    path = write_page(tmp_path, {"attn:weights": weights, "tokens": tokens})
    tensor = read_page_data(path)["datapoints"][0]["tensors"][0]
    assert tensor["preview"]["said"] == "" and tensor["preview"]["block"] == [1, 1, 1]
    one = "page.heat.plane = 1, page.heat.reset()"
    assert evaluate_in_page(path, f"{one}, page.heat.told([1, 513, 590])") == '[1, 513 "t513", 590 "t590"] = \u2248 1'
    pinned = "page.heat.pin([1, 513, 0]), page.heat.row.textContent"
    assert evaluate_in_page(path, f"{one}, {pinned}").startswith('largest in row 513 "t513":590 "t590"1')
    words = evaluate_in_page(
        path,
        f"{one}, page.heat.zoomBy(40, 0, 0), page.heat.canvas.words = [], page.heat.draw(), page.heat.canvas.words",
    )
    assert "t0" in words and "t1" in words and len(words) < 100
    fitted = evaluate_in_page(path, f"{one}, page.heat.canvas.words = [], page.heat.draw(), page.heat.canvas.words")
    assert "t0" in fitted and "t1" not in fitted and 60 < len(fitted) < 200  # as many as there is room for


@needs_node
def test_means_of_blocks_tell_their_places(tmp_path: Path) -> None:
    value = np.arange(1000 * 1000, dtype=np.float32).reshape(1000, 1000)
    path = write_page(tmp_path, {"a": value, "tokens": [f"t{n}" for n in range(1000)]}, "--size", "260KB")
    assert read_page_data(path)["datapoints"][0]["tensors"][0]["preview"]["block"] == [1, 2, 2]
    told = evaluate_in_page(path, "page.heat.told([0, 1, 499])")
    assert told.startswith('[2..3 "t2 t3", 998..999 "t998 t999"] = mean ')
    assert float(told.split()[-1]) == pytest.approx(value[2:4, 998:].mean(), rel=0.01, abs=3000)


@needs_node
def test_channels_and_images(tmp_path: Path) -> None:
    path = write_page(
        tmp_path, {"c": make_noise(5, 8, 6), "i": (np.arange(3 * 9 * 10) % 256).reshape(3, 9, 10).astype(np.uint8)}
    )
    assert evaluate_in_page(path, "page.heat.size") == [3 * 7 - 1, 2 * 9 - 1] or evaluate_in_page(
        path, "page.heat.size"
    ) == [
        2 * 7 - 1,
        3 * 9 - 1,
    ]
    cell = evaluate_in_page(path, "page.heat.cell(7, 9)")
    columns = evaluate_in_page(path, "gridOf(5, 8, 6).columns")
    assert cell == [columns + 1, 0, 0] and evaluate_in_page(path, "[page.heat.cell(6, 0), page.heat.cell(0, 8)]") == [
        None,
        None,
    ]
    assert evaluate_in_page(path, "page.heat.told([3, 2, 1])").startswith("[3, 2, 1] = ")
    choose = "page.choose(0, 'i')"
    assert evaluate_in_page(path, f"{choose}, Array.from(page.heat.picture.image.data.slice(0, 4))") == [
        0,
        90,
        180,
        255,
    ]
    assert evaluate_in_page(path, f"{choose}, page.heat.told([0, 1, 2])") == "[1, 2] = 12, 102, 192"
    select = "const s = page.heat.canvas.parentNode.all('select')[0]; s.value = '1'; s.fire('change');"
    assert evaluate_in_page(path, f"{choose}; {select} [page.heat.image, page.heat.plane, page.heat.size]") == [
        False,
        1,
        [10, 9],
    ]


@needs_node
def test_a_batch_of_images_is_a_grid_of_pictures(tmp_path: Path) -> None:
    batch = (np.arange(5 * 3 * 8 * 9) % 256).reshape(5, 3, 8, 9).astype(np.uint8)
    odd = np.random.default_rng(0).random((2, 3, 8, 9), dtype=np.float32)
    odd[0, 1, 0, 0], odd[0, 2, 0, 1] = np.nan, np.inf
    masks = np.ones((2, 3, 8, 9), dtype=bool)
    path = write_page(tmp_path, {"b": batch, "conv": make_noise(4, 3, 5, 5), "odd": odd, "masks": masks})
    assert evaluate_in_page(path, "[page.heat.image, page.heat.tiles]") == [True, 5]
    columns = evaluate_in_page(path, "gridOf(5, 8, 9).columns")
    assert evaluate_in_page(path, "page.heat.cell(10, 0)") == [3, 0, 0], "the second image, its first channel"
    assert evaluate_in_page(path, "page.heat.cell(0, 9)") == [3 * columns, 0, 0]
    told = evaluate_in_page(path, "page.heat.told([3, 2, 1])")
    assert told == f"[1, 0..2, 2, 1] = {', '.join(str(batch[1, channel, 2, 1]) for channel in range(3))}"
    select = "const s = page.heat.canvas.parentNode.all('select')[0]; s.value = '4'; s.fire('change');"
    assert evaluate_in_page(path, f"{select} [page.heat.image, page.heat.told([4, 0, 0])]") == [
        False,
        f"[1, 1, 0, 0] = {batch[1, 1, 0, 0]}",
    ]
    assert evaluate_in_page(path, "page.choose(0, 'conv'), page.heat.image") is False
    press = (
        "page.heat.canvas.parentNode.all('button').find(one => one.textContent === 'image or channels').fire('click');"
    )
    assert evaluate_in_page(path, f"{select} {press} [page.heat.image, page.heat.plane, page.heat.cell(0, 0)]") == [
        True,
        -1,
        [0, 0, 0],
    ]
    assert evaluate_in_page(path, "page.choose(0, 'masks'), page.heat.image") is False
    odd = evaluate_in_page(path, "page.choose(0, 'odd'), Array.from(page.heat.picture.image.data.slice(0, 8))")
    assert odd[:4] == [255, 0, 255, 255], "NaN in one channel is magenta"
    assert odd[4:] == [255, 128, 0, 255], "Inf in one channel is orange"


@pytest.mark.parametrize("budget", [10_000_000, 20_000, 4_000])
def test_of_a_batch_whole_images_are_kept(tmp_path: Path, budget: int) -> None:
    batch = np.random.default_rng(0).standard_normal((64, 3, 32, 32)).astype(np.float32)
    found = build_preview(write_tensor(tmp_path / "b", batch), budget)
    assert found and found.image and found.shape[0] % 3 == 0 and len(found.data) <= budget


@needs_node
def test_search_and_choice(tmp_path: Path) -> None:
    points = [(f"cat{n}", {"layers.0:output": make_noise(2), "head:output": make_noise(3)}, {}) for n in range(3)]
    points += [("dog", {"other": make_noise(2), "loss": 1.5}, {})]
    write_pages(tmp_path / "p", points)
    assert run_inspect_pages("html", tmp_path / "p", "-o", tmp_path / "x.html").returncode == 0
    path = tmp_path / "x.html"

    def searched(text: str) -> list[Any]:
        both = "['datapoints', 'layers'].map(id => ids[id].all('button').map(one => one.children[0].text))"
        return list(evaluate_in_page(path, f"ids.search.value = {json.dumps(text)}, ids.search.fire('input'), {both}"))

    assert searched("") == [["cat0", "cat1", "cat2", "dog"], ["layers.0:output", "head:output"]]
    assert searched("HEAD") == [["cat0", "cat1", "cat2"], ["head:output"]]
    assert searched("cat1 head")[0] == ["cat1"] and searched("dog")[0] == ["dog"] and searched("nothing") == [[], []]
    clicked = "ids.datapoints.all('button')[3].fire('click', {}), ids.detail.textContent"
    assert "datapoint dog" in evaluate_in_page(path, clicked) and "loss1.5" in evaluate_in_page(path, clicked)
    second = "ids.layers.all('button')[1].fire('click', {}), ids.detail.all('h2')[0].textContent"
    assert evaluate_in_page(path, second) == "head:output"


@needs_node
def test_light_and_dark_and_the_histogram(tmp_path: Path) -> None:
    path = write_page(tmp_path, {"a": np.arange(64, dtype=np.float32)})
    turned = "ids.theme.fire('click', {}), document.documentElement.getAttribute('data-theme')"
    assert evaluate_in_page(path, turned) == "dark" and evaluate_in_page(path, f"{turned}, {turned}") == "light"
    bar = "ids.detail.all('canvas')[0].fire('mousemove', {offsetX: 635}), ids.detail.all('p')[1].textContent"
    assert evaluate_in_page(path, bar).endswith("to 63: 1 values")


@needs_node
@pytest.mark.parametrize(
    "value", [np.zeros((0, 3)), np.array(2.5), np.full((2, 2), np.nan), make_noise(7), np.ones((3, 3))]
)
def test_odd_tensors_do_not_stop_the_page(value: Any, tmp_path: Path) -> None:
    path = write_page(tmp_path, {"a": value, "b": make_noise(2, 2)})
    assert (
        evaluate_in_page(path, "page.choose(0, 'a'), page.choose(0, 'b'), ids.detail.all('h2')[0].textContent") == "b"
    )
    if value.size > 1:
        assert evaluate_in_page(path, "page.choose(0, 'a'), page.heat.told([0, 0, 0])")


# the command


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("p",), "missing option: -o FILE"),
        (("p", "-o", "there.html"), "already exists"),
        (("p", "-o", "x.html", "--layer", "nothing*"), "no tensor is named nothing*"),
        (("p", "-o", "x.html", "--keys", "9"), "no datapoint has the key 9"),
        (("p", "-o", "x.html", "--size", "big"), "not a size"),
        (("nowhere", "-o", "x.html"), "there is no nowhere"),
    ],
)
def test_wrong_use(words: tuple[str, ...], what: str, tmp_path: Path) -> None:
    write_pages(tmp_path / "p", [(0, {"a": make_noise(2)}, {})])
    (tmp_path / "there.html").write_text("mine")
    done = run_inspect_pages("html", *words, cwd=tmp_path)
    assert done.returncode == 2 and what in done.stderr and "Traceback" not in done.stderr
    assert (tmp_path / "there.html").read_text() == "mine" and not (tmp_path / "x.html").exists()


def test_a_damaged_page_is_told_in_the_file(tmp_path: Path) -> None:
    folder = write_pages(tmp_path / "p", [(0, {"a": make_noise(50), "b": make_noise(50)}, {})])
    page_file = next(folder.glob("*.safetensors"))
    page_file.write_bytes(page_file.read_bytes()[: next(iter(PageSet.open(folder))).tensors["b"].at])
    done = run_inspect_pages("html", folder, "-o", tmp_path / "x.html")
    assert done.returncode == 1 and "1 tensor could not be read" in done.stderr
    tensors = read_page_data(tmp_path / "x.html")["datapoints"][0]["tensors"]
    assert "preview" in tensors[0] and "bytes" in tensors[1]["error"]


def test_memory_is_bounded_and_torch_is_not_loaded(tmp_path: Path) -> None:
    write_pages(tmp_path / "p", [(0, {"x": np.zeros((64, 1000, 1000), np.float32)}, {})])
    code = (
        "import sys; from tdbg.cli import main; code = main(sys.argv[1:]);"
        " print(code, 'torch' in sys.modules, open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    )
    words = ["inspect-pages", "html", str(tmp_path / "p"), "-o", str(tmp_path / "x.html")]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=True
    )
    code_, torch_, peak_kb = done.stdout.split()
    assert (code_, torch_) == ("0", "False") and int(peak_kb) < 220_000, done.stdout  # of 256 MB


def test_a_preview_wants_no_more_than_it_is_worth(tmp_path: Path) -> None:
    assert wanted_bytes(write_tensor(tmp_path / "a", make_noise(10, 10))) == 400
    assert wanted_bytes(write_tensor(tmp_path / "c", make_noise(300, 300))) == 180_000
    assert wanted_bytes(write_tensor(tmp_path / "b", np.zeros((4000, 4000), np.float16))) == LARGEST_BYTES
