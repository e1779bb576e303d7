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


def call_script(function: str, *given: object) -> Any:
    """What a function of the script returns."""
    assert NODE
    arguments = ", ".join(map(json.dumps, given))
    script = f"{SCRIPT.read_text(encoding='utf-8')}\nconsole.log(JSON.stringify({function}({arguments})) ?? 'null')"
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
