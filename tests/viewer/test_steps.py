"""Step records of a range: the same as those of the events files, of a long file without reading all of it."""

import json
import math
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from streams import Stream

from tdbg.core.rundir import ProcessDir, RunDir
from tdbg.viewer import step_records
from tdbg.viewer.answers import step_list
from tdbg.viewer.sampled_events import READ_BYTES, SampledReader
from tdbg.viewer.step_records import Share, Wanted, read_step_records

from .conftest import Client

STEPS = 30_000
SPIKE = 17_123


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Two ranks of 30,000 step records each, some 4 MB a rank; the loss of one step is a spike."""
    stream = Stream(tmp_path_factory.mktemp("long") / "long")
    for rank in range(2):
        folder = stream.begin_rank(rank, world=2)
        stream.emit_steps(folder, [9.0 if step == SPIKE else 2.0 for step in range(1, STEPS + 1)], step_ms=1.5)
    return stream.run


def read_events(run: Path, folder: str) -> list[dict[str, Any]]:
    lines = (run / folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["type"] == "step"]


@pytest.mark.parametrize("query", [{}, {"from": 10, "to": 20}, {"from": 12, "phase": "train"}, {"phase": "eval"}])
def test_the_records_are_those_of_the_events(client: Client, runs_folder: Path, query: dict[str, Any]) -> None:
    found = client.ask("/runs/two_ranks/steps", **query)
    assert [one["folder"] for one in found["processes"]] == ["rank0000", "rank0001"]
    for process in found["processes"]:
        wanted = [
            event
            for event in read_events(runs_folder / "two_ranks", process["folder"])
            if query.get("from", 0) <= event["step"] <= query.get("to", math.inf)
            and query.get("phase", event.get("phase", "train")) == event.get("phase", "train")
        ]
        told = [(one["step"], one["t"], one["loss"], one["phase"]) for one in process["records"]]
        assert told == [(one["step"], one["t"], one.get("loss"), one.get("phase", "train")) for one in wanted]
        assert process["recorded"] == len(wanted) > 0


def test_few_points_keep_the_extremes_of_the_loss(client: Client, runs_folder: Path) -> None:
    (process,) = client.ask("/runs/two_ranks/steps", ranks="1", points=6, phase="train")["processes"]
    events = [one for one in read_events(runs_folder / "two_ranks", "rank0001") if one.get("phase") != "eval"]
    assert process["recorded"] == len(events) > len(process["records"]) == 6
    losses = [one["loss"] for one in process["records"]]
    assert min(one for one in losses if isinstance(one, float)) == min(
        one["loss"] for one in events if isinstance(one.get("loss"), float)
    )
    assert "nan" in losses
    steps = [one["step"] for one in process["records"]]
    assert steps == sorted(set(steps))


def test_a_short_range_of_a_long_file_is_whole_and_little_is_read(long_run: RunDir) -> None:
    client = Client(long_run.path.parent)
    found = client.ask("/runs/long/steps", **{"from": SPIKE - 100, "to": SPIKE + 100, "points": 1000})
    for process in found["processes"]:
        assert [one["step"] for one in process["records"]] == list(range(SPIKE - 100, SPIKE + 101))
        assert process["recorded"] == 201
        assert max(one["loss"] for one in process["records"]) == 9.0


@pytest.mark.parametrize(
    ("first", "last"), [(0, 3), (1, 1), (STEPS, STEPS), (STEPS - 2, 1 << 40), (STEPS + 1, 1 << 40)]
)
def test_the_ends_of_a_long_file_are_found(long_run: RunDir, first: int, last: int) -> None:
    process = next(iter(long_run.list_processes()))
    found = read_step_records(process, Wanted(first, last, 100, ""), Share(1 << 18))
    assert [one.step for one in found.records] == list(range(max(first, 1), min(last, STEPS) + 1))


def test_a_long_range_is_sampled_in_order_without_reading_it_all(
    long_run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    pread = os.pread

    def count_bytes(fd: int, length: int, at: int) -> bytes:
        data = pread(fd, length, at)
        read.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", count_bytes)
    process = ProcessDir(long_run, long_run.path / "rank0000")
    found = read_step_records(process, Wanted(100, STEPS - 100, 50, ""), Share(1 << 18))
    steps = [one.step for one in found.records]
    assert found.recorded is None and 40 <= len(steps) <= 50
    assert steps == sorted(set(steps)) and steps[0] >= 100 and steps[-1] <= STEPS - 100
    gaps = [after - before for before, after in pairwise(steps)]
    assert max(gaps) < 3 * (STEPS / 50)
    assert 0 < sum(read) < (process.path / "events.jsonl").stat().st_size


@pytest.fixture(scope="module")
def mixed_run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """20,000 records of training, and after every 250th one of evaluation."""
    return make_mixed_run(tmp_path_factory.mktemp("mixed") / "mixed")


def make_mixed_run(place: Path, **more: float) -> RunDir:
    stream = Stream(place)
    folder = stream.begin_rank(0)
    for first in range(1, 20_000, 250):
        stream.emit_steps(folder, [2.0] * 250, first=first, step_ms=1.5, **more)
        stream.emit_steps(folder, [3.0], first=first + 249, phase="eval")
    return stream.run


@pytest.mark.parametrize(("points", "least"), [(500, 80), (20, 20)])
def test_rare_records_of_a_phase_are_found_in_a_long_file(mixed_run: RunDir, points: int, least: int) -> None:
    (process,) = Client(mixed_run.path.parent).ask("/runs/mixed/steps", phase="eval", points=points)["processes"]
    steps = [one["step"] for one in process["records"]]
    assert {one["phase"] for one in process["records"]} == {"eval"} and process["recorded"] is None
    assert len(steps) == least and steps == sorted(set(steps)) and all(step % 250 == 0 for step in steps)


def test_no_more_than_a_part_of_a_very_long_file_is_looked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Longer records: of short ones the 15 or 16 reads of 16 kB, by the digits of their times, are a tenth themselves.
    mixed_run = make_mixed_run(tmp_path / "run", forward_ms=0.5, backward_ms=0.75)
    looked: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, at: looked.append(length) or pread(fd, length, at))
    (process,) = mixed_run.list_processes()
    read_step_records(process, Wanted(0, 1 << 40, 4, "eval"), Share(1024))
    assert 0 < sum(looked) < (process.path / "events.jsonl").stat().st_size // 10


@pytest.fixture(scope="module", params=[2_500, 40_000])
def wide_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """60 records with the norms of so many parameters each: longer than what is read at once, or much longer."""
    stream = Stream(tmp_path_factory.mktemp("wide") / "wide")
    folder = stream.begin_rank(0)
    stream.emit_steps(folder, [2.0] * 60, grad_norms=[1.2345] * request.param)
    assert (stream.run.path / folder / "events.jsonl").stat().st_size > 60 * READ_BYTES
    return stream.run


@pytest.mark.parametrize(("first", "last"), [(0, 9), (30, 39), (47, 47), (60, 60), (55, 1 << 40)])
def test_a_range_of_long_records_is_whole(wide_run: RunDir, first: int, last: int) -> None:
    (process,) = wide_run.list_processes()
    whole_bytes = (process.path / "events.jsonl").stat().st_size // 3
    found = read_step_records(process, Wanted(first, last, 100, ""), Share(whole_bytes))
    steps = list(range(max(first, 1), min(last, 60) + 1))
    assert [one.step for one in found.records] == steps and found.recorded == len(steps)


def test_long_records_are_sampled(wide_run: RunDir) -> None:
    (process,) = wide_run.list_processes()
    found = read_step_records(process, Wanted(0, 1 << 40, 10, ""), Share(1 << 18))
    steps = [one.step for one in found.records]
    assert len(steps) == 10 and max(after - before for before, after in pairwise(steps)) <= 7


def test_of_long_records_the_curve_has_some_and_few_bytes_are_decoded(
    wide_run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    decode = step_records.events.decode

    def count(line: bytes) -> Any:
        decoded.append(len(line))
        return decode(line)

    monkeypatch.setattr(step_records.events, "decode", count)
    (process,) = wide_run.list_processes()
    steps = [event for event in SampledReader(4).read_events(process) if event.TYPE == "step"]
    assert len(steps) > 8 and sum(decoded) < 6 << 20


def test_many_ranks_share_the_records_of_an_answer(long_run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_list, "MAX_RECORDS", 40)
    found = Client(long_run.path.parent).ask("/runs/long/steps", points=40)
    assert found["points"] == 20 and all(len(one["records"]) <= 20 for one in found["processes"])


def test_of_many_short_files_few_records_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, ranks = Stream(tmp_path / "many"), 40
    for rank in range(ranks):
        stream.emit_steps(stream.begin_rank(rank, world=ranks), [2.0] * 200)
    monkeypatch.setattr(step_list, "WHOLE_RECORDS", 10 * ranks)
    decoded: list[bytes] = []
    decode = step_records.events.decode

    def count(line: bytes) -> Any:
        decoded.append(line)
        return decode(line)

    monkeypatch.setattr(step_records.events, "decode", count)
    client = Client(tmp_path)
    for points, steps in ((2, [1, 200]), (5, [1, 50, 100, 150, 200])):
        decoded.clear()
        for process in client.ask("/runs/many/steps", points=points)["processes"]:
            assert [one["step"] for one in process["records"]] == steps and process["recorded"] is None
        assert len(decoded) == points * ranks
    decoded.clear()
    for process in client.ask("/runs/many/steps", **{"from": 120, "to": 122})["processes"]:
        assert [one["step"] for one in process["records"]] == [120, 121, 122] and process["recorded"] == 3
    assert len(decoded) <= 4 * ranks, "and one on the way there"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"from": 5, "to": 3}, "from=5 is behind to=3"),
        ({"from": "x"}, "Expected `int`, got `str` - at `$.from`"),
        ({"from": -1}, "Expected `int` >= 0 - at `$.from`"),
        ({"points": 1}, "Expected `int` >= 2 - at `$.points`"),
        ({"ranks": "a"}, "ranks cannot be 'a'"),
        ({"phase": "test"}, "Invalid enum value 'test' - at `$.phase`"),
        ({"first": 1}, "Object contains unknown field `first`"),
    ],
)
def test_a_wrong_query_is_refused_in_a_line(client: Client, query: dict[str, Any], words: str) -> None:
    answer = client.get("/api/v1/runs/two_ranks/steps", params=query)
    assert answer.status_code == 400 and answer.json()["error"] == words


def test_a_file_of_other_events_alone_has_no_record(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "none")
    stream.begin_rank(0)
    (process,) = Client(tmp_path).ask("/runs/none/steps", **{"from": 1})["processes"]
    assert (process["recorded"], process["records"]) == (0, [])
