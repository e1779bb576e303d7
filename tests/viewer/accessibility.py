"""Asks axe-core about every page of the viewer: ``python -m tests.viewer.accessibility --axe axe.min.js``.

Prints each serious or critical fault with the element that has it, and exits with 1 if there is one. axe-core is fetched by
whoever calls this (`npm pack axe-core`): no test does.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from .conftest import NAMES, unpack_recording
from .test_pages import CHROMIUM, PAGES, Server, Watched

RUNS = ("two_ranks", "captured", "profiled")
GRAVE = ("serious", "critical")
VIEWS = ((1280, "light"), (390, "dark"))


def list_addresses() -> list[str]:
    """Every page, and one datapoint."""
    pages = [f"/runs/{run}/{page}" for run in RUNS for page in PAGES]
    return ["/runs", *pages, "/runs/captured/tensors?key=step1&nth=0"]


def list_faults(shown: Any, script: str) -> list[str]:
    """What axe finds on a page, a line for each element."""
    shown.evaluate(script)
    found = shown.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{fault['impact']} {fault['id']}: {node['target'][0]} {node['html'][:120]}"
        for fault in found["violations"]
        if fault["impact"] in GRAVE
        for node in fault["nodes"][:3]
    ]


def main() -> int:
    """Look at all pages."""
    parser = argparse.ArgumentParser(prog="python -m tests.viewer.accessibility")
    parser.add_argument("--axe", type=Path, required=True, help="axe.min.js of axe-core")
    script = parser.parse_args().axe.read_text(encoding="utf-8")
    count = 0
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        for name in NAMES:
            unpack_recording(name, Path(folder))
        server = Server(Path(folder))
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width, scheme in VIEWS:
            watched = Watched(browser, server, width, scheme)
            for address in list_addresses():
                faults = list_faults(watched.show(address), script)
                count += len(faults)
                for fault in faults:
                    print(f"{address} {width} px, {scheme}: {fault}")
        browser.close()
        server.end()
    print(f"{len(list_addresses())} pages, {len(VIEWS)} widths: {count} elements with a grave fault")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
