"""The pages in headless Chromium, against the real server: what they say is what --json says, and nothing is complained of."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect, sync_playwright

from .conftest import NAMES, Client

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PAGES = ["overview", "ranks", "tensors", "logs", "metrics", "traces", "flags", "raw"]
DRAWN = "html[data-drawn='{}']"
WIDTHS = [390, 1280]
OTHERS = [(1280, "dark"), (2560, "light"), (2560, "dark")]
assert CHROMIUM or "CI" not in os.environ, "install chromium: in CI the pages are opened"

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to open the pages"),
    pytest.mark.timeout(300),
]


class Server:
    """`tdbg view` as a process of its own."""

    def __init__(self, where: Path, *options: str) -> None:
        command = [sys.executable, "-m", "tdbg", "view", str(where), *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        assert self.address.startswith("http://127.0.0.1:"), self.process.communicate()
        self.root = self.address.partition("/runs")[0]

    def end(self) -> int:
        """End it as Ctrl-C does; the exit code."""
        self.process.send_signal(2)
        self.process.communicate(timeout=20)
        return self.process.returncode


@pytest.fixture(scope="module")
def server(runs_folder: Path) -> Iterator[Server]:
    found = Server(runs_folder)
    yield found
    assert found.end() in (0, 130)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


class Watched:
    """A page with its session, and all that the browser had to say of it."""

    def __init__(self, browser: Browser, server: Server, width: int = 1280, scheme: Any = "light") -> None:
        self.server, self.width = server, width
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on(
            "response", lambda answer: answer.status < 400 or self.complaints.append(f"{answer.status}: {answer.url}")
        )
        self.page.on("requestfailed", self._note_failure)
        self.page.goto(server.address)
        self.page.wait_for_selector(DRAWN.format("/runs"), state="attached")

    def _note_failure(self, request: Any) -> None:
        # A page that is left, or on which another datapoint is chosen, ends what it had asked for.
        if request.failure != "net::ERR_ABORTED":
            self.complaints.append(f"failed: {request.url}")

    def show(self, path: str) -> Page:
        """Go to a page and wait until it is drawn; complaints count from here on."""
        self.complaints.clear()
        self.page.goto(self.server.root + path)
        self.page.wait_for_selector(DRAWN.format(path.partition("?")[0]), state="attached", timeout=60_000)
        return self.page

    def check(self) -> None:
        """Nothing was complained of, and the page is not wider than the window."""
        assert self.complaints == []
        assert self.page.evaluate("document.documentElement.scrollWidth") <= self.width
        ends = "[...document.querySelectorAll('nav a, nav .name')].map(one => one.getBoundingClientRect())"
        assert all(one["width"] > 0 and one["right"] <= self.width for one in self.page.evaluate(ends))

    def check_quiet(self) -> None:
        """The same; plotly's own note that it settled on the margins of a chart is no complaint."""
        self.complaints[:] = [one for one in self.complaints if "Too many auto-margin redraws" not in one]
        self.check()


@pytest.fixture(scope="module", params=WIDTHS)
def watched(request: pytest.FixtureRequest, chromium: Browser, server: Server) -> Iterator[Watched]:
    found = Watched(chromium, server, request.param, "dark" if request.param == 390 else "light")
    yield found
    found.context.close()


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("run", NAMES)
def test_every_page_of_every_recorded_run(watched: Watched, run: str, page: str) -> None:
    shown = watched.show(f"/runs/{run}/{page}")
    text = shown.inner_text("#content")
    assert text.strip() and "Loading" not in text and "This page failed" not in text
    if page == "flags":
        assert ("by level" in text) == (run in ("single", "two_ranks"))
        box = shown.locator("tbody td").last.bounding_box()
        assert box is not None and box["x"] + box["width"] <= watched.width
    watched.check()


@pytest.mark.parametrize(("width", "scheme"), OTHERS)
def test_every_kind_of_page_in_other_sizes_and_colours(
    chromium: Browser, server: Server, width: int, scheme: str
) -> None:
    watched = Watched(chromium, server, width, scheme)
    runs = {"tensors": "captured", "traces": "profiled"}
    for path in ["/runs", "/runs#/compare/two_ranks/killed", *(f"/runs/{runs.get(p, 'two_ranks')}/{p}" for p in PAGES)]:
        shown = watched.show(path)
        assert "This page failed" not in shown.inner_text("#content"), path
        watched.check()
    watched.context.close()


@pytest.mark.parametrize("run", ["two_ranks", "killed", "single"])
def test_the_overview_says_what_the_report_says(watched: Watched, client: Client, run: str) -> None:
    shown, report = watched.show(f"/runs/{run}/overview"), client.ask(f"/runs/{run}/report")
    assert shown.inner_text("#headline") == report["headline"].removeprefix("verdict: ")
    cards = shown.locator("#story > li")
    assert cards.count() == len(report["findings"])
    told = [card.inner_text() for card in cards.all()]
    for finding in report["findings"]:
        assert any(finding["code"] in card and finding["title"] in card for card in told)
    names = shown.locator("#table-flags td:first-child")
    lines = "one => { const range = document.createRange(); range.selectNodeContents(one); return range.getClientRects().length; }"
    assert all(one.evaluate(lines) == 1 for one in names.all())


@pytest.mark.parametrize(
    ("path", "text", "chart"),
    [
        ("/runs/two_ranks/overview", "4 findings", "#chart-loss .scatterlayer"),
        ("/runs/two_ranks/ranks", "Over time", ".chart .barlayer .point"),
        ("/runs/two_ranks/metrics", "latest, best, min and max", "#charts .scatterlayer .trace"),
        ("/runs/profiled/traces", "Where a step goes", "#flame .slice"),
        ("/runs#/compare/two_ranks/killed", "Settings that differ", "#charts .scatterlayer .trace"),
    ],
)
def test_the_text_of_a_page_does_not_wait_for_its_charts(watched: Watched, path: str, text: str, chart: str) -> None:
    held: list[Route] = []
    shown = watched.page
    shown.route("**/assets/plotly.js", lambda route: held.append(route))
    shown.goto(watched.server.root + "/")  # a page of its own: what differs behind the # alone loads no script anew
    shown.goto(watched.server.root + path)
    expect(shown.locator("#content")).to_contain_text(text)
    expect(shown.locator("#content .chart, #content .graph").first).to_be_attached()
    shown.wait_for_timeout(200)
    places = "[...document.querySelectorAll('h2, h3, .note')].map(one => one.getBoundingClientRect().top + scrollY)"
    before = shown.evaluate(places)
    assert held and shown.locator(chart).count() == 0
    held[0].continue_()
    shown.wait_for_selector(DRAWN.format(path), state="attached")
    expect(shown.locator(chart).first).to_be_attached()
    assert shown.evaluate(places) == pytest.approx(before, abs=1)
    shown.unroute_all()


@pytest.mark.parametrize("path", ["/runs/two_ranks/metrics", "/runs/two_ranks/ranks", "/runs/profiled/traces"])
def test_a_page_without_plotly_says_what_is_missing(watched: Watched, path: str) -> None:
    watched.page.route("**/assets/plotly.js", lambda route: route.abort())
    shown = watched.show(path)
    expect(shown.locator(".state.bad")).to_contain_text("pip install 'tdbg[html]'")
    assert shown.locator("h2, h3").count()
    shown.unroute_all()


def test_a_code_is_explained_on_its_card(watched: Watched, client: Client) -> None:
    shown = watched.show("/runs/two_ranks/overview")
    box = shown.locator(".explanation").first
    expect(box.locator("p")).to_have_count(0)
    box.locator("summary").press("Enter")
    code = box.locator("summary").inner_text().split()[1]
    page = client.ask(f"/rules/{code}")["page"]
    expect(box.locator("p").first).to_have_text(" ".join(page.partition("\n\n")[0].split()))
    assert "".join(box.locator("div").inner_text().split()) == "".join(page.split())
    watched.check()


KEPT_ROW = {"key": "a b", "nth": 2, "step": None}


def test_what_was_chosen_stays_when_a_run_that_goes_on_is_drawn_again(chromium: Browser, server: Server) -> None:
    watched = Watched(chromium, server)
    status = {"state": "running", "last_finding": None}

    def send_status(route: Route) -> None:
        route.fulfill(content_type="text/event-stream", body=f"event: status\ndata: {json.dumps(status)}\n\n")

    watched.page.route("**/status", lambda route: route.fulfill(json={**route.fetch().json(), **status}))
    watched.page.route("**/events", send_status)
    watched.page.route("**/pages/datapoints?*", lambda route: route.fulfill(json={"rows": [KEPT_ROW]}))
    asked: list[str] = []
    watched.page.on("request", lambda request: asked.append(request.url))
    shown = watched.show("/runs/two_ranks/overview")
    box = shown.locator(".explanation").first
    box.locator("summary").press("Enter")
    expect(box.locator("div p").first).to_be_visible()
    shown.check("#logarithmic")
    evidence = shown.locator(".finding > details:not(.explanation)").first
    was_open = evidence.get_attribute("open") is not None
    evidence.locator("summary").click()
    shown.select_option("#choice-phases", "1")
    shown.focus("#choice-phases")
    shown.evaluate("document.querySelector('#headline').dataset.old = 'yes'")
    status["last_finding"] = {"code": "new"}
    expect(shown.locator("#headline[data-old]")).to_have_count(0, timeout=20_000)
    expect(box.locator("div p").first).to_be_visible()
    expect(shown.locator("#logarithmic")).to_be_checked()
    expect(shown.locator("#choice-phases")).to_have_value("1")
    expect(shown.locator("#choice-phases")).to_be_focused()
    assert (evidence.get_attribute("open") is not None) != was_open
    assert shown.evaluate("document.querySelector('#charts .chart').layout.yaxis.type") == "log"
    assert sum("/rules/" in one for one in asked) == 1
    links = shown.get_by_role("link", name="Captured tensors")
    expect(links).to_have_count(4)
    address = "/runs/two_ranks/tensors?key=a+b&nth=2"
    assert sorted(one.get_attribute("href") or "" for one in links.all()) == [
        *[address] * 2,
        *[f"{address}&module=encoder.0"] * 2,
    ]
    wanted = {"limit=1"} | {f"steps={step}&ranks={rank}&limit=1" for step, rank in ((13, 1),)}
    wanted |= {
        f"module=encoder.0&ranks={rank}&steps=0%3A{step}&sort=step&descending=true&limit=1"
        for step, rank in ((13, 1), (20, 0))
    }
    assert {one.partition("datapoints?")[2] for one in asked if "/pages/datapoints" in one} == wanted
    watched.context.close()


class LiveRun:
    """The answers of a run that has ended, as those of one that goes on; `add_finding` has the overview drawn again."""

    def __init__(self, watched: Watched) -> None:
        self.status: dict[str, Any] = {"state": "running", "last_finding": None}
        self.steps = 0
        watched.page.route("**/status", lambda route: route.fulfill(json={**route.fetch().json(), **self.status}))
        watched.page.route("**/events", self._send_status)
        watched.page.route("**/api/**/overview", self._add_steps)
        self.page = watched.page

    def _send_status(self, route: Route) -> None:
        route.fulfill(content_type="text/event-stream", body=f"event: status\ndata: {json.dumps(self.status)}\n\n")

    def _add_steps(self, route: Route) -> None:
        """As if it had gone on: each curve is longer, and another one comes first."""
        found = route.fetch().json()
        for chart in found["charts"] if self.steps else ():
            for curve in chart["curves"]:
                curve["x"].append(curve["x"][-1] + self.steps)
                curve["y"].append(curve["y"][-1])
            if chart["curves"]:
                chart["curves"].insert(0, {**chart["curves"][0], "name": "another", "uid": "another"})
        route.fulfill(json=found)

    def draw_again(self) -> None:
        """Let it go on for 100 steps and find something; returns once the page shows it."""
        self.steps += 100
        self.page.evaluate("document.querySelector('#headline').dataset.old = 'yes'")
        self.status["last_finding"] = {"code": f"new {self.steps}"}
        expect(self.page.locator("#headline[data-old]")).to_have_count(0, timeout=20_000)


def zoom_in(shown: Page, chart: Locator) -> None:
    """Drag over a part of a chart, from its left to its middle."""
    chart.scroll_into_view_if_needed()
    box = chart.locator(".nsewdrag").first.bounding_box()
    assert box is not None
    shown.mouse.move(box["x"] + 20, box["y"] + box["height"] / 2)
    shown.mouse.down()
    shown.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2 + 2, steps=4)
    shown.mouse.up()


def reset_zoom(shown: Page, chart: Locator) -> None:
    """A double click into a chart."""
    chart.scroll_into_view_if_needed()
    box = chart.locator(".nsewdrag").first.bounding_box()
    assert box is not None
    shown.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


X_RANGE = "one => one.layout.xaxis.range.map(Number)"
HIDDEN = "one => one.data.filter(trace => trace.visible === 'legendonly').map(trace => trace.name)"


def test_zoom_and_hidden_series_stay_when_the_overview_is_drawn_again(chromium: Browser, server: Server) -> None:
    watched = Watched(chromium, server)
    watched.context.add_init_script(COUNT_LISTENERS)
    run = LiveRun(watched)
    shown = watched.show("/runs/two_ranks/overview")
    loss, rates, lanes = (shown.locator(one) for one in ("#curves-loss", "#curves-lr", "#lanes"))
    expect(loss.locator(".scatterlayer").first).to_be_attached()
    for chart in (loss, lanes):
        before = chart.evaluate(X_RANGE)
        zoom_in(shown, chart)
        wait_until(lambda chart=chart, before=before: chart.evaluate(X_RANGE) != before)  # type: ignore[misc]
    zoomed = [chart.evaluate(X_RANGE) for chart in (loss, lanes)]
    wait_until(lambda: rates.evaluate(X_RANGE) == zoomed[0])  # over steps all curves have one axis
    toggle = loss.locator(".legend .legendtoggle").last
    toggle.click()
    wait_until(lambda: bool(loss.evaluate(HIDDEN)))
    hidden, count = loss.evaluate(HIDDEN), shown.evaluate("window.sizeListeners")
    for _ in range(2):
        run.draw_again()
        assert [chart.evaluate(X_RANGE) for chart in (loss, lanes, rates)] == [*zoomed, zoomed[0]]
        assert loss.evaluate(HIDDEN) == hidden and "another" in loss.evaluate("one => one.data.map(one => one.name)")
    assert shown.evaluate("window.sizeListeners") == count
    shown.check("#logarithmic")
    assert loss.evaluate(X_RANGE) == zoomed[0] and loss.evaluate(HIDDEN) == hidden
    loss.locator(".annotation").first.click()
    expect(shown.locator(".finding.shown")).to_have_count(1)
    reset_zoom(shown, rates)
    wait_until(lambda: loss.evaluate(X_RANGE)[1] > zoomed[0][1])
    free = loss.evaluate(X_RANGE)
    assert rates.evaluate(X_RANGE) == free
    run.draw_again()
    assert loss.evaluate(X_RANGE)[1] > free[1] + 100  # what is not zoomed goes on with the run
    assert rates.evaluate(X_RANGE) == loss.evaluate(X_RANGE) and lanes.evaluate(X_RANGE) == zoomed[1]
    watched.check_quiet()
    watched.context.close()


def test_curves_are_drawn_over_time_and_the_address_says_so(watched: Watched, runs_folder: Path) -> None:
    shown = watched.show("/runs/two_ranks/overview")
    loss = shown.locator("#curves-loss")
    expect(loss.locator(".scatterlayer").first).to_be_attached()
    read = "one => ({title: one.layout.xaxis.title.text, x: one.data[0].x, range: one.layout.xaxis.range, lines: one.layout.shapes.map(line => line.x0)})"
    over_steps = loss.evaluate(read)
    assert over_steps["title"] == "step" and set(over_steps["lines"]) == {13, 20}
    shown.select_option("#axis", "time")
    wait_until(lambda: loss.evaluate(read)["title"] == "seconds since the start of the run")
    assert shown.url.endswith("?axis=time")
    info = json.loads((runs_folder / "two_ranks" / "run.json").read_text())
    events = [json.loads(line) for line in (runs_folder / "two_ranks/rank0000/events.jsonl").read_text().splitlines()]
    times = {one["step"]: one["t"] - info["start"] for one in events if one["type"] == "step" and "loss" in one}
    over_time = loss.evaluate(read)
    seconds = dict(zip(over_steps["x"], over_time["x"], strict=True))
    assert all(seconds[step] == pytest.approx(times[step], abs=0.01) for step in over_steps["x"] if step in times)
    lines = dict(zip(over_steps["lines"], over_time["lines"], strict=True))
    assert lines[20] == pytest.approx(times[20], abs=0.01) and lines[13] == pytest.approx(times[13], abs=0.2)
    ranges = "[...document.querySelectorAll('#charts .js-plotly-plot')].map(one => one.layout.xaxis.range.join())"
    assert len(set(shown.evaluate(ranges))) == 1 and over_time["range"][0] < min(times.values())
    evaluated = shown.locator("#curves-eval")
    if evaluated.count():
        assert evaluated.evaluate(read)["lines"] == over_time["lines"]  # over calls of the model a step has no place
    shown.reload()
    shown.wait_for_selector(DRAWN.format("/runs/two_ranks/overview"), state="attached")
    expect(shown.locator("#axis")).to_have_value("time")
    expect(loss.locator(".scatterlayer").first).to_be_attached()
    assert loss.evaluate(read) == over_time
    shown.select_option("#axis", "step")
    wait_until(lambda: loss.evaluate(read) == over_steps)
    assert shown.url.endswith("/overview")
    watched.check()


def test_a_finding_in_the_lanes_leads_to_its_card_and_to_the_batch_that_was_saved(watched: Watched) -> None:
    shown = watched.show("/runs/two_ranks/ranks")
    box = shown.locator(".chart .scatterlayer .trace").last.locator(".point").last.bounding_box()
    assert box is not None
    shown.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(shown.locator(".chart .hoverlayer .hovertext")).to_contain_text("TD-D001")
    shown.mouse.down()
    shown.mouse.up()
    card = shown.locator(".finding.shown")
    expect(card).to_contain_text("TD-D001 error")
    expect(card.locator("details:not(.explanation)")).to_have_attribute("open", "")
    expect(card.locator(".explanation")).not_to_have_attribute("open", "")
    links = {one.inner_text(): one.get_attribute("href") for one in card.locator("a").all()}
    assert links["Logs of step 13"] == "/runs/two_ranks/logs?kind=both&steps=13"
    assert links["Metrics at step 13"] == "/runs/two_ranks/metrics?step=13"
    card.get_by_role("link", name="Saved batch").click()
    tensor = shown.locator(".tensor", has=shown.get_by_role("heading", name="batch.0", exact=True))
    expect(tensor.locator(".bad").last).to_have_text("Not finite: 1, at [2, 3]")
    expect(shown.locator(".tensor canvas").first).to_be_visible()
    shown.get_by_role("link", name="All tensors of this run").click()
    expect(shown.locator("#batches tbody tr")).to_have_count(3)
    watched.check()


def test_the_list_shows_every_run_and_is_filtered_in_place(watched: Watched, client: Client) -> None:
    shown = watched.show("/runs")
    assert shown.locator(".runs tbody tr").count() == len(NAMES)
    for run in client.ask("/runs")["runs"]:
        row = shown.locator(".runs tbody tr", has=shown.get_by_role("link", name=run["name"], exact=True))
        assert run["state"] in row.inner_text()
        assert (run["severity"] if run["codes"] else "-") in row.inner_text()
    assert shown.evaluate(
        "document.querySelector('.scroll').scrollWidth <= document.querySelector('.scroll').clientWidth"
    )
    shown.fill("#filter", "td-n003")
    expect(shown.locator(".runs tbody tr:visible")).to_have_count(2)
    shown.fill("#filter", "two_ranks")
    expect(shown.locator(".runs tbody tr:visible")).to_have_count(1)
    shown.get_by_role("link", name="two_ranks").click()
    shown.wait_for_selector(DRAWN.format("/runs/two_ranks/overview"), state="attached")
    shown.go_back()
    shown.wait_for_selector(DRAWN.format("/runs"), state="attached")
    watched.check()


def test_runs_beyond_the_newest_thousand_are_loaded_on_request(tmp_path: Path, chromium: Browser) -> None:
    for number in range(1_004):
        run = tmp_path / f"run{number:04}"
        run.mkdir()
        (run / "run.json").write_text(json.dumps({"version": 1, "command": ["x"], "start_t": 1e9 + number}))
    server = Server(tmp_path)
    watched = Watched(chromium, server)
    shown = watched.page
    expect(shown.locator(".tools .note")).to_have_text("1000 of the newest 1000 runs; 1004 in all", timeout=30_000)
    shown.click("#more")
    expect(shown.locator(".tools .note")).to_have_text("1004 of 1004 runs")
    expect(shown.locator("#more")).to_be_hidden()
    shown.fill("#filter", "run0001")
    expect(shown.locator(".tools .note")).to_have_text("1 of 1004 runs")
    shown.reload()
    expect(shown.locator("#filter")).to_have_value("run0001", timeout=30_000)
    watched.context.close()
    assert server.end() in (0, 130)


def test_two_ticked_runs_are_shown_side_by_side(watched: Watched, client: Client) -> None:
    shown = watched.show("/runs")
    expect(shown.locator("#compare")).to_be_disabled()
    for run in ("first", "second"):
        shown.get_by_label(f"compare {run}", exact=True).press("Space")
    shown.locator("#compare").press("Enter")
    shown.wait_for_selector(DRAWN.format("/runs#/compare/first/second"), state="attached")
    found = client.ask("/compare", first="first", second="second")
    text = shown.inner_text("#content")
    for run in found["runs"]:
        assert run["headline"] in text and " ".join(run["entry"]["command"]) in text
    assert shown.locator("#settings tbody tr").count() == len(found["differences"])
    expect(shown.locator("#both-curves .chart").first).to_be_visible()
    shown.fill("#key-filter", "train/loss")
    expect(shown.locator("#charts h3")).to_have_text(["train/loss"])
    names = "[...document.querySelector('#charts .chart').data].map(one => one.name)"
    wanted = ["first", "first best", "second", "second best"]
    shown.wait_for_function(f"{names}.join() === '{','.join(wanted)}'")
    shown.check("#curve-points")
    shown.wait_for_function("document.querySelector('#charts .chart').data[0].mode === 'lines+markers'")
    watched.check()


def test_a_comparison_has_an_address_of_its_own(watched: Watched) -> None:
    shown = watched.show("/runs#/compare/killed/two_ranks")
    expect(shown.locator(".pair section")).to_have_count(2)
    shown.get_by_role("link", name="Swap the two").click()
    shown.wait_for_selector(DRAWN.format("/runs#/compare/two_ranks/killed"), state="attached")
    shown.go_back()
    shown.wait_for_selector(DRAWN.format("/runs#/compare/killed/two_ranks"), state="attached")
    watched.check()


def test_the_numbers_of_metrics_are_those_of_json(watched: Watched, client: Client) -> None:
    shown, found = watched.show("/runs/two_ranks/metrics"), client.ask("/runs/two_ranks/metrics")
    shown.click("details > summary")
    rows = shown.locator("details tbody tr")
    assert rows.count() == len(found["series"])
    for row, series in zip(rows.all(), found["series"], strict=True):
        cells = row.locator("td").all_inner_texts()
        assert cells[0] == series["key"] and cells[1] == str(series["rank"])
        if isinstance(series["latest"]["value"], float):
            assert float(cells[3].replace(",", "")) == pytest.approx(series["latest"]["value"], rel=1e-3)
    expect(shown.get_by_role("heading", name="pipeline/host_mb (MB)")).to_be_visible()
    shown.fill("#key-filter", "host_mb")
    shown.check("#curve-points")
    expect(shown.locator("#charts .chart")).to_have_count(1)
    assert shown.url.endswith("?keys=host_mb&points=true")
    shown.reload()
    expect(shown.locator("#charts .chart")).to_have_count(1)
    expect(shown.locator("#curve-points")).to_be_checked()
    shown.fill("#key-filter", "no such key")
    expect(shown.locator("#charts")).to_have_text("No key contains this text.")


def wait_until(holds: Callable[[], bool]) -> None:
    """The policy of the pages leaves no way to wait for it in the browser."""
    until = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.1)


COUNT_LISTENERS = """
window.sizeListeners = 0;
for (const [name, step] of [["addEventListener", 1], ["removeEventListener", -1]]) {
  const before = window[name];
  window[name] = function (kind, ...more) { if (kind === "resize") window.sizeListeners += step; return before.call(this, kind, ...more); };
}
"""


def test_charts_that_are_drawn_again_keep_their_zoom_and_leave_nothing(chromium: Browser, server: Server) -> None:
    watched = Watched(chromium, server)
    watched.context.add_init_script(COUNT_LISTENERS)
    shown = watched.show("/runs/two_ranks/metrics?keys=train")
    charts, count = shown.locator("#charts .js-plotly-plot"), "window.sizeListeners"
    expect(charts.locator(".scatterlayer").first).to_be_visible()
    charts.first.scroll_into_view_if_needed()
    box = charts.first.locator(".nsewdrag").first.bounding_box()
    assert box is not None
    shown.mouse.move(box["x"] + 100, box["y"] + 20)
    shown.mouse.down()
    shown.mouse.move(box["x"] + 300, box["y"] + 22, steps=4)
    shown.mouse.up()
    ranges = "[...document.querySelectorAll('#charts .js-plotly-plot')].map(one => one.layout.xaxis.range)"
    wait_until(lambda: shown.evaluate(f"{ranges}[0][1] < {ranges}[1][1]"))
    zoomed, before = shown.evaluate(ranges), shown.evaluate(count)
    assert before >= charts.count() > 1
    for _ in range(3):
        shown.click("#curve-points")
        shown.wait_for_timeout(300)
        assert shown.evaluate(ranges) == zoomed
    assert shown.evaluate(count) == before
    shown.fill("#key-filter", "train/loss")
    expect(charts).to_have_count(1)
    wait_until(lambda: shown.evaluate(count) == before - len(zoomed) + 1)
    shown.get_by_role("link", name="Overview").click()
    shown.wait_for_selector(DRAWN.format("/runs/two_ranks/overview"), state="attached")
    shown.get_by_role("link", name="Raw").click()
    shown.wait_for_selector(DRAWN.format("/runs/two_ranks/raw"), state="attached")
    assert shown.evaluate(count) == before - len(zoomed)
    watched.check()
    watched.context.close()


def test_a_unit_is_text_in_a_chart(chromium: Browser, server: Server) -> None:
    watched = Watched(chromium, server)

    def rename(route: Route) -> None:
        found = route.fetch().json()
        route.fulfill(json={**found, "series": [{**one, "unit": "<b>x</b>"} for one in found["series"]]})

    watched.page.route("**/runs/two_ranks/metrics", rename)
    shown = watched.show("/runs/two_ranks/metrics?keys=train/loss")
    expect(shown.locator("#charts .ytick text").last).to_contain_text("<b>x</b>")
    watched.context.close()


def test_a_captured_tensor_is_drawn(watched: Watched, client: Client) -> None:
    listed = client.ask("/runs/captured/pages", datapoints=True)
    key = listed["list"][0]["key"]
    shown = watched.show(f"/runs/captured/tensors?key={key}&nth=0")
    expect(shown.locator(".tensor")).to_have_count(listed["list"][0]["tensors"])
    expect(shown.locator(".tensor .figures").first).to_be_visible()
    watched.check()


def test_a_trace_has_its_flame_graph_and_is_saved_whole(watched: Watched, client: Client, runs_folder: Path) -> None:
    shown = watched.show("/runs/profiled/traces")
    data = client.ask("/runs/profiled/traces/page")
    assert shown.inner_text("#verdict") == data["traces"][0]["verdict"]
    expect(shown.locator("#flame .slice").first).to_be_visible()
    ways = list(data["traces"][0]["flames"])
    for way in ways:
        shown.locator(f"#ways button[value='{way}']").press("Enter")
        expect(shown.locator("#ways [aria-pressed=true]")).to_have_attribute("value", way)
    with shown.expect_download() as saved:
        shown.get_by_role("button", name="Save the trace for Perfetto").press("Enter")
    (written,) = (runs_folder / "profiled").glob("rank0000/traces/*.json.gz")
    assert Path(saved.value.path()).read_bytes() == written.read_bytes()
    assert saved.value.suggested_filename == "rank0-window0.json.gz"
    (covered, *_) = [one["number"] for one in data["lanes"][0]["steps"] if one["number"] is not None]
    file = written.relative_to(runs_folder / "profiled").as_posix()
    for step, told in ((covered, f"The trace that covers step {covered}: {file}. "), (99_999, f"The trace {file}. ")):
        shown = watched.show(f"/runs/profiled/traces?file={file}&step={step}")
        expect(shown.locator("#one-trace")).to_have_text(told + "All traces of this run")
    watched.check()


def test_a_step_leads_from_the_log_to_the_curves_and_back(watched: Watched) -> None:
    shown = watched.show("/runs/two_ranks/logs?collapse=true")
    expect(shown.locator("#logs-collapse")).to_be_checked()
    expect(shown.locator(".record", has_text="ranks 0-1").first).to_be_visible()
    link = shown.locator(".record a").first
    step = link.inner_text().removeprefix("step ")
    link.click()
    shown.wait_for_selector(DRAWN.format("/runs/two_ranks/metrics"), state="attached")
    expect(shown.locator("#step")).to_have_value(step)
    line = "document.querySelector('#charts .chart').layout.shapes[0].x0"
    assert shown.evaluate(line) == int(step)
    shown.fill("#step", "12")
    shown.keyboard.press("Enter")
    shown.wait_for_function(f"{line} === 12")
    shown.get_by_role("link", name="Logs of step 12").click()
    shown.wait_for_selector(DRAWN.format("/runs/two_ranks/logs"), state="attached")
    assert {one.inner_text() for one in shown.locator(".record a").all()} == {"step 12"}
    shown.go_back()
    shown.wait_for_selector(DRAWN.format("/runs/two_ranks/metrics"), state="attached")
    expect(shown.locator("#step")).to_have_value("12")
    watched.check()


def test_the_tree_of_flags_counts_their_records(watched: Watched, client: Client) -> None:
    tags = client.ask("/runs/two_ranks/logs/counts")["tags"]
    shown = watched.show("/runs/two_ranks/logs")
    shown.click("#flag-tree summary")
    buttons = shown.locator("#flag-tree button")
    expect(buttons.first).to_be_visible()
    flag = tags[0]["flag"]
    row = shown.locator("#flag-tree li", has=shown.get_by_role("button", name=flag, exact=True)).last
    expect(row.locator(".note").first).to_have_text(str(sum(one["records"] for one in tags if one["flag"] == flag)))
    row.get_by_role("button", name=flag, exact=True).click()
    shown.wait_for_url(f"**flag={flag}**")
    large = {"tags": tags, "looked_at": 2_097_300, "total": 1 << 40}
    shown.route("**/logs/counts*", lambda route: route.fulfill(json=large))
    watched.show("/runs/two_ranks/logs").click("#flag-tree summary")
    expect(shown.locator("#flag-tree > .note")).to_have_text("Counted in the first 2 MiB of the logs.")
    shown.unroute("**/logs/counts*")
    watched.check()


def test_a_choice_in_the_log_is_applied_at_once(watched: Watched) -> None:
    shown = watched.show("/runs/two_ranks/logs?kind=both&steps=12")
    shown.focus("#logs-level")
    shown.select_option("#logs-level", "DEBUG")
    shown.wait_for_url("**level=DEBUG**")
    shown.wait_for_selector(DRAWN.format("/runs/two_ranks/logs"), state="attached")
    expect(shown.locator("#logs-level")).to_be_focused()
    shown.fill("#logs-steps", "12-13")
    shown.keyboard.press("Enter")
    shown.wait_for_url("**steps=12%3A13**")
    expect(shown.locator(".record a").last).to_have_text("step 13")
    watched.check()


def test_two_steps_of_a_datapoint_and_their_difference(watched: Watched, client: Client) -> None:
    shown = watched.show("/runs/captured/tensors?key=step3&nth=0")
    expect(shown.locator("#compared-with")).to_be_disabled()
    shown.check("#with-other")
    shown.focus("#compared-with")
    shown.keyboard.press("ArrowRight")
    shown.wait_for_url("**with=step4**")
    query = {"key": "step3", "other_key": "step4", "path": "head:output"}
    found = client.ask("/runs/captured/pages/difference", **query)
    card = shown.locator(".pairs .tensor", has=shown.get_by_role("heading", name="head:output", exact=True))
    expect(card.locator("canvas.map")).to_have_count(3)
    expect(card.locator(".histograms canvas")).to_have_count(2)
    for at, side in enumerate(("first", "second")):
        expect(card.locator(".histograms .note").nth(at)).to_contain_text("mean ")
        low, high = found[side]["low"], found[side]["high"]
        words = card.locator(".histograms .readout").nth(at).inner_text().removeprefix("histogram from ").split(" to ")
        assert [float(word) for word in words] == pytest.approx([low, high], rel=1e-3)
    expect(card.locator(".distance")).to_contain_text(f"{found['distance']['differing']} of 24 values differ")
    scales = [text.partition(";")[0] for text in card.locator(".triple .note").all_inner_texts()]
    assert scales[0] == scales[1] != scales[2]
    shown.reload()
    expect(shown.locator("#compared-with")).to_have_value("3")
    expect(shown.locator(".pairs canvas").first).to_be_visible()
    watched.check()


def test_a_datapoint_that_is_refused_leaves_no_pictures_of_another(chromium: Browser, server: Server) -> None:
    watched = Watched(chromium, server)
    refusal = {"error": "the page was cut off", "try_next": "x"}
    watched.page.route("**/pages/datapoint?key=step4*", lambda route: route.fulfill(status=400, json=refusal))
    shown = watched.show("/runs/captured/tensors?key=step3&nth=0")
    expect(shown.locator(".tensor canvas").first).to_be_visible()
    shown.locator("#shown").press("ArrowRight")
    expect(shown.locator("#content .state.bad")).to_have_text("the page was cut off")
    expect(shown.locator("#content h2").first).to_contain_text("datapoint step4")
    expect(shown.locator(".tensor")).to_have_count(0)
    shown.locator("#shown").press("ArrowLeft")
    expect(shown.locator(".tensor canvas").first).to_be_visible()
    expect(shown.locator("#content .state.bad")).to_have_count(0)
    watched.context.close()


@pytest.mark.parametrize(
    ("status", "words"), [(401, "Open the address that `tdbg view` printed."), (404, "The run is gone.")]
)
def test_a_page_that_cannot_follow_its_run_any_more_says_why(
    status: int, words: str, chromium: Browser, server: Server
) -> None:
    watched = Watched(chromium, server)
    asked: list[str] = []

    def refuse(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(status=status, json={"error": "no", "try_next": "x"})

    watched.page.route("**/events", refuse)
    watched.page.route(
        "**/api/**/ranks", lambda route: route.fulfill(json={**route.fetch().json(), "state": "running"})
    )
    lost = watched.show("/runs/two_ranks/ranks").locator("#lost")
    expect(lost).to_contain_text(f"{words} What this page shows is of")
    watched.page.wait_for_timeout(3_500)
    assert len(asked) == 1 and "reconnecting" not in lost.inner_text()
    watched.context.close()


def test_a_page_without_a_session_says_what_to_do(chromium: Browser, server: Server) -> None:
    context = chromium.new_context()
    page = context.new_page()
    page.goto(f"{server.root}/runs/single/overview")
    expect(page.locator(".state")).to_contain_text(
        "open the URL with #token=... that `tdbg view` or `tdbg run --serve` printed"
    )
    assert "token" not in page.url
    context.close()


def test_the_token_leaves_the_address(watched: Watched) -> None:
    watched.page.goto(watched.server.address)
    watched.page.wait_for_selector(DRAWN.format("/runs"), state="attached")
    assert "#" not in watched.page.url


def test_what_is_not_there_is_said(watched: Watched) -> None:
    watched.page.goto(f"{watched.server.root}/runs/none/overview")
    expect(watched.page.locator(".state.bad")).to_contain_text("there is no run of that name here: the list of")
    watched.complaints.clear()  # the browser tells of each 404
    watched.page.goto(f"{watched.server.root}/runs/single/none")
    expect(watched.page.locator(".state.bad")).to_contain_text("There is no such page")
    watched.complaints.clear()
