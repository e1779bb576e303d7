"""What a finding says of the host of a slow rank: one line, only where something is out of the ordinary."""

import json
from pathlib import Path
from typing import Any

import pytest

from tdbg.core.rundir import RunDir
from tdbg.rules._host_pressure import describe_pressure, read_samples

SINCE = 100.0


def make_samples(before: dict[str, Any], after: dict[str, Any], count: int = 5) -> list[dict[str, Any]]:
    usual = {"cpus": 2.0, "others": 0.1, "cpu_stall": 0.05, "threads": {"0": 10, "1": 10}}
    early = [{"t": SINCE - 1 - at, **usual, **before} for at in range(count)]
    return early + [{"t": SINCE + at, **usual, **after} for at in range(count)]


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ({"quota": 1.5, "throttled": 0.01}, {"quota": 1.5, "throttled": 0.45}, "throttled by its CPU quota (1.5 CPUs) 45% of the time (1% before)"),
        ({}, {"others": 1.6, "cpu_stall": 0.9}, "other processes use 1.6 of 2 CPUs (0.1 before)"),
        ({"memory_stall": 0.0}, {"memory_stall": 0.3, "swapped_in_mb": 40.0}, "processes wait for memory 30% of the time (0% before), and swap-in 40 MB/s"),
        ({"io_stall": 0.1}, {"io_stall": 0.8}, "processes wait for the disk 80% of the time (10% before)"),
        ({}, {"threads": {"0": 10, "1": 40}}, "rank 1 has 40 threads on 2 CPUs (10 before, OMP_NUM_THREADS=32)"),
        ({"ghz": 3.0}, {"ghz": 1.2}, "its CPUs run at 1.2 GHz (3 before)"),
        ({"runnable": 4}, {"runnable": 12, "cpu_stall": 0.9}, "12 runnable threads on 2 CPUs (4 before)"),
        ({"cpu_waits": {"0": 0.0, "1": 0.1}}, {"cpu_waits": {"0": 0.02, "1": 0.7}}, "rank 1 has to wait for a CPU 70% of the time (2% on other ranks)"),
        ({}, {"cpu_stall": 0.9}, "processes wait for a CPU 90% of the time (5% before)"),
    ],
)  # fmt: skip
def test_what_stands_out_is_named(before: dict[str, Any], after: dict[str, Any], text: str) -> None:
    assert describe_pressure(make_samples(before, after), 1, SINCE, "32") == [f"on its host: {text}"]


def test_threads_from_the_beginning_are_compared_with_other_ranks() -> None:
    after = [row for row in make_samples({}, {"threads": {"0": 8, "1": 24, "2": 8}}) if row["t"] >= SINCE]
    assert describe_pressure(after, 1, SINCE) == ["on its host: rank 1 has 24 threads on 2 CPUs (8 on other ranks)"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {}),
        ({"others": 1.5}, {"others": 1.6}),
        ({"cpu_stall": 0.95}, {"cpu_stall": 0.97}),
        ({"throttled": 0.4}, {"throttled": 0.45}),
        ({}, {"threads": {"0": 40, "1": 10}}),
        ({}, {"cpu_waits": {"0": 0.7, "1": 0.1}}),
        ({}, {"cpu_waits": {"0": 0.6, "1": 0.7}}),
        ({"cpu_waits": {"0": 0.1, "1": 0.6}}, {"cpu_waits": {"0": 0.1, "1": 0.7}}),
        ({}, {"cpu_waits": {"1": 0.7}}),
        ({}, {"cpu_waits": [0.7]}),
        ({"others": "many"}, {"others": None, "threads": [3]}),
    ],
)
def test_it_is_silent_where_nothing_does(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert describe_pressure(make_samples(before, after), 1, SINCE) == []


def test_one_odd_sample_is_nothing_and_too_few_are_nothing() -> None:
    odd = [*make_samples({}, {}), {"t": SINCE + 9, "others": 2.0, "cpus": 2.0}]
    assert describe_pressure(odd, 1, SINCE) == []
    assert describe_pressure(make_samples({}, {"others": 2.0}, count=1), 1, SINCE) == []


def test_samples_are_those_of_the_host_and_bad_lines_are_passed_over(tmp_path: Path) -> None:
    run, _ = RunDir.create(tmp_path / "run", {})
    assert read_samples(run, "a") == []
    folder = run.path / "pressure"
    folder.mkdir()
    good = json.dumps({"t": 2.0, "others": 1})
    (folder / "a-1.jsonl").write_bytes(good.encode() + b'\n[1]\n{"t":"x"}\n{"t":true}\n\xff\n{"t":9')
    (folder / "a-2.jsonl").write_text(json.dumps({"t": 1.0}) + "\n")
    (folder / "b-1.jsonl").write_text(good + "\n")
    (folder / "a-3.jsonl").symlink_to(folder / "b-1.jsonl")
    assert [row["t"] for row in read_samples(run, "a")] == [1.0, 2.0]
