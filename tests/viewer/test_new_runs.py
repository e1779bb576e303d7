"""Pages of runs made here: one that goes on, the same killed, and two ranks with captured tensors; they say what --json says."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from playwright.sync_api import Browser, Page, expect

from .test_pages import CHROMIUM, DRAWN, PAGES, Server, Watched, chromium  # noqa: F401 (a fixture)

PROGRAM = Path(__file__).parents[1] / "contract" / "program.py"

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to open the pages"),
    pytest.mark.timeout(300),
]


def start_run(folder: Path, name: str, *words: str, command: str = "run") -> "subprocess.Popen[bytes]":
    """`tdbg run`, or another command, in a folder, in a process group of its own."""
    shutil.copy(PROGRAM, folder / "program.py")
    line = [sys.executable, "-m", "tdbg", command, "--run-dir", name, *words]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(
        line, cwd=folder, start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, **quiet
    )


def ask_command(*words: str) -> Any:
    """What a command prints with --json."""
    done = subprocess.run([sys.executable, "-m", "tdbg", *words, "--json"], capture_output=True, check=False)
    return json.loads(done.stdout)["data"]


def kill_everything(started: "subprocess.Popen[bytes]") -> None:
    """kill -9 of the command and of all that it started."""
    for process in [*psutil.Process(started.pid).children(recursive=True), psutil.Process(started.pid)]:
        process.send_signal(signal.SIGKILL)
    started.wait()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    """A run that waits at its 31st step."""
    folder = tmp_path_factory.mktemp("live")
    started = start_run(folder, "going", "--", sys.executable, "program.py", "--steps", "40", "--pause-at", "30")
    until = time.monotonic() + 120
    while not (folder / "paused").exists() and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(2)  # until what was read late is written
    yield folder / "going", started
    if started.poll() is None:
        kill_everything(started)


def check_ranks(watched: Watched, run: Path) -> None:
    """The table of ranks has the numbers of `tdbg status --json`."""
    status = ask_command("status", str(run))
    table = watched.show(f"/runs/{run.name}/ranks").locator("#content table").first
    cells = dict(zip(table.locator("th").all_inner_texts(), table.locator("tbody td").all_inner_texts(), strict=True))
    (rank,) = status["ranks"]
    assert [cells[name] for name in ("rank", "step", "level")] == [str(rank["rank"]), str(rank["step"]), rank["level"]]
    assert float(cells["loss"].replace(",", "")) == pytest.approx(rank["loss"], rel=1e-3)


def check_findings(watched: Watched, run: Path) -> None:
    """The overview has the findings of `tdbg report --json`, and no others."""
    report = ask_command("report", str(run))
    cards = watched.show(f"/runs/{run.name}/overview").locator(".finding").all_inner_texts()
    assert len(cards) == len(report["findings"])
    for finding in report["findings"]:
        assert any(finding["code"] in card and finding["title"] in card for card in cards), finding


def change_level(browser: Browser, run: Path) -> None:
    """With --control a button asks the live run for another level."""
    server = Server(run.parent, "--control")
    watched = Watched(browser, server)
    shown = watched.show(f"/runs/{run.name}/flags")
    shown.get_by_role("button", name="advanced").click()
    expect(shown.locator("[role=status]").first).to_contain_text("all ranks switch at step")
    assert (run / "control.json").exists()
    watched.check_quiet()
    watched.context.close()
    assert server.end() in (0, 130)


def check_lost_server(browser: Browser, run: Path) -> None:
    """A page that follows a run says when nobody answers any more."""
    server = Server(run.parent)
    watched = Watched(browser, server)
    shown = watched.show(f"/runs/{run.name}/ranks")
    expect(shown.locator("#lost")).to_be_hidden()
    assert server.end() in (0, 130)
    expect(shown.locator("#lost")).to_contain_text("Connection lost (", timeout=20_000)
    expect(shown.locator("#lost")).to_contain_text("or earlier; reconnecting.")
    watched.context.close()


def test_a_run_that_goes_on_and_then_is_killed(live: tuple[Path, Any], chromium: Browser) -> None:  # noqa: F811
    run, started = live
    server = Server(run.parent)
    watched = Watched(chromium, server)
    for page in PAGES:
        shown = watched.show(f"/runs/{run.name}/{page}")
        assert shown.inner_text("#content").strip() and "This page failed" not in shown.inner_text("#content")
        watched.check_quiet()
    check_ranks(watched, run)
    shown = watched.show(f"/runs/{run.name}/logs")
    expect(shown.locator("#as-of")).to_contain_text("The run goes on; this page is of")
    shown.click("#refresh")
    expect(shown.locator("#as-of")).to_be_attached()
    expect(watched.show(f"/runs/{run.name}/metrics").locator("#as-of")).to_contain_text("The run goes on")
    text = watched.show(f"/runs/{run.name}/overview").inner_text("#content")
    assert "The run goes on. Drawn at" in text and "Each rank so far" in text
    shown = watched.show(f"/runs/{run.name}/flags")
    expect(shown.locator("[role=status]").first).to_contain_text("Read-only")
    assert shown.locator("#content button, #content input[type=checkbox]").count() == 0
    assert not (run / "control.json").exists()
    change_level(chromium, run)
    check_lost_server(chromium, run)
    kill_everything(started)
    for page in ("overview", "ranks", "logs", "flags"):
        watched.show(f"/runs/{run.name}/{page}")
        watched.check_quiet()
    check_findings(watched, run)
    check_ranks(watched, run)
    watched.context.close()
    assert server.end() in (0, 130)


def test_two_ranks_with_captured_tensors(tmp_path: Path, chromium: Browser) -> None:  # noqa: F811
    words = ("--capture", "**:output,grad", "--", "torchrun", "--nproc-per-node=2", "program.py", "--steps", "10")
    assert start_run(tmp_path, "captured", *words).wait(120) == 0
    run, server = tmp_path / "captured", Server(tmp_path)
    watched = Watched(chromium, server)
    for page in PAGES:
        watched.show(f"/runs/captured/{page}")
        watched.check_quiet()
    check_findings(watched, run)
    listed = ask_command("inspect-pages", "ls", str(run), "--datapoints")
    rows = watched.show("/runs/captured/tensors").locator("table.datapoints tbody tr")
    assert rows.count() == len(listed["list"]) and {one["rank"] for one in listed["list"]} == {0, 1}
    for row, one in zip(rows.all(), listed["list"], strict=True):
        key, rank, step = row.locator("td").all_inner_texts()[:3]
        assert (key.partition(" (")[0], rank, step) == (str(one["key"]), str(one["rank"]), str(one["step"]))
    rows.first.locator("a").click()
    watched.page.wait_for_selector(DRAWN.format("/runs/captured/tensors"), state="attached")
    expect(watched.page.locator(".tensor .figures").first).to_be_visible()
    assert watched.page.locator(".tensor").count() == listed["list"][0]["tensors"]
    watched.check_quiet()
    watched.context.close()
    assert server.end() in (0, 130)


def read_links(shown: Page, code: str) -> dict[str, str | None]:
    """The texts and addresses of the links on the card of a finding."""
    card = shown.locator(".finding", has=shown.locator(".badge", has_text=code))
    return {one.inner_text(): one.get_attribute("href") for one in card.locator(".jumps a").all()}


def test_a_finding_leads_to_the_trace_of_its_step(tmp_path: Path, chromium: Browser) -> None:  # noqa: F811
    words = ("--ranks", "1", "--", "torchrun", "--nproc-per-node=2", "program.py", "--steps", "12", "--nan-at", "3")
    start_run(tmp_path, "profiled", *words, command="profile").wait(120)
    server = Server(tmp_path)
    watched = Watched(chromium, server)
    shown = watched.show("/runs/profiled/overview")
    findings = {one["code"]: one for one in ask_command("report", str(tmp_path / "profiled"))["findings"]}
    (trace,) = ask_command("trace", "show", str(tmp_path / "profiled"))["traces"]
    assert findings["TD-N001"]["first_step"] in {step["number"] for step in trace["steps"]}
    links = read_links(shown, "TD-N001")
    step = findings["TD-N001"]["first_step"]
    assert {f"Logs of step {step}", f"Metrics at step {step}", "Saved batch", f"Trace of step {step}"} <= set(links)
    late = shown.locator(".finding", has=shown.locator(".badge", has_text="TD-N003"))
    expect(late.locator(".jumps")).to_contain_text(f"no trace covers step {findings['TD-N003']['first_step']}")
    shown.get_by_role("link", name=f"Trace of step {step}").first.click()
    shown.wait_for_selector(DRAWN.format("/runs/profiled/traces"), state="attached")
    expect(shown.locator("#one-trace")).to_contain_text(f"covers step {step}: rank0001/traces/")
    expect(shown.locator("#facts")).to_contain_text("rank 1 of 2")
    expect(shown.locator("#flame .slice").first).to_be_visible()
    watched.check_quiet()
    watched.context.close()
    assert server.end() in (0, 130)
