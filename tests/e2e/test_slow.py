"""Real programs with a fault that costs time or memory, and the same without it: profiled, and advised on.

What a CPU cannot show (reading values, copies from pageable memory, float32 products without TF32, small kernels) is
shown on made traces in tests/traces/test_rules.py.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Result, build_environment, run_command
from tests.e2e.slow import Slow, iter_programs

TABLE = {slow.name: slow for slow in iter_programs()}
FAULTS = [name for name, slow in TABLE.items() if slow.code]


@dataclass
class Profiled:
    """One program under `tdbg profile`, and what was advised on its traces."""

    result: Result
    advice: list[dict[str, Any]]
    abstained: dict[str, str]  # code -> why


Profiler = Callable[..., Profiled]


@pytest.fixture(scope="module")
def profiled_programs(tmp_path_factory: pytest.TempPathFactory) -> Profiler:
    """``profiled(slow, healthy)``: each program is run once for all tests."""
    seen: dict[tuple[Slow, bool], Profiled] = {}

    def run_profiled(slow: Slow, *, healthy: bool) -> Profiled:
        key = (slow, healthy)
        if key not in seen:
            folder = tmp_path_factory.mktemp(slow.name)
            start = [sys.executable, "-m", "tdbg", "profile", "--run-dir", str(folder / "run"), *slow.options, "--"]
            result = run_command([*start, *slow.build_command(folder, healthy=healthy)], folder)
            result.folder = folder / "run"
            assert result.code == 0, result.stderr
            seen[key] = Profiled(result, *load_advice(result.folder))
        return seen[key]

    return run_profiled


def load_advice(run: Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """What `tdbg trace advise` says of a run."""
    words = [sys.executable, "-m", "tdbg", "trace", "advise", str(run), "--json"]
    done = subprocess.run(words, env=build_environment({}), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)["data"]
    return data["advice"], {one["code"]: one["reason"] for one in data["abstained"]}


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_named_first(profiled_programs: Profiler, name: str) -> None:
    slow = TABLE[name]
    seen = profiled_programs(slow, healthy=False)
    assert seen.advice, seen.abstained
    first = seen.advice[0]
    assert first["code"] == slow.code and first["severity"] in ("warning", "critical"), seen.advice
    assert slow.says in first["title"], first
    assert first["evidence"] and first["try_next"] and first["threshold"] and first["source"]
    assert first["gain"] is None or 0 < first["gain"] < 1


@pytest.mark.parametrize("name", FAULTS)
def test_of_its_twin_nothing_is_said(profiled_programs: Profiler, name: str) -> None:
    seen = profiled_programs(TABLE[name], healthy=True)
    assert seen.advice == []
    assert TABLE[name].code not in seen.abstained, "its signal was there"


def test_reading_values_is_no_fault_on_a_cpu(profiled_programs: Profiler) -> None:
    seen = profiled_programs(TABLE["values"], healthy=False)
    assert seen.advice == []
    assert seen.abstained["TD-P106"] == "a rule for accelerators: the trace has none"
    rest = {"TD-P103", "TD-P104", "TD-P105", "TD-P107", "TD-P108", "TD-P117"}
    assert {seen.abstained[code] for code in rest} == {seen.abstained["TD-P106"]}


def test_the_evidence_names_the_cause(profiled_programs: Profiler) -> None:
    def evidence(name: str) -> str:
        return "\n".join(profiled_programs(TABLE[name], healthy=False).advice[0]["evidence"])

    assert "_SingleProcessDataLoaderIter" in evidence("no_workers")
    assert "_MultiProcessingDataLoaderIter" in evidence("slow_loader")
    assert "checkpoint.py" in evidence("checkpoint")
    assert "the longer part on rank 1 is other" in evidence("slow_rank")
    assert "relu" in evidence("leak")


@pytest.mark.parametrize("name", ["optimizer_loop", "no_workers", "slow_rank"])
def test_with_stacks_the_evidence_names_a_line_of_the_program(profiled_programs: Profiler, name: str) -> None:
    slow = TABLE[name]
    options = (*(word for word in slow.options if word not in ("--kind", "light")), "--kind", "stacks")
    seen = profiled_programs(replace(slow, options=options), healthy=False)
    (found,) = (one for one in seen.advice if one["code"] == slow.code)
    assert f"{name}.py(" in "\n".join(found["evidence"]), found


def test_a_loader_that_takes_most_of_each_step_is_critical_by_default(profiled_programs: Profiler) -> None:
    seen = profiled_programs(TABLE["no_workers"], healthy=False)
    assert seen.advice[0]["severity"] == "critical", seen.advice


def test_a_slow_rank_that_was_not_profiled_is_named_by_its_steps(profiled_programs: Profiler) -> None:
    slow = TABLE["slow_rank"]
    seen = {}
    for healthy in (False, True):
        run = profiled_programs(replace(slow, options=(*slow.options, "--ranks", "0")), healthy=healthy).result
        words = [sys.executable, "-m", "tdbg", "trace", "show", str(run.folder)]
        seen[healthy] = subprocess.run(
            words, env=build_environment({}), capture_output=True, text=True, check=True
        ).stderr
    assert "tdbg: rank 1 has no trace and seems slower than those with one" in seen[False]
    assert "`tdbg profile --ranks 0,1` records it" in seen[False]
    assert "has no trace" not in seen[True]
