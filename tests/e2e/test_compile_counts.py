"""What torch.compile makes of a training is the same at every level as without tdbg; more kinds with `compile_counts.py`.

Each level has the kinds in another order, as the first of a process is the one that tdbg inspects most.
"""

import json
from pathlib import Path

import pytest

from tests.e2e.compile_counts import build_command, list_differences
from tests.e2e.conftest import Result, Runner

KINDS = [
    *("whole", "submodule.evaluated", "loss.break", "whole.dynamic.evaluated", "step.break"),
    *("method.fullgraph", "evaluation.aot_eager", "forward.late", "optimizer.late"),
    "step.late.clipped",
]
ORDERS = {"basic": KINDS, "advanced": KINDS[4:] + KINDS[:4], "extreme": KINDS[::-1]}
# Without the allowance, steps are skipped by the time that a late kind is compiled.
OPTIONS = {"basic": ("--allowance", "0"), "advanced": (), "extreme": ("--max-overhead", "100")}


@pytest.mark.parametrize("level", ORDERS)
def test_counts_of_every_kind_are_those_of_the_bare_program(
    watched_runner: Runner, bare_runner: Runner, level: str
) -> None:
    result = watched_runner(build_command(ORDERS[level]), ["--level", level, *OPTIONS[level]])
    assert list_differences(result, bare_runner(build_command(KINDS))) == [], result.stderr
    assert len(result.list_printed("kind")) == len(KINDS)
    assert result.verdict["cost"].get("errors", 0) == 0, result.stderr


def test_a_compiled_rank_of_ddp(watched_runner: Runner, bare_runner: Runner) -> None:
    words = build_command(["whole"], ranks=2)
    result = watched_runner(words, ["--level", "extreme"])
    assert list_differences(result, bare_runner(words)) == [], result.stderr


def test_the_code_generator(
    watched_runner: Runner, bare_runner: Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # What the first of the two compiles the second would read from disk, and count one compilation less. And each has a
    # folder of its own: once, while another test compiled into the common one, one compilation more was counted.
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    words = build_command(["loss.inductor"])
    watched, bare = (
        run(words, env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / name)})
        for run, name in ((watched_runner, "watched"), (bare_runner, "bare"))
    )
    assert list_differences(watched, bare) == [], watched.stderr


def test_a_figure_that_differs_is_named() -> None:
    one, other = (
        Result(0, json.dumps({"event": "kind", "kind": "loss", "rank": 0, **facts}), "")
        for facts in ({"frames: total": 2}, {"frames: total": 1, "recompiled": ["forward"]})
    )
    assert list_differences(one, one) == []
    assert list_differences(one, other) == [
        "loss of rank 0: frames: total: 2, 1 without",
        "loss of rank 0: recompiled: None, ['forward'] without",
    ]
