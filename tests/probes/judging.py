"""What the rules say of events that a monitor inside the test process has written."""

from pathlib import Path
from typing import Any

from streams import Stream

from tdbg.core.events import Finding, Observation
from tdbg.probes import PROBES


def judge_watch(watched: Any, folder: Path) -> list[Finding]:
    """The verdict over a monitor's events, through files, as of a run that ended in good order."""
    _assert_described(watched)
    run = Stream(folder / "judged")
    rank = run.begin_rank()
    run.emit_events(rank, *watched.events)
    run.end_process(rank, watched.monitor.step)
    return run.judge_stream().findings


def _assert_described(watched: Any) -> None:
    """Every value that was told has its line in the probe's fields."""
    for event in watched.events:
        if isinstance(event, Observation):
            assert set(event.values) <= set(PROBES[event.probe].fields), (event.probe, event.part)


def judge_codes(watched: Any, folder: Path) -> list[str]:
    """The codes of `judge_watch`."""
    return [finding.code for finding in judge_watch(watched, folder)]


def list_observations(watched: Any, probe: str, part: str = "") -> list[Observation]:
    """What one probe told under one part."""
    found = [event for event in watched.events if isinstance(event, Observation) and event.probe == probe]
    return [event for event in found if event.part == part]
