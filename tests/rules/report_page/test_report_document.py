"""`tdbg report --html`: the data of the page, for runs of every kind and for hostile ones."""

import json
import os
import re
import sys

import pytest
from streams import HOST, Stream, make_nonfinite

from tdbg.cli import main
from tdbg.core.events import Cost, Finding, Observation, Params, Step, Trace, Traceback
from tdbg.rules.report_page import document
from tdbg.rules.report_page.rank_lanes import (
    DATA,
    EVALUATED,
    KINDS,
    NOT_RECORDED,
    TRAINED,
    WAITED,
    ProcessLane,
    RunLanes,
)
from tdbg.rules.rule_engine import judge_run

EVIL = "</script><img src=http://evil.invalid/a onerror=alert(1)>{data}{plotly}%{x}$y$\x1b[31m\u202e\u2028\r\n"


@pytest.fixture
def run_stream(tmp_path):
    return Stream(tmp_path / "run")


def describe_run(run):
    return document.describe_run(run.run, judge_run(run.run))


def find_chart(found, name):
    return next(one for one in found["charts"] if one["id"] == name)


def find_table(found, name):
    return next((one["rows"] for one in found["tables"] if one["id"] == name), [])


def find_trace(run_stream, *traces, step=3, trains=True):
    """The trace of a finding of rank 1, if these were recorded: (rank, first step, steps, phase)."""
    ranks = [run_stream.begin_rank(number) for number in range(2)]
    for number, (rank, first, steps, phase) in enumerate(traces):
        if trains:
            run_stream.emit_steps(ranks[rank], [1.0])
        file = f"traces/{number}.pt.trace.json"
        event = Trace(t=run_stream.t, file=file, first_step=first, steps=steps, phase=phase)
        run_stream.emit_events(ranks[rank], event)
    run_stream.emit_events(ranks[1], make_nonfinite(step=step))
    run_stream.emit_steps(ranks[1], ["nan"], first=step)
    found = describe_run(run_stream)
    assert found["was_profiled"] == bool(traces)
    return next(one["trace"] for one in found["findings"] if one["code"] == "TD-N001")


TRACES = [
    ([(1, 2, 2, "train")], "rank0001/traces/0.pt.trace.json"),
    ([(0, 3, 1, "train"), (1, 1, 5, "train")], "rank0001/traces/1.pt.trace.json"),  # that of its own rank
    ([(0, 3, 1, "train"), (1, 4, 5, "train")], "rank0000/traces/0.pt.trace.json"),  # else another one
    ([(1, 1, 2, "train"), (1, 4, 5, "train")], ""),  # before it and behind it
    ([(1, 1, 5, "eval")], ""),  # calls are no steps
    ([(1, 3, 0, "train")], ""),  # not a whole step
    ([(1, 0, 5, "train")], ""),  # the steps of the program's own profiler are not known
    ([], ""),
]


def test_a_window_of_an_evaluation_before_the_training_covers_no_step(run_stream):
    rank = run_stream.begin_rank()
    trace = Trace(t=run_stream.t, file="traces/0.pt.trace.json", first_step=1, steps=5, phase="eval")
    run_stream.emit_events(rank, trace, make_nonfinite())
    run_stream.emit_steps(rank, ["nan"], first=3, phase="eval")
    assert [one["trace"] for one in describe_run(run_stream)["findings"]] == ["rank0000/traces/0.pt.trace.json"]
    run_stream.emit_steps(rank, [1.0], first=4)
    assert {one["trace"] for one in describe_run(run_stream)["findings"]} == {""}


@pytest.mark.parametrize(("traces", "wanted"), TRACES)
def test_a_finding_has_the_trace_that_covers_its_step(run_stream, traces, wanted):
    assert find_trace(run_stream, *traces) == wanted


def test_the_name_of_a_trace_that_no_rank_writes_is_not_shown(run_stream):
    rank = run_stream.begin_rank()
    for file in ("../x.pt.trace.json", "/etc/passwd", "traces/../../x", "traces/<b>", "traces/" + "x" * 999):
        run_stream.emit_events(rank, Trace(t=run_stream.t, file=file, first_step=3, steps=1))
    run_stream.emit_events(rank, make_nonfinite())
    run_stream.emit_steps(rank, ["nan"], first=3)
    found = describe_run(run_stream)
    assert not found["was_profiled"] and [one["trace"] for one in found["findings"]] == [""]


def sum_seconds(row, kind):
    return sum((bar[2] - bar[1]) * (bar[4] - bar[3]) for bar in row["bars"] if bar[0] == kind)


def iter_strings(value):
    """Every text in plain data."""
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from iter_strings(item)


def emit_steps(run, folder, steps, *, first=1, every=0.05, **more):
    """Steps of 50 ms each by their clock."""
    begin = run.t
    for step in range(first, first + steps):
        given = {"loss": 1 / step, "lr": [0.1], "grad_norm": 1.0, "loader_ms": 10.0, "forward_ms": 10.0}
        given |= {"backward_ms": 20.0, "optimizer_ms": 5.0, "step_ms": 1000 * every, "host_mb": 300.0}
        given |= more
        run.t = begin + (step - first + 1) * every
        run.emit_events(folder, Step(step=step, t=run.t, **given))


def test_a_run_with_a_finding(run_stream):
    rank = run_stream.begin_rank()
    emit_steps(run_stream, rank, 2)
    run_stream.emit_events(rank, make_nonfinite())
    run_stream.emit_steps(rank, ["nan"], first=3)
    run_stream.end_process(rank, 3)
    run_stream.record_exit(0)
    found = describe_run(run_stream)
    assert found["headline"].startswith("1 finding (1 critical); 1 rank, 3 steps")
    (finding,) = found["findings"]
    assert (finding["code"], finding["step"], found["severity"]) == ("TD-N001", 3, "critical")
    assert "rank 0" in finding["where"] and finding["evidence"] and finding["cause"] and finding["try_next"]
    (loss,) = find_chart(found, "loss")["curves"]
    assert loss["x"] == [1, 2, 3] and loss["y"] == [1.0, 0.5, None] and loss["non_finite"] == [(3, 3, 1, "nan")]
    (lane,) = found["lanes"]["rows"]
    assert lane["marks"][0]["findings"] == [0] and lane["ends"][0]["text"] == "ended" and not lane["ends"][0]["bad"]


def test_a_cause_stands_before_what_followed_from_it(run_stream):
    for rank in range(2):
        folder = run_stream.begin_rank(rank, 2)
        run_stream.emit_steps(folder, [1.0, *["nan"] * 25])
        run_stream.emit_events(folder, make_nonfinite(2), Traceback(step=26, exception="ValueError", message="x"))
    run_stream.record_exit(1)
    found = describe_run(run_stream)["findings"]
    stories = judge_run(run_stream.run).get_stories()
    assert [one["title"] for one in found] == [
        finding.title for story in stories for finding in (story.first, *story.followers)
    ]
    followers = {one["code"] for one in found if one["follows"]}
    assert "TD-N002" in followers and not found[0]["follows"] and found[0]["code"] == "TD-N001"


def test_a_traceback_is_apart_from_the_evidence():
    finding = Finding(code="TD-R003", severity="error", title="x", evidence=["a", "traceback:", "  File", "    y()"])
    found = document.describe_finding(finding)
    assert found["evidence"] == ["a"] and found["traceback"] == ["  File", "    y()"]


def test_learning_rates_of_each_group_phases_and_memory(run_stream):
    rank = run_stream.begin_rank()
    emit_steps(run_stream, rank, 5, lr=[0.1, 0.01], device_mb=10.0, device_peak_mb=20.0, scale=1024.0)
    found = describe_run(run_stream)
    assert [one["name"] for one in find_chart(found, "lr")["curves"]] == ["group 0", "group 1"]
    (phases,) = find_chart(found, "phases")["choices"]
    assert [one["name"] for one in phases["curves"]] == ["loader", "forward", "backward", "optimizer", "whole step"]
    assert [one["name"] for one in find_chart(found, "memory")["curves"]] == ["host", "device", "device, peak"]
    assert find_chart(found, "scale")["curves"][0]["y"] == [1024.0] * 5
    assert not any(one["id"] == "step_ms" for one in found["charts"])  # of several ranks alone


def test_gradient_norms_of_each_parameter_of_the_first_process(run_stream):
    for rank in range(2):
        folder = run_stream.begin_rank(rank, 2)
        run_stream.emit_events(folder, Params(names=["w", EVIL], numel=[4, 4], optimizers=["SGD"]))
        emit_steps(run_stream, folder, 3, grad_norms=[1.0, -1])
        run_stream.emit_events(folder, Step(step=4, loss=1.0, grad_norms=["nan", 0.5]))
    (heat,) = describe_run(run_stream)["heats"]
    assert heat["x"] == [1, 2, 3, 4] and heat["values"] == [[1.0, 1.0, 1.0, None], [None, None, None, 0.5]]
    assert heat["not_finite"] == [(0, 3)] and heat["note"].startswith("Of rank 0 alone.")
    assert heat["rows"][0] == "w" and heat["rows"][1].isprintable()


def test_without_a_finding_the_page_says_what_was_watched(run_stream):
    emit_steps(run_stream, run_stream.begin_rank(), 3)
    found = describe_run(run_stream)
    assert found["lines"] == judge_run(run_stream.run).format_summary()[1:] and any(
        "not watched" in line for line in found["lines"]
    )


def test_ranks_with_the_same_curve_share_it(run_stream):
    folders = [run_stream.begin_rank(rank, 3) for rank in range(3)]
    for number, folder in enumerate(folders):
        emit_steps(run_stream, folder, 5, grad_norm=2.0 if number == 1 else 1.0)
    found = describe_run(run_stream)
    assert [one["name"] for one in find_chart(found, "lr")["curves"]] == ["ranks 0-2"]
    assert [one["name"] for one in find_chart(found, "grad_norm")["curves"]] == ["ranks 0, 2", "rank 1"]
    assert [one["uid"] for one in find_chart(found, "grad_norm")["curves"]] == ["rank 0, ", "rank 1, "]
    assert len(found["lanes"]["rows"]) == 3 and len(find_chart(found, "phases")["choices"]) == 3


def test_a_curve_is_known_by_the_same_while_one_rank_is_a_record_ahead(run_stream):
    folders = [run_stream.begin_rank(rank, 2) for rank in range(2)]
    for folder in folders:
        emit_steps(run_stream, folder, 5, lr=[0.1, 0.01])
    joined = find_chart(describe_run(run_stream), "lr")["curves"]
    emit_steps(run_stream, folders[0], 1, first=6, lr=[0.1, 0.01])
    parted = find_chart(describe_run(run_stream), "lr")["curves"]
    assert [one["name"] for one in joined] == ["ranks 0-1, group 0", "ranks 0-1, group 1"] and len(parted) == 4
    assert [one["uid"] for one in joined] == [one["uid"] for one in parted if one["name"].startswith("rank 0")]
    assert len({one["uid"] for one in parted}) == 4


def test_of_64_ranks_those_with_findings_and_bad_ends_have_lines(run_stream):
    for rank in range(64):
        folder = run_stream.begin_rank(rank, 64)
        emit_steps(run_stream, folder, 4, loss=float(rank))
        if rank == 41:
            run_stream.emit_events(folder, Traceback(step=4, exception="ValueError", message="x"))
        else:
            run_stream.end_process(folder, 4)
    run_stream.record_exit(1)
    found = describe_run(run_stream)
    loss = find_chart(found, "loss")
    names = [one["name"] for one in loss["curves"]]
    assert len(names) == 8 and "rank 41" in names and "rank 0" in names
    (band,) = loss["bands"]
    assert min(band["low"]) == 0.0 and max(band["high"]) == 63.0
    assert "8 processes of 64" in loss["note"]
    assert len(found["lanes"]["rows"]) == 64
    assert [row["name"] for row in found["lanes"]["rows"] if row["ends"][0]["bad"]] == ["rank 41"]
    assert len(json.dumps(found)) < 300_000


def test_a_run_of_one_step(run_stream):
    rank = run_stream.begin_rank()
    run_stream.emit_steps(rank, [2.0])
    run_stream.end_process(rank, 1)
    found = describe_run(run_stream)
    assert find_chart(found, "loss")["curves"][0]["x"] == [1]
    assert len(found["lanes"]["rows"]) <= 1


def test_a_run_without_a_step(run_stream):
    run_stream.begin_rank()
    found = describe_run(run_stream)
    assert found["charts"] == [] and found["lanes"]["rows"] == [] and found["headline"]


def test_a_run_without_an_event(run_stream):
    run_stream.record_exit(0)
    found = describe_run(run_stream)
    assert found["charts"] == [] and find_table(found, "environment")


def test_evaluation_alone(run_stream):
    rank = run_stream.begin_rank()
    for call in range(1, 9):
        run_stream.t += 0.01
        run_stream.emit_events(rank, Step(step=call, call=call, phase="eval", forward_ms=8.0))
    run_stream.end_process(rank)
    found = describe_run(run_stream)
    assert [one["id"] for one in found["charts"]] == ["eval"]
    assert find_chart(found, "eval")["curves"][0]["x"] == list(range(1, 9)) and not find_chart(found, "eval")["marked"]
    (lane,) = found["lanes"]["rows"]
    assert sum_seconds(lane, EVALUATED) == pytest.approx(0.085, rel=0.1) and not sum_seconds(lane, TRAINED)


def test_a_killed_run_with_a_half_written_line(run_stream):
    rank = run_stream.begin_rank()
    emit_steps(run_stream, rank, 20)
    run_stream.record_exit(-9)
    path = run_stream.run.path / rank / "events.jsonl"
    with path.open("ab") as file:
        file.write(b'{"type":"step","v":1,"t":1795000')
    found = describe_run(run_stream)
    assert find_chart(found, "loss")["curves"][0]["count"] == 20
    (lane,) = found["lanes"]["rows"]
    assert lane["ends"][0]["bad"] and lane["ends"][0]["text"] in ("SIGKILL", "cut off")
    assert "SIGKILL" in found["headline"]


def test_attempts_share_a_row_and_have_curves_of_their_own(run_stream):
    first = run_stream.begin_rank()
    emit_steps(run_stream, first, 5)
    run_stream.emit_events(first, Traceback(step=5, exception="ValueError", message="x"))
    second = run_stream.begin_rank(attempt=1, env={"TORCHELASTIC_RESTART_COUNT": "1"})
    emit_steps(run_stream, second, 5, first=3, loss=9.0)
    run_stream.end_process(second, 7)
    found = describe_run(run_stream)
    assert [one["name"] for one in find_chart(found, "loss")["curves"]] == ["rank 0", "rank 0 attempt 1"]
    (lane,) = found["lanes"]["rows"]
    assert [end["text"] for end in lane["ends"]] == ["ValueError", "ended"]
    assert any(fact.startswith("restarts: ") for fact in found["facts"])
    assert len(lane["marks"]) == 1
    assert lane["marks"][0]["t"] < lane["ends"][0]["t"] + 0.001  # the exception is of the first attempt


def test_a_process_beside_its_rank_has_a_row_of_its_own(run_stream):
    emit_steps(run_stream, run_stream.begin_rank(), 5)
    emit_steps(run_stream, "rank0000/pid77-host", 5)
    found = describe_run(run_stream)
    assert [row["name"] for row in found["lanes"]["rows"]] == ["rank 0", "rank 0 pid 77"]
    assert [one["name"] for one in find_chart(found, "loss")["curves"]] == ["rank 0, rank 0 pid 77"]
    assert [row[0] for row in find_table(found, "ranks")] == [0, "rank0000/pid77-host"]


def test_what_a_rank_did_is_told_by_its_records(run_stream):
    rank = run_stream.begin_rank()
    emit_steps(run_stream, rank, 100)  # 5 s, a fifth of it waiting for data
    run_stream.t += 2.0  # nothing is known of this
    for _ in range(10):
        run_stream.t += 0.1
        run_stream.emit_events(rank, Step(step=100, phase="eval", t=run_stream.t, forward_ms=90.0))
    emit_steps(run_stream, rank, 20, first=101, loader_ms=0.0)  # 1 s
    emit_steps(run_stream, rank, 2, first=121, every=3.0, loader_ms=0.0)  # 6 s, nearly all of it elsewhere
    (lane,) = describe_run(run_stream)["lanes"]["rows"]
    assert KINDS[DATA] == "waited for data"
    assert sum_seconds(lane, TRAINED) == pytest.approx(4 + 1, rel=0.08)
    assert sum_seconds(lane, DATA) == pytest.approx(1, rel=0.15)
    assert sum_seconds(lane, EVALUATED) == pytest.approx(1, rel=0.15)
    assert sum_seconds(lane, WAITED) == pytest.approx(6, rel=0.08)


def emit_sampled_steps(run, folder, steps, *, first=1, record_every=64, every=0.02, loader_ms=0.0):
    """Steps of which one in so many has a record."""
    begin = run.t
    for step in range(first, first + steps):
        run.t = begin + (step - first + 1) * every
        if step % record_every == 0:
            more = {"loader_ms": loader_ms, "forward_ms": 1.0, "step_ms": 1000 * every}
            run.emit_events(folder, Step(step=step, t=run.t, loss=1.0, **more))


def emit_pass(run, folder, step, number):
    """An evaluation of a second, none of whose 20 calls has a record; the next step ends soon."""
    run.t += 1.0
    values = {"number": number, "calls": 20, "seen": 0}
    run.emit_events(folder, Observation(t=run.t, probe="validation", part="PASS", step=step, values=values))


def test_the_wait_of_one_record_does_not_stand_for_steps_that_are_not_on_record(run_stream):
    rank = run_stream.begin_rank()
    emit_steps(run_stream, rank, 50)
    emit_sampled_steps(run_stream, rank, 150, first=51, every=0.05, loader_ms=14.0)  # on record: 64, 128 and 192
    run_stream.t += 0.1
    run_stream.emit_events(rank, Cost(step=202, t=run_stream.t))
    lanes = describe_run(run_stream)["lanes"]
    (lane,) = lanes["rows"]
    assert sum_seconds(lane, DATA) == pytest.approx(50 * 0.01 + 3 * 0.014, rel=0.1)
    assert sum_seconds(lane, NOT_RECORDED) == pytest.approx(13 * 0.05 + 2 * 63 * 0.05 + 10 * 0.05, rel=0.05)
    assert all(bar[4] - bar[3] < 0.5 for bar in lane["bars"] if bar[0] == DATA)
    ends = {round(bar[2], 3) for bar in lane["bars"]}
    assert all(round(bar[1], 3) in ends for bar in lane["bars"] if bar[1] > lane["bars"][0][1])  # no hole
    assert "not on record" in KINDS[NOT_RECORDED] and "only counted" in lanes["note"]


def test_where_many_records_share_a_bin_they_stand_for_the_steps_between(run_stream):
    rank = run_stream.begin_rank()
    emit_sampled_steps(run_stream, rank, 64_000, record_every=8, every=0.02, loader_ms=15.0)
    lanes = describe_run(run_stream)["lanes"]
    (lane,) = lanes["rows"]
    assert sum_seconds(lane, DATA) == pytest.approx(0.75 * 1280, rel=0.03) and not sum_seconds(lane, NOT_RECORDED)
    assert lanes["note"] == ""


def test_an_evaluation_without_a_call_on_record_is_drawn_by_the_time_that_steps_leave(run_stream):
    rank = run_stream.begin_rank()
    for number in range(1, 4):
        emit_sampled_steps(run_stream, rank, 100, first=100 * number - 99, record_every=16)
        emit_pass(run_stream, rank, 100 * number, number)
    emit_sampled_steps(run_stream, rank, 100, first=301, record_every=16)
    run_stream.t += 1.0
    run_stream.emit_events(rank, Cost(step=400, evals=80, t=run_stream.t))  # the last one: only its calls are counted
    (lane,) = describe_run(run_stream)["lanes"]["rows"]
    passes = [bar for bar in lane["bars"] if bar[0] == EVALUATED and bar[2] - bar[1] > 0.5]
    assert len(passes) == 4 and sum_seconds(lane, EVALUATED) == pytest.approx(4, rel=0.05)
    assert sum_seconds(lane, NOT_RECORDED) == pytest.approx(400 * 0.02 * 15 / 16, rel=0.05)
    assert not sum_seconds(lane, WAITED)


def test_calls_that_every_step_makes_are_no_evaluation(run_stream):
    rank = run_stream.begin_rank()
    for first in range(1, 641, 64):
        emit_sampled_steps(run_stream, rank, 64, first=first, every=0.02 + 0.002 * (first % 3))
        run_stream.emit_events(rank, Cost(step=first + 63, evals=first + 63, t=run_stream.t))
    (lane,) = describe_run(run_stream)["lanes"]["rows"]
    assert not sum_seconds(lane, EVALUATED) and sum_seconds(lane, NOT_RECORDED)


def test_records_with_impossible_times_do_no_harm(run_stream):
    rank = run_stream.begin_rank()
    lane = ProcessLane(run_stream.run.list_processes()[0], (), 100)
    for t in (0.0, -1.0, float("nan"), 1e300, run_stream.t):
        for length in (0.0, -5.0, 1e308, float("inf"), float("nan"), None):
            lane.add_event(Step(t=t, step=1, loss=1.0, step_ms=length, loader_ms=length, forward_ms=length))
            lane.add_event(Step(t=t, step=1, phase="eval", forward_ms=length))
            lane.add_event(Cost(t=t, step=9, evals=9))
    assert len(lane.build_bars()) < 100
    assert rank


@pytest.mark.parametrize("step", [10**400, -(10**400), (1 << 53) + 1], ids=["long", "low", "high"])
def test_steps_that_no_program_reaches_do_no_harm(run_stream, step):
    rank = run_stream.begin_rank()
    emit_steps(run_stream, rank, 5)
    run_stream.emit_events(rank, Step(t=run_stream.t + 3.0, step=step, loss=1.0, step_ms=5.0))
    run_stream.emit_events(rank, Step(t=run_stream.t + 4.0, step=step, phase="eval", forward_ms=5.0))
    run_stream.emit_events(rank, Cost(t=run_stream.t + 5.0, step=step, evals=9))
    process = run_stream.run.list_processes()[0]
    lane = ProcessLane(process, (), 100)
    for event in process.iter_events():
        lane.add_event(event)
    assert lane.build_bars() and lane.last_t < run_stream.t + 1.0


def test_a_finding_without_a_record_of_its_step_stands_at_the_end(run_stream):
    rank = run_stream.begin_rank()
    emit_steps(run_stream, rank, 5)
    verdict = judge_run(run_stream.run)
    verdict.findings = [Finding(code="TD-N001", severity="critical", title="x", first_step=50, rank=0)]
    lanes = RunLanes(verdict, run_stream.run.list_processes(), verdict.findings)
    for event in run_stream.run.list_processes()[0].iter_events():
        lanes.add_event(run_stream.run.list_processes()[0], event)
    (lane,) = lanes.build_lanes(0.0)
    assert lane["marks"][0]["t"] == lane["ends"][0]["t"]


def test_hostile_names_are_cut_and_free_of_control_codes(run_stream):
    rank = run_stream.begin_rank()
    emit_steps(run_stream, rank, 3)
    run_stream.emit_events(rank, make_nonfinite(module=EVIL * 1000, module_class=EVIL, tensor="x" * 100_000, note=EVIL))
    run_stream.emit_events(rank, Traceback(step=3, exception=EVIL, message="y" * 100_000, lines=[EVIL] * 5000))
    found = describe_run(run_stream)
    text = json.dumps(found)
    assert len(text) < 200_000 and "evil.invalid" in text
    assert all(one.isprintable() for one in iter_strings(found))


def test_of_very_many_processes_some_are_left_out(run_stream):
    for rank in range(300):
        folder = run_stream.begin_rank(rank, 300)
        run_stream.emit_steps(folder, [1.0, 2.0])
        run_stream.end_process(folder, 2)
    found = describe_run(run_stream)
    assert len(found["lanes"]["rows"]) == 256 and "44 processes" in found["lanes"]["note"]
    assert len(find_chart(found, "loss")["curves"]) <= 8


def test_secrets_do_not_reach_the_page(run_stream):
    secret = "hf_" + "Ab1" * 12
    run_stream.run.update_info(
        env={"WANDB_API_KEY": secret, "OMP_NUM_THREADS": "1", "TDBG_TOKEN": secret},
        command=["python", "x.py", "--hub-token", secret, f"--url=https://me:{secret}@host/x"],
        settings={"capture_upload": f"s3://me:{secret}@b/x"},
        origin={"capture_upload": "option"},
        git={"remote": f"https://me:{secret}@host/x", "commit": "abc"},
    )
    rank = run_stream.begin_rank()
    emit_steps(run_stream, rank, 2)
    run_stream.emit_events(rank, Traceback(step=2, exception="ValueError", message=f"token={secret}"))
    found = describe_run(run_stream)
    assert secret not in json.dumps(found)
    names = [row[0] for row in find_table(found, "environment")]
    assert "OMP_NUM_THREADS" in names and "WANDB_API_KEY" not in names and "git: commit" in names


def test_cost_flags_and_what_was_not_watched_are_told(run_stream):
    rank = run_stream.begin_rank()
    emit_steps(run_stream, rank, 2)
    run_stream.emit_events(
        rank, Cost(step=2, own_ms=1.0, wall_ms=100.0, startup_ms=20.0, budget_pct=1.0, level="basic")
    )
    found = describe_run(run_stream)
    assert ["share of the wall time", "1.00 %"] in find_table(found, "cost") and find_table(found, "not_watched")
    assert find_table(found, "ranks")[0][:2] == [0, HOST]


def test_the_cost_of_each_process_is_without_the_opening_inspection(run_stream):
    for rank in range(2):
        folder = run_stream.begin_rank(rank, 2)
        emit_steps(run_stream, folder, 2)
        cost = {"own_ms": 950.0 + rank, "inspection_ms": 900.0, "allowance_ms": 1000.0, "wall_ms": 10_000.0}
        run_stream.emit_events(folder, Cost(step=2, budget_pct=1.0, **cost))
    found = describe_run(run_stream)
    assert find_table(found, "cost_ranks") == [[0, 50.0, 10_000.0, 0.5], [1, 51.0, 10_000.0, 0.51]]
    assert ["opening inspection, of its allowance", "0.90 s of 1 s"] in find_table(found, "cost")
    assert "allowance of its own" in next(one["note"] for one in found["tables"] if one["id"] == "cost")


def write_report(run, path, *words):
    return main(["report", str(run.run.path), "--html", str(path), *words])


def read_page_data(path):
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL)[1]
    return json.loads(text)


def test_the_command_writes_a_page_that_loads_nothing(run_stream, tmp_path, capsys):
    rank = run_stream.begin_rank()
    emit_steps(run_stream, rank, 3)
    run_stream.emit_events(rank, make_nonfinite(module=EVIL))
    before = {path: path.read_bytes() for path in run_stream.run.path.rglob("*") if path.is_file()}
    target = tmp_path / "r.html"
    assert write_report(run_stream, target, "--fail-on", "error") == 1
    said = capsys.readouterr()
    assert said.out == "" and "open it in a browser" in said.err
    text = target.read_text()
    assert text.count("</script>") == 3 and "default-src 'none'" in text and EVIL not in text
    assert not re.search(r"<(script|link|img|iframe)[^>]*(src|href)=", text.partition('id="data"')[0])
    assert read_page_data(target)["findings"][0]["code"] == "TD-N001"
    assert {path: path.read_bytes() for path in run_stream.run.path.rglob("*") if path.is_file()} == before
    assert os.listdir(tmp_path) == ["run", "r.html"] or sorted(os.listdir(tmp_path)) == ["r.html", "run"]


def test_json_goes_to_stdout_beside_it(run_stream, tmp_path, capsys):
    assert write_report(run_stream, tmp_path / "r.html", "--json") == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "report" and (tmp_path / "r.html").exists()


def test_paths_are_checked_before_anything_is_done(run_stream, tmp_path, capsys):
    target = tmp_path / "r.html"
    target.write_text("old")
    assert write_report(run_stream, target, "--note", "never kept") == 2
    assert "already exists" in capsys.readouterr().err and target.read_text() == "old"
    assert not (run_stream.run.path / "notes.jsonl").exists()
    assert write_report(run_stream, target, "--force") == 0 and target.read_text() != "old"
    for name, why in (("-", "not to stdout"), (str(tmp_path), "is a folder")):
        assert write_report(run_stream, name, "--force") == 2 and why in capsys.readouterr().err
    state = (run_stream.run.path / "run.json").read_bytes()
    run_stream.begin_rank()
    for name in ("run.json", "rank0000/events.jsonl"):
        kept = (run_stream.run.path / name).read_bytes()
        assert write_report(run_stream, run_stream.run.path / name, "--force") == 2
        assert (run_stream.run.path / name).read_bytes() == kept
    assert (run_stream.run.path / "run.json").read_bytes() == state
    assert write_report(run_stream, run_stream.run.path / "report.html") == 0


def test_without_plotly_the_extra_is_named_and_nothing_is_left(run_stream, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert write_report(run_stream, tmp_path / "r.html") == 2
    assert "pip install 'tdbg[html]'" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["run"]
