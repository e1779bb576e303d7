"""`tdbg report --html`: the data of the page, for runs of every kind and for hostile ones."""

import json
import os
import re
import sys

import pytest
from streams import HOST, Stream, bad

from tdbg.cli import main
from tdbg.core.events import Cost, Finding, Params, Step, Traceback
from tdbg.rules.report_page import document
from tdbg.rules.report_page.rank_lanes import DATA, EVALUATED, KINDS, TRAINED, WAITED, ProcessLane, RunLanes
from tdbg.rules.rule_engine import judge_run

EVIL = "</script><img src=http://evil.invalid/a onerror=alert(1)>{data}{plotly}%{x}$y$\x1b[31m\u202e\u2028\r\n"


@pytest.fixture
def run(tmp_path):
    return Stream(tmp_path / "run")


def describe(run):
    return document.describe_run(run.run, judge_run(run.run))


def chart(found, name):
    return next(one for one in found["charts"] if one["id"] == name)


def table(found, name):
    return next((one["rows"] for one in found["tables"] if one["id"] == name), [])


def seconds(row, kind):
    return sum((bar[2] - bar[1]) * (bar[4] - bar[3]) for bar in row["bars"] if bar[0] == kind)


def strings(value):
    """Every text in plain data."""
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from strings(item)


def train(run, folder, steps, *, first=1, every=0.05, **more):
    """Steps of 50 ms each by their clock."""
    begin = run.t
    for step in range(first, first + steps):
        given = {"loss": 1 / step, "lr": [0.1], "grad_norm": 1.0, "loader_ms": 10.0, "forward_ms": 10.0}
        given |= {"backward_ms": 20.0, "optimizer_ms": 5.0, "step_ms": 1000 * every, "host_mb": 300.0}
        given |= more
        run.t = begin + (step - first + 1) * every
        run.emit(folder, Step(step=step, t=run.t, **given))


def test_a_run_with_a_finding(run):
    rank = run.rank()
    train(run, rank, 2)
    run.emit(rank, bad())
    run.train(rank, ["nan"], first=3)
    run.end(rank, 3)
    run.done(0)
    found = describe(run)
    assert found["headline"].startswith("1 finding (1 critical); 1 rank, 3 steps")
    (finding,) = found["findings"]
    assert (finding["code"], finding["step"], found["severity"]) == ("TD-N001", 3, "critical")
    assert "rank 0" in finding["where"] and finding["evidence"] and finding["cause"] and finding["try_next"]
    (loss,) = chart(found, "loss")["curves"]
    assert loss["x"] == [1, 2, 3] and loss["y"] == [1.0, 0.5, None] and loss["non_finite"] == [(3, 3, 1, "nan")]
    (lane,) = found["lanes"]["rows"]
    assert lane["marks"][0]["findings"] == [0] and lane["ends"][0]["text"] == "ended" and not lane["ends"][0]["bad"]


def test_a_cause_stands_before_what_followed_from_it(run):
    for rank in range(2):
        folder = run.rank(rank, 2)
        run.train(folder, [1.0, *["nan"] * 25])
        run.emit(folder, bad(2), Traceback(step=26, exception="ValueError", message="x"))
    run.done(1)
    found = describe(run)["findings"]
    stories = judge_run(run.run).stories()
    assert [one["title"] for one in found] == [
        finding.title for story in stories for finding in (story.first, *story.followers)
    ]
    followers = {one["code"] for one in found if one["follows"]}
    assert "TD-N002" in followers and not found[0]["follows"] and found[0]["code"] == "TD-N001"


def test_a_traceback_is_apart_from_the_evidence():
    finding = Finding(code="TD-R003", severity="error", title="x", evidence=["a", "traceback:", "  File", "    y()"])
    found = document.describe_finding(finding)
    assert found["evidence"] == ["a"] and found["traceback"] == ["  File", "    y()"]


def test_learning_rates_of_each_group_phases_and_memory(run):
    rank = run.rank()
    train(run, rank, 5, lr=[0.1, 0.01], device_mb=10.0, device_peak_mb=20.0, scale=1024.0)
    found = describe(run)
    assert [one["name"] for one in chart(found, "lr")["curves"]] == ["group 0", "group 1"]
    (phases,) = chart(found, "phases")["choices"]
    assert [one["name"] for one in phases["curves"]] == ["loader", "forward", "backward", "optimizer", "whole step"]
    assert [one["name"] for one in chart(found, "memory")["curves"]] == ["host", "device", "device, peak"]
    assert chart(found, "scale")["curves"][0]["y"] == [1024.0] * 5
    assert not any(one["id"] == "step_ms" for one in found["charts"])  # of several ranks alone


def test_gradient_norms_of_each_parameter_of_the_first_process(run):
    for rank in range(2):
        folder = run.rank(rank, 2)
        run.emit(folder, Params(names=["w", EVIL], numel=[4, 4], optimizers=["SGD"]))
        train(run, folder, 3, grad_norms=[1.0, -1])
        run.emit(folder, Step(step=4, loss=1.0, grad_norms=["nan", 0.5]))
    (heat,) = describe(run)["heats"]
    assert heat["x"] == [1, 2, 3, 4] and heat["values"] == [[1.0, 1.0, 1.0, None], [None, None, None, 0.5]]
    assert heat["not_finite"] == [(0, 3)] and heat["note"].startswith("rank 0.")
    assert heat["rows"][0] == "w" and heat["rows"][1].isprintable()


def test_without_a_finding_the_page_says_what_was_watched(run):
    train(run, run.rank(), 3)
    found = describe(run)
    assert found["lines"] == judge_run(run.run).lines()[1:] and any("not watched" in line for line in found["lines"])


def test_ranks_with_the_same_curve_share_it(run):
    folders = [run.rank(rank, 3) for rank in range(3)]
    for number, folder in enumerate(folders):
        train(run, folder, 5, grad_norm=2.0 if number == 1 else 1.0)
    found = describe(run)
    assert [one["name"] for one in chart(found, "lr")["curves"]] == ["ranks 0-2"]
    assert [one["name"] for one in chart(found, "grad_norm")["curves"]] == ["ranks 0, 2", "rank 1"]
    assert len(found["lanes"]["rows"]) == 3 and len(chart(found, "phases")["choices"]) == 3


def test_of_64_ranks_those_with_findings_and_bad_ends_have_lines(run):
    for rank in range(64):
        folder = run.rank(rank, 64)
        train(run, folder, 4, loss=float(rank))
        if rank == 41:
            run.emit(folder, Traceback(step=4, exception="ValueError", message="x"))
        else:
            run.end(folder, 4)
    run.done(1)
    found = describe(run)
    loss = chart(found, "loss")
    names = [one["name"] for one in loss["curves"]]
    assert len(names) == 8 and "rank 41" in names and "rank 0" in names
    (band,) = loss["bands"]
    assert min(band["low"]) == 0.0 and max(band["high"]) == 63.0
    assert "8 processes of 64" in loss["note"]
    assert len(found["lanes"]["rows"]) == 64
    assert [row["name"] for row in found["lanes"]["rows"] if row["ends"][0]["bad"]] == ["rank 41"]
    assert len(json.dumps(found)) < 300_000


def test_a_run_of_one_step(run):
    rank = run.rank()
    run.train(rank, [2.0])
    run.end(rank, 1)
    found = describe(run)
    assert chart(found, "loss")["curves"][0]["x"] == [1]
    assert len(found["lanes"]["rows"]) <= 1


def test_a_run_without_a_step(run):
    run.rank()
    found = describe(run)
    assert found["charts"] == [] and found["lanes"]["rows"] == [] and found["headline"]


def test_a_run_without_an_event(run):
    run.done(0)
    found = describe(run)
    assert found["charts"] == [] and table(found, "environment")


def test_evaluation_alone(run):
    rank = run.rank()
    for call in range(1, 9):
        run.t += 0.01
        run.emit(rank, Step(step=call, call=call, phase="eval", forward_ms=8.0))
    run.end(rank)
    found = describe(run)
    assert [one["id"] for one in found["charts"]] == ["eval"]
    assert chart(found, "eval")["curves"][0]["x"] == list(range(1, 9)) and not chart(found, "eval")["marked"]
    (lane,) = found["lanes"]["rows"]
    assert seconds(lane, EVALUATED) == pytest.approx(0.085, rel=0.1) and not seconds(lane, TRAINED)


def test_a_killed_run_with_a_half_written_line(run):
    rank = run.rank()
    train(run, rank, 20)
    run.done(-9)
    path = run.run.path / rank / "events.jsonl"
    with path.open("ab") as file:
        file.write(b'{"type":"step","v":1,"t":1795000')
    found = describe(run)
    assert chart(found, "loss")["curves"][0]["count"] == 20
    (lane,) = found["lanes"]["rows"]
    assert lane["ends"][0]["bad"] and lane["ends"][0]["text"] in ("SIGKILL", "cut off")
    assert "SIGKILL" in found["headline"]


def test_attempts_share_a_row_and_have_curves_of_their_own(run):
    first = run.rank()
    train(run, first, 5)
    run.emit(first, Traceback(step=5, exception="ValueError", message="x"))
    second = run.rank(attempt=1, env={"TORCHELASTIC_RESTART_COUNT": "1"})
    train(run, second, 5, first=3, loss=9.0)
    run.end(second, 7)
    found = describe(run)
    assert [one["name"] for one in chart(found, "loss")["curves"]] == ["rank 0", "rank 0 attempt 1"]
    (lane,) = found["lanes"]["rows"]
    assert [end["text"] for end in lane["ends"]] == ["ValueError", "ended"]
    assert any(fact.startswith("restarts: ") for fact in found["facts"])
    assert len(lane["marks"]) == 1
    assert lane["marks"][0]["t"] < lane["ends"][0]["t"] + 0.001  # the exception is of the first attempt


def test_a_process_beside_its_rank_has_a_row_of_its_own(run):
    train(run, run.rank(), 5)
    train(run, "rank0000/pid77-host", 5)
    found = describe(run)
    assert [row["name"] for row in found["lanes"]["rows"]] == ["rank 0", "rank 0 pid 77"]
    assert [one["name"] for one in chart(found, "loss")["curves"]] == ["rank 0, rank 0 pid 77"]
    assert [row[0] for row in table(found, "ranks")] == [0, "rank0000/pid77-host"]


def test_what_a_rank_did_is_told_by_its_records(run):
    rank = run.rank()
    train(run, rank, 100)  # 5 s, a fifth of it waiting for data
    run.t += 2.0  # nothing is known of this
    for _ in range(10):
        run.t += 0.1
        run.emit(rank, Step(step=100, phase="eval", t=run.t, forward_ms=90.0))
    train(run, rank, 20, first=101, loader_ms=0.0)  # 1 s
    train(run, rank, 2, first=121, every=3.0, loader_ms=0.0)  # 6 s, nearly all of it elsewhere
    (lane,) = describe(run)["lanes"]["rows"]
    assert KINDS[DATA] == "waited for data"
    assert seconds(lane, TRAINED) == pytest.approx(4 + 1, rel=0.08)
    assert seconds(lane, DATA) == pytest.approx(1, rel=0.15)
    assert seconds(lane, EVALUATED) == pytest.approx(1, rel=0.15)
    assert seconds(lane, WAITED) == pytest.approx(6, rel=0.08)


def test_records_with_impossible_times_do_no_harm(run):
    rank = run.rank()
    lane = ProcessLane(run.run.processes()[0], (), 100)
    for t in (0.0, -1.0, float("nan"), 1e300, run.t):
        for length in (0.0, -5.0, 1e308, float("inf"), float("nan"), None):
            lane.add_event(Step(t=t, step=1, loss=1.0, step_ms=length, loader_ms=length, forward_ms=length))
            lane.add_event(Step(t=t, step=1, phase="eval", forward_ms=length))
    assert len(lane.lane.bars()) < 100
    assert rank


def test_a_finding_without_a_record_of_its_step_stands_at_the_end(run):
    rank = run.rank()
    train(run, rank, 5)
    verdict = judge_run(run.run)
    verdict.findings = [Finding(code="TD-N001", severity="critical", title="x", first_step=50, rank=0)]
    lanes = RunLanes(verdict, run.run.processes(), verdict.findings)
    for event in run.run.processes()[0].events():
        lanes.add_event(run.run.processes()[0], event)
    (lane,) = lanes.lanes(0.0)
    assert lane["marks"][0]["t"] == lane["ends"][0]["t"]


def test_hostile_names_are_cut_and_free_of_control_codes(run):
    rank = run.rank()
    train(run, rank, 3)
    run.emit(rank, bad(module=EVIL * 1000, module_class=EVIL, tensor="x" * 100_000, note=EVIL))
    run.emit(rank, Traceback(step=3, exception=EVIL, message="y" * 100_000, lines=[EVIL] * 5000))
    found = describe(run)
    text = json.dumps(found)
    assert len(text) < 200_000 and "evil.invalid" in text
    assert all(one.isprintable() for one in strings(found))


def test_of_very_many_processes_some_are_left_out(run):
    for rank in range(300):
        folder = run.rank(rank, 300)
        run.train(folder, [1.0, 2.0])
        run.end(folder, 2)
    found = describe(run)
    assert len(found["lanes"]["rows"]) == 256 and "44 processes" in found["lanes"]["note"]
    assert len(chart(found, "loss")["curves"]) <= 8


def test_secrets_do_not_reach_the_page(run):
    secret = "hf_" + "Ab1" * 12
    run.run.update(
        env={"WANDB_API_KEY": secret, "OMP_NUM_THREADS": "1", "TDBG_TOKEN": secret},
        command=["python", "x.py", "--hub-token", secret, f"--url=https://me:{secret}@host/x"],
        settings={"capture_upload": f"s3://me:{secret}@b/x"},
        origin={"capture_upload": "option"},
        git={"remote": f"https://me:{secret}@host/x", "commit": "abc"},
    )
    rank = run.rank()
    train(run, rank, 2)
    run.emit(rank, Traceback(step=2, exception="ValueError", message=f"token={secret}"))
    found = describe(run)
    assert secret not in json.dumps(found)
    names = [row[0] for row in table(found, "environment")]
    assert "OMP_NUM_THREADS" in names and "WANDB_API_KEY" not in names and "git: commit" in names


def test_cost_flags_and_what_was_not_watched_are_told(run):
    rank = run.rank()
    train(run, rank, 2)
    run.emit(rank, Cost(step=2, own_ms=1.0, wall_ms=100.0, startup_ms=20.0, budget_pct=1.0, level="basic"))
    found = describe(run)
    assert ["share of the wall time", "1.00 %"] in table(found, "cost") and table(found, "not_watched")
    assert table(found, "ranks")[0][:2] == [0, HOST]


def write(run, path, *words):
    return main(["report", str(run.run.path), "--html", str(path), *words])


def data_of(path):
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL)[1]
    return json.loads(text)


def test_the_command_writes_a_page_that_loads_nothing(run, tmp_path, capsys):
    rank = run.rank()
    train(run, rank, 3)
    run.emit(rank, bad(module=EVIL))
    before = {path: path.read_bytes() for path in run.run.path.rglob("*") if path.is_file()}
    target = tmp_path / "r.html"
    assert write(run, target, "--fail-on", "error") == 1
    said = capsys.readouterr()
    assert said.out == "" and "open it in a browser" in said.err
    text = target.read_text()
    assert text.count("</script>") == 3 and "default-src 'none'" in text and EVIL not in text
    assert not re.search(r"<(script|link|img|iframe)[^>]*(src|href)=", text.partition('id="data"')[0])
    assert data_of(target)["findings"][0]["code"] == "TD-N001"
    assert {path: path.read_bytes() for path in run.run.path.rglob("*") if path.is_file()} == before
    assert os.listdir(tmp_path) == ["run", "r.html"] or sorted(os.listdir(tmp_path)) == ["r.html", "run"]


def test_json_goes_to_stdout_beside_it(run, tmp_path, capsys):
    assert write(run, tmp_path / "r.html", "--json") == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "report" and (tmp_path / "r.html").exists()


def test_paths_are_checked_before_anything_is_done(run, tmp_path, capsys):
    target = tmp_path / "r.html"
    target.write_text("old")
    assert write(run, target, "--note", "never kept") == 2
    assert "is there already" in capsys.readouterr().err and target.read_text() == "old"
    assert not (run.run.path / "notes.jsonl").exists()
    assert write(run, target, "--force") == 0 and target.read_text() != "old"
    for name, why in (("-", "never to stdout"), (str(tmp_path), "is a folder")):
        assert write(run, name, "--force") == 2 and why in capsys.readouterr().err
    state = (run.run.path / "run.json").read_bytes()
    run.rank()
    for name in ("run.json", "rank0000/events.jsonl"):
        kept = (run.run.path / name).read_bytes()
        assert write(run, run.run.path / name, "--force") == 2
        assert (run.run.path / name).read_bytes() == kept
    assert (run.run.path / "run.json").read_bytes() == state
    assert write(run, run.run.path / "report.html") == 0


def test_without_plotly_the_extra_is_named_and_nothing_is_left(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert write(run, tmp_path / "r.html") == 2
    assert "pip install 'tdbg[html]'" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["run"]
