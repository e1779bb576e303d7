"""A rank that does not come: it is named while the others wait, with its stack on disk."""

import json

import pytest

from tdbg.core.events import Observation
from tests.e2e.conftest import Runner, build_torchrun_command

OPTIONS = ("--flag", "DISTRIBUTED", "--threshold", "DISTRIBUTED.quiet_s=3")


@pytest.mark.parametrize("place", ["all_reduce", "backward"])
def test_the_rank_that_does_not_come_is_named(watched_runner: Runner, place: str) -> None:
    """In backward it is the all_reduce of DistributedDataParallel's reducer, which the flight recorder knows."""
    result = watched_runner(build_torchrun_command("late_rank", "--in", place, "--for", "8"), OPTIONS)
    assert result.code == 0, result.stderr
    live = next(line for line in result.tdbg_lines if "TD-R006" in line)
    assert "rank 1 does not come to all_reduce, where rank 0 has waited" in live
    assert "in evaluate_alone" in live
    finding = result.find_finding("TD-R006")
    assert (finding["rank"], finding["first_step"], finding["severity"]) == (1, 3, "info")
    assert finding["title"].startswith("rank 1 came late to all_reduce, where rank 0 waited for")
    assert result.codes == ["TD-R006"]
    (waits, *_), (sleeps, *_) = (
        [event for event in result.list_events(Observation, rank) if (event.part, event.step) == ("QUIET", 3)]
        for rank in (0, 1)
    )
    assert (waits.values["state"], sleeps.values["state"]) == ("collective", "elsewhere")
    stacks = json.loads((result.folder / "rank0001" / sleeps.values["stacks"]).read_text(encoding="utf-8"))
    main = next(lines for name, lines in stacks["threads"].items() if name.startswith("MainThread"))
    assert "evaluate_alone" in main[-1]


def test_a_short_wait_is_no_matter(watched_runner: Runner) -> None:
    result = watched_runner(build_torchrun_command("late_rank", "--for", "1"), ("--flag", "DISTRIBUTED"))
    assert result.code == 0 and result.codes == [], result.stderr
    assert not list(result.folder.glob("rank*/stacks_*"))
