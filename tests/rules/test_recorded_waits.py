"""TD-P002 from step records alone, where no probe stays in the loop: starved loops of many kinds, and healthy twins."""

import random
from collections.abc import Iterable
from typing import Any

import pytest
from streams import Stream

from tdbg.core.events import Cost, Finding, Observation, ProbeOff, Step

OPENING = 50
SETTINGS = {"dataset": "Rows", "batches": 1000, "batch_size": 8, "workers": 2, "persistent": False}


def make_steps(
    *,
    wait_ms: float,
    work_ms: float,
    seconds: float = 60.0,
    every_s: float = 0.5,
    slow_from_s: float = 0.0,
    seed: int = 0,
    **fields: Any,
) -> list[Step]:
    """Records of a training that is sampled every so many seconds; before ``slow_from_s`` no batch is waited for."""
    rng = random.Random(seed)
    t, step, records = 1000.0, OPENING, []
    while t < 1000.0 + seconds:
        waits = wait_ms if t >= 1000.0 + slow_from_s else 0.02
        waited, worked = waits * rng.uniform(0.7, 1.4), work_ms * rng.uniform(0.8, 1.3)
        step += max(round(every_s * 1e3 / (waits + work_ms)), 1)
        t += every_s
        batch = step % 1000 or 1000
        known = {
            "epoch": step // 1000,
            "batch": batch,
            "batches": 1000,
            "loader_ms": waited,
            "step_ms": waited + worked,
        }
        records.append(Step(t=t, step=step, loss=1.0, **{**known, **fields}))
    return records


def write_run(run: Stream, rank: str, records: Iterable[Step], *, others: Iterable[Any] = (), **cost: Any) -> None:
    """The records with a cost event every five seconds, as a rank writes them."""
    told, last = 1000.0, 0
    for event in sorted([*records, *others], key=lambda event: event.t):
        run.emit_events(rank, event)
        last = getattr(event, "step", last)
        if event.t >= told + 5.0:
            told = event.t
            run.emit_events(rank, Cost(t=event.t, step=last, **{"level": "basic", "stayed": [], **cost}))
    run.emit_events(rank, Cost(t=told + 5.0, step=last, **{"level": "basic", "stayed": [], **cost}))
    run.end_process(rank, last)


def list_waits(run: Stream) -> list[Finding]:
    return [finding for finding in run.judge_stream().findings if finding.code == "TD-P002"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("every_s", [0.05, 0.5, 2.0])
@pytest.mark.parametrize(
    ("wait_ms", "work_ms", "seconds", "slow_from_s"),
    [(6.0, 0.5, 40.0, 0.0), (8.0, 4.0, 60.0, 20.0), (50.0, 1.0, 60.0, 30.0), (1.5, 0.5, 120.0, 0.0)],
)
def test_a_starved_loop_is_named(
    one_rank: Any, wait_ms: float, work_ms: float, seconds: float, slow_from_s: float, every_s: float, seed: int
) -> None:
    run, rank = one_rank
    kinds = {"wait_ms": wait_ms, "work_ms": work_ms, "seconds": seconds, "slow_from_s": slow_from_s}
    write_run(run, rank, make_steps(**kinds, every_s=every_s, seed=seed))
    (finding,) = list_waits(run)
    assert (finding.severity, finding.grade) == ("warning", "statistical")
    assert finding.title.startswith("waiting for batches (training) takes ") and finding.first_step > OPENING
    assert "read off the records of " in finding.evidence[0] and "over the whole run: about " in finding.evidence[-1]


HEALTHY: dict[str, dict[str, Any]] = {
    "quick loader": {"wait_ms": 0.2, "work_ms": 0.5},
    "busy steps": {"wait_ms": 20.0, "work_ms": 30.0},
    "tiny waits of a tiny model, less than a minute in all": {"wait_ms": 1.0, "work_ms": 0.5, "seconds": 50.0},
    "too short": {"wait_ms": 20.0, "work_ms": 1.0, "seconds": 8.0},
    "too few records": {"wait_ms": 20.0, "work_ms": 1.0, "seconds": 21.0, "every_s": 3.5},
    "no loader": {"wait_ms": 20.0, "work_ms": 1.0, "loader_ms": None},
    "first batches of passes": {"wait_ms": 20.0, "work_ms": 1.0, "batch": 1},
    "evaluation": {"wait_ms": 20.0, "work_ms": 1.0, "phase": "eval"},
    "a small part of the run": {"wait_ms": 20.0, "work_ms": 1.0, "seconds": 300.0, "slow_from_s": 245.0},
    "no time of steps": {"wait_ms": 20.0, "work_ms": 1.0, "step_ms": None},
}


@pytest.mark.parametrize("every_s", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("kind", HEALTHY)
def test_a_healthy_loop_is_not(one_rank: Any, kind: str, every_s: float) -> None:
    run, rank = one_rank
    write_run(run, rank, make_steps(**{"every_s": every_s, **HEALTHY[kind]}))
    assert list_waits(run) == []


def test_a_batch_for_several_updates_is_waited_for_once(one_rank: Any) -> None:
    run, rank = one_rank
    records = make_steps(wait_ms=20.0, work_ms=1.0)
    for index, record in enumerate(records):
        if index % 4:
            record.loader_ms, record.step_ms = None, 1.0
    write_run(run, rank, records)
    assert list_waits(run) == [], "three of four steps wait for nothing"


def test_single_long_waits_are_not_starvation(one_rank: Any) -> None:
    run, rank = one_rank
    records = make_steps(wait_ms=0.1, work_ms=1.0)
    for record in records[::5]:
        record.loader_ms, record.step_ms = 3000.0, 3001.0  # a validation between two steps, a stalled disk
    write_run(run, rank, records)
    assert list_waits(run) == []


PRESENT: dict[str, dict[str, Any]] = {
    "stayed": {"stayed": ["memory", "dataloader"]},
    "level": {"level": "advanced"},
    "flag": {"flags": ["DATALOADER"]},
    "off": {"level": "off"},
    "not known": {"stayed": None},
}


@pytest.mark.parametrize("kind", PRESENT)
def test_where_the_probe_was_there_its_silence_counts(one_rank: Any, kind: str) -> None:
    run, rank = one_rank
    write_run(run, rank, make_steps(wait_ms=20.0, work_ms=1.0), **PRESENT[kind])
    assert list_waits(run) == []


def test_where_the_probe_failed_the_records_count(one_rank: Any) -> None:
    run, rank = one_rank
    run.emit_events(rank, ProbeOff(t=1000.0, probe="dataloader", error="ValueError: no"))
    write_run(run, rank, make_steps(wait_ms=20.0, work_ms=1.0), level="advanced")
    assert len(list_waits(run)) == 1


@pytest.mark.parametrize(("wait_ms", "count"), [(20.0, 1), (4.0 * 5.0, 1), (12.0, 0)])
def test_an_accelerator_may_be_busy_meanwhile(make_stream: Any, wait_ms: float, count: int) -> None:
    run = make_stream()
    rank = run.begin_rank(device={"type": "cuda", "name": "H200"})
    write_run(run, rank, make_steps(wait_ms=wait_ms, work_ms=1.0 if count else 4.0))
    assert len(list_waits(run)) == count


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("workers", [None, 0, 1, 8])
def test_a_loader_without_workers_may_wait_for_the_accelerator(
    make_stream: Any, device: str, workers: int | None
) -> None:
    run = make_stream()
    rank = run.begin_rank(device={"type": device, "name": ""})
    others = [make_loader(workers=workers)] if workers is not None else []
    write_run(run, rank, make_steps(wait_ms=20.0, work_ms=1.0), others=others)
    (finding,) = list_waits(run)
    is_sure = device == "cpu" or bool(workers)
    assert finding.severity == ("warning" if is_sure else "info")
    assert ("waits for the accelerator" in finding.cause) is not is_sure


def make_loader(t: float = 1000.0, **values: Any) -> Observation:
    return Observation(t=t, probe="dataloader", part="LOADER", step=0, text="", values={**SETTINGS, **values})


def test_the_loader_that_fits_is_named(one_rank: Any) -> None:
    run, rank = one_rank
    others = [make_loader(), make_loader(dataset="Held", batches=17)]
    write_run(run, rank, make_steps(wait_ms=20.0, work_ms=1.0), others=others)
    (finding,) = list_waits(run)
    assert finding.title.startswith("waiting for batches of Rows (training) takes ")
    assert "Rows: 2 workers, persistent False, batch_size 8" in finding.evidence


def test_of_two_loaders_that_fit_none_is_named(one_rank: Any) -> None:
    run, rank = one_rank
    write_run(run, rank, make_steps(wait_ms=20.0, work_ms=1.0), others=[make_loader(), make_loader(dataset="More")])
    assert list_waits(run)[0].title.startswith("waiting for batches (training) takes ")


def make_wait(t: float, step: int, *, run_over: bool = False, use: str = "training") -> Observation:
    values = {
        **SETTINGS,
        "use": use,
        "share": 0.9,
        "whole_share": 0.8,
        "run_over": run_over,
        "count": 80,
        "cores": 8,
    }
    return Observation(t=t, probe="dataloader", part="WAIT", step=step, text="", values={**values, "median_ms": 21.0})


@pytest.mark.parametrize("t", [1001.0, 1055.0])
def test_the_word_of_the_probe_stands_alone(one_rank: Any, t: float) -> None:
    run, rank = one_rank
    records = make_steps(wait_ms=20.0, work_ms=1.0, every_s=1.0)
    step = max(record.step for record in records if record.t <= t)
    write_run(run, rank, records, others=[make_loader(), make_wait(t, step), make_wait(1060.5, 9000, run_over=True)])
    (finding,) = list_waits(run)
    assert "takes 90% of the time between batches" in finding.title
    assert not any("records" in line for line in finding.evidence)


def test_of_several_ranks_one_is_told(make_stream: Any) -> None:
    run = make_stream()
    for number in range(2):
        write_run(run, run.begin_rank(number, 2), make_steps(wait_ms=20.0, work_ms=1.0, seed=number))
    (finding,) = list_waits(run)
    assert any(line.startswith("also on rank ") for line in finding.evidence)


@pytest.mark.parametrize("slow_from_s", [(0.0, 10.0), (10.0, 0.0)])
def test_the_order_of_ranks_does_not_count(make_stream: Any, slow_from_s: tuple[float, float]) -> None:
    """The rank that starved first is told with what it was of its whole run, whichever is read first."""
    run = make_stream()
    for number, since_s in enumerate(slow_from_s):
        records = make_steps(wait_ms=20.0, work_ms=1.0, slow_from_s=since_s, seed=number)
        write_run(run, run.begin_rank(number, 2), records)
    (finding,) = list_waits(run)
    assert finding.rank == slow_from_s.index(0.0)
    assert any("over the whole run: about " in line for line in finding.evidence)


@pytest.mark.parametrize("slow_from_s", [(0.0, 10.0), (10.0, 0.0)])
def test_the_probe_of_any_rank_may_know_better(make_stream: Any, slow_from_s: tuple[float, float]) -> None:
    run = make_stream()
    for number, since_s in enumerate(slow_from_s):
        records = make_steps(wait_ms=20.0, work_ms=1.0, slow_from_s=since_s, seed=number)
        others = [make_wait(1055.0, records[-9].step)] if since_s == 0.0 else []
        write_run(run, run.begin_rank(number, 2), records, others=others)
    (finding,) = list_waits(run)
    assert "90% of the time between its last 64 batches" in finding.title and finding.rank == slow_from_s.index(0.0)


@pytest.mark.parametrize("workers", [(0, 4), (4, 0)])
def test_the_gravest_of_the_ranks_counts(make_stream: Any, workers: tuple[int, int]) -> None:
    run = make_stream()
    for number, count in enumerate(workers):
        rank = run.begin_rank(number, 2, device={"type": "cuda", "name": ""})
        records = make_steps(wait_ms=20.0, work_ms=1.0, seed=number)
        write_run(run, rank, records, others=[make_loader(workers=count)])
    (finding,) = list_waits(run)
    assert finding.severity == "warning"


@pytest.mark.parametrize("t", [1001.0, 1005.0, 1055.0])
@pytest.mark.parametrize("run_over", [None, False, True])
def test_the_word_on_an_evaluation_stands_beside_that_on_the_training(
    one_rank: Any, t: float, run_over: bool | None
) -> None:
    run, rank = one_rank
    records = make_steps(wait_ms=20.0, work_ms=1.0)
    wait = make_wait(t, max(record.step for record in records if record.t <= t), use="evaluation")
    wait.values["run_over"] = run_over
    write_run(run, rank, records, others=[wait])
    uses = [finding.title.split(")")[0].split("(")[1] for finding in list_waits(run)]
    assert sorted(uses) == ["evaluation", "training"]
    assert not any(line.startswith("again") for finding in list_waits(run) for line in finding.evidence)


@pytest.mark.parametrize("use", ["evaluation", "training"])
def test_a_slow_start_does_not_hide_starvation(one_rank: Any, use: str) -> None:
    run, rank = one_rank
    values = {**SETTINGS, "use": use, "starting": 0.6, "first_s": 1.2, "count": 3, "cores": 8}
    start = Observation(t=1001.0, probe="dataloader", part="START", step=60, text="", values=values)
    write_run(run, rank, make_steps(wait_ms=20.0, work_ms=1.0), others=[start])
    assert len(list_waits(run)) == 2


@pytest.mark.parametrize("use", ["evaluation", "training"])
def test_a_healthy_training_beside_a_word_of_the_probe_is_not_told(one_rank: Any, use: str) -> None:
    run, rank = one_rank
    write_run(run, rank, make_steps(wait_ms=0.2, work_ms=0.5), others=[make_wait(1001.0, 60, use=use)])
    assert len(list_waits(run)) == 1


@pytest.mark.parametrize("step", [10**400, -(10**400), (1 << 53) + 1], ids=["long", "low", "high"])
@pytest.mark.parametrize(("wait_ms", "count"), [(0.2, 0), (20.0, 1)])
def test_a_step_that_no_program_reaches_is_left_out(one_rank: Any, step: int, wait_ms: float, count: int) -> None:
    run, rank = one_rank
    records = make_steps(wait_ms=wait_ms, work_ms=1.0)
    records[50].step = step
    write_run(run, rank, records)
    assert len(list_waits(run)) == count
