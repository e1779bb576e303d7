"""TD-M001..M003, TD-C007..C009, TD-P001: from what the probes tell to what is said, and what is not."""

from typing import Any

import pytest
from streams import Stream

from tdbg.core.events import Finding, Observation


def make_observation(probe: str, part: str = "", step: int = 9, **values: Any) -> Observation:
    return Observation(probe=probe, part=part, step=step, flag=probe.upper(), text="", values=values)


def judge_only(run: Stream, code: int = 0) -> Finding:
    (finding,) = run.judge_stream(code).findings
    return finding


CREEP: dict[str, Any] = {
    "kind": "host",
    "grown_mb": 214.0,
    "grown_pct": 61.0,
    "from_step": 6,
    "steps": 50,
    "graphs": 150,
    "graph_steps": 30,
    "piled_up": True,
    "growing": ["30 more: tensor [] float32 on cpu with its graph (NllLossBackward0)"],
    "holder": "a list of 59 (history in __main__)",
    "top": ["120.0 MB in 118 x tensor [512, 512] float32 on cpu"],
    "sure": True,
}


def test_a_creep_names_its_pace_what_piles_up_and_who_holds_it(one_rank):
    run, rank = one_rank
    run.emit_events(rank, make_observation("memory", "CREEP", step=56, **CREEP))
    finding = judge_only(run)
    assert (finding.code, finding.severity, finding.first_step) == ("TD-M001", "warning", 6)
    assert finding.title == "host memory grew 214 MB in 50 steps (4.28 MB a step) since step 6, rank 0"
    assert "held by a list of 59 (history in __main__)" in finding.evidence
    assert any("NllLossBackward0" in line for line in finding.evidence)


@pytest.mark.parametrize(
    ("change", "severity"),
    [({"sure": False}, None), ({"piled_up": False}, "info"), ({"piled_up": False, "kind": "device"}, "warning")],
)
def test_how_sure_a_creep_is(one_rank, change, severity):
    run, rank = one_rank
    run.emit_events(rank, make_observation("memory", "CREEP", **{**CREEP, **change}))
    assert [finding.severity for finding in run.judge_stream().findings] == ([severity] if severity else [])


def test_of_several_ranks_that_creep_one_is_told(make_stream):
    run = make_stream()
    for rank, step in ((0, 60), (1, 56)):
        run.emit_events(
            run.begin_rank(rank, 2), make_observation("memory", "CREEP", step=step, **{**CREEP, "from_step": step - 50})
        )
    finding = judge_only(run)
    assert finding.first_step == 6 and finding.rank == 1
    assert "also on rank 0 at step 10" in finding.evidence


def test_out_of_memory_says_what_held_it(one_rank):
    run, rank = one_rank
    run.emit_events(
        rank,
        make_observation(
            "memory",
            "OOM",
            step=12,
            kind="device",
            tried_mb=4295.0,
            device_mb=70000.0,
            device_reserved_mb=79000.0,
            activations_mb=50000.0,
            top=["9000.0 MB in 3 x tensor [64, 4096]"],
            error="OutOfMemoryError: CUDA out of memory",
            snapshot="memory_step00000012.json",
        ),
    )
    finding = judge_only(run)
    assert (finding.code, finding.severity) == ("TD-M002", "error")
    assert finding.title == "out of device memory at step 12, rank 0: 4,295 MB were asked for"
    text = "\n".join(finding.evidence)
    assert "device reserved 7.9e+04 MB" in text and "activations 5e+04 MB" in text
    assert "rank0000/memory_step00000012.json" in text


def test_a_full_machine(one_rank):
    run, rank = one_rank
    run.emit_events(
        rank, make_observation("memory", "FULL", host_mb=30000.0, used_pct=96.5, limit_mb=64000.0, whose="container")
    )
    finding = judge_only(run)
    assert finding.code == "TD-M003"
    assert finding.title == "96.5 % of the container's 64,000 MB are in use, rank 0"


def test_ordinary_lines_are_no_findings(one_rank):
    run, rank = one_rank
    for step in range(1, 20):
        run.emit_events(rank, make_observation("memory", step=step, host_mb=400.0 + step, used_pct=99.0))
        run.emit_events(rank, make_observation("memory", "MODULES", step=step, parameters_mb=3.0))
        run.emit_events(rank, make_observation("device", step=step, syncs=500, over=[], accelerator=False))
        run.emit_events(rank, make_observation("model-build", "TREE", step=step, modules=3))
        run.emit_events(
            rank,
            make_observation(
                "model-build", "INIT", step=step, not_finite=[], too_large=[], zero=["a"], too_small=["b"]
            ),
        )
    assert run.judge_codes() == []


def test_an_odd_dtype_and_an_odd_device_are_two_findings(one_rank):
    run, rank = one_rank
    odd: dict[str, Any] = {"odd": ["head.scale"], "odd_count": 1, "common_kind": "float32"}
    for step in (1, 201):
        run.emit_events(
            rank, make_observation("device", "MIX_DTYPE", step=step, what="dtype", odd_kind="float64", **odd)
        )
    odd = {"odd": [f"w{i}" for i in range(8)], "odd_count": 12, "common_kind": "cpu"}
    run.emit_events(rank, make_observation("device", "MIX_DEVICE", what="device", odd_kind="meta", **odd))
    titles = sorted(finding.title for finding in run.judge_stream().findings)
    assert titles == [
        "12 tensors are on meta, the other parameters on cpu, rank 0",
        "head.scale is in float64, the other parameters in float32, rank 0",
    ]
    assert set(run.judge_codes()) == {"TD-C007"}


def test_an_idle_accelerator_is_info(one_rank):
    run, rank = one_rank
    run.emit_events(rank, make_observation("device", "IDLE", step=8, accelerators=1))
    finding = judge_only(run)
    assert (finding.code, finding.severity) == ("TD-C007", "info")
    assert finding.title == "1 accelerator available, but the model trains on the CPU, rank 0"


def test_waits_in_a_loop_are_told_when_they_last(one_rank):
    run, rank = one_rank
    for step in (4, 9, 13):
        assert run.list_live_findings() == []
        run.emit_events(
            rank, make_observation("device", step=step, syncs=300, copies=0, over=["train.py:48 .item() x256"])
        )
    finding = judge_only(run)
    assert (finding.code, finding.first_step) == ("TD-P001", 13)
    assert finding.title == "256 waits or copies a step at train.py:48 .item(), rank 0"


def test_waits_now_and_then_are_not(one_rank):
    run, rank = one_rank
    for step in range(1, 30):
        over = ["train.py:48 .item() x256"] if step % 3 else []
        run.emit_events(rank, make_observation("device", step=step, syncs=300, copies=0, over=over))
    assert run.judge_codes() == []


def test_parameters_that_cannot_learn(one_rank):
    run, rank = one_rank
    run.emit_events(
        rank, make_observation("model-build", "UNUSED", 8, unused=["aux.weight", "aux.bias"], unused_count=2, updates=8)
    )
    run.emit_events(rank, make_observation("model-build", "STUCK", 8, stuck=["a.weight", "b.weight"], updates=8))
    titles = sorted(finding.title for finding in run.judge_stream().findings)
    assert titles == [
        "2 trainable parameters had no gradient in 8 updates: aux.weight, aux.bias, rank 0",
        "a.weight, b.weight are stuck at zero, rank 0",
    ]
    assert set(run.judge_codes()) == {"TD-C008"}


def test_bad_initial_values(one_rank):
    run, rank = one_rank
    run.emit_events(
        rank,
        make_observation(
            "model-build", "INIT", 1, not_finite=["a.bias"], too_large=["b.weight"], ratios=[16.1], zero=[]
        ),
    )
    found = {finding.title: finding.severity for finding in run.judge_stream().findings}
    assert found == {
        "a.bias holds NaN or Inf before the first update, rank 0": "error",
        "b.weight starts at 16.1x the Kaiming std, rank 0": "warning",
    }


def test_a_module_that_does_not_fit(one_rank):
    run, rank = one_rank
    run.emit_events(
        rank,
        make_observation(
            "model-build",
            "SHAPE",
            1,
            module="blocks.1.fc",
            module_class="Linear",
            inputs={"input": [32, 16]},
            weights={"weight": [16, 24], "bias": [16]},
            line="model.py:31",
            first=True,
            error="RuntimeError: mat1 and mat2 shapes cannot be multiplied",
        ),
    )
    finding = judge_only(run)
    assert (finding.code, finding.module, finding.severity) == ("TD-C009", "blocks.1.fc", "error")
    assert finding.title == (
        "blocks.1.fc (Linear) does not fit its input in its first step: input [32, 16], weight [16, 24], bias [16],"
        " rank 0"
    )
    assert "called at model.py:31" in finding.evidence
