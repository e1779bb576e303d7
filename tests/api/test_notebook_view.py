"""`tdbg.View`: the report of a run in a notebook, in a frame without a server."""

import html
import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

import tdbg
from tdbg.core.errors import TdbgError
from tests.viewer.conftest import unpack_recording
from tests.viewer.test_pages import CHROMIUM


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a finding."""
    return unpack_recording("single", tmp_path_factory.mktemp("recorded"))


def test_the_frame_holds_the_page_of_the_report(single: Path) -> None:
    view = tdbg.View(str(single), height=400)
    text = view._repr_html_()
    found = re.fullmatch(r'<iframe [^<>]*height="400"[^<>]* srcdoc="([^"]*)"></iframe>', text)
    assert found is not None and "allow-same-origin" not in text
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', html.unescape(found[1]), re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["findings"][0]["code"] == "TD-N001"
    assert repr(view) == f"View({str(single)!r})"


def test_it_writes_nothing(single: Path) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in single.rglob("*"))
    tdbg.View(str(single))._repr_html_()
    assert sorted((path, path.stat().st_mtime_ns) for path in single.rglob("*")) == before


def test_what_cannot_be_shown_is_refused(single: Path, tmp_path: Path) -> None:
    with pytest.raises(TdbgError, match="there is no"):
        tdbg.View(str(tmp_path / "none"))
    with pytest.raises(TdbgError, match="the height cannot be 0"):
        tdbg.View(str(single), height=0)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to open the page")
def test_a_browser_draws_it_and_complains_of_nothing(single: Path) -> None:
    complaints: list[str] = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        page = browser.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.set_content(f"<p>before</p>{tdbg.View(str(single))._repr_html_()}<p>after</p>")
        frame = page.frame_locator("iframe")
        frame.locator("#chart-loss .scatterlayer").first.wait_for(timeout=60_000)
        assert "first NaN at step" in frame.locator("#story").inner_text()
        browser.close()
    assert complaints == []
