"""TD-R005 and TD-R006: ranks that call different collectives, and ranks that do not come."""

import random
from collections.abc import Iterable
from typing import Any

import pytest
from streams import Stream

from tdbg.core.events import Event, Finding, Observation
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES
from tdbg.rules.rule_engine import RuleEngine


def seen(part: str, step: int, t: float = 0.0, **values: Any) -> Observation:
    """One observation of the probe."""
    return Observation(t=t, probe="distributed", flag="DISTRIBUTED", part=part, step=step, text="-", values=values)


def crc(calls: Iterable[str]) -> str:
    return f"{hash(tuple(calls)) & 0xFFFFFFFF:08x}"


def chunk(first: int, calls: list[str], steps: tuple[int, int] = (1, 1), spelt: bool = True) -> tuple[list[Any], Any]:
    """A mark and the text of its calls."""
    name = crc(calls)
    return [first, first + len(calls) - 1, name, *steps], ({name: [[call, 1] for call in calls]} if spelt else {})


def order(*chunks: Any, size: int = 2, group: str = "world", since: int = 0, **more: Any) -> Observation:
    """What a rank writes of one group."""
    texts: dict[str, Any] = {}
    for _, text in chunks:
        texts.update(text)
    row = {"group": group, "size": size, "since": since, "marks": [mark for mark, _ in chunks], "chunks": texts, **more}
    return seen("ORDER", chunks[-1][0][4], groups=[row])


def ranks(run: Stream, count: int, steps: int = 5) -> list[str]:
    folders = [run.rank(rank, world=count) for rank in range(count)]
    for folder in folders:
        run.train(folder, [2.0] * steps)
    return folders


def close(run: Stream, folders: list[str]) -> None:
    for folder in folders:
        run.end(folder, 5)


def only(run: Stream, code: str, exit_code: int = 0) -> Finding:
    (found,) = [finding for finding in run.judge(exit_code).findings if finding.code == code]
    return found


# TD-R005


def test_the_first_call_that_differs_is_named(stream):
    run = stream()
    zero, one = ranks(run, 2)
    run.emit(zero, order(chunk(1, ["barrier"]), chunk(2, ["all_reduce float32[8]", "barrier"], (2, 2))))
    run.emit(one, order(chunk(1, ["barrier"]), chunk(2, ["broadcast float32[8]", "barrier"], (2, 2))))
    close(run, [zero, one])
    found = only(run, "TD-R005")
    assert found.title == (
        "rank 1 called broadcast float32[8] where rank 0 called all_reduce float32[8]:"
        " call 2 on the world's group, step 2"
    )
    assert (found.rank, found.first_step, found.severity) == (1, 2, "error")


def test_it_is_said_while_the_run_goes_on(stream):
    run = stream()
    zero, one = ranks(run, 2)
    run.emit(one, order(chunk(1, ["barrier"])))
    run.emit(zero, order(chunk(1, ["all_reduce int64[1]"])))
    assert [found.code for found in run.live()] == ["TD-R005"]


def test_the_odd_one_of_several_is_named(stream):
    run = stream()
    folders = ranks(run, 4)
    for rank, folder in enumerate(folders):
        run.emit(folder, order(chunk(1, ["scatter float32" if rank == 2 else "barrier"]), size=4))
    close(run, folders)
    assert only(run, "TD-R005").title.startswith("rank 2 called scatter float32 where ranks 0-1, 3 called barrier")


def test_equal_orders_are_fine(stream):
    run = stream()
    folders = ranks(run, 2)
    for folder in folders:
        run.emit(folder, order(chunk(1, ["barrier"]), chunk(2, ["all_reduce float32[8]"] * 4, (1, 3))))
        run.emit(folder, order(chunk(6, ["barrier"], (4, 4))))
    close(run, folders)
    assert run.codes() == []


def test_one_that_is_ahead_is_not_out_of_step(stream):
    run = stream()
    zero, one = ranks(run, 2)
    run.emit(zero, order(chunk(1, ["barrier"]), chunk(2, ["barrier", "barrier"])))
    run.emit(one, order(chunk(1, ["barrier"]), chunk(2, ["barrier"])))
    close(run, [zero, one])
    assert run.codes() == []


def test_a_tail_gives_way_to_its_chunk(stream):
    run = stream()
    zero, one = ranks(run, 2)
    run.emit(zero, order(chunk(1, ["barrier"])))
    run.emit(zero, order(chunk(1, ["barrier", "all_reduce int64[1]"])))
    run.emit(one, order(chunk(1, ["barrier", "all_reduce int64[1]"])))
    close(run, [zero, one])
    assert run.codes() == []


def test_a_rank_that_hangs_has_told_enough(stream):
    run = stream()
    zero, one = ranks(run, 2)
    run.emit(zero, order(chunk(1, ["barrier", "all_reduce float32[8]", "barrier", "barrier"])))
    run.emit(one, order(chunk(1, ["barrier", "all_reduce float32[9]"])))
    found = only(run, "TD-R005", -9)
    assert "rank 1 called all_reduce float32[9] where rank 0 called all_reduce float32[8]: call 2" in found.title


def test_a_rank_that_wrote_nothing_is_left_out(stream):
    run = stream()
    folders = ranks(run, 3)
    run.emit(folders[0], order(chunk(1, ["barrier"]), size=3))
    run.emit(folders[1], order(chunk(1, ["broadcast int64[1]"]), size=3))
    close(run, folders)
    assert "rank 1 called broadcast" in only(run, "TD-R005").title


def test_calls_too_many_to_spell_out(stream):
    run = stream()
    zero, one = ranks(run, 2)
    run.emit(zero, order(chunk(65, ["a"] * 64, (10, 12), spelt=False)))
    run.emit(one, order(chunk(65, ["b"] * 64, (10, 12), spelt=False)))
    close(run, [zero, one])
    assert only(run, "TD-R005").title == (
        "rank 1 and rank 0 called different collectives: one of calls 65 to 128 on the world's group,"
        " between steps 10 and 12"
    )


def test_what_was_spelt_out_before_is_known(stream):
    run = stream()
    zero, one = ranks(run, 2)
    for folder in (zero, one):
        run.emit(folder, order(chunk(1, ["barrier"] * 4), chunk(5, ["all_gather int64"] * 4)))
    run.emit(zero, order(chunk(9, ["barrier"] * 4, spelt=False)))
    run.emit(one, order(chunk(9, ["all_gather int64"] * 4, spelt=False)))
    close(run, [zero, one])
    assert "rank 1 called all_gather int64 where rank 0 called barrier: call 9" in only(run, "TD-R005").title


@pytest.mark.parametrize("more", [{"since": 16}, {"group": "7"}, {"ranks": [1, 2]}])
def test_what_counts_from_elsewhere_is_not_compared(stream, more):
    run = stream()
    zero, one = ranks(run, 2)
    run.emit(zero, order(chunk(1, ["barrier"])))
    run.emit(one, order(chunk(1, ["broadcast int64[1]"]), **more))
    close(run, [zero, one])
    assert run.codes() == []


def test_a_restart_is_compared_among_itself(stream):
    run = stream()
    zero, _ = ranks(run, 2)
    again = run.rank(1, world=2, attempt=1)
    run.emit(zero, order(chunk(1, ["barrier"])))
    run.emit(again, order(chunk(1, ["broadcast int64[1]"])))
    assert "TD-R005" not in run.codes(1)


@pytest.mark.parametrize("differ", [False, True])
def test_ranks_of_one_round_are_compared_whatever_the_numbers_of_their_folders(stream, differ):
    """Rank 1 died before its first step, so its first folder is of the restart."""
    run = stream()
    counted = [{"env": {"TORCHELASTIC_RESTART_COUNT": str(count)}} for count in (0, 1)]
    before = run.rank(0, world=2, **counted[0])
    zero, one = run.rank(0, 2, 1, **counted[1]), run.rank(1, 2, 0, **counted[1])
    run.emit(before, order(chunk(1, ["barrier"])))
    run.emit(zero, order(chunk(1, ["broadcast int64[1]"])))
    run.emit(one, order(chunk(1, ["broadcast int64[2]" if differ else "broadcast int64[1]"])))
    close(run, [zero, one])
    told = [found.title for found in run.judge().findings if found.code == "TD-R005"]
    what = (
        "rank 1 called broadcast int64[2] where rank 0 called broadcast int64[1]: call 1 on the world's group, step 1"
    )
    assert told == [what] * differ


def test_a_difference_is_told_once(stream):
    run = stream()
    zero, one = ranks(run, 2)
    for first in range(1, 6):
        run.emit(zero, order(chunk(first, ["barrier"], (first, first))))
        run.emit(one, order(chunk(first, ["broadcast int64[1]"], (first, first))))
    close(run, [zero, one])
    assert only(run, "TD-R005").first_step == 1


# TD-R006


def quiet(run: Stream, state: str, step: int = 3, since: float = 0.0, **values: Any) -> Observation:
    """A rank that has been quiet for 31 s."""
    where = {"where": "train.py:88 in evaluate" if state == "elsewhere" else "train.py:41 in main"}
    name = f"stacks_step{step:08d}.json"
    more = {"op": "all_reduce", "group": "world", "size": 2} if state == "collective" else {"op": ""}
    began_t = run.t + since
    return seen(
        "QUIET",
        step,
        t=began_t + 31,
        **{"state": state, "began_t": began_t, "quiet_s": 31.0, "stacks": name, **where, **more, **values},
    )


def resumed(run: Stream, seconds: float, step: int = 3) -> Observation:
    return seen("RESUMED", step, t=run.t + seconds, quiet_s=seconds, op="", began_t=run.t)


def hang(run: Stream, went_on: bool) -> list[str]:
    zero, one = ranks(run, 2, steps=2)
    run.emit(zero, quiet(run, "collective", number=5, counts={"world": 5}))
    run.emit(one, quiet(run, "elsewhere", counts={"world": 4}))
    if went_on:
        for folder in (zero, one):
            run.emit(folder, resumed(run, 40.0))
            run.end(folder, 5)
    return [zero, one]


def test_a_rank_that_first_steps_after_a_restart_is_waited_for(stream):
    run = stream()
    run.rank(0, world=2)
    zero, one = (run.rank(rank, 2, 1 - rank, env={"SLURM_RESTART_COUNT": "1"}) for rank in (0, 1))
    run.emit(zero, quiet(run, "collective", number=5, counts={"world": 5}))
    run.emit(one, quiet(run, "elsewhere", counts={"world": 4}))
    assert only(run, "TD-R006", 1).title.startswith("rank 1 does not come to all_reduce, where rank 0 has waited")


def test_the_rank_that_does_not_come_is_named(stream):
    run = stream()
    hang(run, went_on=False)
    found = only(run, "TD-R006", -9)
    assert found.title == (
        "rank 1 does not come to all_reduce, where rank 0 has waited for 31 s since step 3:"
        " it is at train.py:88 in evaluate"
    )
    assert (found.severity, found.rank) == ("error", 1)
    assert "stacks: rank0001/stacks_step00000003.json, rank0000/stacks_step00000003.json" in found.evidence


def test_it_is_said_while_they_wait(stream):
    run = stream()
    hang(run, went_on=False)
    assert [(found.code, found.severity) for found in run.live()] == [("TD-R006", "warning")]


def test_a_wait_that_ended_is_told_as_such(stream):
    run = stream()
    hang(run, went_on=True)
    found = only(run, "TD-R006")
    assert found.severity == "info"
    assert found.title.startswith("rank 1 came late to all_reduce, where rank 0 waited for 40 s at step 3: it was at")


def test_a_step_is_an_end_too(stream):
    run = stream()
    folders = hang(run, went_on=False)
    for folder in folders:
        run.t += 100
        run.train(folder, [2.0], first=3)
        run.end(folder, 5)
    assert only(run, "TD-R006").severity == "info"


def test_told_again_it_is_one_wait(stream):
    run = stream()
    zero, _ = hang(run, went_on=False)
    run.emit(zero, quiet(run, "collective", since=1.0, number=5, counts={"world": 5}, quiet_s=62.0))
    assert "has waited for 62 s" in only(run, "TD-R006", -9).title


@pytest.mark.parametrize("states", [("elsewhere", "elsewhere"), ("device", "device"), ("backward", "backward")])
def test_ranks_that_all_work_are_fine(stream, states):
    run = stream()
    folders = ranks(run, 2, steps=2)
    for folder, state in zip(folders, states, strict=True):
        run.emit(folder, quiet(run, state, counts={"world": 4}))
    for folder in folders:
        run.emit(folder, resumed(run, 40.0))
    close(run, folders)
    assert run.codes() == []


def test_all_in_the_same_call_is_a_slow_network(stream):
    run = stream()
    folders = ranks(run, 2, steps=2)
    for folder in folders:
        run.emit(folder, quiet(run, "collective", number=5, counts={"world": 5}))
    for folder in folders:
        run.emit(folder, resumed(run, 40.0))
    close(run, folders)
    assert run.codes() == []


def test_two_that_met_in_different_functions(stream):
    run = stream()
    zero, one = ranks(run, 2, steps=2)
    run.emit(zero, quiet(run, "collective", number=5, counts={"world": 5}))
    run.emit(one, quiet(run, "collective", op="broadcast", number=5, counts={"world": 5}))
    found = only(run, "TD-R006", -9)
    assert found.rank == 1 and "it is in broadcast (train.py:41 in main)" in found.title


def test_one_that_is_a_call_behind(stream):
    run = stream()
    zero, one = ranks(run, 2, steps=2)
    run.emit(zero, quiet(run, "collective", number=5, counts={"world": 5}))
    run.emit(one, quiet(run, "collective", op="barrier", number=4, counts={"world": 4}))
    assert only(run, "TD-R006", -9).title.startswith("rank 1 does not come to all_reduce, where rank 0 has waited")


def test_on_accelerators_the_calls_begun_tell(stream):
    run = stream()
    zero, one = ranks(run, 2, steps=2)
    run.emit(zero, quiet(run, "device", counts={"world": 5}))
    run.emit(one, quiet(run, "device", counts={"world": 4}))
    assert only(run, "TD-R006", -9).rank == 1


def test_the_reducer_waits_in_backward(stream):
    run = stream()
    zero, one = ranks(run, 2, steps=2)
    run.emit(zero, quiet(run, "backward", counts={"world": 2}))
    run.emit(one, quiet(run, "elsewhere", counts={"world": 2}))
    assert only(run, "TD-R006", -9).title.startswith("rank 1 does not come to backward, where rank 0 has waited")


def test_the_root_of_a_chain_is_named(stream):
    run = stream()
    zero, one, two = ranks(run, 3, steps=2)
    run.emit(zero, quiet(run, "collective", size=3, number=5, counts={"world": 5, "pair": 1}))
    run.emit(
        one, quiet(run, "collective", group="pair", ranks=[1, 2], number=2, counts={"world": 4, "pair": 2}, size=2)
    )
    run.emit(two, quiet(run, "elsewhere", counts={"world": 4, "pair": 1}))
    assert only(run, "TD-R006", -9).rank == 2


def test_a_rank_outside_the_group_is_not_missed(stream):
    run = stream()
    folders = ranks(run, 3, steps=2)
    for folder in folders[:2]:
        run.emit(folder, quiet(run, "collective", group="7", ranks=[0, 1], number=5, counts={"7": 5}))
    run.emit(folders[2], quiet(run, "elsewhere", counts={}))
    assert "TD-R006" not in run.codes(-9)


def test_quiet_at_another_time_is_no_reason(stream):
    run = stream()
    zero, one = ranks(run, 2, steps=2)
    run.emit(one, quiet(run, "elsewhere", since=-100.0, counts={"world": 4}))
    run.emit(one, seen("RESUMED", 3, t=run.t - 50, quiet_s=50.0, op="", began_t=run.t - 100))
    run.emit(zero, quiet(run, "collective", number=5, counts={"world": 5}))
    run.emit(zero, resumed(run, 40.0))
    close(run, [zero, one])
    assert run.codes() == []


def test_a_rank_that_left_is_named_at_the_end(stream):
    run = stream()
    zero, one = ranks(run, 2, steps=2)
    run.end(one, 2)
    run.emit(zero, quiet(run, "collective", number=5, counts={"world": 5}))
    found = only(run, "TD-R006", -9)
    assert found.title == "rank 1 does not come to all_reduce, where rank 0 has waited for 31 s since step 3"
    assert "rank 1: step 2, ended" in found.evidence


def test_a_rank_that_never_came_up(stream):
    run = stream()
    zero = run.rank(0, world=2)
    run.emit(zero, quiet(run, "init", step=1, size=2))
    found = only(run, "TD-R006", -9)
    assert found.rank == 1 and "init_process_group" in found.title and "rank 1: never took a step" in found.evidence


def test_several_that_wait_share_a_finding(stream):
    run = stream()
    folders = ranks(run, 4, steps=2)
    for folder in (folders[0], folders[2], folders[3]):
        run.emit(folder, quiet(run, "collective", number=5, counts={"world": 5}, size=4))
    run.emit(folders[1], quiet(run, "elsewhere", counts={"world": 4}))
    assert "where ranks 0, 2-3 have waited" in only(run, "TD-R006", -9).title


def test_the_order_of_reading_changes_nothing(stream):
    run = stream()
    hang(run, went_on=True)
    rows = [(folder, event) for folder, event in run.log if isinstance(event, Observation)]
    told = set()
    for seed in range(6):
        judge = RuleEngine(run.run)
        mixed: dict[str, list[Event]] = {}
        for folder, event in rows:
            mixed.setdefault(folder, []).append(event)
        chance = random.Random(seed)
        while any(mixed.values()):
            folder = chance.choice([name for name, left in mixed.items() if left])
            judge.feed(ProcessDir(run.run, run.run.path / folder), mixed[folder].pop(0))
        told.add(tuple((finding.title, finding.severity) for finding in judge.finish(0).findings))
    assert len(told) == 1


def test_foreign_observations_are_left_alone(one):
    run, rank = one
    run.emit(rank, Observation(probe="other", part="ORDER", values={}), Observation(probe="other", part="QUIET"))
    run.end(rank, 0)
    assert run.codes() == [] and {"TD-R005", "TD-R006"} <= set(RULES.names())
