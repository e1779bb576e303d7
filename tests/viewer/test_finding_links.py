"""A finding has an address that stays, and leads to the tensors and to the step of the trace that belong to it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.chance import pick_share

from .conftest import Client
from .test_pages import (  # noqa: F401 (fixtures)
    CHROMIUM,
    X_RANGE,
    LiveRun,
    Server,
    Watched,
    chromium,
    reset_zoom,
    server,
    wait_until,
    zoom_in,
)

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to open the pages"),
    pytest.mark.timeout(300),
]
OVERVIEW = "/runs/two_ranks/overview"


@pytest.fixture(params=pick_share([390, 1280], 2))
def opened(request: pytest.FixtureRequest, chromium: Browser, server: Server) -> Iterator[Watched]:  # noqa: F811
    found = Watched(chromium, server, request.param, "dark" if request.param == 390 else "light")
    yield found
    found.context.close()


def add_findings(opened: Watched, *more: dict[str, Any]) -> None:
    """Let the overview have these findings before its own, as if they had been found since."""

    def send_more(route: Route) -> None:
        found = route.fetch().json()
        made = [{**found["findings"][0], **one} for one in more]
        for lane in found["lanes"]["rows"]:
            lane["marks"] = []
        route.fulfill(json={**found, "findings": [*made, *found["findings"]]})

    opened.page.route("**/api/**/overview", send_more)


def get_shown(shown: Page) -> str:
    card = shown.locator(".finding.shown")
    expect(card).to_have_count(1)
    return (card.get_attribute("id") or "").removeprefix("finding-")


def test_an_address_leads_to_the_same_finding_when_others_came_before_it(opened: Watched, client: Client) -> None:
    names = [one["id"] for one in client.ask("/runs/two_ranks/overview")["findings"]]
    for name in names:
        shown = opened.show(f"{OVERVIEW}?finding={name}")
        assert get_shown(shown) == name
        expect(shown.locator(".finding.shown")).to_be_in_viewport()
    add_findings(opened, {"id": "TD-C001-step1", "code": "TD-C001", "step": 1, "rank": None})
    for name in names:
        assert get_shown(opened.show(f"{OVERVIEW}?finding={name}")) == name
    opened.check_quiet()


def test_an_address_of_old_and_one_that_is_no_more_exact_still_lead_somewhere(opened: Watched, client: Client) -> None:
    names = [one["id"] for one in client.ask("/runs/two_ranks/overview")["findings"]]
    shown = opened.show(f"{OVERVIEW}?finding=2")
    assert get_shown(shown) == names[2]
    shown = opened.show(f"{OVERVIEW}?finding=TD-N001-step20-rank1")  # the module, and an earlier step, were found since
    assert get_shown(shown) == "TD-N001-step13-rank1-encoder.0"
    assert shown.url.endswith("?finding=TD-N001-step20-rank1"), "another finding is shown, which was not asked for"
    for nothing in ("99", "TD-X999-step1", "<b>"):
        shown = opened.show(f"{OVERVIEW}?finding={nothing}")
        expect(shown.locator(".finding.shown")).to_have_count(0)
    opened.check_quiet()


def test_the_finding_of_an_address_is_awaited_while_a_run_is_not_read_whole(opened: Watched) -> None:
    asked, is_whole = "TD-N001-step13-rank1-encoder.0", False

    def send_part(route: Route) -> None:
        found = route.fetch().json()
        every = found["findings"]
        near = {**next(one for one in every if one["id"] == asked), "id": "TD-N001-step21-rank0", "step": 21, "rank": 0}
        for lane in found["lanes"]["rows"]:
            lane["marks"] = []
        route.fulfill(json={**found, "is_final": is_whole, "findings": [near, *(every if is_whole else ())]})

    opened.page.route("**/api/**/overview", send_part)
    shown = opened.show(f"{OVERVIEW}?finding={asked}")
    expect(shown.locator(".finding")).to_have_count(1)
    expect(shown.locator(".finding.shown")).to_have_count(0)
    assert shown.url.endswith(f"?finding={asked}")
    is_whole = True
    expect(shown.locator(".finding.shown")).to_have_count(1, timeout=20_000)
    assert get_shown(shown) == asked
    expect(shown.locator(".finding.shown")).to_be_in_viewport()
    assert shown.url.endswith(f"?finding={asked}")
    opened.check_quiet()


def test_the_nearest_finding_stands_for_one_that_is_not_there_once_a_run_has_ended(
    chromium: Browser,  # noqa: F811
    server: Server,  # noqa: F811
) -> None:
    opened = Watched(chromium, server)
    run = LiveRun(opened)
    shown = opened.show(f"{OVERVIEW}?finding=TD-N001-step20-rank1")
    run.draw_again()
    expect(shown.locator(".finding.shown")).to_have_count(0)
    run.status["state"] = "ended"
    expect(shown.locator(".finding.shown")).to_have_count(1, timeout=20_000)
    assert get_shown(shown) == "TD-N001-step13-rank1-encoder.0"
    assert shown.url.endswith("?finding=TD-N001-step20-rank1")
    opened.check_quiet()
    opened.context.close()


def test_a_finding_that_is_clicked_stands_in_the_address_and_stays_marked(
    chromium: Browser,  # noqa: F811
    server: Server,  # noqa: F811
) -> None:
    opened = Watched(chromium, server)
    run = LiveRun(opened)
    shown = opened.show(OVERVIEW)
    shown.locator("#curves-loss .annotation").first.click()
    name = get_shown(shown)
    assert f"?finding={name}" in shown.url
    run.draw_again()
    assert get_shown(shown) == name
    opened.check_quiet()
    opened.context.close()


def test_what_has_the_focus_keeps_it_when_the_overview_is_drawn_again(
    chromium: Browser,  # noqa: F811
    server: Server,  # noqa: F811
) -> None:
    opened = Watched(chromium, server)
    run = LiveRun(opened)
    shown = opened.show(OVERVIEW)
    card = shown.locator("#story > li").nth(1)
    batch = shown.get_by_role("link", name="Saved batch").first
    expect(batch).to_be_attached()
    places = [
        card.locator(".jumps a").nth(1),
        card.locator("summary").first,
        card.locator(".explanation summary"),
        batch,  # it comes later than the text
        shown.locator("#table-ranks .scroll"),
    ]
    for place in places:
        place.focus()
        place.evaluate("one => { one.dataset.old = 'yes'; }")
        run.draw_again()
        expect(place).to_be_focused()
        assert place.get_attribute("data-old") is None
    opened.context.close()


def test_a_zoom_of_one_curve_is_that_of_all_over_steps_and_over_time(opened: Watched) -> None:
    shown = opened.show(OVERVIEW)
    loss, rates = shown.locator("#curves-loss"), shown.locator("#curves-lr")
    expect(rates.locator(".scatterlayer").first).to_be_attached()
    free = loss.evaluate(X_RANGE)
    zoom_in(shown, rates)
    wait_until(lambda: loss.evaluate(X_RANGE) == rates.evaluate(X_RANGE) != free)
    heat, steps = shown.locator("#heat-0"), loss.evaluate(X_RANGE)
    ticks = heat.evaluate("one => [one.layout.xaxis.ticktext.map(Number), one.layout.xaxis.tickvals]")
    assert heat.evaluate(X_RANGE)[1] == pytest.approx(np.interp(steps[1], *ticks), abs=0.1)
    reset_zoom(shown, loss)
    wait_until(lambda: loss.evaluate(X_RANGE) == rates.evaluate(X_RANGE) == free)
    shown.select_option("#axis", "time")
    wait_until(lambda: loss.evaluate(X_RANGE) != free)
    lanes, before = shown.locator("#lanes"), shown.locator("#lanes").evaluate(X_RANGE)
    zoom_in(shown, loss)
    wait_until(lambda: lanes.evaluate(X_RANGE) == pytest.approx(loss.evaluate(X_RANGE)) != before)
    assert rates.evaluate(X_RANGE) == loss.evaluate(X_RANGE)
    shown.select_option("#axis", "step")
    wait_until(lambda: loss.evaluate(X_RANGE) == rates.evaluate(X_RANGE) == free)
    opened.check_quiet()


def test_a_double_click_on_a_y_axis_leaves_the_next_zoom_alone(opened: Watched) -> None:
    shown = opened.show(OVERVIEW)
    loss, rates = shown.locator("#curves-loss"), shown.locator("#curves-lr")
    expect(rates.locator(".scatterlayer").first).to_be_attached()
    free = loss.evaluate(X_RANGE)
    loss.scroll_into_view_if_needed()
    loss.evaluate("one => { one.on('plotly_doubleclick', () => { one.dataset.doubled = 'yes'; }); }")
    box = loss.locator(".nsdrag").first.bounding_box()
    assert box is not None
    shown.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(loss).to_have_attribute("data-doubled", "yes")
    zoom_in(shown, loss)
    wait_until(lambda: loss.evaluate(X_RANGE) == rates.evaluate(X_RANGE) != free)
    shown.wait_for_timeout(300)  # for what would undo it
    assert loss.evaluate(X_RANGE) == rates.evaluate(X_RANGE) != free
    opened.check_quiet()


@pytest.mark.parametrize(
    ("module", "words", "framed"),
    [
        ("encoder.0", "", "encoder.0"),
        ("encoder.0.weight", "", "encoder.0"),
        ("encoder.0.in_proj_bias", "", "encoder.0"),
        ("encoder.0.weight_ih_l0_reverse", "", "encoder.0"),
        ("encoder.3", ", of encoder around it", "encoder"),
        ("encoder.weight_net", ", of encoder around it", "encoder"),
        ("decoder.3", ", of other modules", ""),
    ],
)
def test_tensors_of_another_module_than_that_of_a_finding_are_called_so(
    chromium: Browser,  # noqa: F811
    server: Server,  # noqa: F811
    client: Client,
    module: str,
    words: str,
    framed: str,
) -> None:
    about = client.ask("/runs/two_ranks/overview")["findings"][0]
    finding = {**about, "id": "TD-N001", "module": module, "step": 4, "rank": 0}
    opened = Watched(chromium, server)
    opened.page.route(
        "**/api/**/overview", lambda route: route.fulfill(json={**route.fetch().json(), "findings": [finding]})
    )
    link = opened.show("/runs/captured/overview").locator(".jumps a", has_text="Captured tensors")
    expect(link).to_have_text("Captured tensors" + words)
    assert (link.get_attribute("href") or "").partition("&module=")[2] == framed
    opened.check_quiet()
    opened.context.close()


@pytest.mark.parametrize(
    ("finding", "step", "module"),
    [
        ({"module": "head", "step": None, "rank": None}, 1, "head"),
        ({"module": "head.weight", "step": 9_999, "rank": 0}, 10, "head"),
        ({"module": "head", "step": 4, "rank": 0}, 4, "head"),
        ({"module": "", "step": None, "rank": 0}, 1, ""),
        ({"module": "", "step": 5, "rank": None}, 5, ""),
        ({"module": "", "step": 5, "rank": 7}, None, ""),
        ({"module": "", "step": None, "rank": None}, None, ""),
    ],
)
def test_a_finding_leads_to_the_tensors_of_what_is_known_of_it(
    opened: Watched, client: Client, finding: dict[str, Any], step: int | None, module: str
) -> None:
    def send_finding(route: Route) -> None:
        found = route.fetch().json()
        about = client.ask("/runs/two_ranks/overview")["findings"][0]
        route.fulfill(json={**found, "findings": [{**about, **finding, "id": "TD-N001"}]})

    opened.page.route("**/api/**/overview", send_finding)
    shown = opened.show("/runs/captured/overview")
    expect(shown.locator(".explanation summary")).to_be_visible()
    link = shown.locator(".jumps a", has_text="Captured tensors")
    if step is None:
        shown.wait_for_timeout(500)
        return expect(link).to_have_count(0)
    expect(link).to_have_text("Captured tensors" + ("" if step == finding["step"] else f" of step {step}"))
    link.click()
    expect(shown.locator("h2").first).to_contain_text(f"step {step}")
    sought = shown.locator(".tensor.sought")
    expect(sought.first if module else shown.locator(".tensor").first).to_be_in_viewport()
    assert all(
        (path or "").startswith(module) for path in sought.evaluate_all("all => all.map(one => one.dataset.path)")
    )
    assert bool(module) == bool(sought.count())
    opened.check_quiet()
    return None


def test_the_step_of_a_finding_is_framed_in_its_trace(opened: Watched, client: Client, runs_folder: Path) -> None:
    data = client.ask("/runs/profiled/traces/page")
    steps = {one["number"]: one for one in data["lanes"][0]["steps"] if one["number"] is not None}
    wanted = sorted(steps)[len(steps) // 2]
    (written,) = (runs_folder / "profiled").glob("rank0000/traces/*.json.gz")
    file = written.relative_to(runs_folder / "profiled").as_posix()
    shown = opened.show(f"/runs/profiled/traces?file={file}&step={wanted}")
    expect(shown.locator("#lanes-note")).to_contain_text(f"Step {wanted} is framed.")
    expect(shown.locator("#timeline-note")).to_contain_text(f"Step {wanted}. ")
    frames = "one => one.layout.shapes.filter(shape => shape.type === 'rect').map(shape => [shape.x0, shape.x1])"
    (frame,) = shown.locator("#lanes").evaluate(frames)
    assert frame == pytest.approx([steps[wanted]["start_ms"], steps[wanted]["start_ms"] + steps[wanted]["length_ms"]])
    expect(shown.locator("#lanes .annotation-text", has_text=f"step {wanted}")).to_have_count(1)
    shown = opened.show(f"/runs/profiled/traces?file={file}&step=99999")
    assert shown.locator("#lanes").evaluate(frames) == []
    expect(shown.locator("#lanes-note")).to_contain_text("Step 99999 is not among the steps shown.")
    expect(shown.locator("#timeline-note")).to_contain_text("Step 99999 is not marked in this trace. ")
    opened.check_quiet()


def test_quiet_ranks_are_named_and_their_ages_grow(opened: Watched) -> None:
    silent = "nothing came from it for 60 s"

    def send_ranks(route: Route) -> None:
        found = route.fetch().json()
        for rank in found["ranks"]:
            rank |= {"last_seen_s": 60 * rank["rank"] + 2, "quiet": silent if rank["rank"] else "", "state": "running"}
        route.fulfill(json={**found, "state": "running", "quiet": [1]})

    opened.page.route("**/api/**/ranks", send_ranks)
    opened.page.route("**/events", lambda route: route.fulfill(content_type="text/event-stream", body=": nothing\n\n"))
    shown = opened.show("/runs/two_ranks/ranks")
    expect(shown.locator("#quiet")).to_contain_text("Quiet: rank 1 at step 40, last seen 6")
    cells = shown.locator("#content table").first.locator("tbody tr td:nth-child(4)")
    before = [int(text.split()[0]) for text in cells.all_inner_texts()]
    assert before[0] < 10 < 60 < before[1]
    wait_until(lambda: [int(text.split()[0]) for text in cells.all_inner_texts()] >= [age + 2 for age in before])
    assert json.dumps(opened.complaints) == "[]"


COUNT_TIMERS = """
window.timers = new Set();
const [start, end] = [window.setInterval, window.clearInterval];
window.setInterval = (...given) => { const one = start(...given); window.timers.add(one); return one; };
window.clearInterval = one => { window.timers.delete(one); end(one); };
"""


class LiveRanks:
    """The page Ranks of a run that has ended, as that of one that goes on; `findings` grows with each status that is sent."""

    def __init__(self, watched: Watched) -> None:
        self.findings, self.drawn, self.step = 0, 0, 0
        watched.page.route("**/api/**/ranks", lambda route: route.fulfill(json=self._build_status(route)))
        watched.page.route("**/events", self._send_status)
        watched.page.route("**/api/**/overview", self._count_drawing)

    def _build_status(self, route: Route) -> dict[str, Any]:
        self.status: dict[str, Any] = {**route.fetch().json(), "state": "running"}
        return self.status

    def _send_status(self, route: Route) -> None:
        self.findings, self.step = self.findings + 1, self.step + 1000
        ranks = [{**one, "step": self.step} for one in self.status["ranks"]]
        status = {**self.status, "ranks": ranks, "last_finding": {"code": f"new {self.findings}"}}
        route.fulfill(content_type="text/event-stream", body=f"event: status\ndata: {json.dumps(status)}\n\n")

    def _count_drawing(self, route: Route) -> None:
        self.drawn += 1
        route.continue_()


def wait_for_drawings(shown: Page, ranks: LiveRanks, count: int) -> None:
    for _ in range(150):
        if ranks.drawn >= count:
            return shown.wait_for_timeout(500)
        shown.wait_for_timeout(100)  # routes are answered meanwhile
    raise AssertionError(f"drawn {ranks.drawn} times only")


def test_that_plotly_is_missing_stands_once_on_ranks_that_are_followed(opened: Watched) -> None:
    ranks = LiveRanks(opened)
    opened.page.route("**/assets/plotly.js", lambda route: route.abort())
    shown = opened.show("/runs/two_ranks/ranks")
    wait_for_drawings(shown, ranks, 4)
    expect(shown.locator("#lanes .state.bad")).to_have_count(1)
    shown.unroute("**/assets/plotly.js")
    expect(shown.locator("#lanes .barlayer .point").first).to_be_attached(timeout=20_000)
    expect(shown.locator("#lanes .state.bad")).to_have_count(0)


def test_ranks_are_followed_before_their_charts_are_there_and_no_more_once_left(opened: Watched) -> None:
    held: list[Route] = []
    LiveRanks(opened)
    opened.context.add_init_script(COUNT_TIMERS)
    shown = opened.page
    shown.route("**/assets/plotly.js", lambda route: held.append(route))
    shown.goto(opened.server.root + "/runs/two_ranks/ranks")
    cells = shown.locator("#content table").first.locator("tbody tr").first.locator("td")
    expect(cells.nth(2)).to_have_text("1,000")
    expect(cells.nth(2)).to_have_text("2,000", timeout=20_000)
    assert held and shown.evaluate("window.timers.size") == 1
    shown.get_by_role("link", name="Raw").click()
    expect(shown.locator("#content pre")).to_have_text("Choose one.")
    held[0].continue_()
    shown.wait_for_timeout(1500)
    assert shown.evaluate("window.timers.size") == 0
    opened.check_quiet()
