"""`web/charts.js` in node: where lines break, and the steps that the charts of a page share."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tdbg import core
from tdbg.core.curve_points import CurvePoints
from tdbg.metrics.render.curve_data import build_curve_dicts
from tdbg.metrics.render.curves import Curve

NODE = shutil.which("node")
SCRIPT = Path(core.__file__).parent / "web" / "charts.js"
STEPS = (*range(1, 51), 64, 128, 175, 192, 256)
needs_node = pytest.mark.skipif(NODE is None, reason="no node here to run the page's script")


# In place of plotly one that keeps what it is given, as plotly does: what a page gives it can be read without a browser.
PAGE = """
const place = {clientWidth: 900, removeAllListeners() {}, on() {}}, document = {};
const getComputedStyle = () => ({getPropertyValue: () => "#000000"});
const Plotly = {react(place, data, layout) { Object.assign(place, {data, layout}); }};
const zoomTo = range => { place.layout.xaxis.range = range; };
const drawn = [], note = () => drawn.push(JSON.parse(JSON.stringify({data: place.data, layout: place.layout})));
"""


def call_script(function: str, *given: object) -> Any:
    """What a function of the script returns."""
    return run_script(f"{function}({', '.join(map(json.dumps, given))})")


def draw_script(*lines: str) -> Any:
    """What plotly was given until each ``note()`` of these lines, which draw in ``place``."""
    return run_script("drawn", PAGE, *lines)


def run_script(value: str, before: str = "", *lines: str) -> Any:
    """A value that node finds once it has run the script, and these lines after it."""
    assert NODE
    body = "\n".join((before, SCRIPT.read_text(encoding="utf-8"), *lines))
    script = f"{body}\nconsole.log(JSON.stringify({value}) ?? 'null')"
    done = subprocess.run([NODE, "-e", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_node
def test_a_gap_is_dotted_from_the_value_before_it_to_the_one_after_it() -> None:
    curve = CurvePoints()
    for step in STEPS:
        curve.add_point(step, float(step))
    joined = call_script("joinGaps", curve.as_data("loss"))
    assert joined["x"] == [64, 128, None, 128, 175, None, 192, 256, None] and joined["y"] == joined["x"]


@needs_node
def test_what_is_not_finite_is_not_joined() -> None:
    curve = CurvePoints()
    for step in STEPS:
        curve.add_point(step, "nan" if step in (64, 175) else 1.0)
    assert call_script("joinGaps", curve.as_data("loss"))["x"] == [192, 256, None]


@needs_node
def test_a_curve_of_metrics_breaks_where_that_of_the_report_does() -> None:
    report, metrics = CurvePoints(), Curve("tdbg/loss", 0)
    for step in STEPS:
        value = float("nan") if 10 <= step < 20 or step == 175 else float(step)
        report.add_point(step, value)
        metrics.add_point(step, value)
    (plain,) = build_curve_dicts({"tdbg/loss": [metrics]})
    broken, expected = call_script("breakCurve", "loss", plain), report.as_data("loss")
    assert broken == {key: json.loads(json.dumps(value)) for key, value in expected.items() if key != "count"}


@needs_node
def test_the_charts_of_a_page_share_the_steps_of_all() -> None:
    curves = [
        {"x": [0, 50], "y": [1, 2]},
        {"x": [100], "y": [1], "non_finite": [[60, 400, 9, "nan"]]},
        {"x": [], "y": [], "non_finite": []},
    ]
    assert call_script("findStepRange", curves) == [-8, 408]
    assert call_script("findStepRange", [{"x": [7], "y": [1]}]) == [6, 8]
    assert call_script("findStepRange", []) is None


CLOCKS = [
    {"rank": 0, "x": "step", "steps": [1, 10, 20], "seconds": [2.0, 3.0, 103.0]},
    {"rank": 0, "x": "call", "steps": [1, 2], "seconds": [50.0, 60.0]},
    {"rank": 1, "x": "step", "steps": [1, 40], "seconds": [2.0, 400.0]},
    {"rank": 1, "x": "call", "steps": [], "seconds": []},
]


@needs_node
@pytest.mark.parametrize(("step", "seconds"), [(0, 2), (1, 2), (10, 3), (11, 13), (15, 53), (20, 103), (99, 103)])
def test_the_time_of_a_step_is_in_proportion_between_those_that_are_known(step: int, seconds: float) -> None:
    assert call_script("secondsAt", CLOCKS[0], step) == pytest.approx(seconds)


@needs_node
def test_a_finding_is_at_the_time_of_its_rank() -> None:
    for rank, step, seconds in ((0, 20, 103), (1, 40, 400), (7, 30, 2 + 29 / 39 * 398), (None, 15, 53), (0, 99, 103)):
        found = call_script("secondsOfFinding", {"rank": rank, "step": step}, CLOCKS)
        assert found == pytest.approx(seconds), (rank, step)


@needs_node
def test_the_charts_of_a_page_share_their_time() -> None:
    curves = [{"x": [1, 15], "clock": 0}, {"x": [1, 2], "clock": 1}, {"x": [], "clock": 3}]
    found = call_script("describeTime", curves, [{"rank": 1, "step": 40}], CLOCKS)
    assert (found["unit"], found["seconds"]) == ("minutes", 60)
    assert [60 * one for one in found["range"]] == pytest.approx([2 - 0.02 * 398, 400 + 0.02 * 398])
    assert "range" not in call_script("describeTime", [], [], [])


CALLS = [
    {"rank": 0, "x": "step", "steps": [], "seconds": []},
    {"rank": 0, "x": "call", "steps": [1, 11], "seconds": [50.0, 60.0]},
]


@needs_node
def test_a_finding_of_a_run_that_only_evaluates_is_at_the_time_of_its_call() -> None:
    assert call_script("secondsOfFinding", {"rank": 0, "step": 6}, CALLS) == pytest.approx(55)
    assert call_script("secondsOfFinding", {"rank": 0, "step": 6}, CALLS[:1]) is None
    found = call_script("describeTime", [{"x": [1, 11], "clock": 1}], [{"rank": 0, "step": 6}], CALLS)
    assert found["range"] == pytest.approx([49.8, 60.2])
    assert "range" not in call_script("describeTime", [], [{"rank": 0, "step": 6}], CALLS[:1])


CHART = {"x": "step", "unit": "", "marked": True, "bands": []}
CURVE = {"name": "loss", "x": [1, 10, 20], "y": [3, 2, 1], "clock": 0, "gaps": [], "non_finite": []}
FINDING = {"rank": 0, "step": 10, "code": "TD-N001", "severity": "error", "title": "x"}


def write_draw(curves: object, clocks: object = None, findings: object = (), chart: object = CHART) -> str:
    """A line that draws the curves, over time where there are clocks, and notes what plotly was given."""
    time = (
        f"describeTime({json.dumps(curves)}, {json.dumps(findings)}, {json.dumps(clocks)})" if clocks else "undefined"
    )
    given = ", ".join(map(json.dumps, (chart, curves, findings)))
    return f"drawCurves(place, {given}, {{time: {time}, range: [0, 21]}}); note();"


@needs_node
def test_without_a_clock_no_finding_is_marked() -> None:
    curve = {**CURVE, "x": [], "y": []}
    known, unknown = draw_script(write_draw([CURVE], CLOCKS, [FINDING]), write_draw([curve], CALLS[:1], [FINDING]))
    assert len(known["layout"]["shapes"]) == len(known["layout"]["annotations"]) == 1
    assert unknown["layout"]["shapes"] == unknown["layout"]["annotations"] == []


@needs_node
@pytest.mark.parametrize(("last_s", "unit"), [(250.0, "seconds"), (400.0, "minutes"), (9000.0, "hours")])
def test_what_is_zoomed_over_time_is_so_while_the_unit_is_the_same(last_s: float, unit: str) -> None:
    def clocks_until(last_s: float) -> object:
        return [{"rank": 0, "x": "step", "steps": [1, 20], "seconds": [0.0, last_s]}]

    again = write_draw([CURVE], clocks_until(last_s))
    before, after = draw_script(write_draw([CURVE], clocks_until(200.0)), "zoomTo([50, 100]);", again)
    first, second = before["layout"]["xaxis"], after["layout"]["xaxis"]
    assert second["title"]["text"].startswith(unit)
    for one in ("range", "uirevision"):  # with both of them as before, plotly leaves the zoom as it is
        assert (second[one] == first[one]) == (unit == "seconds"), one


@needs_node
def test_the_band_of_all_ranks_goes_by_the_clock_that_reaches_furthest() -> None:
    chart = {**CHART, "bands": [{"name": "all ranks", "x": [0, 10, 20, 40], "low": [0] * 4, "high": [1] * 4}]}
    (found,) = draw_script(write_draw([CURVE], CLOCKS, chart=chart))
    assert found["data"][0]["x"] == pytest.approx([2, 2 + 9 / 39 * 398, 2 + 19 / 39 * 398, 400])
    restarted = [CLOCKS[0], {"rank": 0, "x": "step", "steps": [15, 40], "seconds": [200.0, 400.0]}]
    (found,) = draw_script(write_draw([CURVE], restarted, chart=chart))
    assert found["data"][0]["x"] == pytest.approx([2, 3, 240, 400])


@needs_node
def test_curves_that_part_keep_their_colours_and_what_they_are_known_by() -> None:
    def draw(*names: tuple[str, str]) -> str:
        return write_draw([{**CURVE, "name": name, "uid": uid} for name, uid in names])

    joined = draw(("ranks 0-1, a", "rank 0, a"), ("ranks 0-1, b", "rank 0, b"))
    parted = draw(("rank 0, a", "rank 0, a"), ("rank 1, a", "rank 1, a"), ("ranks 0-1, b", "rank 0, b"))
    found = draw_script(joined, parted, joined)
    colors = [{one["uid"]: one["line"]["color"] for one in each["data"]} for each in found]
    assert colors[0] == colors[2] == {uid: color for uid, color in colors[1].items() if uid in colors[0]}
    assert [len(set(each.values())) for each in colors] == [2, 3, 2]


@needs_node
def test_a_heat_map_keeps_its_zoom_while_its_columns_are_as_far_apart() -> None:
    def draw(*steps: int) -> str:
        heat = {"x": steps, "rows": ["w"], "values": [[1.0] * len(steps)], "not_finite": [], "clock": 0}
        return f"drawHeat(place, {json.dumps(heat)}); note();"

    def list_ends(*lines: str) -> list[float]:
        return [one["layout"]["xaxis"]["range"][1] for one in draw_script(*lines)]

    zoom = "zoomTo([0, 1]);"
    assert list_ends(draw(1, 2, 3), draw(1, 2, 3, 4)) == [2.5, 3.5]
    kept = list_ends(draw(1, 2, 3), zoom, draw(1, 2, 3, 4), zoom, draw(1, 2, 3, 4, 5), zoom, draw(1, 3, 5, 7))
    assert kept == [2.5, 2.5, 2.5, 3.5]  # given what it was given before, plotly leaves the zoom as it is
