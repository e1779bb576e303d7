"""Asks axe-core about every page of the viewer: ``python -m tests.viewer.accessibility --axe axe.min.js``.

Prints each serious or critical fault with the element that has it, and exits with 1 if there is one. axe-core is fetched by
whoever calls this (`npm pack axe-core`): no test does.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import sync_playwright

from .conftest import NAMES, unpack_recording
from .test_pages import CHROMIUM, PAGES, Server, Watched

RUNS = ("two_ranks", "captured", "profiled")
GRAVE = ("serious", "critical")
VIEWS = ((1280, "light"), (390, "dark"))


def list_addresses(folder: Path) -> list[str]:
    """Every page, and what a query opens on it. folder: of the recorded runs."""
    pages = [f"/runs/{run}/{page}" for run in RUNS for page in PAGES]
    return ["/runs", *pages, *list_queries(folder)]


def list_queries(folder: Path) -> list[str]:
    """Addresses of what is chosen on a page: one, two or compared datapoints, a trace, filtered logs, steps, runs."""
    (trace,) = (one.relative_to(folder / "profiled") for one in (folder / "profiled").glob("rank*/traces/*.json.gz"))
    (batch, *_) = sorted(
        one.relative_to(folder / "two_ranks") for one in (folder / "two_ranks").glob("rank*/batch_*.safetensors")
    )
    captured, both = "/runs/captured/tensors", "/runs/two_ranks"
    return [
        f"{captured}?key=step1&nth=0",
        f"{captured}?key=step3&nth=0&with=step4&with_nth=0",
        f"{captured}?key=step1&nth=0&module=head",
        f"{captured}?sort=std(head:output)&descending=true&module=head",
        f"{captured}?key=none&nth=0",
        f"{captured}?steps=2:5&sort=step&descending=true",
        f"{captured}?steps=999",
        f"{both}/tensors?batch={quote(str(batch), safe='')}",
        f"/runs/profiled/traces?file={quote(str(trace), safe='')}&step=3",
        "/runs/profiled/traces?ranks=0",
        f"{both}/logs?kind=both&steps=12:13&level=DEBUG",
        f"{both}/logs?collapse=true&text=step",
        f"{both}/logs?flag=LOSS",
        f"{both}/metrics?step=12&keys=train&points=true&smooth=0.5",
        f"{both}/overview?finding=TD-N001-step13-rank1-encoder.0",
        f"{both}/overview?axis=time",
        "/runs/none/overview",
        "/runs#/compare/two_ranks/killed",
        "/runs#/compare/first/second",
    ]


def list_faults(shown: Any, script: str) -> list[str]:
    """What axe finds on a page with all that can be opened on it, a line for each element."""
    shown.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    shown.wait_for_load_state("networkidle")  # what is asked for when it is opened
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
        server, addresses = Server(Path(folder)), list_addresses(Path(folder))
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width, scheme in VIEWS:
            watched = Watched(browser, server, width, scheme)
            for address in addresses:
                faults = list_faults(watched.show(address), script)
                count += len(faults)
                for fault in faults:
                    print(f"{address} {width} px, {scheme}: {fault}")
        browser.close()
        server.end()
    print(f"{len(addresses)} addresses, {len(VIEWS)} widths: {count} elements with a grave fault")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
