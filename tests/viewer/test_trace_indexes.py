"""Large traces are read beside the server, once, and kept in the user's cache folder."""

import errno
import gzip
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tdbg.traces.parse.trace_files import TraceFile
from tdbg.viewer import trace_indexes
from tdbg.viewer.trace_indexes import TraceIndexes, find_folder, index_trace

from .conftest import PATIENCE_S, Client
from .test_pages import Server, Watched, chromium  # noqa: F401 (a fixture)

PAGE, SPANS = "/runs/profiled/traces/page", "/runs/profiled/traces/spans"
LARGE_BYTES = trace_indexes.LARGE_BYTES  # of another process


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test, and every trace counts as large."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(trace_indexes, "LARGE_BYTES", 0)
    monkeypatch.setattr(trace_indexes, "LARGE_PACKED_BYTES", 0)
    return tmp_path / "cache" / "tdbg"


@pytest.fixture
def trace(runs_folder: Path, tmp_path: Path) -> Path:
    """The trace of a profiled run."""
    shutil.copytree(runs_folder / "profiled", tmp_path / "runs" / "profiled")
    (found,) = tmp_path.glob("runs/profiled/rank0000/traces/*.json.gz")
    return found


@pytest.fixture
def asked(trace: Path) -> Iterator[Client]:
    """A viewer of that run."""
    found = Client(trace.parents[3])
    yield found
    found.served.traces.close()


def forbid_processes(*words: object, **more: object) -> None:
    raise AssertionError("a trace was read again")


WAIT_AND_RUN = "import os, sys; open(sys.argv[1]).read(); os.execv(sys.argv[2], sys.argv[2:])"


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A FIFO: no process of a trace begins to read before something is written there."""
    gate, start = tmp_path / "gate", subprocess.Popen
    os.mkfifo(gate)

    def start_behind_gate(words: list[str], **more: Any) -> "subprocess.Popen[bytes]":
        return start([sys.executable, "-c", WAIT_AND_RUN, str(gate), *words], **more)

    monkeypatch.setattr(subprocess, "Popen", start_behind_gate)
    return gate


def test_until_a_trace_is_read_the_answers_say_how_far_it_is(
    asked: Client, client: Client, trace: Path, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = asked.ask(PAGE)
    size = trace.stat().st_size
    assert first["traces"] == [] and (first["reading"]["traces"], first["reading"]["total_bytes"]) == (1, size)
    assert first["reading"]["text"].startswith(f"reading {trace.name} (") and first["reading"]["text"].endswith(": 0 %")
    for path in ("/runs/profiled/traces", "/runs/profiled/traces/flame"):
        assert asked.ask(path)["traces"] == []
    assert asked.ask(SPANS, rank=0)["spans"] == []
    gate.write_text("now")
    read = asked.wait_for(PAGE)
    monkeypatch.setattr(trace_indexes, "LARGE_PACKED_BYTES", 1 << 30)
    assert read == client.ask(PAGE) and read["traces"]
    assert asked.wait_for(SPANS, rank=0)["spans"]


def test_a_trace_is_read_once_and_by_another_viewer_never(asked: Client, trace: Path, monkeypatch: Any) -> None:
    before = sorted(trace.parents[3].rglob("*"))
    read, spans = asked.wait_for(PAGE), asked.wait_for(SPANS, rank=0)
    monkeypatch.setattr(subprocess, "Popen", forbid_processes)
    other = Client(trace.parents[3])
    assert other.ask(PAGE) == read and other.ask(SPANS, rank=0) == spans
    assert other.ask("/runs/profiled/traces")["traces"] and other.ask("/runs/profiled/traces/flame")["traces"]
    assert sorted(trace.parents[3].rglob("*")) == before


def test_a_part_of_a_trace_has_its_spans(asked: Client, trace: Path) -> None:
    whole = asked.wait_for(SPANS, rank=0)
    names = {name[1:] for name in whole["names"]}
    assert any(name.startswith("aten::") for name in names)
    middle = whole["whole_ms"] / 2
    part = asked.ask(SPANS, rank=0, from_ms=middle, to_ms=middle + 1)
    for _, lane, depth, start, length in part["spans"]:
        assert start < middle + 1 and start + length >= middle and depth >= 0 and part["lanes"][lane]
    few = asked.ask(SPANS, rank=0, spans=3)
    assert len(few["spans"]) == 3 and few["left_out"] + 3 >= len(whole["spans"])
    with gzip.open(trace) as file:
        durs = [
            one["dur"] / 1e3
            for one in json.load(file)["traceEvents"]
            if one.get("ph") == "X" and one["cat"] == "cpu_op"
        ]
    kinds = [whole["names"][one[0]][0] for one in whole["spans"]]
    assert kinds.count("o") == len(durs) and whole["left_out"] == 0


@pytest.mark.parametrize("query", [{"from_ms": "nan"}, {"to_ms": "inf"}, {"rank": "9"}, {"spans": "many"}])
def test_a_range_that_cannot_be_is_refused(asked: Client, query: dict[str, str]) -> None:
    asked.wait_for(SPANS, rank=0)
    answer = asked.get(f"/api/v1{SPANS}", params={"rank": "0", **query})
    assert answer.status_code in (400, 404) and answer.json()["error"]


def test_an_empty_range_and_one_far_away_are_answered(asked: Client) -> None:
    asked.wait_for(SPANS, rank=0)
    assert asked.ask(SPANS, rank=0, from_ms=1e300, to_ms=-1e300)["spans"] == []
    assert asked.ask(SPANS, rank=0, from_ms=-1e300, to_ms=1e300, spans=10**9)["spans"]


def test_a_small_trace_is_read_at_once(asked: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_indexes, "LARGE_PACKED_BYTES", 1 << 30)
    monkeypatch.setattr(subprocess, "Popen", forbid_processes)
    assert asked.ask(PAGE)["traces"] and asked.ask(SPANS, rank=0)["spans"]


def test_a_trace_that_has_changed_is_read_anew(asked: Client, trace: Path) -> None:
    before = asked.wait_for(PAGE)
    data = json.loads(gzip.decompress(trace.read_bytes()))
    data["traceEvents"] = data["traceEvents"][: len(data["traceEvents"]) // 2]
    trace.write_bytes(gzip.compress(json.dumps(data).encode()))
    assert "reading" in asked.ask(PAGE)
    assert asked.wait_for(PAGE)["traces"][0]["facts"] != before["traces"][0]["facts"]
    assert len(list(find_folder().iterdir())) == 1  # in the place of the other


@pytest.mark.parametrize("mode", [0o622, 0o606])
def test_what_others_could_have_written_is_read_anew(asked: Client, trace: Path, mode: int) -> None:
    read = asked.wait_for(PAGE)
    (kept,) = find_folder().iterdir()
    kept.chmod(mode)
    other = Client(trace.parents[3])
    assert "reading" in other.ask(PAGE)
    assert other.wait_for(PAGE) == read and kept.stat().st_mode & 0o777 == 0o600


def test_a_relative_cache_home_is_not_the_current_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for base in ("", "here", "../here"):
        monkeypatch.setenv("XDG_CACHE_HOME", base)
        assert find_folder().parent == tmp_path / ".cache" / "tdbg"


@pytest.mark.parametrize("part", [".", ".."])
def test_a_folder_that_others_may_write_is_not_used(asked: Client, part: str) -> None:
    find_folder().mkdir(parents=True)
    (find_folder() / part).chmod(0o777)
    assert asked.wait_for(PAGE)["traces"]
    assert list(find_folder().iterdir()) == []


def test_without_a_cache_folder_a_temporary_one_is_used(asked: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/none")
    assert asked.wait_for(PAGE)["traces"] and asked.wait_for(SPANS, rank=0)["spans"]
    folder = asked.served.traces._get_folder()
    assert len(list(folder.iterdir())) == 1
    asked.served.traces.close()
    assert not folder.exists()


def test_a_trace_that_is_cut_off_says_so(asked: Client, trace: Path) -> None:
    trace.write_bytes(trace.read_bytes()[: trace.stat().st_size // 2])
    facts = asked.wait_for(PAGE)["traces"][0]["facts"]
    assert any("truncated" in fact for fact in facts), facts


def test_what_is_no_trace_is_refused_with_a_line_and_not_tried_again(
    asked: Client, trace: Path, monkeypatch: Any
) -> None:
    trace.write_bytes(gzip.compress(os.urandom(100_000)))
    refused = asked.wait_for(PAGE)
    assert "no trace" in refused["error"] or "trace" in refused["error"]
    assert list(find_folder().iterdir()) == []  # no draft either
    monkeypatch.setattr(subprocess, "Popen", forbid_processes)
    assert asked.get(f"/api/v1{PAGE}").json() == refused
    assert asked.get(f"/api/v1{SPANS}", params={"rank": 0}).json() == refused


def test_a_process_that_is_killed_is_said(trace: Path) -> None:
    indexes = TraceIndexes()
    assert indexes.follow_reading([TraceFile(trace, 0)]) is not None
    assert indexes._process is not None
    indexes._process.send_signal(signal.SIGKILL)
    until = time.monotonic() + PATIENCE_S
    while indexes.follow_reading([TraceFile(trace, 0)]) is not None and time.monotonic() < until:
        time.sleep(0.05)
    with pytest.raises(Exception, match=r"reading it failed: exit -9"):
        indexes.load_summary(TraceFile(trace, 0))


def test_a_viewer_that_ends_ends_the_process_and_leaves_no_draft(trace: Path) -> None:
    large = enlarge_trace(trace, 5 * LARGE_BYTES // len(gzip.decompress(trace.read_bytes())))
    indexes = TraceIndexes()
    indexes.follow_reading([TraceFile(large, 0)])
    process = indexes._process
    assert process is not None
    until = time.monotonic() + PATIENCE_S
    while not list(find_folder().glob(".*")) and time.monotonic() < until:
        time.sleep(0.005)
    indexes.close()
    assert process.wait(PATIENCE_S) == -signal.SIGKILL
    assert list(find_folder().iterdir()) == []


def test_progress_is_told_also_while_events_are_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_indexes, "REPORT_BYTES", 1 << 20)
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": ts, "dur": 1.0, "args": {"x": "y" * 400}}
        for ts in range(10_000, 0, -1)
    ]
    path, lines = tmp_path / "a.json", io.StringIO()
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    index_trace(path, None, tmp_path / "a.spans", ("key",), lines)
    told = [json.loads(line) for line in lines.getvalue().splitlines()]
    first = [one["read"] for one in told if not one["again"]]
    assert len(first) >= 3 and first == sorted(first) and max(first) <= path.stat().st_size
    assert {one["again"] for one in told} >= {0, 1}


def test_of_a_trace_that_goes_on_changing_one_reading_waits(trace: Path) -> None:
    other = trace.with_name(trace.name.replace("trace", "other"))
    indexes = TraceIndexes()
    large = enlarge_trace(trace, 2)
    shutil.copy(large, other)
    both = [TraceFile(large, 0), TraceFile(other, 0)]
    for turn in range(5):
        reading = indexes.follow_reading(both)
        assert reading is not None and reading["traces"] <= 2 and len(indexes._jobs) <= 2
        os.utime(large, ns=(turn, turn))
    until = time.monotonic() + PATIENCE_S
    while indexes.follow_reading(both, spans=True) is not None and time.monotonic() < until:
        time.sleep(0.02)
    assert indexes.load_summary(both[0]).events == indexes.load_summary(both[1]).events > 0
    indexes.close()


def test_a_process_that_cannot_begin_is_said(asked: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*words: object, **more: object) -> None:
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(subprocess, "Popen", fail)
    assert "reading it cannot begin: no more processes" in asked.wait_for(PAGE)["error"]


def test_what_cannot_be_kept_is_not_read_again_and_again(asked: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TraceIndexes, "_open", lambda *words: None)
    refused = asked.wait_for(PAGE)
    assert "could not be kept in" in refused["error"]
    monkeypatch.setattr(subprocess, "Popen", forbid_processes)
    assert asked.get(f"/api/v1{PAGE}").json() == refused


def test_a_link_in_the_place_of_a_trace_is_not_read(trace: Path, tmp_path: Path) -> None:
    shutil.move(trace, tmp_path / trace.name)
    trace.symlink_to(tmp_path / trace.name)
    words = [str(trace), "", str(tmp_path / "a.spans"), "[]"]
    ended = subprocess.run([sys.executable, "-m", trace_indexes.__name__, *words], capture_output=True, check=False)
    assert ended.returncode == trace_indexes.REFUSED and b"link" in ended.stdout
    assert not (tmp_path / "a.spans").exists()


def test_a_trace_that_takes_too_much_memory_ends_the_process_with_a_line(trace: Path, tmp_path: Path) -> None:
    large = enlarge_trace(trace, 20)
    words = [str(large), "", str(tmp_path / "a.spans"), "[]"]
    text = (
        "import sys, psutil; from tdbg.traces.analyze import span_columns, summary_builder; "
        "from tdbg.viewer import trace_indexes as all; limit = all.limit_memory; "
        "all.limit_memory = lambda most: limit(psutil.Process().memory_info().data + (2 << 20)); sys.exit(all.main())"
    )
    ended = subprocess.run([sys.executable, "-c", text, *words], capture_output=True, check=False)
    assert ended.returncode == trace_indexes.REFUSED, ended.stderr
    assert b"takes more than half of this machine's memory" in ended.stdout
    assert sorted(tmp_path.glob("*a.spans*")) == []


def test_a_step_has_its_part_of_the_trace(asked: Client) -> None:
    whole = asked.wait_for(SPANS, rank=0)
    steps = [one for one in asked.wait_for("/runs/profiled/traces")["traces"][0]["steps"] if one["number"] is not None]
    for step in steps:
        found = asked.ask(SPANS, rank=0, step=step["number"])
        assert found["step"] == step["number"]
        assert found["to_ms"] - found["from_ms"] == pytest.approx((step["end"] - step["start"]) / 1e6)
        assert f"sProfilerStep#{step['number']}" in found["names"]
    found = asked.ask(SPANS, rank=0, step=99_999)
    assert found == whole and found["step"] is None


def test_old_files_are_removed_and_nothing_else(cache: Path, trace: Path) -> None:
    names = (
        "traces-v1.1/a.spans",
        "traces-v1.1/.b.spans.123",
        "traces-v1.1/note.txt",
        "other/c.spans",
        "traces-v1.1/new.spans",
    )
    for name in names:
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).write_bytes(b"x")
        if "new" not in name:
            os.utime(cache / name, (time.time() - 40 * 86_400,) * 2)
    index_trace(trace, None, cache / "traces-v1.1" / "d.spans", ("key",))
    left = {path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file()}
    assert left == {"traces-v1.1/note.txt", "other/c.spans", "traces-v1.1/new.spans", "traces-v1.1/d.spans"}


def test_of_too_many_bytes_those_used_longest_ago_go(cache: Path, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = cache / "traces-v1.1" / "d.spans"
    target.parent.mkdir(parents=True)
    for age, name in enumerate(("younger", "older")):
        path = target.with_name(f"{name}.spans")
        path.write_bytes(bytes(1000))
        os.utime(path, (time.time() - 3600 * (age + 2),) * 2)
    index_trace(trace, None, target, ("key",))
    monkeypatch.setattr(trace_indexes, "MOST_KEPT_BYTES", target.stat().st_size + 1500)
    index_trace(trace, None, target, ("key",))
    assert {path.name for path in target.parent.iterdir()} == {"d.spans", "younger.spans"}
    monkeypatch.setattr(trace_indexes, "MOST_KEPT_BYTES", 1)
    index_trace(trace, None, target, ("key",))
    assert {path.name for path in target.parent.iterdir()} == {"d.spans"}  # somebody waits for it


def test_what_a_page_shows_now_stays_however_large_it_is(
    cache: Path, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the traces of many ranks on one page would be read, removed and read again without end."""
    monkeypatch.setattr(trace_indexes, "MOST_KEPT_BYTES", 1)
    target = cache / "traces-v1.1" / "d.spans"
    target.parent.mkdir(parents=True)
    target.with_name("other.spans").write_bytes(bytes(1000))
    index_trace(trace, None, target, ("key",))
    assert {path.name for path in target.parent.iterdir()} == {"d.spans", "other.spans"}


@pytest.mark.parametrize(("name", "packs"), [("a.json", True), ("a.json", False), ("a.json.gz", True)])
def test_what_is_packed_is_told_by_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, packs: bool
) -> None:
    monkeypatch.setattr(trace_indexes, "LARGE_BYTES", 1 << 30)
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"{}") if packs else b"{}")
    one = TraceFile(path, 0)
    key = trace_indexes._read_key(one)
    assert key is not None and trace_indexes._is_large(one, key) is packs


@pytest.mark.parametrize(("mb", "is_large"), [(33, True), (31, False)])
def test_what_unpacks_to_much_is_large_however_small_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mb: int, is_large: bool
) -> None:
    """Else a file of 1 MB that unpacks to 1 GB would be read in the server."""
    monkeypatch.setattr(trace_indexes, "LARGE_PACKED_BYTES", 1 << 20)
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (mb << 20) + b"]}"))
    one = TraceFile(path, 0)
    key = trace_indexes._read_key(one)
    assert key is not None and int(key[3]) < 1 << 20
    assert trace_indexes._is_large(one, key) is is_large
    path.write_bytes(path.read_bytes()[:-100])  # damaged: what is there counts
    assert trace_indexes._is_large(one, trace_indexes._read_key(one) or key) is is_large


def enlarge_trace(trace: Path, count: int) -> Path:
    """The events of a trace so many times, one after the other, not compressed, in its place."""
    data = json.loads(gzip.decompress(trace.read_bytes()))
    events = [one for one in data["traceEvents"] if one.get("ph") == "X"]
    begin, end = min(one["ts"] for one in events), max(one["ts"] + one["dur"] for one in events)
    later = [{**one, "ts": one["ts"] + turn * (end - begin)} for turn in range(1, count) for one in events]
    data["traceEvents"] += later
    trace.with_suffix("").write_text(json.dumps(data), encoding="utf-8")
    trace.unlink()
    return trace.with_suffix("")


def check_buttons(shown: Page) -> None:
    """The part in view is moved by keys, and stands in the address."""
    note = shown.locator("#timeline-note")
    expect(shown).to_have_url(re.compile(r"from_ms=1&to_ms=1\.5"))
    expect(note).to_contain_text("from 1 to 1.5 ms")
    shown.get_by_role("button", name="Zoom out").focus()
    shown.keyboard.press("Enter")
    expect(shown).to_have_url(re.compile(r"from_ms=0\.75&to_ms=1\.75"))
    later = shown.get_by_role("button", name="Later")
    later.press("Enter")
    expect(shown).to_have_url(re.compile(r"from_ms=1\.25&to_ms=2\.25"))
    expect(note).to_contain_text("from 1.25 to 2.25 ms")
    shown.evaluate(
        "for (const one of document.querySelectorAll('.tools button')) if (one.textContent === 'Earlier') one.click(), one.click()"
    )
    expect(shown).to_have_url(re.compile(r"from_ms=0\.25&to_ms=1\.25"))  # the second before the first was drawn
    expect(note).to_contain_text("from 0.25 to 1.25 ms")
    kept = shown.inner_text("#timeline-note")
    shown.reload()
    expect(note).to_have_text(kept)
    expect(shown.locator("#timeline .barlayer .point").first).to_be_visible(timeout=60_000)
    shown.get_by_role("button", name="Whole trace").press("Enter")
    expect(note).to_contain_text("shorter ones are left out")
    assert "from_ms" not in shown.url


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_shows_the_progress_and_then_a_timeline_to_zoom_into(
    trace: Path,
    chromium: Browser,  # noqa: F811
    width: int,
) -> None:
    large = enlarge_trace(trace, 3 * LARGE_BYTES // len(gzip.decompress(trace.read_bytes())))
    assert large.stat().st_size > LARGE_BYTES
    server = Server(trace.parents[3])
    try:
        watched = Watched(chromium, server, width)
        watched.complaints.clear()
        watched.page.goto(f"{server.root}/runs/profiled/traces")
        expect(watched.page.locator("p.state")).to_contain_text(f"reading {large.name} (")
        shown = watched.page
        expect(shown.locator("#timeline .barlayer .point").first).to_be_visible(timeout=60_000)
        expect(shown.locator("#flame .slice").first).to_be_visible()
        before = shown.inner_text("#timeline-note")
        assert re.search(
            r"^The 2,000 longest spans from 0 to [\d.,]+ ms; [\d,]+ shorter ones are left out\.", before
        ), before
        shown.evaluate("Plotly.relayout('timeline', {'xaxis.range': [1, 1.5]})")
        expect(shown.locator("#timeline-note")).not_to_have_text(before)
        assert "left out" not in shown.inner_text("#timeline-note")
        check_buttons(shown)
        watched.check_quiet()
        watched.context.close()
    finally:
        server.end()
