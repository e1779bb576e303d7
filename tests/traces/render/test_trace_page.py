"""`tdbg trace show --html`: one file, opened in headless Chromium, safe from what is in a trace."""

import json
import os
import re
import subprocess
import sys

import pytest
from chromium import CHROMIUM, Browser
from traces.material import (
    find_real_trace,
    make_annotation,
    make_gpu_span,
    make_launch,
    make_memory_event,
    make_op,
    make_span,
    make_step,
    write_trace,
)

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to open the page")
DRAWN = "document.documentElement?.dataset.drawn === 'yes'"
EVIL = "</script><img src=http://evil.invalid/a onerror=alert(1)><a href='http://evil.invalid/b'>{data}{plotly}%{x}$y$"


def run_trace(*words, **more):
    command = [sys.executable, "-m", "tdbg", "trace", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **more)


def write_page(target, trace, *words):
    done = run_trace("show", trace, "--html", target, *words)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return target


def read_page_data(path):
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL)[1]
    return json.loads(text)


def make_events(scale=1, name="aten::linear"):
    """Two steps of everything: an input, operators, memory, stacks, modules, kernels."""
    found = []
    for number in (1, 2):
        at = number * 1000 * scale
        found += [
            make_step(number, at, 900 * scale),
            make_annotation("enumerate(DataLoader)#x", at, 100 * scale),
            make_op(name, at + 200 * scale, 300 * scale, **{"Input Dims": [[2, 3], [3, 4]]}),
            make_memory_event(at + 210 * scale, 4096 * number, 8192 * number, address=number),
            make_op("aten::mm", at + 210 * scale, 100 * scale, **{"Input Dims": [[200, 300], [300, 400]]}),
            make_op("autograd::engine::evaluate_function: X", at + 600 * scale, 200 * scale),
        ]
    return [*found, make_span("train.py(3): main", 1000 * scale, 1900 * scale, "python_function")]


@pytest.fixture(scope="module")
def browser():
    with Browser() as found:
        yield found


@pytest.fixture(scope="module")
def ranks_page(tmp_path_factory):
    """A page of two ranks, the second twice as slow."""
    folder = tmp_path_factory.mktemp("ranks")
    for rank in (0, 1):
        (folder / f"rank000{rank}").mkdir()
        write_trace(folder / f"rank000{rank}" / "a.pt.trace.json", make_events(rank + 1))
    return write_page(folder / "ranks.html", folder)


def count_elements(browser, selector):
    return browser.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length")


@needs_chromium
def test_all_graphs_are_drawn_and_nothing_is_fetched(browser, ranks_page):
    browser.open_file(ranks_page, DRAWN)
    assert browser.errors == []
    assert browser.requests == [ranks_page.resolve().as_uri()]
    assert (
        count_elements(browser, "#bar .point") == 8 and count_elements(browser, "#lanes .point") == 16
    )  # 4 parts, 2 ranks, 2 steps
    assert count_elements(browser, "#flame .slice") == 4  # all, main, and two outermost operators
    assert count_elements(browser, "#memory .scatterlayer .trace") == 2
    heights = browser.evaluate(
        "[...document.querySelectorAll('.graph')].map(one => one.getBoundingClientRect().height)"
    )
    assert len(heights) == 4 and min(heights) > 60
    assert browser.evaluate("document.getElementById('verdict').textContent") == "Most of a step is forward: 33%"
    tops = (
        "[...document.querySelectorAll('#bar .ytick')].map(one => [one.getBoundingClientRect().top, one.textContent])"
    )
    assert [name for _, name in sorted(browser.evaluate(tops))] == ["rank 0", "rank 1"]


@needs_chromium
def test_a_click_opens_a_part_of_the_tree_and_another_leads_back(browser, ranks_page):
    browser.open_file(ranks_page, DRAWN)
    width = "[...document.querySelectorAll('#flame .slice')].find(one => one.textContent === 'aten::linear')?.getBoundingClientRect().width"
    before = browser.evaluate(width)
    browser.hover_over("#flame .slice", 2)
    browser.wait_until(
        "document.querySelector('#flame .hoverlayer').textContent.includes('total 0.6 ms per step, 31.6 %')"
    )
    browser.click("#flame .slice", 2)
    browser.wait_until(f"{width} > 2.5 * {before}")
    browser.click("#flame .slice", 0)
    browser.wait_until(f"{width} < 1.1 * {before}")
    assert browser.errors == []


@needs_chromium
def test_tables_are_sorted_and_searched_trees_and_ranks_chosen(browser, ranks_page):
    browser.open_file(ranks_page, DRAWN)
    names = "[...document.querySelectorAll('#tables table')[0].querySelectorAll('tbody tr')].map(row => row.cells[5].textContent)"
    head = "document.querySelectorAll('#tables table')[0].querySelectorAll('th button')[{}].click()"
    assert browser.evaluate(names) == ["aten::linear", "autograd::engine::evaluate_function: X", "aten::mm"]
    browser.evaluate(head.format(5))
    assert browser.evaluate(names) == ["aten::linear", "aten::mm", "autograd::engine::evaluate_function: X"]
    browser.evaluate(head.format(5))
    assert browser.evaluate(names)[0] == "autograd::engine::evaluate_function: X"
    browser.evaluate(head.format(2))  # the largest total first
    assert browser.evaluate(names)[0] == "aten::linear"
    browser.evaluate("[...document.querySelectorAll('#ways button')].find(one => one.value === 'operator').click()")
    browser.wait_until("document.querySelector('#flame').textContent.includes('aten::mm')")
    assert browser.evaluate("document.querySelector('#choice').hidden") is False
    facts = "document.querySelector('#facts').textContent"
    assert "median 1.8 ms" in browser.evaluate(facts)  # the slowest first
    browser.evaluate(
        "const choice = document.querySelector('#trace'); choice.value = '1'; choice.dispatchEvent(new Event('change'))"
    )
    assert "median 0.9 ms" in browser.evaluate(facts)
    assert browser.errors == []


@needs_chromium
def test_hostile_names_are_text(browser, tmp_path):
    found = [
        *make_events(name=EVIL),
        make_annotation(EVIL, 3000, 50),
        make_op("aten::add", 3010, 10),
        make_launch(3060, 2, 5),
        make_gpu_span(EVIL, 3070, 20, 5),
        make_span(f"nn.Module: {EVIL}", 1100, 500, "python_function"),
        make_span(EVIL, 1200, 300, "python_function"),
        make_op(EVIL, 3100, 5, tid=EVIL),
    ]
    head = {"deviceProperties": [{"name": EVIL}], "distributedInfo": {"rank": 0, "world_size": 1, "backend": EVIL}}
    trace = write_trace(tmp_path / "<img src=x onerror=alert(1)>.pt.trace.json", found, head=head)
    target = write_page(tmp_path / "x.html", trace)
    assert EVIL not in target.read_text() and target.read_text().count("</script>") == 3
    for way in ("stack", "module", "operator"):
        browser.open_file(target, DRAWN)
        browser.evaluate(f"[...document.querySelectorAll('#ways button')].find(one => one.value === '{way}').click()")
        browser.wait_until(f"document.querySelector('#ways [aria-pressed=true]').value === '{way}'")
        assert browser.errors == []
        assert browser.requests == [target.resolve().as_uri()]
        assert count_elements(browser, "main img, main script, main iframe, main object") == 0
        assert count_elements(browser, "[*|href]:not([href^='#'])") == 0
    assert "<img src=http://evil.invalid/a" in browser.evaluate("document.querySelector('#tables').textContent")
    assert "<img src=http://evil.invalid/a" in browser.evaluate("document.querySelector('#flame').textContent")


@needs_chromium
@pytest.mark.parametrize("name", ["control.json.gz", "sampled_rank-0.json.gz"])
def test_a_real_trace_of_a_gpu(browser, tmp_path, name):
    target = write_page(tmp_path / "x.html", find_real_trace(name))
    browser.open_file(target, DRAWN)
    assert (browser.errors, browser.requests) == ([], [target.resolve().as_uri()])
    assert 100 < count_elements(browser, "#flame .slice") <= 1201 and count_elements(browser, "#lanes .point") > 10
    assert "Kernels" in browser.evaluate("document.querySelector('#tables').textContent")


@needs_chromium
def test_a_trace_of_nothing(browser, tmp_path):
    target = tmp_path / "x.html"
    assert run_trace("show", write_trace(tmp_path / "t.json", []), "--html", target).returncode == 1
    browser.open_file(target, DRAWN)
    assert browser.errors == []


def test_what_is_too_much_is_left_out_and_told(tmp_path):
    many = [make_op(f"op{number}", 10 * number, 5 + number % 3) for number in range(3000)]
    target = write_page(tmp_path / "x.html", write_trace(tmp_path / "t.json", many))
    found = read_page_data(target)["traces"][0]
    assert len(found["flames"]["operator"]["rows"]) == 1201
    assert "1,800 rows with less time left out" in found["flames"]["operator"]["note"]
    assert len(found["tables"][0]["rows"]) == 300 and "The first 300 of 3,000." in found["tables"][0]["note"]
    assert target.stat().st_size < 6_000_000


def test_times_of_a_tree_fit_into_each_other(ranks_page):
    """Otherwise plotly draws nothing: below a row there is at most as much time as in it."""
    for trace in read_page_data(ranks_page)["traces"]:
        for flame in trace["flames"].values():
            below = [0] * len(flame["rows"])
            for _, parent, _, _, total, _ in flame["rows"][1:]:
                below[parent] += total
            assert all(amount <= row[4] for amount, row in zip(below, flame["rows"], strict=True))


def test_a_file_that_is_there_is_kept(tmp_path):
    trace, target = write_trace(tmp_path / "t.json", make_events()), tmp_path / "x.html"
    target.write_text("mine")
    done = run_trace("show", trace, "--html", target)
    assert done.returncode == 2 and "already exists" in done.stderr and "--force" in done.stderr
    assert target.read_text() == "mine"
    assert write_page(target, trace, "--force").stat().st_size > 1_000_000
    assert sorted(os.listdir(tmp_path)) == ["t.json", "x.html"]


def test_without_plotly_it_says_what_to_do(tmp_path):
    trace = write_trace(tmp_path / "t.json", make_events())
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "plotly.py").write_text("raise ImportError('not here')")
    done = run_trace(
        "show", trace, "--html", tmp_path / "x.html", env={**os.environ, "PYTHONPATH": str(tmp_path / "empty")}
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "tdbg: --html needs plotly",
        "tdbg: install the extra: pip install 'tdbg[html]'",
    ]
    assert not (tmp_path / "x.html").exists()
