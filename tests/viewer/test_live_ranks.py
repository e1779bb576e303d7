"""Two ranks of torchrun with captured tensors, in the browser: while they run, when they are done, and killed with SIGKILL."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tdbg.viewer.rank_activity import QUIET_S

from .test_new_runs import ask_command, check_findings, kill_everything, start_run
from .test_pages import CHROMIUM, DRAWN, PAGES, X_RANGE, Server, Watched, chromium, zoom_in  # noqa: F401 (a fixture)

PROGRAM = Path(__file__).parent / "live_ranks.py"
LIVE_S = 60.0  # for what a page shows by itself: an overview is drawn every 15 s
STARTED_STEPS = 20

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to open the pages"),
    pytest.mark.timeout(400),
]
Run = tuple[Path, "subprocess.Popen[bytes]"]


def wait_for(holds: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + LIVE_S
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.2)


def read_steps(run: Path) -> dict[int, int]:
    """The last step of each rank, as `tdbg status --json` has it."""
    return {one["rank"]: one["step"] or 0 for one in ask_command("status", str(run))["ranks"]}


@pytest.fixture
def going(tmp_path: Path) -> Iterator[Run]:
    """A run of two ranks that have done some steps and go on."""
    shutil.copy(PROGRAM, tmp_path)
    words = ("--capture", "**:output", "--capture-every", "5", "--", "torchrun", "--nproc-per-node=2", PROGRAM.name)
    started, run = start_run(tmp_path, "going", *words), tmp_path / "going"
    wait_for(run.exists, "the run began")
    wait_for(lambda: len(read_steps(run)) == 2 and min(read_steps(run).values()) >= STARTED_STEPS, "both ranks train")
    yield run, started
    if started.poll() is None:
        kill_everything(started)


def read_rank_cells(shown: Page) -> list[list[str]]:
    rows = shown.locator("#content table").first.locator("tbody tr").all()
    return [row.locator("td").all_inner_texts() for row in rows]


def check_live_ranks(watched: Watched, run: Path) -> None:
    """The table follows both ranks by itself; its steps are those of `tdbg status --json` of the same time."""
    shown = watched.show(f"/runs/{run.name}/ranks")
    expect(shown.locator("[role=status]")).to_have_text("The run goes on; this table follows it.")
    first = {int(cells[0]): int(cells[2]) for cells in read_rank_cells(shown)}
    assert sorted(first) == [0, 1]
    wait_for(lambda: all(int(one[2]) > first[int(one[0])] for one in read_rank_cells(shown)), "steps go on")
    seen, after = {int(one[0]): int(one[2]) for one in read_rank_cells(shown)}, read_steps(run)
    assert all(first[rank] < seen[rank] <= after[rank] for rank in seen)
    heads = shown.locator("#content table").first.locator("th").all_inner_texts()
    ages = [cells[heads.index("last seen")] for cells in read_rank_cells(shown)]
    assert all(re.fullmatch(r"\d+ s ago", age) and int(age.split()[0]) < QUIET_S for age in ages)
    expect(shown.locator("#quiet")).to_be_hidden()
    lanes, last = (
        shown.locator("#lanes"),
        "one => Math.max(...one.data.filter(bar => bar.type === 'bar').flatMap(bar => bar.x))",
    )
    expect(lanes.locator(".barlayer .point").first).to_be_attached()
    drawn = lanes.evaluate(last)
    wait_for(lambda: lanes.evaluate(last) > drawn, "the lanes go on")
    expect(shown.locator("#drawn")).to_contain_text("The run goes on. Drawn at")
    watched.check_quiet()


def check_live_overview(watched: Watched, run: Path) -> None:
    """The curves go on, what is zoomed stays, and a finding comes by itself."""
    shown = watched.show(f"/runs/{run.name}/overview")
    expect(shown.locator("#headline")).to_contain_text("no problem found")
    loss, rates, lanes = (shown.locator(name) for name in ("#curves-loss", "#curves-lr", "#lanes"))
    expect(loss.locator(".scatterlayer").first).to_be_attached()
    whole = loss.evaluate(X_RANGE)
    zoom_in(shown, loss)
    last, zoomed = "one => Math.max(...one.data[0].x)", loss.evaluate(X_RANGE)
    before, free = loss.evaluate(last), lanes.evaluate(X_RANGE)
    # Before there is a NaN: a loss that is none has no point on the curve, which may end with what was drawn already.
    # The last step and not the axis: on a busy machine few steps have a record, and the axis goes far beyond them.
    wait_for(lambda: loss.evaluate(last) > before and lanes.evaluate(X_RANGE)[1] > free[1], "the curves go on")
    assert loss.evaluate(X_RANGE) == zoomed and whole[0] < zoomed[0] < zoomed[1] < whole[1]
    (run.parent / "poison").touch()
    card = shown.locator(".finding", has=shown.locator(".badge", has_text="TD-N001"))
    expect(card).to_have_count(1, timeout=1000 * LIVE_S)
    assert loss.evaluate(X_RANGE) == zoomed
    assert rates.evaluate(X_RANGE) == zoomed  # the curves share the axis of steps
    expect(card.locator(".jumps")).to_contain_text("Logs of step")
    assert "The run goes on. Drawn at" in shown.inner_text("#content")
    watched.check_quiet()


def count_rows(shown: Page) -> int:
    """Of all datapoints, as the page says."""
    return int(shown.locator("#content p.note[role=status]").inner_text().split()[-2].replace(",", ""))


def check_live_pages(watched: Watched, run: Path) -> None:
    """Tensors and Logs say of when they are, and show what is new on request."""
    shown = watched.show(f"/runs/{run.name}/tensors")
    expect(shown.locator("#as-of")).to_contain_text("The run goes on; this page is of")
    before = count_rows(shown)
    wait_for(lambda: len(list_datapoints(run)) > before, "more is captured")

    def has_grown() -> bool:  # the server keeps the table of a live run for a few seconds
        shown.click("#refresh")
        shown.wait_for_selector(DRAWN.format(f"/runs/{run.name}/tensors"), state="attached")
        return count_rows(shown) > before

    wait_for(has_grown, "the grid grew")
    assert {row[1] for row in read_grid(shown)} == {"0", "1"}
    watched.check_quiet()
    steps = read_steps(run)
    shown = watched.show(f"/runs/{run.name}/logs?kind=both&steps={steps[0] + 1}:")
    expect(shown.locator("#as-of")).to_contain_text("The run goes on; this page is of")
    wait_for(lambda: read_steps(run)[0] > steps[0] + 5, "steps go on")
    shown.click("#refresh")
    expect(shown.locator(".record", has_text=f"step {steps[0] + 3} loss").first).to_be_visible(timeout=20_000)
    watched.check_quiet()


def list_datapoints(run: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask_command("inspect-pages", "ls", str(run), "--datapoints")["list"]
    return found


def read_grid(shown: Page) -> list[list[str]]:
    rows = shown.locator("table.datapoints tbody tr").all()
    return [row.locator("td").all_inner_texts()[:3] for row in rows]


def check_ended(watched: Watched, run: Path) -> None:
    """Every page of a run that is over; Overview, Ranks, Tensors, Logs and Metrics have the values of ``--json``."""
    for page in PAGES:
        shown = watched.show(f"/runs/{run.name}/{page}")
        text = shown.inner_text("#content")
        assert text.strip() and "This page failed" not in text and "The run goes on" not in text, page
        watched.check_quiet()
    check_findings(watched, run)
    status = ask_command("status", str(run))
    cells = read_rank_cells(watched.show(f"/runs/{run.name}/ranks"))
    for row, rank in zip(cells, status["ranks"], strict=True):
        assert row[:3] == [str(rank["rank"]), rank["state"], str(rank["step"])] and row[6] == rank["level"]
    expect(watched.page.locator("[role=status]")).to_have_text(f"The run has ended: {status['exit']}.")
    listed = list_datapoints(run)
    wanted = [[str(one["key"]), str(one["rank"]), str(one["step"])] for one in listed[:100]]
    grid = read_grid(watched.show(f"/runs/{run.name}/tensors"))
    assert [[key.partition(" (")[0], rank, step] for key, rank, step in grid] == wanted
    check_logs(watched, run)
    series = ask_command("metrics", "show", str(run))["series"]
    shown = watched.show(f"/runs/{run.name}/metrics")
    shown.click("details > summary")
    rows = [row.locator("td").all_inner_texts() for row in shown.locator("details tbody tr").all()]
    assert [(row[0], row[1], row[9]) for row in rows] == [
        (one["key"], str(one["rank"]), f"{one['count']:,}") for one in series
    ]
    watched.check_quiet()


def check_logs(watched: Watched, run: Path) -> None:
    """The first records are those of `tdbg filter-logs`."""
    words = ["filter-logs", str(run), "--steps", "1:3", "--format", "jsonl"]
    done = subprocess.run([sys.executable, "-m", "tdbg", *words], capture_output=True, check=True)
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    wanted = {one.get("text") or one["message"] for one in printed}
    shown = watched.show(f"/runs/{run.name}/logs?steps=1:3")
    records = shown.locator(".record pre").all_inner_texts()
    assert wanted and {one.strip() for one in records} == {one.strip() for one in wanted}


def test_the_pages_follow_two_ranks_until_they_are_done(going: Run, chromium: Browser) -> None:  # noqa: F811
    run, started = going
    server = Server(run.parent)
    watched, ranks, tensors = (Watched(chromium, server) for _ in range(3))
    check_live_ranks(watched, run)
    check_live_pages(watched, run)
    check_live_overview(watched, run)
    ranks.show("/runs/going/ranks"), tensors.show("/runs/going/tensors")
    (run.parent / "stop").touch()
    assert started.wait(60) == 0
    expect(ranks.page.locator("[role=status]")).to_contain_text("The run has ended: exit 0", timeout=1000 * LIVE_S)
    expect(tensors.page.locator("#as-of")).to_contain_text("The run has ended; this page is of", timeout=1000 * LIVE_S)
    expect(watched.page.locator("#content")).not_to_contain_text("The run goes on", timeout=1000 * LIVE_S)
    ranks.check_quiet(), tensors.check_quiet(), watched.check_quiet()
    check_ended(watched, run)
    for one in (watched, ranks, tensors):
        one.context.close()
    assert server.end() in (0, 130)


def test_the_pages_of_two_ranks_that_are_killed(going: Run, chromium: Browser) -> None:  # noqa: F811
    run, started = going
    server = Server(run.parent)
    watched = Watched(chromium, server)
    shown = watched.show("/runs/going/ranks")
    expect(shown.locator("[role=status]")).to_have_text("The run goes on; this table follows it.")
    kill_everything(started)
    expect(shown.locator("[role=status]")).to_contain_text("The run has ended", timeout=1000 * LIVE_S)
    watched.check_quiet()
    check_ended(watched, run)
    watched.show("/runs")
    expect(shown.locator(".runs tbody tr")).to_contain_text(
        ask_command("runs", "ls", str(run.parent))["runs"][0]["state"]
    )
    watched.check_quiet()
    watched.context.close()
    assert server.end() in (0, 130)


def test_a_rank_that_stands_still_is_named_until_it_goes_on(going: Run, chromium: Browser) -> None:  # noqa: F811
    run, _ = going
    server = Server(run.parent)
    watched = Watched(chromium, server)
    shown = watched.show("/runs/going/ranks")
    quiet = shown.locator("#quiet")
    expect(quiet).to_be_hidden()
    stopped = next(one["pid"] for one in ask_command("status", str(run))["ranks"] if one["rank"] == 1)
    os.kill(stopped, signal.SIGSTOP)
    try:
        expect(quiet).to_contain_text(re.compile(r"rank 1 at step \d+, last seen \d+ s ago"), timeout=2000 * LIVE_S)
    finally:
        os.kill(stopped, signal.SIGCONT)
    expect(quiet).to_be_hidden(timeout=1000 * LIVE_S)
    watched.check_quiet()
    watched.context.close()
    assert server.end() in (0, 130)
