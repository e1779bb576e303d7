"""TD-R010: which rank the others wait for, from the times of the same steps on all ranks."""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest
from streams import HOST, Stream

from tdbg.core.events import Finding, Observation, Step
from tdbg.core.observations.dataloader import DataWait
from tdbg.core.observations.hang import TrainingLines
from tdbg.core.observations.rank_batches import BatchChecksums
from tdbg.core.rundir import PRESSURE, ProcessDir
from tdbg.rules import r010_slow_rank
from tdbg.rules.r010_slow_rank import Phases, find_slow_ranks
from tdbg.rules.rule_engine import RuleEngine, judge_run

BASE = Phases(data=1.0, forward=20.0, backward=20.0, update=1.0, rest=8.0)
Extra = Callable[[int, int], tuple[str, float]]


def make_observation(seen: Any) -> Observation:
    return Observation(probe=seen.PROBE, part=seen.PART, step=1, values=seen.as_values())


def play_ranks(
    run: Stream,
    extra: Extra,
    *,
    ranks: int = 2,
    wrapped: bool = True,
    split: bool = False,
    device_mb: float | None = None,
    noise: float = 0.1,
    steps: int = 60,
    recorded: Callable[[int], bool] = lambda step: True,
    also: Mapping[int, Observation] = MappingProxyType({}),
    hosts: Sequence[str] = (),
    draw_noise: Callable[[random.Random], float] = random.Random.random,
) -> Stream:
    """A synchronous job. extra(step, rank): the phase that takes longer, and by how many milliseconds.

    The others wait for the slowest: in backward under DistributedDataParallel (wrapped), else after it.
    """
    draw = random.Random(0)
    waits_in = "backward" if wrapped else "rest"
    names = [run.begin_rank(rank, ranks, host=hosts[rank] if hosts else HOST) for rank in range(ranks)]
    for rank, name in enumerate(names):
        seen = BatchChecksums(
            group=list(range(ranks)), names=["x"], checksums=[str(rank)], wrapped=wrapped, is_split=split
        )
        run.emit_events(name, make_observation(seen), *([also[rank]] if rank in also else []))
    for step in filter(recorded, range(1, steps + 1)):
        rows = []
        for rank in range(ranks):
            row = {phase: ms * (1 + noise * draw_noise(draw)) for phase, ms in BASE._asdict().items()}
            phase, ms = extra(step, rank)
            rows.append({**row, phase: row[phase] + ms})
        slowest = max(sum(row.values()) for row in rows)
        for name, row in zip(names, rows, strict=True):
            row[waits_in] += slowest - sum(row.values())
            times = {"loader_ms": row["data"], "forward_ms": row["forward"], "backward_ms": row["backward"]}
            step_ms = sum(row.values())
            run.emit_events(
                name,
                Step(step=step, loss=1.0, finite=True, **times, optimizer_ms=row["update"], step_ms=step_ms)
                if device_mb is None
                else Step(step=step, loss=1.0, finite=True, **times, step_ms=step_ms, device_mb=device_mb),
            )
    return run


def find_slow(run: Stream) -> list[Finding]:
    return [found for found in run.judge_stream().findings if found.code == "TD-R010"]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("phase", ["data", "forward", "update"])
@pytest.mark.parametrize("ms", [15.0, 200.0])
def test_the_slow_rank_and_its_phase_are_named(make_stream, ranks, wrapped, phase, ms):
    slow = ranks - 1
    run = play_ranks(
        make_stream(), lambda step, rank: (phase, ms * (rank == slow and step >= 20)), ranks=ranks, wrapped=wrapped
    )
    (found,) = find_slow(run)
    assert found.rank == slow and 18 <= found.first_step <= 21, found
    words = {"data": "in its data loader", "forward": "in its forward pass", "update": "in its optimizer update"}[phase]
    assert found.title.startswith(f"rank {slow} is slow {words}, and "), found.title


def test_what_a_rank_does_between_steps_is_seen_under_ddp(make_stream):
    (found,) = find_slow(play_ranks(make_stream(), lambda step, rank: ("rest", 40.0 * (rank == 0)), ranks=4))
    assert found.rank == 0 and "ranks 1-3 wait for it: 40 ms longer in each step" in found.title


@pytest.mark.parametrize(
    ("course", "words"),
    [
        (lambda step: 10.0 * (step - 10), "growing from"),
        (lambda step: 400.0 * (step % 7 == 0), "in bursts, "),
        (lambda step: 40.0, "40.1 ms longer in each step"),
    ],
)
def test_its_course_is_told(make_stream, course, words):
    run = play_ranks(make_stream(), lambda step, rank: ("forward", course(step) * (rank == 1 and step > 10)), ranks=4)
    assert words in find_slow(run)[0].title


def test_a_pause_of_another_rank_at_its_start_does_not_hide_the_slow_one(make_stream):
    """As on a busy machine: one long delay of rank 1, and some small ones."""

    def draw_delay(step: int, rank: int) -> tuple[str, float]:
        if rank == 1:
            return "rest", {3: 900.0, 6: 40.0, 9: 30.0}.get(step, 0.0)
        return "forward", 30.0 * (step >= 20)

    (found,) = find_slow(play_ranks(make_stream(), draw_delay, steps=60))
    assert found.rank == 0 and "in its forward pass" in found.title


PHASES = ("data", "forward", "rest")


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_is_stopped_now_here_and_now_there_is_named_without_a_phase(make_stream, ranks):
    """As a CPU quota does it: whatever runs when it is used up takes longer."""
    run = play_ranks(
        make_stream(), lambda step, rank: (PHASES[step % 3], 75.0 * (rank == 1 and step > 20)), ranks=ranks, steps=90
    )
    (found,) = find_slow(run)
    assert found.rank == 1 and 18 <= found.first_step <= 22
    assert found.title.startswith("rank 1 is slow now in one part of its step, now in another, and ")
    assert found.cause.startswith("this rank has work of its own in several parts of a step, or ")
    assert "every Nth step" in found.try_next and "CPU quota" in found.try_next


def test_stops_of_all_ranks_in_turns_are_nobodys(make_stream):
    run = play_ranks(make_stream(), lambda step, rank: (PHASES[step % 3], 75.0 * (step // 3 % 2 == rank)), steps=90)
    assert find_slow(run) == []


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("noise", [0.1, 0.5, 1.0])
def test_equal_ranks_are_left_alone(make_stream, ranks, noise):
    run = play_ranks(make_stream(), lambda step, rank: ("rest", 0.0), ranks=ranks, noise=noise)
    assert find_slow(run) == []


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_delay_that_goes_around_is_nobodys(make_stream, ranks):
    run = play_ranks(make_stream(), lambda step, rank: ("forward", 40.0 * (step % ranks == rank)), ranks=ranks)
    assert find_slow(run) == []


def test_turns_are_not_taken_for_one_rank_where_every_second_step_is_on_record(make_stream):
    run = play_ranks(
        make_stream(),
        lambda step, rank: ("forward", 40.0 * (step >= 20 and step % 2 == rank)),
        steps=200,
        recorded=lambda step: step <= 50 or step % 4 == 0,
    )
    assert find_slow(run) == []


def test_a_difference_that_nobody_waits_for_is_another_kind_of_work(make_stream):
    """Two ranks that do different things for the same time."""
    run = make_stream()
    play_ranks(run, lambda step, rank: ("data", 40.0) if rank else ("forward", 40.0), ranks=2)
    assert find_slow(run) == []


@pytest.mark.parametrize("how", ["split", "accelerator"])
def test_where_times_cannot_be_compared_it_is_silent(make_stream, how):
    run = play_ranks(
        make_stream(),
        lambda step, rank: ("forward", 40.0 * rank),
        split=how == "split",
        device_mb=100.0 if how == "accelerator" else None,
    )
    assert find_slow(run) == []


@pytest.mark.parametrize("is_idle", [True, False])
def test_on_an_accelerator_a_loader_is_named_where_the_device_runs_out_of_work(make_stream, is_idle):
    waits = {1: make_observation(DataWait(dataset="Images", share=0.6))} if is_idle else {}
    extra = lambda step, rank: ("data", 40.0 * (rank == 1 and step % 10 != 0))  # noqa: E731 - now and then it is not slow
    run = play_ranks(make_stream(), extra, device_mb=100.0, also=waits)
    assert [found.rank for found in find_slow(run)] == ([1] if is_idle else [])


def test_the_time_of_a_loop_is_split_over_its_lines(make_stream):
    run = play_ranks(make_stream(), lambda step, rank: ("forward", 40.0 * rank))
    for name, lines in (
        ("rank0000", [["train.py:9", "main", 0.6], ["net.py:3", "burn", 0.2], ["net.py:4", "burn", 0.1]]),
        ("rank0001", [["net.py:9", "forward", 0.28], ["net.py:3", "burn", 0.36], ["net.py:4", "burn", 0.35]]),
    ):
        run.emit_events(name, make_observation(TrainingLines(lines=lines)))
    assert (
        find_slow(run)[0].evidence[0] == "rank 1 is at net.py:4 in burn in 35% of its stack samples, the others in 10%"
    )


def test_the_line_that_only_the_slow_rank_is_at_is_told(make_stream):
    run = play_ranks(make_stream(), lambda step, rank: ("forward", 40.0 * rank))
    for name, lines in (
        ("rank0000", [["train.py:9", "main", 0.6], ["net.py:3", "forward", 0.4]]),
        ("rank0001", [["net.py:3", "forward", 0.8], ["train.py:9", "main", 0.1]]),
    ):
        run.emit_events(name, make_observation(TrainingLines(lines=lines)))
    assert (
        find_slow(run)[0].evidence[0]
        == "rank 1 is at net.py:3 in forward in 80% of its stack samples, the others in 40%"
    )


def test_of_two_ranks_the_faster_one_is_the_measure():
    ranks = {0: BASE._replace(backward=50.0), 1: BASE._replace(forward=50.0)}
    slow = find_slow_ranks(ranks, frozenset({"backward"}))
    assert slow is not None and slow[:2] == ((1,), "forward") and slow.ms == 30.0


@pytest.mark.parametrize("most", [200_000, 400])
def test_of_a_long_run_an_even_sample_is_compared(make_stream, monkeypatch, most):
    """Offline a whole rank is read before the next: it says the same, and since when, as far as its sample goes."""
    monkeypatch.setattr(r010_slow_rank, "MAX_LOOKS", most)
    run = play_ranks(
        make_stream(), lambda step, rank: ("forward", 40.0 * (rank == 1 and step > 700)), ranks=3, steps=2000
    )
    run.record_exit(0)
    live = RuleEngine(run.run)
    for folder, event in run.log:
        live.feed(ProcessDir(run.run, run.run.path / folder), event)
    for verdict in (judge_run(run.run), live.finish()):
        (found,) = [one for one in verdict.findings if one.code == "TD-R010"]
        assert found.rank == 1 and 690 <= found.first_step <= 760, found
        share = float(re.search(r"(\d+)% of the step time", found.title)[1])
        assert 40 <= share <= 46, found.title


def test_a_delay_now_and_then_is_no_larger_in_the_sample(monkeypatch, make_stream):
    """Each 96 steps: a sample of every 16th step would show it in each sixth of them."""
    monkeypatch.setattr(r010_slow_rank, "MAX_LOOKS", 400)
    run = play_ranks(
        make_stream(), lambda step, rank: ("forward", 200.0 * (rank == 1 and step % 96 == 0)), ranks=2, steps=3000
    )
    run.record_exit(0)
    assert [one for one in judge_run(run.run).findings if one.code == "TD-R010"] == []


def test_shares_are_of_the_steps_since_the_onset(make_stream):
    """First now and then, later always."""
    run = play_ranks(
        make_stream(),
        lambda step, rank: ("forward", 60.0 * (rank == 1 and (step % 6 == 0 or step > 1000))),
        steps=1100,
    )
    share = int(re.search(r"(\d+)% of the step time", find_slow(run)[0].title)[1])
    assert 40 <= share <= 60


def test_a_rank_that_was_slow_for_a_moment_is_a_note(make_stream):
    """The first steps are on record one by one, when the machine was busy; later ones are hundreds apart."""
    run = play_ranks(
        make_stream(),
        lambda step, rank: ("data", 40.0 * (rank == 0 and 5 <= step < 20)),
        steps=3000,
        recorded=lambda step: step <= 22 or step % 500 == 0,
    )
    (found,) = find_slow(run)
    assert found.severity == "info" and "0% of the step time" in found.title


@pytest.mark.parametrize(("ms", "severity"), [(17.0, "info"), (60.0, "warning")])
def test_a_rank_that_was_slow_for_a_while_is_judged_by_what_that_has_cost(make_stream, ms: float, severity: str):
    """Slow in 28 of 60 steps: half a second of three (14 %), or 1.7 of five (36 %)."""
    run = play_ranks(make_stream(), lambda step, rank: ("data", ms * (rank == 0 and 5 <= step < 33)))
    (found,) = find_slow(run)
    assert found.severity == severity and "in bursts" in found.title


def test_what_is_thinned_out_may_hold_all_delays(monkeypatch, make_stream):
    monkeypatch.setattr(r010_slow_rank, "MAX_LOOKS", 260)
    run = play_ranks(
        make_stream(),
        lambda step, rank: ("forward", 40.0 * (rank == 1 and 70 < step < 90)),
        steps=3000,
        recorded=lambda step: step > 65,
    )
    run.record_exit(0)
    assert judge_run(run.run).trouble == []


def write_samples(run: Stream, host: str, onset_t: float, others: float) -> None:
    """Samples of a host, in which other processes take more from some moment on."""
    folder = run.run.path / PRESSURE
    folder.mkdir(exist_ok=True)
    times = [onset_t + 0.001 * number for number in range(-5, 6)]
    rows = [{"t": t, "cpus": 8, "others": others if t >= onset_t else 0.2} for t in times]
    (folder / f"{host}-1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_what_presses_on_the_host_of_the_slow_rank_is_told(make_stream: Callable[..., Stream]) -> None:
    run = play_ranks(make_stream(), lambda step, rank: ("forward", 30.0 if rank == 1 and step >= 20 else 0.0))
    onset_t = next(event.t for _, event in run.log if isinstance(event, Step) and event.step == 20)
    write_samples(run, "elsewhere", onset_t, 7.0)
    (found,) = find_slow(run)
    assert not [line for line in found.evidence if "host" in line]
    write_samples(run, HOST, onset_t, 6.1)
    (found,) = find_slow(run)
    assert "on its host: other processes use 6.1 of 8 CPUs (0.2 before)" in found.evidence
    write_samples(run, HOST, onset_t, 0.3)
    (found,) = find_slow(run)
    assert not [line for line in found.evidence if "host" in line]


# several slow ranks


@pytest.mark.parametrize("slow", [(4, 5, 6, 7), (0, 2), (1, 3, 5), (0, 1, 2, 3)])
@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("phase", ["data", "forward"])
@pytest.mark.parametrize("noise", [0.1, 0.3])
def test_ranks_that_are_equally_slow_are_named_together(make_stream, slow, wrapped, phase, noise):
    run = play_ranks(
        make_stream(),
        lambda step, rank: (phase, 40.0 * (rank in slow and step >= 20)),
        ranks=8,
        wrapped=wrapped,
        noise=noise,
    )
    (found,) = find_slow(run)
    listed = {(4, 5, 6, 7): "ranks 4-7", (0, 2): "ranks 0, 2", (1, 3, 5): "ranks 1, 3, 5", (0, 1, 2, 3): "ranks 0-3"}
    assert found.title.startswith(f"{listed[slow]} are slow in their "), found.title
    assert (
        re.search(r" wait for them: (39|4\d)", found.title) and found.rank == slow[0] and 18 <= found.first_step <= 21
    )


@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_a_host_whose_ranks_are_all_slow_is_named(make_stream, ranks):
    hosts = ["a"] * (ranks // 2) + ["b"] * (ranks // 2)
    run = play_ranks(
        make_stream(), lambda step, rank: ("forward", 40.0 * (hosts[rank] == "b")), ranks=ranks, hosts=hosts
    )
    (found,) = find_slow(run)
    assert found.title.startswith(f"host b (ranks {ranks // 2}-{ranks - 1}) is slow in its forward pass, and ranks 0-")


def test_some_ranks_of_a_host_are_not_the_host(make_stream):
    hosts = ["a", "a", "a", "b", "b", "b"]
    run = play_ranks(make_stream(), lambda step, rank: ("forward", 40.0 * (rank in (3, 4))), ranks=6, hosts=hosts)
    assert find_slow(run)[0].title.startswith("ranks 3-4 are slow in their forward pass")


@pytest.mark.parametrize("ranks", [4, 8, 16])
@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("draw_noise", [random.Random.random, lambda draw: draw.expovariate(2.0)])
def test_noise_of_all_ranks_names_none(make_stream, ranks, noise, draw_noise):
    extra = lambda step, rank: ("rest", 0.0)  # noqa: E731
    run = play_ranks(make_stream(), extra, ranks=ranks, noise=noise, steps=300, draw_noise=draw_noise)
    assert find_slow(run) == []


@pytest.mark.parametrize("recorded", [1, 2])
@pytest.mark.parametrize("sets", [[(0, 1), (2, 3)], [(0, 1, 2, 3), (4, 5, 6, 7)], [(0, 1), (2, 3), (4, 5), (6, 7)]])
def test_ranks_that_are_slow_in_turns_are_nobody(make_stream, sets, recorded):
    ranks = sets[-1][-1] + 1
    run = play_ranks(
        make_stream(),
        lambda step, rank: ("forward", 40.0 * (rank in sets[step % len(sets)])),
        ranks=ranks,
        steps=200,
        recorded=lambda step: step <= 50 or step % recorded == 0,
    )
    assert find_slow(run) == []


def test_one_that_is_slow_beside_one_that_is_so_now_and_then_is_named_alone(make_stream):
    extra = lambda step, rank: ("forward", 40.0 if rank == 1 else 30.0 * (rank == 5 and step % 2))  # noqa: E731
    (found,) = find_slow(play_ranks(make_stream(), extra, ranks=8))
    assert found.title.startswith("rank 1 is slow in its forward pass, and ranks 0, 2-7 wait for it")
