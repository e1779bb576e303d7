"""The docs site: it builds without a warning, fetches nothing from elsewhere, and its search works offline."""

import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chromium import CHROMIUM, Browser

ROOT = Path(__file__).parents[2]
SHOWN = ["index.html", "tasks/loss-is-nan.html", "cheat-sheet.html", "architecture.html", "cli.html", "levels.html"]


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def built_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from a copy."""
    folder = tmp_path_factory.mktemp("docs")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "zensical.toml", folder)
    words = [str(Path(sys.executable).with_name("zensical")), "build", "--strict", "--clean"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def site_address(built_site: Path) -> Iterator[str]:
    """The site, served on this machine."""
    handler = functools.partial(Quiet, directory=str(built_site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module", params=[390, 1280])
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    """Chromium in the width of a phone, and of a screen."""
    assert CHROMIUM, "install chromium"
    with Browser(request.param, 900) as browser:
        browser.send_command(
            "Emulation.setDeviceMetricsOverride", width=request.param, height=900, deviceScaleFactor=1, mobile=False
        )
        yield browser


def load_page(browser: Browser, url: str) -> None:
    """Open a page and wait until it is complete."""
    browser.errors.clear()
    browser.requests.clear()
    browser.send_command("Page.navigate", url=url)
    browser.wait_until(f"location.href == {json.dumps(url)} && document.readyState == 'complete'")


def test_every_page_is_built(built_site: Path) -> None:
    wanted = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert wanted <= {path.relative_to(built_site) for path in built_site.rglob("*.html")}


def test_no_page_names_a_resource_of_another_host(built_site: Path) -> None:
    resource = re.compile(
        r"<(?:script|img|iframe|source)[^>]+src=[\"']?(?:https?:)?//[^\"' >]+|<link[^>]+href=[\"']?https?://\S+"
    )
    found = [f"{path.name}: {hit}" for path in built_site.rglob("*.html") for hit in resource.findall(path.read_text())]
    assert [hit for hit in found if "rel=canonical" not in hit] == []


@pytest.mark.parametrize("page", SHOWN)
def test_a_page_loads_from_here_alone_and_fits_its_window(browser: Browser, site_address: str, page: str) -> None:
    load_page(browser, f"{site_address}/{page}")
    assert [url for url in browser.requests if not url.startswith((site_address, "data:", "blob:"))] == []
    assert browser.errors == []
    assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "the page is too wide"
    assert browser.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")


SHADOWS = (
    "[...document.querySelectorAll('*')].map(part => part.shadowRoot ? part.shadowRoot.textContent : '').join(' ')"
)


def test_search_finds_a_page_offline(browser: Browser, site_address: str) -> None:
    load_page(browser, f"{site_address}/index.html")
    host = "[...document.querySelectorAll('*')].find(part => part.shadowRoot?.querySelector('input'))"
    browser.wait_until(f"{host} !== undefined")
    browser.evaluate("document.querySelector('.md-search__button').click()")
    field = f"{host}.shadowRoot.querySelector('input')"
    browser.wait_until(f"{field}.focus(), {host}.shadowRoot.activeElement === {field}")
    browser.send_command("Input.insertText", text="straggler")
    browser.wait_until(f"({SHADOWS}).includes('A rank hangs or is slow')")
    assert [url for url in browser.requests if not url.startswith((site_address, "data:", "blob:"))] == []
