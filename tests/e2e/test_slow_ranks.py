"""TD-R010: a rank that is slower than the others, at the default level: which one, in what, at which line, since when."""

import pytest

from tests.e2e.conftest import Runner, build_program_command, build_torchrun_command

# kind -> (what the title says, the line's function)
KINDS = {
    "data": ("slow in its data loader", "Samples.__getitem__"),
    "forward": ("slow in its forward pass", "burn_time"),
    "log": ("slow in code outside of loader, forward pass, backward pass and update", "write_log"),
}
CASES = [("data", "ddp", 1), ("forward", "hand", 0), ("log", "ddp", 0)]


def assert_slow(result: object, kind: str, rank: int) -> None:
    words, function = KINDS[kind]
    finding = result.find_finding("TD-R010")  # type: ignore[attr-defined]
    assert finding["rank"] == rank and finding["title"].startswith(f"rank {rank} is {words}, and "), finding
    assert 15 <= finding["first_step"] <= 25, finding
    place, *_ = finding["evidence"]
    assert place.startswith(f"rank {rank} is at ") and f" in {function} in " in place, finding


@pytest.mark.parametrize(("kind", "by", "rank"), CASES)
def test_the_slow_rank_is_named(watched_runner: Runner, kind: str, by: str, rank: int) -> None:
    result = watched_runner(build_torchrun_command("slow_ranks", kind, "--by", by, "--rank", str(rank)))
    assert_slow(result, kind, rank)
    assert any("TD-R010 warning" in line for line in result.tdbg_lines), "it is said as it happens"


def test_ranks_that_a_program_spawns_are_compared_too(watched_runner: Runner) -> None:
    assert_slow(watched_runner(build_program_command("slow_ranks", "forward")), "forward", 1)


@pytest.mark.parametrize("by", ["ddp", "hand"])
def test_equal_ranks_are_left_alone(watched_runner: Runner, by: str) -> None:
    result = watched_runner(build_torchrun_command("slow_ranks", "none", "--by", by, "--steps", "120"))
    assert result.codes == [], result.stderr
