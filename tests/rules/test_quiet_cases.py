"""TD-R006 over time and over many ranks: each hang is told while it lasts, and at the same verdict in little time."""

import random
import time
from typing import Any

import pytest
from streams import HOST, Stream

from tdbg.core.events import ChildExit, Finding, Note, Observation, ProbeOff, Start, Step
from tdbg.core.observations.hang import HungRank
from tdbg.core.rundir import ProcessDir, RunDir
from tdbg.rules._quiet_cases import Case, Episode, KindIndex, OtherRanks, find_cases
from tdbg.rules.r006_rank_quiet import MAX_FINDINGS, RankQuiet
from tdbg.rules.rule_engine import RuleEngine
from tests.rules.quiet_oracle import find_cases_slowly

CODE = "TD-R006"
STATES = ("collective", "collective", "collective", "elsewhere", "elsewhere", "wait", "backward", "init", "device")
GROUPS: dict[str, list[int] | None] = {"world": None, "pair": [0, 1], "odd": [1, 3]}


def draw_episode(draw: random.Random, rank: int, began_t: float) -> Episode:
    """A rank that is quiet, in one of the ways of a small job."""
    state = draw.choice(STATES)
    group = draw.choice([name for name, ranks in GROUPS.items() if ranks is None or rank in ranks])
    in_call = state in ("collective", "wait")
    number = draw.choice([4, 5, None]) if in_call else None
    counts = draw.choice([None, {"world": draw.choice([4, 5])}, {"world": 5, "pair": draw.choice([0, 1])}])
    if number and counts is not None:
        counts[group] = number
    seen = HungRank(
        state=state,
        op=draw.choice(["all_reduce", "barrier"]) if in_call else "",
        group=group if in_call else None,
        ranks=GROUPS[group] if in_call else None,
        size=draw.choice([2, 4]) if state in ("collective", "init") else None,
        number=number,
        counts=counts,
        alike=draw.choice([0, 3, None]),
        quiet_s=15.0,
        limit_s=15.0,
        where=f"train.py:{rank}",
    )
    seen.step = draw.choice([3, 4])
    lasted_s = draw.choice([15.0, 16.0, 40.0])
    over_t = began_t + lasted_s if draw.random() < 0.3 else None
    return Episode(rank, draw.choice([0, 0, 0, 1]), f"rank{rank}", began_t, began_t + 15.0, seen, lasted_s, over_t)


def describe_case(case: Case) -> tuple[object, ...]:
    waiting, missing = ([id(one) for one in sorted(part, key=lambda one: one.rank)] for part in case[:2])
    return waiting, missing, dict(case.silent), case.is_mutual, list(case.elsewhere)


@pytest.mark.parametrize("seed", range(40))
def test_waits_that_are_judged_together_are_judged_as_each_by_itself(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(60):
        ranks = draw.choice([2, 3, 4, 6])
        episodes = []
        for rank in range(ranks):
            for number in range(draw.choice([0, 1, 1, 1, 2])):
                episodes.append(draw_episode(draw, rank, 100.0 * number + draw.choice([0.0, 0.5, 14.0, 40.0])))
        other_ranks = OtherRanks(dict.fromkeys(range(ranks), "ended"), frozenset(draw.choice([(), (ranks - 1,)])))
        for over in (True, False):
            expected = sorted({repr(describe_case(case)) for case in find_cases_slowly(episodes, other_ranks, over)})
            assert sorted({repr(describe_case(case)) for case in find_cases(episodes, other_ranks, over)}) == expected


@pytest.mark.parametrize("seed", range(20))
def test_no_event_that_opens_a_case_is_passed_over(seed: int) -> None:
    """What is asked at each event is cheap: it may ask for a judgement in vain, and never leaves one out."""
    draw = random.Random(seed)
    for _ in range(60):
        index, read, opened = KindIndex(), [], False
        for rank in draw.sample(range(4), 4):
            episode = draw_episode(draw, rank, draw.choice([0.0, 0.5, 14.0, 40.0]))
            episode.over_t = None
            read.append([episode])
            opened = index.may_open_case(episode, read) or opened
            if list(find_cases([one for kept in read for one in kept], OtherRanks(), False)):
                assert opened


# one after the other


def emit_wait(run: Stream, folders: list[str], late: int, step: int, *, ends: bool, number: int = 5) -> None:
    """All ranks but one wait in a collective. ends: it comes at last."""
    began_t = run.t
    for rank, folder in enumerate(folders):
        values: dict[str, Any] = {"state": "elsewhere", "counts": {"world": number - 1}, "activity": "sleep"}
        if rank != late:
            call = {"op": "all_reduce", "group": "world", "size": len(folders), "number": number}
            values = {"state": "collective", "counts": {"world": number}, **call}
        values |= {"began_t": began_t, "quiet_s": 16.0, "limit_s": 15.0, "where": f"train.py:{rank} in main"}
        run.emit_events(folder, make_seen("QUIET", step, began_t + 16 + 0.01 * rank, values))
    run.t = began_t + 25
    for folder in folders if ends else ():
        run.emit_events(folder, make_seen("RESUMED", step, run.t, {"quiet_s": 25.0}))
        run.emit_steps(folder, [2.0], first=step)


def make_seen(part: str, step: int, t: float, values: dict[str, Any]) -> Observation:
    return Observation(t=t, probe="hang", flag="DISTRIBUTED", part=part, step=step, text="-", values=values)


def begin_ranks(run: Stream, count: int) -> list[str]:
    folders = [run.begin_rank(rank, world=count) for rank in range(count)]
    for folder in folders:
        run.emit_steps(folder, [2.0, 2.0])
    return folders


def find_hangs(found: list[Finding]) -> list[Finding]:
    return sorted((one for one in found if one.code == CODE), key=lambda one: one.first_step or 0)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("before", [1, 2])
def test_a_hang_after_waits_that_ended_is_told_while_it_lasts(make_stream: Any, ranks: int, before: int) -> None:
    run = make_stream()
    folders = begin_ranks(run, ranks)
    for number in range(before):
        emit_wait(run, folders, number % ranks, 100 * (number + 1), ends=True, number=number + 5)
        run.t += 1000
    told_before = len(run.list_live_findings())
    emit_wait(run, folders, ranks - 1, 5000, ends=False, number=50)
    live = run.list_live_findings()[told_before:]
    assert [(one.rank, one.first_step, one.severity) for one in live] == [(ranks - 1, 5000, "warning")]
    found = find_hangs(run.judge_stream(-15).findings)
    assert [one.first_step for one in found] == [*(100 * (number + 1) for number in range(before)), 5000]
    assert [one.severity for one in found] == ["info"] * before + ["error"]
    assert " came late to all_reduce" in found[0].title and " does not come to all_reduce" in found[-1].title


def test_many_waits_that_ended_are_few_findings_and_a_hang_is_told_all_the_same(make_stream: Any) -> None:
    run = make_stream()
    folders = begin_ranks(run, 2)
    for number in range(12):
        emit_wait(run, folders, number % 2, 10 * (number + 1), ends=True, number=number + 5)
        run.t += 100
    emit_wait(run, folders, 1, 5000, ends=False, number=50)
    live = run.list_live_findings()
    assert len(live) == 13 and "since step 5000" in live[-1].title
    found = find_hangs(run.judge_stream(-15).findings)
    assert len(found) == MAX_FINDINGS and [one.severity for one in found].count("error") == 1


@pytest.mark.parametrize("seed", range(6))
def test_in_whatever_order_ranks_are_read_the_verdict_is_the_same(make_stream: Any, seed: int) -> None:
    draw = random.Random(seed)
    run = make_stream()
    folders = begin_ranks(run, 4)
    for number in range(3):
        emit_wait(run, folders, draw.randrange(4), 10 * (number + 1), ends=True, number=number + 5)
        run.t += draw.choice([1, 100])
    emit_wait(run, folders, draw.randrange(4), 90, ends=False, number=50)
    run.record_exit(-15)
    told = set()
    for _ in range(4):
        judge, mixed = RuleEngine(run.run), {}
        for folder, event in run.log:
            mixed.setdefault(folder, []).append(event)
        while any(mixed.values()):
            folder = draw.choice([name for name, left in mixed.items() if left])
            judge.feed(ProcessDir(run.run, run.run.path / folder), mixed[folder].pop(0))
        told.add(tuple((one.title, one.severity) for one in find_hangs(judge.finish(-15).findings)))
    assert len(told) == 1 and len(told.pop()) == MAX_FINDINGS


def test_what_else_comes_while_a_hang_lasts_belongs_to_it(make_stream: Any) -> None:
    """The ranks of another group wait for those that hang, and are told of later."""
    run = make_stream()
    folders = begin_ranks(run, 4)
    for rank, (state, call, counts) in enumerate(
        [
            ("elsewhere", {}, {"world": 4, "a": 1}),
            ("collective", {"op": "all_gather", "group": "a", "ranks": [0, 1], "number": 2}, {"world": 4, "a": 2}),
            ("collective", {"op": "all_reduce", "group": "world", "number": 5, "size": 4}, {"world": 5}),
            ("collective", {"op": "all_reduce", "group": "world", "number": 5, "size": 4}, {"world": 5}),
        ]
    ):
        values = {"state": state, "began_t": run.t, "quiet_s": 16.0, "limit_s": 15.0, "counts": counts, **call}
        run.emit_events(folders[rank], make_seen("QUIET", 7, run.t + 16 + rank, values))
    assert len(run.list_live_findings()) == 1
    (found,) = find_hangs(run.judge_stream(-15).findings)
    assert found.rank == 0


# ranks without a sign of life


def emit_silence(
    run: Stream,
    ranks: int,
    silent: int,
    *,
    state: str = "collective",
    signs: str = "",
    alive_s: float | None = 20.0,
    **start: Any,
) -> list[str]:
    """All but one wait for 256 s. signs: of life that the one gives. start: what the first rank says as it begins."""
    folders = begin_ranks(run, ranks) if state == "collective" else [run.begin_rank(0, world=ranks, **start)] * ranks
    run.t = began_t = run.t + 1
    rows = []
    call = {"op": "all_reduce", "group": "world", "size": ranks, "number": 9, "counts": {"world": 9}}
    for rank in range(ranks) if state == "collective" else [0]:
        for after_s in (16.0, 32.0, 64.0, 128.0, 256.0) if rank != silent else ():
            values = {"state": state, "began_t": began_t, "quiet_s": after_s, "limit_s": 15.0, "alive_s": alive_s}
            values |= call if state == "collective" else {"size": ranks}
            rows.append((began_t + after_s + rank / 100, rank, make_seen("QUIET", 3, 0.0, values)))
    for number in range(1, 13) if signs else ():
        sign = Step(step=3 + number, loss=2.0, phase="eval") if signs == "steps" else make_seen("ALIVE", 3, 0.0, {})
        rows.append((began_t + 21.5 * number, silent, sign))
    for t, rank, event in sorted(rows, key=lambda row: row[0]):
        event.t = t
        run.emit_events(folders[rank], event)
    run.t = began_t + 257
    return folders


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("ends", [True, False])
def test_a_rank_that_writes_nothing_is_named_while_others_wait_for_it(make_stream: Any, ranks: int, ends: bool) -> None:
    run, silent = make_stream(), ranks // 2
    folders = emit_silence(run, ranks, silent)
    (live,) = run.list_live_findings()
    assert live.rank == silent and live.severity == "warning"
    assert "have waited" in live.title or "has waited for 128 s" in live.title
    assert live.title.endswith(": it gave no sign of life")
    where = f"`py-spy dump --pid {1000 + silent}` on {HOST}"
    assert live.try_next == f"rank {silent} wrote no stacks: is its process alive? {where}"
    for folder in folders if ends else ():
        run.emit_events(folder, make_seen("RESUMED", 3, run.t, {"quiet_s": 257.0}))
        run.emit_steps(folder, [2.0], first=3)
        run.end_process(folder, 3)
    (found,) = find_hangs(run.judge_stream(0 if ends else -15).findings)
    assert found.rank == silent and found.severity == ("info" if ends else "error")


def test_a_rank_that_never_came_to_the_process_group_is_named(make_stream: Any) -> None:
    """The launcher started it on this host."""
    run = make_stream()
    emit_silence(run, 2, 1, state="init", local_rank=0, env={"LOCAL_WORLD_SIZE": "2"})
    (live,) = run.list_live_findings()
    assert live.rank == 1 and "where rank 0 has waited for 256 s" in live.title and "init_process_group" in live.title
    (found,) = find_hangs(run.judge_stream(-15).findings)
    assert found.rank == 1 and "rank 1: never took a step" in found.evidence


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("signs", ["steps", "alive"])
def test_a_rank_that_is_at_work_is_not_named(make_stream: Any, ranks: int, signs: str) -> None:
    """It evaluates, saves, compiles, loads, or is in a debugger, for minutes."""
    run = make_stream()
    folders = emit_silence(run, ranks, 1, signs=signs)
    assert not run.list_live_findings()
    for folder in folders:
        run.emit_events(folder, make_seen("RESUMED", 3, run.t, {"quiet_s": 257.0}))
        run.emit_steps(folder, [2.0], first=30)
        run.end_process(folder, 30)
    assert not find_hangs(run.judge_stream(0).findings)


@pytest.mark.parametrize("has_died", [True, False])
def test_who_was_told_to_be_quiet_is_no_rank_without_a_sign_of_life(make_stream: Any, has_died: bool) -> None:
    """Rank 3 computes and is told at 120 and 240 s; the others wait from 250 s on, and are told before it is again."""
    run = make_stream()
    folders, begun_t = begin_ranks(run, 4), run.t
    rows = [(after_s, 3, {"began_t": begun_t, "state": "elsewhere", "counts": {"world": 8}}) for after_s in (120, 240)]
    call = {"op": "all_reduce", "group": "world", "size": 4, "number": 9, "counts": {"world": 9}, "state": "collective"}
    for rank in (0, 1, 2):
        rows += [(250 + after_s, rank, {"began_t": begun_t + 250, **call}) for after_s in (16, 32, 64)]
    for t in range(20, 320, 20) if not has_died else ():
        rows.append((t, 3, {}))
    for after_s, rank, values in sorted(rows, key=lambda row: row[0]):
        run.t = begun_t + after_s
        more = {"quiet_s": run.t - values["began_t"], "limit_s": 15.0, "alive_s": 20.0} if values else {}
        run.emit_events(folders[rank], make_seen("QUIET" if values else "ALIVE", 3, run.t, {**values, **more}))
    if not has_died:
        assert not run.list_live_findings()
    for rank in range(4):
        run.t += 0.1
        run.emit_events("other/launcher-1", ChildExit(t=run.t, host=HOST, pid=1000 + rank, code=-15))
    (found,) = find_hangs(run.judge_stream(-15).findings)
    assert found.rank == 3 and found.title.startswith("rank 3 does not come to all_reduce, where ranks 0-2 have waited")
    assert ": it is at " in found.title


def test_a_finding_that_is_taken_back_is_not_listed_any_more(make_stream: Any) -> None:
    """The signs of life come late, over a slow file system."""
    run = make_stream()
    folders = emit_silence(run, 2, 1)
    judge = RuleEngine(run.run)
    for number in range(1, 13):
        sign = make_seen("ALIVE", 3, run.t - 257 + 21.5 * number, {})
        run.emit_events(folders[1], sign)
    run.emit_events(folders[0], make_seen("RESUMED", 3, run.t, {"quiet_s": 257.0}))
    for folder, event in run.log[:-13]:
        judge.feed(ProcessDir(run.run, run.run.path / folder), event)
    assert [one.rank for one in judge.list_confirmed()] == [1]
    for folder, event in run.log[-13:]:
        judge.feed(ProcessDir(run.run, run.run.path / folder), event)
    assert len(judge.findings) == 1 and not judge.list_confirmed()


@pytest.mark.parametrize(
    "event", [ProbeOff(probe="hang"), Note(code="disk-steps", text="90 % of the disk budget is used")]
)
def test_a_rank_that_can_give_no_signs_is_not_named_for_it(make_stream: Any, event: ProbeOff | Note) -> None:
    """The job goes on."""
    run = make_stream()
    folders = begin_ranks(run, 2)
    event.t = run.t
    run.emit_events(folders[1], event)
    call = {"op": "all_reduce", "group": "world", "size": 2, "number": 9, "counts": {"world": 9}, "alive_s": 20.0}
    began_t = run.t + 1
    for after_s in (16.0, 32.0, 64.0, 128.0, 256.0):
        values = {"state": "collective", "began_t": began_t, "quiet_s": after_s, "limit_s": 15.0, **call}
        run.emit_events(folders[0], make_seen("QUIET", 3, began_t + after_s, values))
    assert not find_hangs(run.list_live_findings())


@pytest.mark.parametrize("skew_s", [0.0, -40.0])
def test_a_clock_that_is_behind_is_no_silence(make_stream: Any, skew_s: float) -> None:
    """What rank 1 writes, at work for 100 s while the other waits, is stamped too early; it is told after 64 s."""
    run = make_stream()
    folders, began_t = begin_ranks(run, 2), run.t + 1
    call = {"op": "all_reduce", "group": "world", "size": 2, "number": 9, "counts": {"world": 9}, "alive_s": 20.0}
    rows = [(20.0 * number, 1, make_seen("ALIVE", 3, began_t + 20.0 * number + skew_s, {})) for number in range(-3, 6)]
    for after_s in (16.0, 32.0, 64.0):
        values = {"state": "collective", "began_t": began_t, "quiet_s": after_s, "limit_s": 15.0, **call}
        rows.append((after_s, 0, make_seen("QUIET", 3, began_t + after_s, values)))
    for _, rank, event in sorted(rows, key=lambda row: row[0]):
        run.emit_events(folders[rank], event)
    assert not run.list_live_findings()


def test_of_an_older_tdbg_no_signs_of_life_are_expected(make_stream: Any) -> None:
    run = make_stream()
    emit_silence(run, 2, 1, alive_s=None)
    assert not run.list_live_findings()


@pytest.mark.parametrize("state", ["collective", "init"])
@pytest.mark.parametrize("start", [{}, {"local_rank": 0, "env": {"LOCAL_WORLD_SIZE": "2"}}])
def test_a_rank_of_which_nothing_is_here_is_not_blamed_while_the_job_runs(
    make_stream: Any, state: str, start: dict[str, Any]
) -> None:
    """Two hosts without a shared folder, started by a launcher that does not tell how many ranks each has, or does."""
    run = make_stream()
    folders = [run.begin_rank(rank, world=4, **start | ({"local_rank": rank} if start else {})) for rank in (0, 1)]
    call = {"op": "all_reduce", "group": "world", "number": 9, "counts": {"world": 9}} if state == "collective" else {}
    begun_t = run.t
    for after_s in (16.0, 64.0, 128.0, 256.0, 512.0):
        values = {"state": state, "began_t": begun_t, "quiet_s": after_s, "limit_s": 15.0, "alive_s": 20.0, **call}
        for folder in folders:
            run.emit_events(folder, make_seen("QUIET", 3, begun_t + after_s, {**values, "size": 4}))
    assert not run.list_live_findings()


def test_ranks_of_another_host_give_their_signs_elsewhere(make_stream: Any) -> None:
    run = make_stream()
    zero = run.begin_rank(0, world=2, local_rank=0, env={"LOCAL_WORLD_SIZE": "1"})
    call = {"op": "all_reduce", "group": "world", "size": 2, "number": 9, "counts": {"world": 9}, "alive_s": 20.0}
    for after_s in (16.0, 64.0, 256.0):
        values = {"state": "collective", "began_t": run.t, "quiet_s": after_s, "limit_s": 15.0, **call}
        run.emit_events(zero, make_seen("QUIET", 3, run.t + after_s, values))
    assert not run.list_live_findings()
    (found,) = find_hangs(run.judge_stream(-15).findings)
    assert found.rank is None and "of another host" in found.title


# calls of different groups


@pytest.mark.parametrize("numbers", [(7, 7), (7, 9)])
def test_of_two_ranks_in_crossed_groups_neither_is_blamed(make_stream: Any, numbers: tuple[int, int]) -> None:
    """Each is a call ahead of the other on its own group, whether the numbers of the calls coincide or not."""
    run = make_stream()
    folders = begin_ranks(run, 2)
    for rank, (own, other) in enumerate([("tp", "dp"), ("dp", "tp")]):
        counts = {own: numbers[rank], other: numbers[1 - rank] - 1}
        values = {"state": "collective", "op": "all_reduce", "group": own, "size": 2, "number": numbers[rank]}
        values |= {"began_t": run.t, "quiet_s": 16.0, "limit_s": 15.0, "counts": counts}
        run.emit_events(folders[rank], make_seen("QUIET", 7, run.t + 16.0 + rank, values))
    (found,) = find_hangs(run.judge_stream(-15).findings)
    assert found.title.startswith("ranks 0-1 wait for each other in different collectives, for ")


# tensors of different sizes


def emit_calls(run: Stream, shapes: list[list[str] | None], op: str = "all_reduce") -> list[str]:
    """All ranks wait in the same call for more than a minute."""
    folders = begin_ranks(run, len(shapes))
    for rank, (folder, shape) in enumerate(zip(folders, shapes, strict=True)):
        call = {"op": op, "group": "world", "size": len(shapes), "number": 9, "shapes": shape, "alike": 3}
        values = {"state": "collective", "counts": {"world": 9}, "quiet_s": 62.0, "limit_s": 15.0, **call}
        values |= {"began_t": run.t, "where": "train.py:41 in main"}
        run.emit_events(folder, make_seen("QUIET", 7, run.t + 62.0 + rank / 100, values))
    return folders


@pytest.mark.parametrize("ranks", [3, 4, 8])
@pytest.mark.parametrize("other", [["5 Float"], ["8x5 Float"], ["8x4 Half"], ["8x4 Float", "1 Float"]])
@pytest.mark.parametrize("op", ["all_reduce", "broadcast", "_all_gather_base", "_reduce_scatter_base"])
def test_a_rank_that_calls_with_another_size_is_named(make_stream: Any, ranks: int, other: list[str], op: str) -> None:
    run, odd = make_stream(), ranks - 2
    emit_calls(run, [other if rank == odd else ["8x4 Float"] for rank in range(ranks)], op)
    assert [one.rank for one in run.list_live_findings()] == [odd]
    (found,) = find_hangs(run.judge_stream(-15).findings)
    assert found.title.startswith(f"rank {odd} calls {op} with different tensors than ranks 0")
    assert (
        f"rank {odd} in {op} of {', '.join(other)} (train.py:41 in main), rank 0 in {op} of 8x4 Float (" in found.title
    )
    assert "network" not in found.cause and "different size or type" in found.cause


def test_of_two_ranks_with_different_sizes_neither_is_blamed(make_stream: Any) -> None:
    run = make_stream()
    emit_calls(run, [["4 Float"], ["5 Float"]])
    (found,) = find_hangs(run.judge_stream(-15).findings)
    assert found.title.startswith("ranks 0-1 wait for each other in all_reduce with different tensors, for 62 s")


@pytest.mark.parametrize(
    ("op", "other"),
    [
        ("all_reduce", ["32 Float"]),  # as many elements
        ("all_reduce", ["4x8 Float"]),
        ("all_reduce", None),  # of an older tdbg
        ("all_gather", ["5 Float"]),  # parts may differ
        ("all_to_all", ["5 Float"]),
        ("reduce_scatter", ["5 Float"]),
        ("gather", ["5 Float"]),
        ("scatter", ["0 Float"]),
        ("barrier", []),
    ],
)
def test_where_sizes_may_differ_no_rank_is_named(make_stream: Any, op: str, other: list[str] | None) -> None:
    run = make_stream()
    emit_calls(run, [["8x4 Float"], ["8x4 Float"], other], op)
    (found,) = find_hangs(run.judge_stream(-15).findings)
    assert found.rank is None and found.title.startswith("no rank has made progress for 62 s")


@pytest.mark.parametrize("shape", ["\u00b2x4 Float", "9" * 5000 + " Float", "-1x4 Float"])
def test_a_shape_that_is_none_ends_no_rule(make_stream: Any, shape: str) -> None:
    run = make_stream()
    emit_calls(run, [["8x4 Float"], ["8x4 Float"], [shape]])
    assert run.judge_stream(-15).findings  # it has no trouble


def test_of_different_calls_no_sizes_are_compared(make_stream: Any) -> None:
    """One rank is a call behind, which happens to be of the same function with another tensor."""
    run = make_stream()
    folders = begin_ranks(run, 3)
    for rank, (folder, number) in enumerate(zip(folders, [9, 8, 9], strict=True)):
        call = {"op": "all_reduce", "group": "world", "size": 3, "number": number, "shapes": [f"{number} Float"]}
        values = {"state": "collective", "counts": {"world": number}, "quiet_s": 62.0, "limit_s": 15.0, **call}
        run.emit_events(folder, make_seen("QUIET", 7, run.t + 62.0 + rank / 100, {"began_t": run.t, **values}))
    (found,) = find_hangs(run.judge_stream(-15).findings)
    assert found.rank == 1 and " does not come to all_reduce, where ranks 0, 2 have waited" in found.title
    assert "size" not in found.cause


# groups of more than 64 ranks


@pytest.mark.parametrize("hung", [0, 63, 64, 65, 130, 198])
@pytest.mark.parametrize("ranges", ["0-198:2", None])
def test_a_rank_far_back_in_its_group_is_a_member(make_stream: Any, hung: int, ranges: str | None) -> None:
    """Of the 200 ranks those with even numbers are in the group; without ranges the first 64 are known."""
    run = make_stream()
    folders = [run.begin_rank(rank, world=200) for rank in range(200)]
    members, hung = list(range(0, 200, 2)), hung // 2 * 2
    call = {"op": "all_reduce", "group": "7", "size": 100, "number": 9, "ranks": members[:64], "rank_ranges": ranges}
    for rank in {hung, 2, 66, 1}:
        values = {"state": "collective", "counts": {"7": 9}, **call} if rank != hung else {"state": "elsewhere"}
        values = {"state": "elsewhere"} if rank == 1 else values
        if values["state"] == "elsewhere":
            values["counts"] = {"7": 8} if rank == hung else {"8": 3}
        values |= {"began_t": run.t, "quiet_s": 16.0, "limit_s": 15.0, "where": "train.py:41 in main"}
        run.emit_events(folders[rank], make_seen("QUIET", 7, run.t + 16.0, values))
    run.record_exit(-15)
    (found,) = [one for one in run.list_live_findings() if one.code == CODE]
    assert found.rank == hung and " does not come to all_reduce" in found.title


# many ranks


@pytest.mark.parametrize("groups", [1, 128])
@pytest.mark.parametrize("hung", [0, 512, 1023])
def test_a_thousand_ranks_cost_little(tmp_path: Any, groups: int, hung: int) -> None:
    """All tell of one hang, at twice the time each; groups: smaller ones, in which some of them wait."""
    ranks = 1024
    run, _ = RunDir.create(tmp_path / "run", {})
    rule, told, size = RankQuiet(), [], ranks // groups
    rows = []
    for rank in range(ranks):
        group = rank // size
        is_near = groups > 1 and group == hung // size
        call: dict[str, Any] = {"op": "all_reduce", "group": "world", "number": 9, "size": ranks}
        counts = {"world": 9, f"tp{group}": 40, f"dp{rank % size}": 3}
        if is_near:
            members = list(range(group * size, group * size + size))
            call = {"op": "all_gather", "group": f"tp{group}", "number": 41, "size": size, "ranks": members}
            counts |= {"world": 8, f"tp{group}": 41}
        values: dict[str, Any] = {"state": "collective", "counts": counts, **call}
        if rank == hung:
            values = {"state": "elsewhere", "counts": {**counts, "world": 8, f"tp{group}": 40}}
        values |= {"began_t": 1000.0, "limit_s": 15.0, "where": "train.py:9 in main"}
        process = ProcessDir(run, run.path / f"rank{rank:04d}")
        rule.feed(process, Start(t=1.0, rank=rank, world_size=ranks))
        for at in (16.0, 32.0, 64.0, 128.0):
            rows.append((1000 + at + 1e-3 * rank, process, make_seen("QUIET", 3, 0.0, {**values, "quiet_s": at})))
    rows.sort(key=lambda row: row[0])
    begun = time.process_time()
    for t, process, event in rows:
        event.t = t
        told += rule.feed(process, event)
    spent_s = time.process_time() - begun
    print(f"{groups} groups, rank {hung}: {spent_s:.2f} s for {len(rows)} events")
    assert [one.rank for one in told] == [hung] and spent_s < 2.0
