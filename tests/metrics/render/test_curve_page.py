"""`tdbg metrics plot --html`: one file, opened in headless Chromium, safe from what is in a run."""

import json
import re
import subprocess
import sys

import pytest
from chromium import CHROMIUM, Browser
from metrics.rows_of import make_row, write_rows

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to open the page")
EVIL = "train/</script><img src=http://evil.invalid/a onerror=alert(1)>{data}"


def write_page(tmp_path, *words):
    rows = [
        make_row(step, {"train/loss": 1 / step, EVIL: 1.0, "val/acc1": float(step)}, rank=r)
        for step in range(1, 40)
        for r in (0, 1)
    ]
    run = write_rows(tmp_path / "metrics.jsonl", *rows)
    out = tmp_path / "m.html"
    command = [sys.executable, "-m", "tdbg", "metrics", "plot", str(run), "--html", str(out), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return out


def test_the_data_stand_in_the_page_as_json(tmp_path):
    text = write_page(tmp_path, "--smooth", "0.5").read_text()
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert [graph["key"] for graph in data["graphs"]] == [EVIL, "train/loss", "val/acc1"]
    assert [curve["name"] for curve in data["graphs"][1]["curves"]] == ["rank 0, tracker", "rank 1, tracker"]
    assert data["graphs"][1]["curves"][0]["steps"] == list(range(1, 40))
    assert "http://evil.invalid" not in text.replace(json.dumps(EVIL)[1:-1], "").partition('id="data"')[0]


@needs_chromium
def test_it_is_drawn_and_asks_for_nothing(tmp_path):
    path = write_page(tmp_path)
    with Browser() as browser:
        browser.open_file(path, "document.querySelectorAll('.graph .main-svg').length >= 3")
        assert browser.evaluate("document.querySelectorAll('#graphs section').length") == 3
        assert browser.evaluate("document.querySelectorAll('h2')[0].textContent") == EVIL
        assert browser.evaluate("document.images.length") == 0
        browser.evaluate("at('filter').value = 'loss'; at('filter').dispatchEvent(new Event('input'))")
        assert browser.evaluate("document.querySelectorAll('#graphs section:not([hidden])').length") == 1
        browser.evaluate("at('logarithmic').click()")
        assert browser.evaluate("data.graphs[1].place.layout.yaxis.type") == "log"
        assert browser.errors == [] and all(url.startswith(("file:", "data:")) for url in browser.requests)
