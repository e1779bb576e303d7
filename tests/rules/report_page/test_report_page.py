"""`tdbg report --html`: the page in headless Chromium, wide and narrow, light and dark."""

import io
import itertools
import json
import tarfile
from pathlib import Path

import pytest
from chromium import CHROMIUM, Browser
from streams import Stream, make_nonfinite

from tdbg.cli import main
from tdbg.core.events import Step, Traceback

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to open the page")
DRAWN = "document.documentElement?.dataset.drawn === 'yes'"
EVIL = "</script><img src=http://evil.invalid/a onerror=alert(1)><a href='http://evil.invalid/b'>{data}{plotly}%{x}$y$"
RECORDED = Path(__file__).parents[2] / "contract" / "runs"
WIDTHS = [1280, 390]


@pytest.fixture(scope="module", params=WIDTHS)
def browser(request):
    with Browser(request.param, 900) as found:
        found.send_command(
            "Emulation.setDeviceMetricsOverride", width=request.param, height=900, deviceScaleFactor=1, mobile=True
        )
        yield found


def write_page(run, target):
    assert main(["report", str(run), "--html", str(target)]) == 0
    return target


def unpack_recording(name, folder):
    with tarfile.open(fileobj=io.BytesIO((RECORDED / f"{name}.tar.gz").read_bytes())) as archive:
        archive.extractall(folder, filter="data")
    return folder / name


def count_elements(browser, selector):
    return browser.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length")


def read_text(browser, selector):
    return browser.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")


def check_clean(browser, path):
    assert browser.errors == []
    assert browser.requests == [path.resolve().as_uri()]
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["two_ranks", "rank_killed", "killed", "single", "resumed"])
def test_recorded_runs(browser, tmp_path, name, scheme):
    browser.send_command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    target = write_page(unpack_recording(name, tmp_path), tmp_path / "r.html")
    browser.open_file(target, DRAWN)
    check_clean(browser, target)
    assert count_elements(browser, "#story .finding") == browser.evaluate("data.findings.length")
    assert count_elements(browser, "#lanes .barlayer .point path") > 0
    assert count_elements(browser, "#chart-loss .scatterlayer .trace") >= 1
    dark = browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 27)"
    assert dark == (scheme == "dark")


def test_findings_are_marked_on_curves_and_lanes_and_a_click_leads_to_them(browser, tmp_path):
    target = write_page(unpack_recording("two_ranks", tmp_path), tmp_path / "r.html")
    browser.open_file(target, DRAWN)
    assert "TD-D001 error NaN in tensor 0 of batch 13" in read_text(browser, "#story .finding")
    assert read_text(browser, "#story .follower").startswith(
        "followed by: TD-N001 critical first NaN at step 13 on rank 1"
    )
    assert read_text(browser, "#chart-loss .annotation-text") == "TD-D001 +2"
    lines = browser.evaluate("data.charts[0].place.layout.shapes.map(shape => shape.x0)")
    assert lines == [13, 20]
    assert browser.evaluate("data.charts[0].place.data.filter(trace => trace.yaxis === 'y2').length") == 2
    cells = browser.evaluate("data.heats[0].place.data.map(trace => trace.x.length)")
    assert len(cells) == 2 and count_elements(browser, "#heats .barlayer .point path") >= sum(
        cells
    )  # the second is red
    assert "red is not finite" in read_text(browser, "#heats .note")
    marks = browser.evaluate("at('lanes').data.at(-1).customdata")
    assert sorted(marks) == [0, 3]
    browser.click("#chart-loss .annotation")
    browser.wait_until("document.querySelector('.finding.shown')?.textContent.includes('TD-D001')")
    assert browser.errors == []


def test_a_rank_that_was_killed_ends_in_its_lane(browser, tmp_path):
    target = write_page(unpack_recording("rank_killed", tmp_path), tmp_path / "r.html")
    browser.open_file(target, DRAWN)
    ends = browser.evaluate("data.lanes.rows.map(row => row.ends.map(end => [end.text, end.bad]))")
    assert ends[1] == [["SIGKILL", True]] and ends[0][0][1] is True
    assert "rank 1 was ended by SIGKILL" in read_text(browser, "#story")


def test_controls_redraw(browser, tmp_path):
    target = write_page(unpack_recording("two_ranks", tmp_path), tmp_path / "r.html")
    browser.open_file(target, DRAWN)
    browser.evaluate("at('logarithmic').click()")
    assert browser.evaluate("data.charts.every(chart => chart.place.layout.yaxis.type === 'log')")
    assert count_elements(browser, "#chart-loss .ytick") > 0
    first = browser.evaluate("JSON.stringify(data.charts.find(chart => chart.select).place.data.map(trace => trace.y))")
    browser.evaluate(
        "const found = data.charts.find(chart => chart.select); found.select.value = '1';"
        "found.select.dispatchEvent(new Event('change'))"
    )
    assert first != browser.evaluate(
        "JSON.stringify(data.charts.find(chart => chart.select).place.data.map(trace => trace.y))"
    )
    assert browser.errors == []


def test_hostile_names_are_text(browser, tmp_path):
    run = Stream(tmp_path / EVIL.replace("/", "_")[:80])
    run.run.update_info(command=[EVIL], cwd=EVIL, host=EVIL, versions={EVIL: EVIL}, env={"OMP_NUM_THREADS": EVIL})
    rank = run.begin_rank()
    run.emit_steps(rank, [1.0, 2.0], loader_ms=1.0, step_ms=5.0)
    run.emit_events(rank, make_nonfinite(module=EVIL, module_class="A" * 100_000, note=EVIL))
    run.emit_events(
        rank, Traceback(step=3, exception=EVIL, message="\x1b]8;;http://evil.invalid/\x07" + EVIL, lines=[EVIL])
    )
    run.emit_events(
        "rank0000/pid-<a href='mailto:evil'>x<img src=x onerror=alert(1)>", Step(step=1, loss=1.0, step_ms=1.0)
    )
    target = write_page(run.run.path, tmp_path / "r.html")
    assert EVIL not in target.read_text() and target.read_text().count("</script>") == 3
    browser.open_file(target, DRAWN)
    check_clean(browser, target)
    browser.hover_over("#lanes .scatterlayer .trace:last-child .point")
    browser.wait_until("document.querySelector('#lanes .hoverlayer').textContent.includes('evil')")
    assert "<a href='mailto:evil'>" in read_text(browser, "#chart-loss")
    assert "rank0000/pi" in read_text(browser, "#lanes .yaxislayer-above")
    assert count_elements(browser, "main img, main script, main iframe, main object, header img") == 0
    assert count_elements(browser, "[*|href]:not([href^='#'])") == 0
    assert "<img src=http://evil.invalid/a" in read_text(browser, "#story")


@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_of_next_to_nothing(browser, tmp_path, steps):
    run = Stream(tmp_path / "run")
    run.emit_steps(run.begin_rank(), [1.0] * steps)
    target = write_page(run.run.path, tmp_path / "r.html")
    browser.open_file(target, DRAWN)
    check_clean(browser, target)
    assert count_elements(browser, "#charts-section") == (steps > 0)


def test_64_ranks(browser, tmp_path):
    run = Stream(tmp_path / "run")
    for rank in range(64):
        folder = run.begin_rank(rank, 64)
        run.emit_steps(folder, [float(rank)] * 8, loader_ms=1.0, step_ms=2.0)
        run.end_process(folder, 8)
    target = write_page(run.run.path, tmp_path / "r.html")
    browser.open_file(target, DRAWN)
    check_clean(browser, target)
    assert count_elements(browser, "#lanes .ytick") == 64
    boxes = "[...document.querySelectorAll('#lanes .ytick text')].map(one => one.getBoundingClientRect())"
    tops = browser.evaluate(f"{boxes}.map(box => [box.top, box.bottom]).sort((a, b) => a[0] - b[0])")
    assert all(before[1] <= after[0] + 4 for before, after in itertools.pairwise(tops)), "labels overlap"
