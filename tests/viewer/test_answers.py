"""What the addresses answer is what the commands print with --json."""

import gzip
import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tdbg.cli import main
from tdbg.metrics.rows.row_reader import Line, Reading
from tdbg.viewer import growing_metrics
from tdbg.viewer.answers import metrics

from .conftest import NAMES, Client

SAME = {
    "report": (["report"], "report"),
    "status": (["status"], "status"),
    "metrics": (["metrics", "show"], "metrics"),
}


def run_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    main([*words, "--json"])
    return json.loads(capsys.readouterr().out)["data"]


@pytest.mark.parametrize("run", NAMES)
@pytest.mark.parametrize("what", SAME)
def test_an_answer_is_what_the_command_prints(
    client: Client, runs_folder: Path, capsys: pytest.CaptureFixture[str], run: str, what: str
) -> None:
    words, address = SAME[what]
    printed = run_command([*words, str(runs_folder / run)], capsys)
    answered = client.ask(f"/runs/{run}/{address}")
    for data in (printed, answered):
        data.pop("people", None)
        data.pop("is_final", None)
        data.pop("run", None)
        for rank in data.get("ranks", ()) if isinstance(data.get("ranks"), list) else ():
            rank.pop("last_seen_s", None)
    assert answered == printed


def test_the_list_has_every_run_with_its_verdict(client: Client) -> None:
    found = client.ask("/runs")
    assert {run["name"] for run in found["runs"]} == set(NAMES) and found["left_out"] == 0
    for run in found["runs"]:
        report = client.ask(f"/runs/{run['name']}/report")
        if run["severity"]:
            assert run["codes"] == [finding["code"] for finding in report["findings"]], run["name"]


@pytest.mark.parametrize("run", NAMES)
def test_a_flag_that_has_observed_something_is_on_or_woken_by_the_level(client: Client, run: str) -> None:
    found = client.ask(f"/runs/{run}/flags")
    for flag in found["flags"]:
        assert not (flag["is_on"] and flag["by_level"])
        assert flag["is_on"] or flag["by_level"] or not flag["observations"], flag
    by_level = {flag["name"] for flag in found["flags"] if flag["by_level"]}
    assert ("FORWARD" in by_level) == (found["level"] in ("advanced", "extreme")) or found["level"] == "basic"


def test_saved_batches_are_listed_and_read(client: Client) -> None:
    found = client.ask("/runs/two_ranks/batches")["batches"]
    files = [one["file"] for one in found]
    assert files[:2] == ["rank0000/batch_step00000020.safetensors", "rank0001/batch_step00000013.safetensors"]
    assert (found[1]["rank"], found[1]["step"], found[1]["left_out"]) == (1, 13, [])
    details = client.ask("/runs/two_ranks/pages/datapoint", batch=files[1])
    assert [(one["path"], one["dtype"], one["shape"]) for one in details["tensors"]] == [
        ("inputs.0.0.0", "float32", [8, 8]),
        ("batch.0", "float32", [8, 8]),
        ("batch.1", "int64", [8]),
    ]
    sliced = client.ask("/runs/two_ranks/pages/datapoint", batch=files[1], path="batch.0", slice="2,3:4")
    assert sliced["values"] == ["nan"]
    assert client.ask("/runs/two_ranks/pages/picture", batch=files[1], path="batch.0")["not_finite_at"] == [[2, 3]]
    assert "not_finite_at" not in client.ask("/runs/two_ranks/pages/picture", batch=files[1], path="batch.1")
    assert client.ask("/runs/captured/batches") == {"batches": [], "left_out": 0}
    for file in ("../two_ranks/" + files[1], "rank0001/../" + files[1], "/etc/passwd", "rank0001/events.jsonl"):
        answer = client.get("/api/v1/runs/two_ranks/pages/datapoint", params={"batch": file})
        assert answer.status_code == 404 and "no saved batch" in answer.json()["error"]


def test_batches_beyond_the_list_are_counted(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = client.ask("/runs/two_ranks/batches")
    assert len(whole["batches"]) == 3 and whole["left_out"] == 0
    monkeypatch.setattr("tdbg.viewer.answers.batches.MAX_BATCHES", 1)
    assert client.ask("/runs/two_ranks/batches") == {"batches": whole["batches"][:1], "left_out": 2}


@pytest.mark.parametrize("query", ["limit=x", "none=1", "limit=1&limit=2", "offset=1.5"])
def test_a_wrong_parameter_is_said(client: Client, query: str) -> None:
    answer = client.get(f"/api/v1/runs?{query}")
    assert answer.status_code == 400 and answer.json()["error"]


def test_logs_come_in_parts_that_join_to_all_of_them(client: Client) -> None:
    whole = client.ask("/runs/two_ranks/logs", limit=1000)
    assert whole["after"] is None and len(whole["records"]) > 20
    parts, after = [], ""
    while after is not None:
        part = client.ask("/runs/two_ranks/logs", limit=7, after=after)
        assert len(part["records"]) <= 7
        parts += part["records"]
        after = part["after"]
    assert parts == whole["records"]


def test_records_that_ranks_write_alike_are_one(
    client: Client, runs_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "collapsed"
        main(["filter-logs", str(runs_folder / "two_ranks"), "--collapse", "-o", str(target)])
        printed = re.findall(r"^\[(r[\d,?-]+)\] ", target.read_text(), re.MULTILINE)
    found = client.ask("/runs/two_ranks/logs", collapse="true", limit=1000)
    assert [record["ranks"] for record in found["records"]] == printed
    assert "r0-1" in printed and len(printed) < len(client.ask("/runs/two_ranks/logs", limit=1000)["records"])


def test_collapsed_records_come_in_parts(client: Client) -> None:
    whole = client.ask("/runs/two_ranks/logs", collapse="true", limit=1000)
    parts, after = [], ""
    while after is not None:
        part = client.ask("/runs/two_ranks/logs", collapse="true", limit=7, after=after)
        parts += part["records"]
        after = part["after"]
    assert parts == whole["records"]
    assert client.get("/api/v1/runs/two_ranks/logs?collapse=true&after=x").status_code == 400


def test_an_expression_is_searched_in_a_process_with_the_same_answer(client: Client) -> None:
    for how in ({}, {"collapse": "true"}):
        plain = client.ask("/runs/two_ranks/logs", text="step", limit=1000, **how)
        assert plain["records"] and client.ask("/runs/two_ranks/logs", text="(?:step)+", limit=1000, **how) == plain
    answer = client.get("/api/v1/runs/two_ranks/logs?text=(")
    apart = client.get("/api/v1/runs/two_ranks/logs?text=(*")
    assert answer.status_code == apart.status_code == 400
    assert "--regex" in answer.json()["error"] and "--regex" in apart.json()["error"]


def test_an_expression_that_takes_for_ever_is_stopped(
    runs_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server goes on answering meanwhile: `re` holds the interpreter's lock."""
    monkeypatch.setattr("tdbg.viewer.log_search.LIMIT_S", 3.0)
    shutil.copytree(runs_folder / "two_ranks", tmp_path / "letters")
    client = Client(tmp_path)
    log = tmp_path / "letters" / "rank0000" / "debug_log_rank0.txt"
    log.write_text(log.read_text() + log.read_text().splitlines()[0] + " " + "a" * 60 + "!\n")
    found: list[Any] = []
    search = threading.Thread(
        target=lambda: found.append(client.get("/api/v1/runs/letters/logs?text=(a%2B)%2B$&kind=debug"))
    )
    search.start()
    begun = time.monotonic()
    assert client.get("/api/v1/runs/letters/status").status_code == 200
    answered_s = time.monotonic() - begun
    search.join(60)
    assert found[0].status_code == 400 and "stopped after 3 s" in found[0].json()["error"]
    assert answered_s < 3.0


def test_logs_that_are_too_large_are_not_collapsed(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tdbg.viewer.log_search.MAX_COLLAPSED_BYTES", 10)
    answer = client.get("/api/v1/runs/two_ranks/logs?collapse=true")
    assert answer.status_code == 400 and "tdbg filter-logs RUN --collapse" in answer.json()["try_next"]


def test_the_page_of_traces_is_that_of_the_file(client: Client, runs_folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    assert main(["trace", "show", str(runs_folder / "profiled"), "--html", str(target)]) == 0
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', target.read_text(), re.DOTALL)
    assert text is not None
    assert client.ask("/runs/profiled/traces/page") == json.loads(text[1])
    assert client.ask("/runs/single/traces/page")["traces"] == []


def test_tables_of_a_trace_are_cut_to_the_rows_that_took_longest(
    client: Client, runs_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "show", str(runs_folder / "profiled"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["data"]["traces"]
    whole = client.ask("/runs/profiled/traces")["traces"]
    assert all(one.pop("left_out") == {} for one in whole)
    assert whole == printed
    for few, one in zip(client.ask("/runs/profiled/traces", rows=2)["traces"], whole, strict=True):
        longest = sorted(one["operators"], key=lambda row: -row["total"])[:2]
        assert len(one["operators"]) > 2 and few["left_out"]["operators"] == len(one["operators"]) - 2
        assert sorted(row["total"] for row in few["operators"]) == sorted(row["total"] for row in longest)
        assert [row for row in one["operators"] if row in few["operators"]] == few["operators"]
        assert {name: few[name] for name in ("steps", "memory", "verdict")} == {
            name: one[name] for name in ("steps", "memory", "verdict")
        }
    for rows in (-5, 0, 10**12):
        assert client.ask("/runs/profiled/traces", rows=rows)["traces"]


def test_a_trace_that_is_not_there_is_not_sent(client: Client) -> None:
    for run, query in (("profiled", {"rank": 7}), ("profiled", {"rank": 0, "window": 9}), ("single", {"rank": 0})):
        assert client.get(f"/api/v1/runs/{run}/traces/file", params=query).status_code == 404


def test_every_route_is_described_with_a_schema(client: Client) -> None:
    described = client.ask("/openapi.json")
    assert len(described["paths"]) >= 12
    for path, methods in described["paths"].items():
        for about in methods.values():
            assert about["summary"].endswith("."), path
            (content,) = about["responses"]["200"]["content"].values()
            assert content["schema"]


def test_a_code_is_explained(client: Client) -> None:
    found = client.ask("/rules/td-n001")
    assert (found["code"], found["severity"]) == ("TD-N001", "critical") and "What to do:" in found["page"]
    answer = client.get("/api/v1/rules/TD-X999")
    assert (
        answer.status_code == 404
        and "TD-X999" in answer.json()["error"]
        and "tdbg explain" in answer.json()["try_next"]
    )


def test_records_are_counted_by_tag(client: Client, runs_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = client.ask("/runs/two_ranks/logs/counts")
    capsys.readouterr()
    assert main(["filter-logs", str(runs_folder / "two_ranks"), "--list-prefixes"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    told = {row[0]: int(row[2].replace(",", "")) for row in rows if len(row) == 4 and row[2].replace(",", "").isdigit()}
    assert {one["tag"]: one["records"] for one in found["tags"]} == told
    assert told
    assert found["looked_at"] == found["total"]


def test_several_curves_are_asked_for_by_name(client: Client) -> None:
    keys = [one["key"] for one in client.ask("/runs/two_ranks/metrics")["series"]][:3]
    found = client.ask("/runs/two_ranks/metrics/curves", keys=json.dumps(keys))
    assert {one["key"] for one in found["curves"]} == set(keys)
    for wrong in ("[1]", "loss", '{"a": 1}', "[]"):
        assert client.get("/api/v1/runs/two_ranks/metrics/curves", params={"keys": wrong}).status_code == 400


def test_a_weight_that_is_no_number_smooths_nothing(client: Client) -> None:
    as_they_are, smoothed = (client.ask("/runs/two_ranks/metrics/curves", smooth=weight) for weight in ("0", "nan"))
    assert smoothed == as_they_are and None not in smoothed["curves"][0]["values"]


def test_a_look_at_a_large_trace_writes_nothing(runs_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(runs_folder / "profiled", tmp_path / "profiled")
    (trace,) = tmp_path.glob("profiled/rank0000/traces/*.json.gz")
    data = json.loads(gzip.decompress(trace.read_bytes()))
    data["more"] = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(60_000)]
    trace.write_bytes(gzip.compress(json.dumps(data).encode()))
    assert trace.stat().st_size > 1 << 20
    before = sorted(tmp_path.rglob("*"))
    client = Client(tmp_path)
    assert client.wait_for("/runs/profiled/traces/page")["traces"] and client.ask("/runs/profiled/traces")["traces"]
    assert client.wait_for("/runs/profiled/traces/spans", rank=0)["spans"]
    assert sorted(tmp_path.rglob("*")) == before


def test_metrics_that_have_grown_are_read_again(runs_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(runs_folder / "two_ranks", tmp_path / "two_ranks")
    client = Client(tmp_path)
    keys = json.dumps(["train/loss"])
    before = [client.ask("/runs/two_ranks/metrics/curves", keys=keys)["curves"][0]["count"] for _ in range(2)]
    with open(tmp_path / "two_ranks" / "rank0000" / "metrics.jsonl", "a", encoding="utf-8") as file:
        row = {
            "t": 2e9,
            "step": 10**6,
            "epoch": 0,
            "phase": "train",
            "rank": 0,
            "source": "tdbg",
            "values": {"train/loss": 0.5},
        }
        file.write(json.dumps(row) + "\n")
    assert (
        client.ask("/runs/two_ranks/metrics/curves", keys=keys)["curves"][0]["count"] == before[0] + 1 == before[1] + 1
    )
    latest = [one["latest"] for one in client.ask("/runs/two_ranks/metrics")["series"] if one["key"] == "train/loss"]
    assert latest[0]["step"] == 10**6


def test_of_metrics_that_grow_one_answer_is_kept_at_most(
    runs_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = metrics.KeptAnswers()
    monkeypatch.setattr(metrics, "ANSWERS", kept)
    shutil.copytree(runs_folder / "two_ranks", tmp_path / "two_ranks")
    client, rows = Client(tmp_path), tmp_path / "two_ranks" / "rank0000" / "metrics.jsonl"
    lines = rows.read_text(encoding="utf-8").splitlines(keepends=True)
    for at in range(5):
        rows.write_text("".join(lines[: len(lines) - at]), encoding="utf-8")
        client.ask("/runs/two_ranks/metrics/curves")
    assert len(kept) == 0, "the run goes on"
    for at in range(5):
        rows.write_text("".join(lines[: len(lines) - at]), encoding="utf-8")
        for path in (tmp_path / "two_ranks").rglob("*"):
            os.utime(path, (1e9, 1e9))
        client.ask("/runs/two_ranks/metrics/curves")
        assert len(kept) == 1 and kept.nbytes > 0
    for at in range(40):
        client.ask("/runs/two_ranks/metrics/curves", smooth=at / 50)
    assert len(kept) == metrics.MAX_KEPT
    monkeypatch.setattr(metrics, "MAX_KEPT_BYTES", 2 * kept.nbytes // metrics.MAX_KEPT + 100)
    for at in range(5):
        client.ask("/runs/two_ranks/metrics/curves", smooth=at / 100)
        assert kept.nbytes <= metrics.MAX_KEPT_BYTES


def test_of_metrics_that_grow_only_new_rows_are_read(
    runs_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "GROWING", metrics.GrowingMetrics())
    shutil.copytree(runs_folder / "two_ranks", tmp_path / "two_ranks")
    client, rows = Client(tmp_path), tmp_path / "two_ranks" / "rank0000" / "metrics.jsonl"
    lines = rows.read_bytes().splitlines(keepends=True)
    rows.write_bytes(b"".join(lines[:3]))
    addresses = ("/runs/two_ranks/metrics", "/runs/two_ranks/metrics/curves")
    read: list[int] = []
    decode = Reading._decode_lines

    def count_bytes(self: Reading, part: bytes) -> list[Line]:
        read.append(len(part))
        return decode(self, part)

    for address in addresses:
        client.ask(address)
    monkeypatch.setattr(Reading, "_decode_lines", count_bytes)
    for at in range(3, len(lines)):
        read.clear()
        with open(rows, "ab") as file:
            file.write(lines[at])
        answers = [client.ask(address) for address in addresses]
        assert sum(read) == len(addresses) * len(lines[at]), "each row is read once for each question"
    assert len(metrics.GROWING) == len(addresses)
    monkeypatch.setattr(metrics, "_grows", lambda files: False)
    assert answers == [client.ask(address) for address in addresses]


def test_what_is_kept_of_metrics_that_grow_is_bounded(
    runs_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = growing_metrics.GrowingMetrics()
    monkeypatch.setattr(metrics, "GROWING", kept)
    shutil.copytree(runs_folder / "two_ranks", tmp_path / "two_ranks")
    (tmp_path / "two_ranks" / "rank0000" / "metrics.jsonl").touch()
    client = Client(tmp_path)
    for at in range(10):
        client.ask("/runs/two_ranks/metrics/curves", smooth=at / 50)
    assert len(kept) == growing_metrics.MAX_KEPT
    monkeypatch.setattr(growing_metrics, "MAX_NUMBERS", 10)
    assert client.ask("/runs/two_ranks/metrics")["series"] and len(kept) == 0


@pytest.mark.parametrize("change", ["cut", "replaced", "rewritten", "attempt", "torn", "foreign"])
def test_metrics_that_did_not_only_grow_are_read_anew(
    runs_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(metrics, "GROWING", metrics.GrowingMetrics())
    shutil.copytree(runs_folder / "two_ranks", tmp_path / "two_ranks")
    client, rows = Client(tmp_path), tmp_path / "two_ranks" / "rank0000" / "metrics.jsonl"
    rows.touch()
    client.ask("/runs/two_ranks/metrics")
    lines = rows.read_bytes().splitlines(keepends=True)
    others = [re.sub(rb'("train/loss":)[^,}]+', rb"\g<1>7.5", line) for line in lines]
    assert sum(line != other for line, other in zip(lines, others, strict=True)) > len(lines) // 2
    if change == "replaced":
        rows.rename(rows.with_name("before"))  # else the new file may have its inode
    new = {
        "cut": lines[:-2],
        "foreign": [*lines, b"no row\n"],
        "replaced": [*others, *others[1:]],
        "rewritten": [*others, *others[1:]],
        "attempt": [*lines, lines[0], lines[5]],
    }
    rows.write_bytes(b"".join(new.get(change, [*lines, lines[-1].rstrip(b"\n")])))
    answer = client.ask("/runs/two_ranks/metrics")
    monkeypatch.setattr(metrics, "_grows", lambda files: False)
    assert answer == client.ask("/runs/two_ranks/metrics")
    assert answer["rows_made_again"] > 0 if change == "attempt" else answer["rows_made_again"] == 0


def test_an_answer_of_metrics_that_stay_is_kept(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "ANSWERS", metrics.KeptAnswers())
    before = client.ask("/runs/two_ranks/metrics/curves")
    monkeypatch.setattr(metrics, "collect_curves", None)  # nothing is read again
    assert client.ask("/runs/two_ranks/metrics/curves") == before


def test_one_trace_is_asked_for_by_its_file(client: Client, runs_folder: Path) -> None:
    (written,) = (runs_folder / "profiled").glob("rank0000/traces/*.json.gz")
    file = str(written.relative_to(runs_folder / "profiled"))
    for name in (file, file.removesuffix(".gz")):  # events have the name from before it was compressed
        (trace,) = client.ask("/runs/profiled/traces/page", file=name)["traces"]
        assert (trace["rank"], trace["window"]) == (0, 0)
        assert len(client.ask("/runs/profiled/traces", file=name)["traces"]) == 1
    for name in ("none", "../second/" + file, str(written), "rank0000/../" + file):
        answer = client.get("/api/v1/runs/profiled/traces/page", params={"file": name})
        assert answer.status_code == 404 and answer.json()["error"] == "this run has no such trace", name
