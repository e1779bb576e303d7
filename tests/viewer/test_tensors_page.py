"""The page Tensors in headless Chromium: the grid, parts of pictures, keys, text, maps over pictures, slices."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, Response, Route, expect

from tests.pages.arrays import write_pages

from .made_tensors import ATTENTION, FIRST_KEY, RAMP, SAMPLES, WORDS, make_losses, write_made_run
from .test_pages import CHROMIUM, Server, Watched, chromium  # noqa: F401 (a fixture)

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to open the pages"),
    pytest.mark.timeout(300),
]
TENSORS = "/runs/made/tensors"
KEYS = ".datapoints tbody td:first-child"


@pytest.fixture(scope="module")
def made_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("made")
    write_made_run(folder / "made")
    found = Server(folder)
    yield found
    assert found.end() in (0, 130)


@pytest.fixture(scope="module", params=[390, 1280])
def made(request: pytest.FixtureRequest, chromium: Browser, made_server: Server) -> Iterator[Watched]:  # noqa: F811
    found = Watched(chromium, made_server, request.param, "dark" if request.param == 390 else "light")
    yield found
    found.context.close()


def find_card(shown: Page, path: str) -> Locator:
    return shown.locator(".tensor", has=shown.get_by_role("heading", name=path, exact=True))


def test_the_worst_loss_is_first_after_one_key(made: Watched) -> None:
    shown = made.show(TENSORS)
    assert shown.locator(".datapoints tbody tr").count() == 100
    shown.locator("#grid-worst").press("Enter")
    shown.wait_for_url("**sort=loss&descending=true**")
    losses = make_losses()
    order = sorted(range(SAMPLES), key=lambda at: (losses[at] != losses[at], losses[at]), reverse=True)
    expect(shown.locator(KEYS)).to_have_text([str(FIRST_KEY + at) for at in order[:100]])
    expect(shown.locator("th[aria-sort=descending]")).to_have_text("loss")
    expect(shown.locator("#grid-worst")).to_be_focused()
    shown.get_by_role("link", name="Next").press("Enter")
    expect(shown.locator(KEYS)).to_have_text([str(FIRST_KEY + at) for at in order[100:200]])
    shown.reload()
    expect(shown.locator(KEYS).first).to_have_text(str(FIRST_KEY + order[100]))
    shown.go_back()
    expect(shown.locator(KEYS).first).to_have_text(str(FIRST_KEY + order[0]))
    made.check()


def test_filters_are_in_the_address_and_a_long_id_leads_to_its_datapoint(made: Watched) -> None:
    shown = made.show(TENSORS)
    shown.locator("#sort-step").press("Enter")
    shown.wait_for_url("**sort=step**")
    shown.fill("#grid-steps", "30-34")
    shown.fill("#grid-least", "33")
    shown.select_option("#grid-phase", "train")
    shown.wait_for_url("**steps=30%3A34&phase=train&sort=step&least=33**")
    expect(shown.locator(KEYS)).to_have_text([str(FIRST_KEY + 33), str(FIRST_KEY + 34)])
    shown.locator(f"{KEYS} a").first.press("Enter")
    expect(shown.locator("h2").first).to_have_text(f"rank 0: datapoint {FIRST_KEY + 33}, epoch 0, step 33")
    card = find_card(shown, "head")
    expect(card).to_contain_text(f"datapoint {FIRST_KEY + 33}, rank 0, step 33")
    card.locator("canvas.map").press("ArrowRight")
    expect(card.locator(".readout[aria-live]")).to_have_text("[0] = 33")
    made.check()


def test_a_filter_that_is_none_is_said_beside_its_field(made: Watched) -> None:
    shown = made.show(f"{TENSORS}?steps=x")
    expect(shown.locator(".state.bad")).to_contain_text("steps cannot be 'x'")
    expect(shown.locator("#grid-steps")).to_have_value("x")
    made.complaints.clear()  # the browser tells of each 400
    shown.fill("#grid-steps", "999")
    shown.keyboard.press("Enter")
    expect(shown.locator("[role=status]")).to_have_text("No datapoint matches.")
    made.check()


def press_all(canvas: Locator, keys: str) -> None:
    for key in keys.split():
        canvas.press(key)


def test_keys_go_from_cell_to_cell_and_pin_a_row(made: Watched) -> None:
    shown = made.show(f"{TENSORS}?key=text&nth=0")
    card = find_card(shown, "attn:attention")
    card.locator("select").first.select_option("1")
    canvas = card.locator("canvas.map")
    press_all(canvas, "ArrowDown ArrowDown ArrowDown ArrowRight")
    readout = card.locator(".readout[aria-live]")
    expect(readout).to_have_text('[1, 2 "sat", 1 "cat"] = 0.125')
    press_all(canvas, "Shift+ArrowRight ArrowUp")
    expect(readout).to_have_text('[1, 1 "cat", 7 "."] = 0.125')
    canvas.press("Enter")
    expect(card).to_contain_text('largest in row 1 "cat":')
    press_all(canvas, "+ + + - 0")
    assert shown.evaluate("document.activeElement.className") == "map"
    made.check()


def test_attention_is_seen_at_full_resolution_where_it_is_zoomed(made: Watched) -> None:
    shown = made.show(f"{TENSORS}?key=maps&nth=0")
    card = find_card(shown, "attn:attention")
    readout, part = card.locator(".readout[aria-live]"), card.locator(".part")
    card.locator("select").first.select_option("2")
    canvas = card.locator("canvas.map")
    canvas.press("ArrowRight")
    expect(readout).to_contain_text("mean")
    with shown.expect_response(lambda answer: "rows=" in answer.url and "planes=2%3A3" in answer.url):
        press_all(canvas, "+ + + + + +")
    expect(part).to_contain_text("each cell is a value")
    canvas.press("ArrowRight")
    expect(readout).not_to_contain_text("mean")
    text = readout.inner_text()
    place, value = json.loads(text.partition(" = ")[0]), float(text.partition(" = ")[2].removeprefix("\u2248 "))
    assert value == pytest.approx(float(ATTENTION[tuple(place)]), rel=1e-4) and place[0] == 2
    card.get_by_role("button", name="fit").press("Enter")
    expect(part).not_to_contain_text("each cell is a value")
    made.check()


def test_a_batch_of_many_samples_is_gone_through(made: Watched) -> None:
    shown = made.show(f"{TENSORS}?key=wide&nth=0")
    card = find_card(shown, "layer:output")
    expect(card.locator(".part")).to_contain_text("planes [0, 0] to [0, 63]")
    sample = card.get_by_label("sample")
    sample.fill("2")
    sample.press("Enter")
    expect(card.locator(".part")).to_contain_text("planes [2, 0] to [2, 63]")
    canvas = card.locator("canvas.map")
    canvas.press("ArrowRight")
    expect(card.locator(".readout[aria-live]")).to_have_text("[2, 0, 0, 0] = 128")
    card.get_by_role("button", name="later planes").press("Enter")
    expect(card.locator(".part")).to_contain_text("planes [2, 64] to [2, 99]")
    card.get_by_role("button", name="earlier planes").press("Enter")
    expect(card.locator(".part")).to_contain_text("planes [2, 0] to [2, 63]")
    expect(sample).to_have_value("2")
    made.check()


def test_text_is_coloured_by_the_loss_of_its_tokens(made: Watched) -> None:
    shown = made.show(f"{TENSORS}?key=text&nth=0")
    tokens = shown.locator(".tokens .text span")
    expect(tokens).to_have_text(WORDS)
    colours = [one.evaluate("one => one.style.background") for one in tokens.all()]
    assert len(set(colours)) == len(WORDS)
    expect(tokens.nth(7)).to_have_attribute("title", "[7] 3.5")
    shown.get_by_label("colour by").select_option("attn:attention, sum of rows")
    expect(tokens.nth(7)).to_have_attribute("title", "[7] 1")
    shown.get_by_label("colour by").select_option("nothing")
    assert tokens.first.evaluate("one => one.style.background") == ""
    made.check()


def test_a_map_is_laid_over_its_picture(made: Watched) -> None:
    shown = made.show(f"{TENSORS}?key=pictures&nth=0")
    card = find_card(shown, "gradcam:layer4/gradcam over inputs.0")
    canvas, slider = card.locator("canvas.overlay"), card.get_by_label("opacity of the map")
    read = "one => one.toDataURL()"
    seen = []
    for key in ("Home", "End"):
        slider.press(key)
        seen.append(canvas.evaluate(read))
    assert seen[0] != seen[1]
    card.get_by_label("sample").fill("1")
    card.get_by_label("sample").press("Enter")
    assert canvas.evaluate(read) not in seen
    picture = find_card(shown, "inputs.0")
    expect(picture.get_by_role("button", name="image or channels")).to_be_visible()
    picture.locator("canvas.map").press("ArrowDown")
    expect(picture.locator(".readout[aria-live]")).to_contain_text("[0, 0, 0, 0..2] = ")
    made.check()


def test_the_colours_of_both_signs_are_named(made: Watched) -> None:
    one = {"path": "tokens", "words": ["a", "b"], "values": [{"name": "gain", "values": [-0.4, 2]}]}
    made.page.route("**/pages/tokens?*", lambda route: route.fulfill(json={"lists": [one]}))
    told = made.show(f"{TENSORS}?key=text&nth=0").locator(".tokens .note")
    expect(told).to_have_text("gain: blue: negative, white: 0, red: positive; from -0.4 to 2")
    one["values"] = [{"name": "loss", "values": [1, 2]}]
    expect(made.show(f"{TENSORS}?key=text&nth=0").locator(".tokens .note")).to_have_text(
        "loss: from 1 (dark) to 2 (light)"
    )
    made.page.unroute("**/pages/tokens?*")


def test_an_input_that_is_no_picture_has_no_map_over_it(made: Watched) -> None:
    def draw_other(route: Route) -> None:
        found = route.fetch().json()
        route.fulfill(json={**found, "preview": {**found["preview"], "image": False}})

    made.page.route("**/pages/picture?*inputs.0&planes=*", draw_other)
    card = find_card(made.show(f"{TENSORS}?key=pictures&nth=0"), "gradcam:layer4/gradcam over inputs.0")
    expect(card.locator(".bad")).to_have_text("inputs.0 is not drawn as an image (three channels, at least 8 by 8)")
    made.page.unroute("**/pages/picture?*inputs.0&planes=*")


def test_a_slice_is_shown_and_saved(made: Watched) -> None:
    shown = made.show(f"{TENSORS}?key=maps&nth=0")
    card = find_card(shown, "layer:output")
    card.locator(".slice summary").press("Enter")
    field = card.get_by_label("slice")
    field.fill("3,7,:2,5:8")
    field.press("Enter")
    expect(card.locator(".slice pre")).to_contain_text('"shape"')
    found = json.loads(card.locator(".slice pre").inner_text())
    assert found["values"] == RAMP[3, 7, :2, 5:8].reshape(-1).tolist() and found["shape"] == [2, 3]
    with shown.expect_download() as saved:
        card.get_by_role("button", name="Save the bytes").press("Enter")
    assert Path(saved.value.path()).read_bytes() == RAMP[3, 7, :2, 5:8].tobytes()
    made.check()
    field.fill("9")
    field.press("Enter")
    expect(card.locator(".slice pre")).to_contain_text("index 9 is outside a dimension of size 4")
    made.complaints.clear()  # the browser tells of each 400


def write_epochs(folder: Path) -> None:
    """One sample with a picture, a map over it, words and their losses, in two epochs."""
    (folder / "rank0000").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"command": ["train"], "exit": {"code": 0, "signal": None}}))
    (folder / "rank0000" / "events.jsonl").write_text("")
    pixels = np.random.default_rng(5).integers(0, 256, (1, 24, 32, 3)).astype(np.uint8)
    epochs = [
        (
            "sample",
            {
                "inputs.0": pixels,
                "gradcam:layer4/gradcam": np.float32([[[1, epoch], [0, 2]]]),
                "head": np.float32([1, 2 + epoch, 3]),
                "tokens": WORDS[:3],
                "loss_per_token": [0.5, 1.0 + epoch, 0.1],
            },
            {"epoch": epoch, "phase": "eval"},
        )
        for epoch in range(2)
    ]
    write_pages(folder / "rank0000" / "pages", epochs, run=folder.name)


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_two_epochs_have_their_maps_words_and_histograms_side_by_side(
    tmp_path: Path,
    chromium: Browser,  # noqa: F811
    width: int,
    scheme: str,
) -> None:
    write_epochs(tmp_path / "epochs")
    server = Server(tmp_path)
    watched = Watched(chromium, server, width, scheme)
    shown = watched.show("/runs/epochs/tensors?key=sample&nth=0&with=sample&with_nth=1")
    sides = shown.locator(".both > section")
    expect(sides).to_have_count(2)
    for at in range(2):
        expect(sides.nth(at).locator("h2").first).to_have_text(f"datapoint sample, epoch {at}, step {at}")
        expect(sides.nth(at).locator(".tokens .text span")).to_have_text(WORDS[:3])
        expect(sides.nth(at).locator(".tokens .text span").nth(1)).to_have_attribute("title", f"[1] {1 + at}")
        expect(sides.nth(at).locator("canvas.overlay")).to_be_visible()
    pictures = [sides.nth(at).locator("canvas.overlay").evaluate("one => one.toDataURL()") for at in range(2)]
    assert pictures[0] != pictures[1]
    card = find_card(shown, "head")
    expect(card.locator(".histograms h3")).to_have_text([f"datapoint sample, epoch {at}, step {at}" for at in range(2)])
    expect(card.locator(".histograms .readout")).to_have_text(["histogram from 1 to 3", "histogram from 1 to 3"])
    expect(card.locator(".histograms .note")).to_have_text(
        ["mean 2, std 1", "mean 2.333, std 1.155"], use_inner_text=True
    )
    shown.uncheck("#with-other")
    expect(shown.locator(".both")).to_have_count(0)
    watched.check()
    watched.context.close()
    assert server.end() in (0, 130)


def test_the_grid_is_sorted_by_a_figure_of_a_layer(made: Watched) -> None:
    shown = made.show(TENSORS)
    shown.select_option("#grid-layer", "head")
    shown.select_option("#grid-figure", "max")
    shown.wait_for_url("**sort=max%28head%29&descending=true**")
    expect(shown.locator(KEYS).first).to_have_text(str(FIRST_KEY + SAMPLES - 1))
    expect(shown.locator("th[aria-sort=descending]")).to_have_text("max(head)")
    expect(shown.locator("#grid-figure")).to_have_value("max")
    shown.fill("#grid-most", "7")
    shown.keyboard.press("Enter")
    expect(shown.locator(KEYS).first).to_have_text(str(FIRST_KEY + 7))
    shown.select_option("#grid-layer", "")
    expect(shown.locator(KEYS).first).to_have_text(str(FIRST_KEY))
    made.check()


def test_the_grid_shows_the_datapoints_of_a_module(made: Watched) -> None:
    shown = made.show(TENSORS)
    shown.fill("#grid-module", "attn")
    shown.keyboard.press("Enter")
    shown.wait_for_url("**module=attn**")
    expect(shown.locator(KEYS)).to_have_text(["maps", "text"])
    shown.fill("#grid-module", "att")
    shown.keyboard.press("Enter")
    expect(shown.locator("[role=status]")).to_have_text("No datapoint matches.")
    made.check()


SIDE = 4096  # of attention over as many tokens
LARGEST_ANSWER = 5 << 20  # three pictures of 1 MB each, in base64


def write_attention(folder: Path) -> tuple["np.ndarray", "np.ndarray"]:
    """One map of attention in two epochs: 64 MB together. They differ in a few values, far from each other."""
    first = np.random.default_rng(9).random((SIDE, SIDE), dtype=np.float32).astype(np.float16)
    second = first.copy()
    second[5, 7] += 40
    second[4000, 4090] -= 3
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"command": ["train"], "exit": {"code": 0, "signal": None}}))
    (folder / "rank0000").mkdir()
    (folder / "rank0000" / "events.jsonl").write_text("")
    epochs = [("map", {"attn:attention": values}, {"epoch": epoch}) for epoch, values in enumerate((first, second))]
    write_pages(folder / "rank0000" / "pages", epochs, run=folder.name)
    return first, second


def test_the_difference_of_two_large_maps_comes_in_parts(tmp_path: Path, chromium: Browser) -> None:  # noqa: F811
    first, second = write_attention(tmp_path / "large")
    server = Server(tmp_path)
    watched = Watched(chromium, server)
    sizes: list[int] = []

    def note_size(answer: Response) -> None:
        if "/pages/" in answer.url:
            sizes.append(int(answer.headers.get("content-length") or len(answer.body())))

    watched.page.on("response", note_size)
    shown = watched.show("/runs/large/tensors?key=map&nth=0&with=map&with_nth=1")
    card = find_card(shown, "attn:attention")
    expect(card.locator(".distance")).to_contain_text("2 of 16,777,216 values differ beyond rounding")
    expect(card.locator("canvas.map")).to_have_count(3)
    for at, address in ((0, "/pages/picture?"), (2, "/pages/difference?")):
        canvas, readout = card.locator("canvas.map").nth(at), card.locator(".readout[aria-live]").nth(at)
        expect(card.locator(".part").nth(at)).to_contain_text("each cell is the mean of")
        canvas.press("ArrowRight")
        with shown.expect_response(lambda answer, address=address: address in answer.url and "rows=" in answer.url):
            press_all(canvas, "+ + + + + + + +")
        expect(card.locator(".part").nth(at)).to_contain_text("each cell is a value")
        canvas.press("ArrowRight")
        expect(readout).not_to_contain_text("mean")
        text = readout.inner_text()
        row, column = json.loads(text.partition(" = ")[0])
        value = float(text.partition(" = ")[2].removeprefix("\u2248 "))
        wanted = first if at == 0 else second - first
        assert value == pytest.approx(float(wanted[row, column]), abs=1e-2)
    card.get_by_role("button", name="fit").nth(2).press("Enter")
    expect(card.locator(".part").nth(2)).to_contain_text("each cell is the mean of")
    refused = card.locator(".refused", has_text="not this part")
    watched.page.route("**/pages/picture?*rows=*", lambda route: route.fulfill(json={"why": "not this part"}))
    press_all(card.locator("canvas.map").nth(0), "- - -")
    expect(refused).to_have_count(1)
    press_all(card.locator("canvas.map").nth(2), "+ + + + + + + +")
    expect(card.locator(".part").nth(2)).to_contain_text("each cell is a value")
    expect(refused).to_have_count(1)  # what is said of one picture is not taken back by another
    assert sizes and max(sizes) < LARGEST_ANSWER and sum(sizes) < (first.nbytes + second.nbytes) / 4
    watched.check()
    watched.context.close()
    assert server.end() in (0, 130)


def test_a_part_of_a_difference_is_that_of_the_values(tmp_path: Path) -> None:
    from .conftest import Client

    first, second = write_attention(tmp_path / "large")
    query = {"key": "map", "path": "attn:attention", "other_key": "map", "other_nth": 1}
    for rows, columns in (((0, 16), (0, 16)), ((3990, 4010), (4080, 4096))):
        words = {"rows": f"{rows[0]}:{rows[1]}", "columns": f"{columns[0]}:{columns[1]}"}
        found = Client(tmp_path).ask("/runs/large/pages/difference", **query, **words)
        assert set(found) == {"path", "difference"}
        preview = found["difference"]["preview"]
        values = np.frombuffer(base64.b64decode(preview["data"]), "<f4").reshape(rows[1] - rows[0], -1)
        wanted = second.astype("f8") - first.astype("f8")
        assert np.allclose(values, wanted[slice(*rows), slice(*columns)])
        assert abs(values).max() > 2
    answer = Client(tmp_path).get("/api/v1/runs/large/pages/difference", params={**query, "rows": "0:9999"})
    assert answer.status_code == 400 and answer.json()["error"] == "rows cannot be 0:9999: there are 4,096"
