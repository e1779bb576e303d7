"""The verdict as a whole: its lines, its data, and what it makes of damaged directories."""

import json
import os
import random

import pytest
from streams import HOST, Stream, make_nonfinite

from tdbg.core.events import NO_BACKWARD, Baseline, Cost, Note, Observation, ProbeOff, Step, Traceback, Trigger
from tdbg.core.rundir import EVENTS, RunDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, PerProcessRule, Rule
from tdbg.rules.flag_lines import format_flags
from tdbg.rules.rule_engine import RuleEngine, judge_run
from tdbg.rules.text import format_ranks
from tdbg.rules.verdict import VERDICT_LINES, format_finding


def emit_ruined_run(run: Stream, world: int = 2, steps: int = 60) -> None:
    """Rank 1 makes a NaN at step 3; the run goes on and is then killed."""
    folders = [run.begin_rank(rank, world=world) for rank in range(world)]
    for rank, folder in enumerate(folders):
        run.emit_steps(folder, [2.5, 2.4])
        run.emit_events(folder, make_nonfinite(origin="here" if rank == 1 else "other-rank"))
        run.emit_steps(folder, ["nan"] * (steps - 2 - rank), first=3)
        run.emit_events(folder, Cost(step=steps - rank, own_ms=4.0, wall_ms=1000.0, budget_pct=1.0, startup_ms=80.0))
    run.record_child_exit(1, -9)


def test_a_ruined_run_in_few_lines(make_stream):
    run = make_stream()
    emit_ruined_run(run)
    lines = run.judge_stream(1).format_summary()
    assert len(lines) <= VERDICT_LINES
    assert lines[0] == (
        "verdict: 3 findings (2 critical, 1 error); 2 ranks, 60 steps; exit 1; cost of tdbg 0.40 % (budget 1 %)"
    )
    assert lines[1] == '  TD-N001 critical: first NaN at step 3 on rank 1, in backward of module "blocks.2.act" (Act)'
    assert any("rank 1: on record to step 59, SIGKILL" in line for line in lines)
    page = run.judge_stream(1).format_page()
    assert any(line.startswith("cost of tdbg: 0.40 % of the wall time (budget 1 %)") for line in page)


def test_severities_are_counted_as_people_do(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.0])
    for name in "ab":
        run.emit_events(rank, ProbeOff(probe=name, error="TypeError: x"))
    assert (
        run.judge_stream(7)
        .format_headline()
        .startswith("verdict: 3 findings (1 error, 2 warnings); 1 rank, 1 step, loss 2;")
    )
    assert format_count(0, "process") == "0 processes" and format_count(1, "process") == "1 process"


def test_never_more_lines_than_asked_for(make_stream):
    run = make_stream()
    emit_ruined_run(run, world=64)
    verdict = run.judge_stream(1)
    for limit in (1, 2, 5, 10, 12):
        assert len(verdict.format_summary(limit)) <= limit


def test_healthy_lines(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.5, 2.25], epoch=0, batch=2)
    run.end_process(rank, 2)
    assert run.judge_stream().format_summary() == [
        "verdict: no problem found in what was watched; 1 rank, 2 steps, loss 2.25; exit 0",
        "watched (--level basic): 2 of 2 steps on record, gradients read in 0 steps, no evaluation on record, 2 batches;"
        f" 26 of {len(list(RULES))} checks active",
        "not watched: batches and their loader, initial weights, checkpoints and 8 more (--level advanced);"
        " updates by parameter, the order of calls, calls of wandb and 2 more (--level extreme);"
        f" arguments of loss functions (-f LOSS); more: `tdbg report {run.run.path} --all`",
    ]


@pytest.mark.parametrize(
    ("own_ms", "wall_ms", "said"),
    [
        (
            154.0,
            2000.0,
            ", start-up 80 ms; above the budget because the steps took only 2.0 s: the first ones are always watched",
        ),
        (15.0, 2000.0, ", start-up 80 ms"),
        (15_400.0, 200_000.0, ", start-up 80 ms"),
    ],
)
def test_why_a_short_run_costs_more_than_its_budget(one_rank, own_ms, wall_ms, said):
    run, rank = one_rank
    run.emit_steps(rank, [2.5])
    run.emit_events(rank, Cost(step=1, own_ms=own_ms, wall_ms=wall_ms, budget_pct=1.0, startup_ms=80.0))
    verdict = run.judge_stream()
    (line,) = (line for line in verdict.format_page() if line.startswith("cost"))
    short = ", short run" if "only" in said else ""
    assert verdict.format_headline().endswith(f"; cost of tdbg {100 * own_ms / wall_ms:.2f} % (budget 1 %{short})")
    assert line == f"cost of tdbg: {100 * own_ms / wall_ms:.2f} % of the wall time (budget 1 %){said}"


def test_losses_that_were_not_seen_are_told(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [None, None])
    run.emit_events(rank, Note(code=NO_BACKWARD, text="no backward pass was seen"))
    run.end_process(rank, 2)
    assert (
        run.judge_stream()
        .format_headline()
        .startswith(
            "verdict: no problem found in what was watched (some losses were not checked: updates without a backward pass); 1 rank, 2 steps"
        )
    )


def test_the_data_is_plain_and_the_report_file_holds_it(make_stream):
    run = make_stream()
    emit_ruined_run(run)
    verdict = run.judge_stream(1)
    verdict.write_report(run.run)
    kept = json.loads((run.run.path / "report.json").read_text())
    assert kept == json.loads(json.dumps(verdict.as_dict(), default=str))
    assert {"version", "findings", "ranks", "cost", "exit", "headline"} <= set(kept)
    assert kept["ranks"][1]["code"] == -9 and kept["ranks"][1]["steps"] == 59


def test_fails_at_a_severity(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.0])
    run.end_process(rank)
    assert not run.judge_stream().should_fail("info")
    run.emit_events(rank, make_nonfinite())
    assert run.judge_stream().should_fail("critical") and not run.judge_stream().should_fail("never")


def test_baseline_is_told(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.0])
    run.emit_events(rank, Baseline(block=10, pairs=20, ratio=1.0041, low=0.99, high=1.02))
    assert (
        "baseline: step time x1.0041 with tdbg on (95 %: 0.99 to 1.02) over 20 pairs of 10 steps"
        in run.judge_stream().format_summary()
    )


def test_ranks_are_named_in_ranges():
    assert format_ranks([3]) == "rank 3" and format_ranks([0, 1, 2, 5]) == "ranks 0-2, 5"


def test_a_rule_that_raises_is_switched_off_and_said(one_rank, monkeypatch):
    class Broken(Rule):
        code = "TD-P999"
        listens = (Step,)

        def feed(self, process, event):
            raise RuntimeError("broken")

    monkeypatch.setitem(RULES._items, Broken.code, Broken)
    run, rank = one_rank
    run.emit_steps(rank, [2.0] * 3)
    run.emit_events(rank, make_nonfinite(step=4))
    verdict = judge_run(run.run, 0)
    assert verdict.trouble == ["rule TD-P999 failed and was switched off: RuntimeError: broken"]
    assert [finding.code for finding in verdict.findings] == ["TD-N001"]


def test_half_a_rule_is_left_out_and_said(one_rank, monkeypatch):
    class Half(PerProcessRule[dict]):
        """It does not say what it sees."""

        code = "TD-P999"
        kept = dict

    monkeypatch.setitem(RULES._items, Half.code, Half)
    run, rank = one_rank
    run.emit_steps(rank, [2.0] * 3)
    run.emit_events(rank, make_nonfinite(step=4))
    verdict = judge_run(run.run, 0)
    (trouble,) = verdict.trouble
    assert trouble.startswith("rule TD-P999 failed and was switched off: TypeError: ") and "evaluate" in trouble
    assert [finding.code for finding in verdict.findings] == ["TD-N001"]


def test_a_run_still_going(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.0] * 3)
    run.run.update_info(supervisor={"pid": os.getpid(), "host": HOST})
    verdict = run.judge_stream(None)
    assert verdict.exit["text"] == "still running" and verdict.ranks[0]["ended"] == "running"
    assert verdict.findings == []


@pytest.mark.parametrize(
    "then", [{"pid": 2**22 - 3}, {"pid": os.getpid(), "started": "before"}], ids=["gone", "reused"]
)
def test_a_run_whose_tdbg_was_killed(one_rank, then):
    run, rank = one_rank
    run.emit_steps(rank, [2.0] * 3)
    run.run.update_info(supervisor={"host": HOST, **then})
    verdict = run.judge_stream(None)
    assert verdict.exit["text"] == "cut off before its end" and verdict.ranks[0]["ended"] == "cut off"


@pytest.mark.parametrize(
    "text", ["", '{"schema": 1, "comm', "[]", '{"settings": 7, "exit": "x", "supervisor": 3, "start": "y"}']
)
def test_a_half_written_run_json(make_stream, text):
    run = make_stream()
    emit_ruined_run(run)
    (run.run.path / "run.json").write_text(text)
    verdict = judge_run(RunDir.open(run.run.path))
    assert verdict.findings[0].title == 'first NaN at step 3 on rank 1, in backward of module "blocks.2.act" (Act)'
    assert verdict.format_summary()


def test_cut_anywhere_it_can_be_read_and_nothing_whole_is_lost(make_stream):
    run = make_stream()
    emit_ruined_run(run)
    path = run.run.path / "rank0001" / EVENTS
    whole = path.read_bytes()
    for cut in random.Random(0).sample(range(len(whole)), 60):
        path.write_bytes(whole[:cut])
        verdict = judge_run(run.run)
        complete = [line for line in whole[:cut].splitlines(keepends=True) if line.endswith(b"\n")]
        steps = sum(line.startswith(b'{"type":"step"') for line in complete)
        found = [row for row in verdict.ranks if row["rank"] == 1]
        assert (found[0]["steps"] if found else 0) == steps


GARBAGE = [
    b"\x00\xff\xfe\n",
    b'{"type":"step","v":1,"step":"x"}\n',
    b'{"type":"step","v":1,"step":4,"loss":"what","lr":["nan"],"grad_norm":"?","scale":"inf"}\n',
    b'{"type":"of tomorrow","v":9,"x":1}\n',
    b'{"type":"step"\n',
    b"{}\n\n\n[1,2\n",
    b'{"type":"nonfinite","v":1,"step":3}\n',
    b'{"type":"traceback","v":1}\n',
    b'{"type":"child_exit","v":1,"code":-99}\n',
    b'{"type":"cost","v":1,"own_ms":1e308,"wall_ms":0}\n',
    b'{"type":"plan","v":1,"steps":-1}\n{"type":"start","v":7,"rank":0,"world_size":0,"later":{}}\n',
    b'{"type":"step","v":1,"step":2' + b"0" * 100_000,
]


@pytest.mark.parametrize("line", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_among_the_lines(one_rank, line):
    run, rank = one_rank
    run.emit_steps(rank, [2.0] * 3)
    with (run.run.path / rank / EVENTS).open("ab") as file:
        file.write(line)
    run.record_exit(0)
    verdict = judge_run(run.run)
    assert verdict.trouble == [] and verdict.ranks[0]["steps"] >= 3
    assert verdict.format_summary() and json.dumps(verdict.as_dict())


def test_missing_and_strange_files(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.0] * 3)
    for name in ("rank_notes", "rankfoo", "rank0007"):
        (run.run.path / name).mkdir()
        (run.run.path / name / EVENTS).write_bytes(b"")
    (run.run.path / "rank0008" / EVENTS).mkdir(parents=True)
    (run.run.path / "hello").mkdir()
    (run.run.path / "hello" / "x.json").write_text("[1]")
    assert judge_run(run.run).ranks[0]["steps"] == 3


def test_an_endless_run_needs_no_more_memory(make_stream):
    import tracemalloc

    run = make_stream()
    judge, process = RuleEngine(run.run), next(iter(_list_processes(run)))
    for step in range(1, 500):
        judge.feed(process, Step(step=step, loss=2.0, lr=[1e-3], grad_norm=1.0, grad_norms=[1.0] * 100))
    tracemalloc.start()
    for step in range(500, 5000):
        judge.feed(process, Step(step=step, loss=2.0 + step % 7, lr=[1e-3], grad_norm=1.0, grad_norms=[1.0] * 100))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 100_000


def _list_processes(run: Stream):
    run.begin_rank()
    return run.run.list_processes()


def test_triggers_are_told_and_are_no_findings(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.0] * 4)
    values = {"loss": 12.0, "device_mb": None}
    run.emit_events(rank, Trigger(step=3, condition="non-finite", action="dump", dump="trigger_step00000003.json"))
    run.emit_events(
        rank,
        Trigger(step=4, condition="loss > 10", values=values, action="dump, stop", stop=True, batch="b.safetensors"),
    )
    verdict = run.judge_stream()
    assert verdict.findings == [] and [row["step"] for row in verdict.triggers] == [3, 4]
    assert verdict.as_dict()["triggers"][0]["dump"] == "rank0000/trigger_step00000003.json"
    line = "loss > 10 at step 4, rank 0 (loss 12): dump, stop; rank0000/b.safetensors"
    assert f"trigger: {line}" in verdict.format_summary(), "a bad value is told as a finding anyway"
    assert f"  {line}" in verdict.format_page() and len(verdict.triggers) == 2


def test_triggers_without_end_stay_few(one_rank):
    run, rank = one_rank
    run.emit_events(rank, *(Trigger(step=step, condition="loss > 1", action="dump") for step in range(1, 200)))
    run.emit_steps(rank, [2.0], first=200)
    verdict = run.judge_stream()
    assert len(verdict.triggers) == 50
    assert [line for line in verdict.format_summary() if line.startswith("trigger: ")] == [
        f"trigger: loss > 1 at step 1, rank 0: dump and 49 more: see `tdbg report {verdict.run} --all`"
    ]


def test_the_budget_of_a_run_whose_level_changed_is_the_mean(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.0] * 4)
    run.emit_events(rank, Cost(step=4, own_ms=15.0, wall_ms=1000.0, budget_pct=1.0, earned_ms=17.0))
    assert run.judge_stream().cost["budget_pct"] == 1.7


def make_profile(steps: int = 3, windows: int = 1, missing: str = "", **values: object) -> Observation:
    """What the profiler of a rank says at its end."""
    told = {"windows": windows, "steps": steps, "bytes": 150_000 * windows, "missing": missing, **values}
    text = (
        f"profiled {steps} steps in {windows} trace" if windows else "profiled nothing; this rank is not among --ranks"
    )
    return Observation(flag="PROFILER", probe="profiler", part="DONE", text=text, values=told)


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        ([make_profile()], "profiled 3 steps in 1 trace: "),
        ([make_profile(inside_ms=12.0, outside_ms=11.5), make_profile()],
         "profiled 3 steps on each of 2 ranks, in 2 traces, 0.3 MB; on rank 0 a step took 12 ms in it and 11.5 ms outside: "),
        ([make_profile(6, 2), make_profile(2, missing="the program ended")],
         "profiled 2 to 6 steps on each of 2 ranks, in 3 traces, 0.5 MB; rank 1: the program ended: "),
        ([make_profile(0, 0), make_profile()], "profiled 3 steps on rank 1, in 1 trace, 0.1 MB: "),
        ([make_profile(0, 0), make_profile(0, 0)], "profiled nothing; this rank is not among --ranks"),
        ([make_profile(bytes="many"), make_profile(bytes=None)], "profiled 3 steps in 1 trace: "),
    ],
)  # fmt: skip
def test_the_traces_of_all_ranks_are_counted(make_stream, ranks, says):
    run = make_stream()
    for rank, said in enumerate(ranks):
        folder = run.begin_rank(rank, world=len(ranks))
        run.emit_steps(folder, [2.5, 2.4, 2.3])
        run.emit_events(folder, said)
    (line,) = (one for one in run.judge_stream(0).format_summary() if one.startswith("profiled"))
    assert line.startswith(says), line
    assert ("tdbg trace show" in line) == (not line.startswith("profiled nothing"))


def test_a_traceback_is_shown_whole_or_not_at_all(one_rank):
    run, rank = one_rank
    lines = ["Traceback (most recent call last):", '  File "a.py", line 6', "    boom()", "ValueError: boom"]
    run.emit_events(rank, Traceback(exception="ValueError", message="boom", how="uncaught", lines=lines))
    (finding,) = run.judge_stream().findings
    assert not any("raceback" in line for line in format_finding(finding)[:-1])
    assert "  ValueError: boom" in format_finding(finding, limit=40)


def test_used_up_bytes_are_answered_by_the_disk_budget(one_rank):
    run, rank = one_rank
    values = {"missing": "the bytes that --disk-budget allows are used up", "windows": 1, "steps": 3}
    run.emit_events(rank, Observation(probe="profiler", flag="PROFILER", part="DONE", values=values))
    (finding,) = run.judge_stream().findings
    assert "--disk-budget" in finding.try_next


def test_a_status_that_nobody_knows_is_text_and_no_format() -> None:
    row = {"flag": "LR", "where": "x", "old": 1, "new": 2, "hint": ""}
    for status in ("{nope}", "{where:>30000000}", "{old.__class__}"):
        assert format_flags([{**row, "status": status}]) == [f"LR: {status} x"]
