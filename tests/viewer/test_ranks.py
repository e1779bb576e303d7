"""Who is quiet: a rank that goes on is not, one from which nothing comes is, and a probe's word counts at once."""

import time
from pathlib import Path

import pytest
from streams import Stream

from tdbg.core.host import host_name
from tdbg.core.rundir import RunDir, process_start
from tdbg.launch.live import read_snapshot
from tdbg.viewer import rank_activity
from tdbg.viewer.rank_activity import QUIET_S, describe_ranks

from .conftest import Client

STEP_S = 0.5


def write_ranks(folder: Path, *silent_s: float) -> Stream:
    """A run that goes on: of each rank the last step was so long ago."""
    stream = Stream(folder)
    stream.run.update_info(supervisor={"pid": 1, "host": host_name(), "started": process_start(1)})
    for rank, silence in enumerate(silent_s):
        stream.t = time.time() - silence - 20 * STEP_S
        where = stream.begin_rank(rank, world=len(silent_s))
        for step in range(1, 21):
            stream.t += STEP_S
            stream.emit_steps(where, [2.0], first=step)
    return stream


def test_a_rank_from_which_nothing_comes_is_quiet(tmp_path: Path) -> None:
    write_ranks(tmp_path / "going", 0.0, QUIET_S + 15, 1.0)
    client = Client(tmp_path)
    found = client.ask("/runs/going/ranks")
    assert found["state"] == "running" and found["quiet"] == [1]
    quiet = [one["quiet"] for one in found["ranks"]]
    assert quiet[0] == quiet[2] == "" and quiet[1].startswith("nothing came from it for ")
    ages = [one["last_seen_s"] for one in found["ranks"]]
    assert ages[0] < 10 and QUIET_S + 10 < ages[1] < QUIET_S + 60
    assert [one["rank"] for one in client.ask("/runs/going/ranks", ranks="1-2")["ranks"]] == [1, 2]
    assert [one["step"] for one in found["ranks"]] == [20, 20, 20]


def test_a_rank_of_slow_steps_has_the_time_of_some_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_ranks(tmp_path / "slow", QUIET_S + 15)
    snapshot = read_snapshot(RunDir(tmp_path / "slow"))
    assert describe_ranks(snapshot)[0]["quiet"]
    monkeypatch.setattr(rank_activity, "USUAL_STEPS", 1000)
    assert not describe_ranks(snapshot)[0]["quiet"]


def test_a_rank_that_a_probe_found_waiting_is_quiet_at_once(tmp_path: Path) -> None:
    write_ranks(tmp_path / "going", 0.0)
    snapshot = read_snapshot(RunDir(tmp_path / "going"))
    assert not describe_ranks(snapshot)[0]["quiet"]
    snapshot.ranks[0].is_waiting = True
    assert describe_ranks(snapshot)[0]["quiet"] == "it makes no progress"


def test_no_rank_of_a_run_that_has_ended_is_quiet(client: Client) -> None:
    for run in ("two_ranks", "resumed", "rank_killed"):
        found = client.ask(f"/runs/{run}/ranks")
        assert found["state"] == "ended" and found["quiet"] == [] and found["exit"]
        status = client.ask(f"/runs/{run}/status")
        told = [{name: one[name] for name in one if name not in ("quiet", "last_seen_s")} for one in found["ranks"]]
        assert told == [{name: one[name] for name in one if name != "last_seen_s"} for one in status["ranks"]]
