"""The agent of a process whose threads speak while it becomes a rank."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tdbg.core.config import Settings
from tdbg.core.events import ChildExit, Note, Plan, Start
from tdbg.core.rundir import EVENTS, read_events
from tdbg.inject.agent import Agent
from tdbg.inject.tracebacks import Recorder

WAIT_S = 0.3  # for a thread that is to be held up; one that is not is back much sooner


@pytest.fixture
def rank_agent(tmp_path: Path) -> Any:
    agent = Agent(tmp_path, Settings(), speaks=False)
    yield agent
    assert agent.errors == 0
    agent.close_files()


def make_start(attempt: int) -> Start:
    return Start(rank=0, attempt=attempt, host="here", pid=os.getpid())


def list_codes(path: Path) -> list[str]:
    return [getattr(event, "code", type(event).__name__) for event in read_events(path / EVENTS)]


def test_nothing_comes_before_the_start_and_nothing_is_lost(rank_agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    rank, other = tmp_path / "rank0000", tmp_path / "other" / f"{rank_agent.host}-{os.getpid()}"
    rank_agent.emit(Note(code="before"))

    def describe(attempt: int) -> Start:
        """The folder is claimed, its Start not written: what other threads write now."""
        for speak in (
            lambda: rank_agent.emit(Note(code="meanwhile")),
            lambda: rank_agent.emit_aside(ChildExit(host="here", pid=1, code=3)),
            lambda: rank_agent.emit_as_rank(Plan(steps=7)),
            lambda: rank_agent.log("I", 0, "[DEBUG_X]", "meanwhile"),
        ):
            thread = threading.Thread(target=speak)
            thread.start()
            thread.join(WAIT_S)
        return make_start(attempt)

    rank_agent.become_rank(0, describe)
    rank_agent.emit(Note(code="after"))
    rank_agent.emit_aside(ChildExit(host="here", pid=2, code=4))
    rank_agent.log("I", 1, "[DEBUG_X]", "after")
    assert list_codes(rank) == ["Start", "Plan", "after"]
    assert list_codes(other) == ["before", "meanwhile", 3, 4]
    assert [path.name for path in other.iterdir()] == [EVENTS], "no log of the rank is beside it"
    assert "after" in (rank / "debug_log_rank0.txt").read_text()


def test_a_rank_whose_device_cannot_be_described_is_one(rank_agent: Agent, tmp_path: Path) -> None:
    def describe(attempt: int) -> Start:
        raise RuntimeError("the device is lost")

    with pytest.raises(RuntimeError, match="the device is lost"):
        rank_agent.become_rank(0, describe)
    rank_agent.emit(Note(code="after"))
    assert rank_agent.rank == 0 and list_codes(tmp_path / "rank0000") == ["after"]


def test_the_most_frequent_failures_are_told_while_a_thread_fails(rank_agent: Agent, tmp_path: Path) -> None:
    class Count(int):
        """A count; to compare it takes so long that a thread fails at a place of its own."""

        def __lt__(self, other: object) -> bool:
            recorder._places["ValueError", f"new {len(recorder._places)}"] = 1
            return int(self) < int(str(other))

    recorder = Recorder(rank_agent)
    for number in range(10):
        recorder._places["ValueError", f"old {number}"] = Count(number)
    recorder.report_counts_at_exit()
    (folder,) = (tmp_path / "other").iterdir()
    assert list_codes(folder) == [f"tracebacks-counted-{number}" for number in range(5)]
