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


def make_observation(part: str, step: int, t: float = 0.0, **values: Any) -> Observation:
    """One observation of the probe."""
    return Observation(t=t, probe="distributed", flag="DISTRIBUTED", part=part, step=step, text="-", values=values)


def compute_crc(calls: Iterable[str]) -> str:
    return f"{hash(tuple(calls)) & 0xFFFFFFFF:08x}"


def make_chunk(
    first: int, calls: list[str], steps: tuple[int, int] = (1, 1), spelt: bool = True
) -> tuple[list[Any], Any]:
    """A mark and the text of its calls."""
    name = compute_crc(calls)
    return [first, first + len(calls) - 1, name, *steps], ({name: [[call, 1] for call in calls]} if spelt else {})


def make_order(*chunks: Any, size: int = 2, group: str = "world", since: int = 0, **more: Any) -> Observation:
    """What a rank writes of one group."""
    texts: dict[str, Any] = {}
    for _, text in chunks:
        texts.update(text)
    row = {"group": group, "size": size, "since": since, "marks": [mark for mark, _ in chunks], "chunks": texts, **more}
    return make_observation("ORDER", chunks[-1][0][4], groups=[row])


def begin_ranks(run: Stream, count: int, steps: int = 5) -> list[str]:
    folders = [run.begin_rank(rank, world=count) for rank in range(count)]
    for folder in folders:
        run.emit_steps(folder, [2.0] * steps)
    return folders


def end_ranks(run: Stream, folders: list[str]) -> None:
    for folder in folders:
        run.end_process(folder, 5)


def find_only(run: Stream, code: str, exit_code: int = 0) -> Finding:
    (found,) = [finding for finding in run.judge_stream(exit_code).findings if finding.code == code]
    return found


# TD-R005


def test_the_first_call_that_differs_is_named(make_stream):
    run = make_stream()
    zero, one = begin_ranks(run, 2)
    run.emit_events(
        zero, make_order(make_chunk(1, ["barrier"]), make_chunk(2, ["all_reduce float32[8]", "barrier"], (2, 2)))
    )
    run.emit_events(
        one, make_order(make_chunk(1, ["barrier"]), make_chunk(2, ["broadcast float32[8]", "barrier"], (2, 2)))
    )
    end_ranks(run, [zero, one])
    found = find_only(run, "TD-R005")
    assert found.title == (
        "rank 1 called broadcast float32[8] where rank 0 called all_reduce float32[8]:"
        " call 2 on the world's group, step 2"
    )
    assert (found.rank, found.first_step, found.severity) == (1, 2, "error")


def test_it_is_said_while_the_run_goes_on(make_stream):
    run = make_stream()
    zero, one = begin_ranks(run, 2)
    run.emit_events(one, make_order(make_chunk(1, ["barrier"])))
    run.emit_events(zero, make_order(make_chunk(1, ["all_reduce int64[1]"])))
    assert [found.code for found in run.list_live_findings()] == ["TD-R005"]


def test_the_odd_one_of_several_is_named(make_stream):
    run = make_stream()
    folders = begin_ranks(run, 4)
    for rank, folder in enumerate(folders):
        run.emit_events(folder, make_order(make_chunk(1, ["scatter float32" if rank == 2 else "barrier"]), size=4))
    end_ranks(run, folders)
    assert find_only(run, "TD-R005").title.startswith("rank 2 called scatter float32 where ranks 0-1, 3 called barrier")


def test_equal_orders_are_fine(make_stream):
    run = make_stream()
    folders = begin_ranks(run, 2)
    for folder in folders:
        run.emit_events(
            folder, make_order(make_chunk(1, ["barrier"]), make_chunk(2, ["all_reduce float32[8]"] * 4, (1, 3)))
        )
        run.emit_events(folder, make_order(make_chunk(6, ["barrier"], (4, 4))))
    end_ranks(run, folders)
    assert run.judge_codes() == []


def test_one_that_is_ahead_is_not_out_of_step(make_stream):
    run = make_stream()
    zero, one = begin_ranks(run, 2)
    run.emit_events(zero, make_order(make_chunk(1, ["barrier"]), make_chunk(2, ["barrier", "barrier"])))
    run.emit_events(one, make_order(make_chunk(1, ["barrier"]), make_chunk(2, ["barrier"])))
    end_ranks(run, [zero, one])
    assert run.judge_codes() == []


def test_a_tail_gives_way_to_its_chunk(make_stream):
    run = make_stream()
    zero, one = begin_ranks(run, 2)
    run.emit_events(zero, make_order(make_chunk(1, ["barrier"])))
    run.emit_events(zero, make_order(make_chunk(1, ["barrier", "all_reduce int64[1]"])))
    run.emit_events(one, make_order(make_chunk(1, ["barrier", "all_reduce int64[1]"])))
    end_ranks(run, [zero, one])
    assert run.judge_codes() == []


def test_a_rank_that_hangs_has_told_enough(make_stream):
    run = make_stream()
    zero, one = begin_ranks(run, 2)
    run.emit_events(zero, make_order(make_chunk(1, ["barrier", "all_reduce float32[8]", "barrier", "barrier"])))
    run.emit_events(one, make_order(make_chunk(1, ["barrier", "all_reduce float32[9]"])))
    found = find_only(run, "TD-R005", -9)
    assert "rank 1 called all_reduce float32[9] where rank 0 called all_reduce float32[8]: call 2" in found.title


def test_a_rank_that_wrote_nothing_is_left_out(make_stream):
    run = make_stream()
    folders = begin_ranks(run, 3)
    run.emit_events(folders[0], make_order(make_chunk(1, ["barrier"]), size=3))
    run.emit_events(folders[1], make_order(make_chunk(1, ["broadcast int64[1]"]), size=3))
    end_ranks(run, folders)
    assert "rank 1 called broadcast" in find_only(run, "TD-R005").title


def test_calls_too_many_to_spell_out(make_stream):
    run = make_stream()
    zero, one = begin_ranks(run, 2)
    run.emit_events(zero, make_order(make_chunk(65, ["a"] * 64, (10, 12), spelt=False)))
    run.emit_events(one, make_order(make_chunk(65, ["b"] * 64, (10, 12), spelt=False)))
    end_ranks(run, [zero, one])
    assert find_only(run, "TD-R005").title == (
        "rank 1 and rank 0 called different collectives: one of calls 65 to 128 on the world's group,"
        " between steps 10 and 12"
    )


def test_what_was_spelt_out_before_is_known(make_stream):
    run = make_stream()
    zero, one = begin_ranks(run, 2)
    for folder in (zero, one):
        run.emit_events(folder, make_order(make_chunk(1, ["barrier"] * 4), make_chunk(5, ["all_gather int64"] * 4)))
    run.emit_events(zero, make_order(make_chunk(9, ["barrier"] * 4, spelt=False)))
    run.emit_events(one, make_order(make_chunk(9, ["all_gather int64"] * 4, spelt=False)))
    end_ranks(run, [zero, one])
    assert "rank 1 called all_gather int64 where rank 0 called barrier: call 9" in find_only(run, "TD-R005").title


@pytest.mark.parametrize("more", [{"since": 16}, {"group": "7"}, {"ranks": [1, 2]}])
def test_what_counts_from_elsewhere_is_not_compared(make_stream, more):
    run = make_stream()
    zero, one = begin_ranks(run, 2)
    run.emit_events(zero, make_order(make_chunk(1, ["barrier"])))
    run.emit_events(one, make_order(make_chunk(1, ["broadcast int64[1]"]), **more))
    end_ranks(run, [zero, one])
    assert run.judge_codes() == []


def test_a_restart_is_compared_among_itself(make_stream):
    run = make_stream()
    zero, _ = begin_ranks(run, 2)
    again = run.begin_rank(1, world=2, attempt=1)
    run.emit_events(zero, make_order(make_chunk(1, ["barrier"])))
    run.emit_events(again, make_order(make_chunk(1, ["broadcast int64[1]"])))
    assert "TD-R005" not in run.judge_codes(1)


@pytest.mark.parametrize("differ", [False, True])
def test_ranks_of_one_round_are_compared_whatever_the_numbers_of_their_folders(make_stream, differ):
    """Rank 1 died before its first step, so its first folder is of the restart."""
    run = make_stream()
    counted = [{"env": {"TORCHELASTIC_RESTART_COUNT": str(count)}} for count in (0, 1)]
    before = run.begin_rank(0, world=2, **counted[0])
    zero, one = run.begin_rank(0, 2, 1, **counted[1]), run.begin_rank(1, 2, 0, **counted[1])
    run.emit_events(before, make_order(make_chunk(1, ["barrier"])))
    run.emit_events(zero, make_order(make_chunk(1, ["broadcast int64[1]"])))
    run.emit_events(one, make_order(make_chunk(1, ["broadcast int64[2]" if differ else "broadcast int64[1]"])))
    end_ranks(run, [zero, one])
    told = [found.title for found in run.judge_stream().findings if found.code == "TD-R005"]
    what = (
        "rank 1 called broadcast int64[2] where rank 0 called broadcast int64[1]: call 1 on the world's group, step 1"
    )
    assert told == [what] * differ


def test_a_difference_is_told_once(make_stream):
    run = make_stream()
    zero, one = begin_ranks(run, 2)
    for first in range(1, 6):
        run.emit_events(zero, make_order(make_chunk(first, ["barrier"], (first, first))))
        run.emit_events(one, make_order(make_chunk(first, ["broadcast int64[1]"], (first, first))))
    end_ranks(run, [zero, one])
    assert find_only(run, "TD-R005").first_step == 1


# TD-R006


def make_quiet(run: Stream, state: str, step: int = 3, since: float = 0.0, **values: Any) -> Observation:
    """A rank that has been quiet for 31 s."""
    where = {"where": "train.py:88 in evaluate" if state == "elsewhere" else "train.py:41 in main"}
    name = f"stacks_step{step:08d}.json"
    more = {"op": "all_reduce", "group": "world", "size": 2} if state == "collective" else {"op": ""}
    began_t = run.t + since
    return make_observation(
        "QUIET",
        step,
        t=began_t + 31,
        **{"state": state, "began_t": began_t, "quiet_s": 31.0, "stacks": name, **where, **more, **values},
    )


def make_resumed(run: Stream, seconds: float, step: int = 3) -> Observation:
    return make_observation("RESUMED", step, t=run.t + seconds, quiet_s=seconds, op="", began_t=run.t)


def emit_hang(run: Stream, went_on: bool) -> list[str]:
    zero, one = begin_ranks(run, 2, steps=2)
    run.emit_events(zero, make_quiet(run, "collective", number=5, counts={"world": 5}))
    run.emit_events(one, make_quiet(run, "elsewhere", counts={"world": 4}))
    if went_on:
        for folder in (zero, one):
            run.emit_events(folder, make_resumed(run, 40.0))
            run.end_process(folder, 5)
    return [zero, one]


def test_a_rank_that_first_steps_after_a_restart_is_waited_for(make_stream):
    run = make_stream()
    run.begin_rank(0, world=2)
    zero, one = (run.begin_rank(rank, 2, 1 - rank, env={"SLURM_RESTART_COUNT": "1"}) for rank in (0, 1))
    run.emit_events(zero, make_quiet(run, "collective", number=5, counts={"world": 5}))
    run.emit_events(one, make_quiet(run, "elsewhere", counts={"world": 4}))
    assert find_only(run, "TD-R006", 1).title.startswith("rank 1 does not come to all_reduce, where rank 0 has waited")


def test_the_rank_that_does_not_come_is_named(make_stream):
    run = make_stream()
    emit_hang(run, went_on=False)
    found = find_only(run, "TD-R006", -9)
    assert found.title == (
        "rank 1 does not come to all_reduce, where rank 0 has waited for 31 s since step 3:"
        " it is at train.py:88 in evaluate"
    )
    assert (found.severity, found.rank) == ("error", 1)
    assert "stacks: rank0001/stacks_step00000003.json, rank0000/stacks_step00000003.json" in found.evidence


def test_it_is_said_while_they_wait(make_stream):
    run = make_stream()
    emit_hang(run, went_on=False)
    assert [(found.code, found.severity) for found in run.list_live_findings()] == [("TD-R006", "warning")]


def test_a_wait_that_ended_is_told_as_such(make_stream):
    run = make_stream()
    emit_hang(run, went_on=True)
    found = find_only(run, "TD-R006")
    assert found.severity == "info"
    assert found.title.startswith("rank 1 came late to all_reduce, where rank 0 waited for 40 s at step 3: it was at")


def test_a_step_is_an_end_too(make_stream):
    run = make_stream()
    folders = emit_hang(run, went_on=False)
    for folder in folders:
        run.t += 100
        run.emit_steps(folder, [2.0], first=3)
        run.end_process(folder, 5)
    assert find_only(run, "TD-R006").severity == "info"


def test_told_again_it_is_one_wait(make_stream):
    run = make_stream()
    zero, _ = emit_hang(run, went_on=False)
    run.emit_events(zero, make_quiet(run, "collective", since=1.0, number=5, counts={"world": 5}, quiet_s=62.0))
    assert "has waited for 62 s" in find_only(run, "TD-R006", -9).title


@pytest.mark.parametrize("states", [("elsewhere", "elsewhere"), ("device", "device"), ("backward", "backward")])
def test_ranks_that_all_work_are_fine(make_stream, states):
    run = make_stream()
    folders = begin_ranks(run, 2, steps=2)
    for folder, state in zip(folders, states, strict=True):
        run.emit_events(folder, make_quiet(run, state, counts={"world": 4}))
    for folder in folders:
        run.emit_events(folder, make_resumed(run, 40.0))
    end_ranks(run, folders)
    assert run.judge_codes() == []


def test_all_in_the_same_call_is_a_slow_network(make_stream):
    run = make_stream()
    folders = begin_ranks(run, 2, steps=2)
    for folder in folders:
        run.emit_events(folder, make_quiet(run, "collective", number=5, counts={"world": 5}))
    for folder in folders:
        run.emit_events(folder, make_resumed(run, 40.0))
    end_ranks(run, folders)
    assert run.judge_codes() == []


def test_two_that_met_in_different_functions(make_stream):
    run = make_stream()
    zero, one = begin_ranks(run, 2, steps=2)
    run.emit_events(zero, make_quiet(run, "collective", number=5, counts={"world": 5}))
    run.emit_events(one, make_quiet(run, "collective", op="broadcast", number=5, counts={"world": 5}))
    found = find_only(run, "TD-R006", -9)
    assert found.rank == 1 and "rank 1 in broadcast (train.py:41 in main)" in found.title


def test_one_that_is_a_call_behind(make_stream):
    run = make_stream()
    zero, one = begin_ranks(run, 2, steps=2)
    run.emit_events(zero, make_quiet(run, "collective", number=5, counts={"world": 5}))
    run.emit_events(one, make_quiet(run, "collective", op="barrier", number=4, counts={"world": 4}))
    assert find_only(run, "TD-R006", -9).title.startswith("rank 1 does not come to all_reduce, where rank 0 has waited")


def test_on_accelerators_the_calls_begun_tell(make_stream):
    run = make_stream()
    zero, one = begin_ranks(run, 2, steps=2)
    run.emit_events(zero, make_quiet(run, "device", counts={"world": 5}))
    run.emit_events(one, make_quiet(run, "device", counts={"world": 4}))
    assert find_only(run, "TD-R006", -9).rank == 1


def test_the_reducer_waits_in_backward(make_stream):
    run = make_stream()
    zero, one = begin_ranks(run, 2, steps=2)
    run.emit_events(zero, make_quiet(run, "backward", counts={"world": 2}))
    run.emit_events(one, make_quiet(run, "elsewhere", counts={"world": 2}))
    assert find_only(run, "TD-R006", -9).title.startswith("rank 1 does not come to backward, where rank 0 has waited")


def test_the_root_of_a_chain_is_named(make_stream):
    run = make_stream()
    zero, one, two = begin_ranks(run, 3, steps=2)
    run.emit_events(zero, make_quiet(run, "collective", size=3, number=5, counts={"world": 5, "pair": 1}))
    run.emit_events(
        one, make_quiet(run, "collective", group="pair", ranks=[1, 2], number=2, counts={"world": 4, "pair": 2}, size=2)
    )
    run.emit_events(two, make_quiet(run, "elsewhere", counts={"world": 4, "pair": 1}))
    assert find_only(run, "TD-R006", -9).rank == 2


def test_a_rank_outside_the_group_is_not_missed(make_stream):
    run = make_stream()
    folders = begin_ranks(run, 3, steps=2)
    for folder in folders[:2]:
        run.emit_events(folder, make_quiet(run, "collective", group="7", ranks=[0, 1], number=5, counts={"7": 5}))
    run.emit_events(folders[2], make_quiet(run, "elsewhere", counts={}))
    assert "TD-R006" not in run.judge_codes(-9)


def test_quiet_at_another_time_is_no_reason(make_stream):
    run = make_stream()
    zero, one = begin_ranks(run, 2, steps=2)
    run.emit_events(one, make_quiet(run, "elsewhere", since=-100.0, counts={"world": 4}))
    run.emit_events(one, make_observation("RESUMED", 3, t=run.t - 50, quiet_s=50.0, op="", began_t=run.t - 100))
    run.emit_events(zero, make_quiet(run, "collective", number=5, counts={"world": 5}))
    run.emit_events(zero, make_resumed(run, 40.0))
    end_ranks(run, [zero, one])
    assert run.judge_codes() == []


def test_a_rank_that_left_is_named_at_the_end(make_stream):
    run = make_stream()
    zero, one = begin_ranks(run, 2, steps=2)
    run.end_process(one, 2)
    run.emit_events(zero, make_quiet(run, "collective", number=5, counts={"world": 5}))
    found = find_only(run, "TD-R006", -9)
    assert found.title == "rank 1 does not come to all_reduce, where rank 0 has waited for 31 s since step 3"
    assert "rank 1: step 2, ended" in found.evidence


def test_a_rank_that_never_came_up(make_stream):
    run = make_stream()
    zero = run.begin_rank(0, world=2)
    run.emit_events(zero, make_quiet(run, "init", step=1, size=2))
    found = find_only(run, "TD-R006", -9)
    assert found.rank == 1 and "init_process_group" in found.title and "rank 1: never took a step" in found.evidence


def test_who_waits_for_another_host_with_a_directory_of_its_own_blames_nobody(make_stream):
    run = make_stream()
    zero = run.begin_rank(0, world=2, local_rank=0, env={"LOCAL_WORLD_SIZE": "1"})
    run.emit_steps(zero, [2.0, 2.0])
    run.emit_events(zero, make_quiet(run, "collective", number=5, counts={"world": 5}))
    found = find_only(run, "TD-R006", -9)
    assert found.rank is None and found.severity == "error"
    assert found.title == (
        "rank 0 has waited 31 s in all_reduce since step 3 for rank 1 of another host (not in this run directory)"
    )
    assert "tdbg join" in found.try_next


def test_several_that_wait_share_a_finding(make_stream):
    run = make_stream()
    folders = begin_ranks(run, 4, steps=2)
    for folder in (folders[0], folders[2], folders[3]):
        run.emit_events(folder, make_quiet(run, "collective", number=5, counts={"world": 5}, size=4))
    run.emit_events(folders[1], make_quiet(run, "elsewhere", counts={"world": 4}))
    assert "where ranks 0, 2-3 have waited" in find_only(run, "TD-R006", -9).title


def test_the_order_of_reading_changes_nothing(make_stream):
    run = make_stream()
    emit_hang(run, went_on=True)
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


def test_foreign_observations_are_left_alone(one_rank):
    run, rank = one_rank
    run.emit_events(rank, Observation(probe="other", part="ORDER", values={}), Observation(probe="other", part="QUIET"))
    run.end_process(rank, 0)
    assert run.judge_codes() == [] and {"TD-R005", "TD-R006"} <= set(RULES.names())


# at every level: the probe `hang`


def make_hung(run: Stream, state: str, step: int = 3, **values: Any) -> Observation:
    """The same as `make_quiet`, from the probe that every level has."""
    found = make_quiet(run, state, step, **values)
    return Observation(
        t=found.t, probe="hang", flag="DISTRIBUTED", part="QUIET", step=step, text="-", values=found.values
    )


@pytest.mark.parametrize("make", [make_quiet, make_hung])
def test_a_quiet_rank_has_done_the_steps_before_the_one_it_is_in(make_stream, make):
    """Records stop where the budget leaves them out; the probe that tells of the standstill knows the step."""
    run = make_stream()
    for folder in begin_ranks(run, 2):
        run.emit_events(folder, make(run, "collective", 101, number=5, counts={"world": 5}))
    verdict = run.judge_stream(-15)
    assert [row["steps"] for row in verdict.ranks] == [100, 100]
    assert "100 steps" in verdict.format_headline()


@pytest.mark.parametrize(
    ("activity", "says"),
    [
        ("sleep", "it is asleep at train.py:"),
        ("lock", "it is waiting for a lock at train.py:"),
        ("loader", "it is waiting for the loader at train.py:"),
        ("checkpoint", "it is saving or loading a checkpoint at train.py:"),
        ("still", "it is at train.py:"),
        ("of a later tdbg", "it is at train.py:"),
    ],
)
def test_what_the_missing_rank_does_is_said(make_stream, activity, says):
    run = make_stream()
    zero, one = begin_ranks(run, 2)
    run.emit_events(zero, make_hung(run, "collective", number=5, counts={"world": 5}, activity="waiting"))
    run.emit_events(one, make_hung(run, "elsewhere", counts={"world": 4}, activity=activity, where="train.py:88 in f"))
    found = find_only(run, "TD-R006", -15)
    assert found.rank == 1 and says in found.title


@pytest.mark.parametrize(("alike", "named"), [((0, 19), 0), ((19, 0), 1), ((3, 3), 1)])
def test_of_two_different_calls_neither_is_blamed(make_stream, alike, named):
    """A rank that left the loop is in a barrier that it has not called before; or it evaluates, and the other does not."""
    run = make_stream()
    zero, one = begin_ranks(run, 2)
    for folder, op, count in ((zero, "barrier", alike[0]), (one, "all_reduce", alike[1])):
        run.emit_events(folder, make_hung(run, "collective", op=op, number=5, counts={"world": 5}, alike=count))
    found = find_only(run, "TD-R006", -15)
    assert found.rank == named
    calls = {0: "in barrier (train.py:", 1: "in all_reduce (train.py:"}
    assert found.title.startswith("ranks 0-1 wait for each other in different collectives, for 31 s since step 3: ")
    assert all(f"rank {rank} {call}" in found.title for rank, call in calls.items())
    assert (" never before" in found.cause) == (alike != (3, 3)) and "`tdbg stacks`" in found.try_next


@pytest.mark.parametrize("odd", [0, 2, 3])
@pytest.mark.parametrize("alike", [(0, 19), (19, 0)])
def test_of_four_ranks_the_one_in_another_call_is_named(make_stream, odd, alike):
    """However often each was made: three that evaluate for the first time are not wrong."""
    run = make_stream()
    folders = begin_ranks(run, 4)
    for rank, folder in enumerate(folders):
        op, count = ("barrier", alike[0]) if rank == odd else ("all_reduce", alike[1])
        run.emit_events(folder, make_hung(run, "collective", op=op, number=5, counts={"world": 5}, alike=count))
    found = find_only(run, "TD-R006", -15)
    assert found.rank == odd and found.title.startswith(f"rank {odd} does not come to all_reduce, where ranks ")


@pytest.mark.parametrize("resumed", [False, True])
def test_who_was_ended_while_it_hung_is_a_note(make_stream, resumed):
    run = make_stream()
    zero, one = begin_ranks(run, 2)
    run.emit_events(zero, make_hung(run, "collective", number=5, counts={"world": 5}))
    run.emit_events(one, make_hung(run, "elsewhere", counts={"world": 4}))
    if resumed:
        for folder in (zero, one):
            run.emit_events(
                folder, Observation(t=run.t, probe="hang", flag="", part="RESUMED", step=3, text="-", values={})
            )
    for rank in (0, 1):
        run.record_child_exit(rank, -9)
    found = {finding.code: finding for finding in run.judge_stream(1).findings}
    assert found["TD-R002"].severity == ("error" if resumed else "info")
    assert any("no progress for 31 s" in line for line in found["TD-R002"].evidence) == (not resumed)


@pytest.mark.parametrize("ranks", [2, 4])
def test_who_calls_in_another_group_is_named_and_of_two_neither(make_stream, ranks):
    run = make_stream()
    folders = begin_ranks(run, ranks)
    for rank, folder in enumerate(folders):
        if rank:
            call = {"group": "world", "number": 5, "counts": {"world": 5}}
        else:
            call = {"group": "pair", "number": 1, "counts": {"world": 4, "pair": 1}}
        run.emit_events(folder, make_hung(run, "collective", op="all_reduce", size=ranks, **call))
    found = find_only(run, "TD-R006", -15)
    if ranks == 2:
        assert found.title.startswith("ranks 0-1 wait for each other in different collectives, for ")
    else:
        assert found.rank == 0 and found.title.startswith(
            "rank 0 does not come to all_reduce, where ranks 1-3 have waited"
        )


def test_a_hang_lasts_until_the_rank_is_ended(make_stream):
    """Its last word was after 31 s, and it is told at 60 s next: it was ended in between."""
    run = make_stream()
    zero, one = begin_ranks(run, 2)
    run.emit_events(zero, make_hung(run, "collective", step=101, number=5, counts={"world": 5}))
    run.emit_events(one, make_hung(run, "elsewhere", step=101, counts={"world": 4}))
    run.t += 50
    for rank in (0, 1):
        run.record_child_exit(rank, -9)
    verdict = run.judge_stream(1)
    found = {finding.code: finding for finding in verdict.findings}
    assert "rank 0 has waited for 50 s since step 101" in found["TD-R006"].title
    assert any("no progress for 50 s" in line for line in found["TD-R002"].evidence)
    assert [row["steps"] for row in verdict.ranks] == [100, 100], "it is in step 101, however few are on record"


ALL_QUIET = {"quiet_s": 62.0, "limit_s": 15.0}


def test_that_no_rank_makes_progress_is_told_after_four_times_the_limit(make_stream):
    run = make_stream()
    zero, one = begin_ranks(run, 2)
    for folder in (zero, one):
        run.emit_events(folder, make_hung(run, "elsewhere", counts={"world": 4}, activity="loader", limit_s=15.0))
    assert not run.list_live_findings(), "all of them may just be at work"
    for folder in (zero, one):
        run.emit_events(
            folder,
            make_hung(run, "elsewhere", counts={"world": 4}, activity="loader", where="a.py:9 in main", **ALL_QUIET),
        )
    (live,) = run.list_live_findings()
    assert live.severity == "warning" and live.rank is None
    assert (
        live.title
        == "no rank has made progress for 62 s since step 3: all are waiting for the loader at a.py:9 in main"
    )


def test_one_quiet_rank_of_two_is_not_all(make_stream):
    run = make_stream()
    zero, _ = begin_ranks(run, 2)
    run.emit_events(zero, make_hung(run, "elsewhere", counts={"world": 4}, **ALL_QUIET))
    assert not run.list_live_findings()


def test_a_call_that_all_are_in_and_that_does_not_end(make_stream):
    run = make_stream()
    for folder in begin_ranks(run, 2):
        run.emit_events(folder, make_hung(run, "collective", number=5, counts={"world": 5}, **ALL_QUIET))
    (live,) = run.list_live_findings()
    assert live.title.startswith("no rank has made progress for 62 s since step 3: all are in all_reduce (")
    assert "the network" in live.cause


@pytest.mark.parametrize(("code", "severity"), [(0, "info"), (1, "error")])
def test_a_wait_before_the_end_is_over_if_the_run_ends_well(make_stream, code, severity):
    """No step comes after the last barrier, and the process may be gone before it is looked at again."""
    run = make_stream()
    zero, one = begin_ranks(run, 2)
    run.emit_events(zero, make_hung(run, "collective", 9, number=5, counts={"world": 5}))
    run.emit_events(one, make_hung(run, "elsewhere", 9, counts={"world": 4}, activity="checkpoint"))
    run.t += 30.0
    run.end_process(zero, 9)
    run.end_process(one, 9)
    (finding,) = (one for one in run.judge_stream(code).findings if one.code == "TD-R006")
    assert finding.severity == severity
