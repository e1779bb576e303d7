"""TD-M001 from step records alone, where no probe stays in the loop: leaks of many kinds, and healthy twins."""

import dataclasses
import math
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from streams import Stream

from tdbg.core.events import Cost, Finding, Observation, Step

OPENING, BASE_MB = 50, 900.0
Shape = Callable[[float], float]  # part of the run, 0 to 1 -> part of what it grows by in all


def make_steps(
    kind: str,
    grown_mb: float,
    shape: Shape = lambda part: part,
    *,
    steps: int = 20_000,
    step_ms: float = 2.5,
    records: int = 200,
    passes: int | None = None,
    noise_mb: float = 0.0,
    touched: float = 0.0,
    seed: int = 0,
) -> list[Step]:
    """Records of a training whose memory follows a curve. touched: activations grow by so many MB a MB."""
    rng = random.Random(seed)
    found = []
    for number in range(records):
        part = (number + rng.random()) / records
        step = OPENING + 1 + round(part * (steps - OPENING - 1))
        more = grown_mb * shape(part)
        mb = round(BASE_MB + more + rng.uniform(0.0, noise_mb), 1)
        forward_ms = 0.4 * rng.uniform(0.8, 1.5) + touched * more * 0.1
        record = Step(t=1000.0 + step * step_ms / 1e3, step=step, loss=1.0, forward_ms=forward_ms, step_ms=step_ms)
        record.epoch = None if passes is None else int(part * passes)
        record.host_mb = mb if kind == "host" else 3000.0
        if kind == "device":
            record.device_mb = mb
            record.device_peak_mb = mb + 500.0 + touched * more
        found.append(record)
    return found


def write_run(run: Stream, rank: str, records: Iterable[Step], *, others: Iterable[Any] = (), **cost: Any) -> None:
    """The records with a cost event every five seconds, as a rank writes them."""
    told, step = 1000.0, 0
    for event in sorted([*records, *others], key=lambda event: event.t):
        run.emit_events(rank, event)
        step = event.step
        if event.t >= told + 5.0:
            told = event.t
            run.emit_events(rank, Cost(t=event.t, step=step, **{"level": "basic", "stayed": [], **cost}))
    run.emit_events(rank, Cost(t=told + 5.0, step=step, **{"level": "basic", "stayed": [], **cost}))
    run.end_process(rank, step)


def list_growths(run: Stream) -> list[Finding]:
    return [finding for finding in run.judge_stream().findings if finding.code == "TD-M001"]


def begins_at(begin: float) -> Shape:
    return lambda part: max(part - begin, 0.0) / (1.0 - begin)


def comes_in_jumps(jumps: int) -> Shape:
    return lambda part: math.floor(part * jumps) / jumps


@pytest.mark.parametrize("kind", ["host", "device"])
@pytest.mark.parametrize("noise_mb", [0.0, 40.0])
@pytest.mark.parametrize("passes", [None, 6])
@pytest.mark.parametrize(
    ("grown_mb", "steps", "step_ms", "records"),
    [
        (20_000.0, 20_000, 2.5, 200),  # 1 MB a step
        (3_000.0, 3_000, 2.5, 40),
        (2_500.0, 25_000, 0.4, 25),  # 0.1 MB a step, a record in 0.4 s
        (3_000.0, 1_000_000, 1.0, 800),  # 3 KB a step
    ],
)
def test_a_leak_is_named(
    one_rank: Any,
    kind: str,
    grown_mb: float,
    steps: int,
    step_ms: float,
    records: int,
    passes: int | None,
    noise_mb: float,
) -> None:
    run, rank = one_rank
    sizes = {"steps": steps, "step_ms": step_ms, "records": records, "passes": passes, "noise_mb": noise_mb}
    write_run(run, rank, make_steps(kind, grown_mb, **sizes))
    (finding,) = list_growths(run)
    is_sure = kind == "device" and (passes is not None or grown_mb > 4 * 1074)
    assert (finding.severity, finding.grade) == ("warning" if is_sure else "info", "statistical")
    assert ("it may be meant" in finding.cause) is (passes is None)
    assert finding.title.startswith(f"{kind} memory grew ") and finding.first_step <= 0.3 * steps
    assert f"({grown_mb / steps:.1g}"[:3] in finding.title, "the pace"
    assert "read off the records of " in finding.evidence[1] and "--flag MEMORY" in finding.try_next


def add_bursts(records: list[Step], places: Iterable[float], length: int) -> list[Step]:
    """Further records of successive steps after some of them, as the looks at doubling intervals write them."""
    found = list(records)
    for place in places:
        first = records[int(place * (len(records) - 1))]
        for number in range(1, length + 1):
            more = dataclasses.replace(first, step=first.step + number, t=first.t + number * 5e-4)
            found.append(more)
    return sorted(found, key=lambda record: record.step)


@pytest.mark.parametrize("kind", ["host", "device"])
@pytest.mark.parametrize("length", [5, 13, 50])
@pytest.mark.parametrize("places", [(0.1,), (0.5,), (0.9,), (0.2, 0.4, 0.8)], ids=str)
def test_bursts_of_records_hide_no_leak(one_rank: Any, kind: str, length: int, places: tuple[float, ...]) -> None:
    run, rank = one_rank
    records = make_steps(kind, 2_500.0, steps=40_000, step_ms=0.6, records=20, passes=9)
    write_run(run, rank, add_bursts(records, places, length))
    (finding,) = list_growths(run)
    assert finding.title.startswith(f"{kind} memory grew ")


@pytest.mark.parametrize("kind", ["host", "device"])
@pytest.mark.parametrize("begin", [0.25, 0.5, 0.7])
@pytest.mark.parametrize("seed", range(3))
def test_a_leak_that_begins_late_is_named_with_its_beginning(one_rank: Any, kind: str, begin: float, seed: int) -> None:
    run, rank = one_rank
    write_run(run, rank, make_steps(kind, 9000.0, begins_at(begin), passes=12, seed=seed))
    (finding,) = list_growths(run)
    assert abs(finding.first_step / 20_000 - begin) < 0.06


def test_a_leak_in_each_evaluation_is_named(one_rank: Any) -> None:
    run, rank = one_rank
    write_run(run, rank, make_steps("device", 6000.0, comes_in_jumps(30), passes=30))
    assert len(list_growths(run)) == 1


Curve = tuple[float, Shape]
HEALTHY: dict[str, Curve] = {
    "still": (0.0, lambda part: 0.0),
    "a little": (900.0, lambda part: part),
    "one jump": (5000.0, lambda part: float(part > 0.5)),
    "two jumps": (5000.0, comes_in_jumps(3)),
    "a cache that is filled": (6000.0, lambda part: 1 - math.exp(-6 * part)),
    "a buffer that is full": (6000.0, lambda part: min(5 * part, 1.0)),
    "an allocator that slows down": (4000.0, lambda part: math.sqrt(part)),
    "results kept until the end of each pass": (6000.0, lambda part: (part * 10) % 1.0),
    "falls": (5000.0, lambda part: 1 - part),
    "comes and goes": (3000.0, lambda part: 0.5 + 0.5 * math.sin(40 * part)),
}


@pytest.mark.parametrize("kind", ["host", "device"])
@pytest.mark.parametrize("noise_mb", [0.0, 200.0])
@pytest.mark.parametrize("curve", HEALTHY)
@pytest.mark.parametrize("records", [30, 200])
def test_what_finds_its_size_is_not(one_rank: Any, kind: str, noise_mb: float, curve: str, records: int) -> None:
    run, rank = one_rank
    grown_mb, shape = HEALTHY[curve]
    if curve == "a buffer that is full" and kind == "device":
        grown_mb = 4000.0  # within a pass it may be so much
    write_run(run, rank, make_steps(kind, grown_mb, shape, passes=4, noise_mb=noise_mb, records=records))
    assert list_growths(run) == []


@pytest.mark.parametrize("kind", ["host", "device"])
def test_growing_sequences_are_not(one_rank: Any, kind: str) -> None:
    run, rank = one_rank
    write_run(run, rank, make_steps(kind, 5000.0, passes=4, touched=4.0))
    assert list_growths(run) == []


@pytest.mark.parametrize(
    ("kind", "grown_mb", "count"), [("host", 9000.0, 0), ("device", 4000.0, 0), ("device", 9000.0, 1)]
)
def test_within_the_first_pass_much_may_be_meant(one_rank: Any, kind: str, grown_mb: float, count: int) -> None:
    run, rank = one_rank
    write_run(run, rank, make_steps(kind, grown_mb, passes=1))
    assert len(list_growths(run)) == count


def fills_in(part_of_run: float) -> Shape:
    return lambda part: min(part / part_of_run, 1.0)


@pytest.mark.parametrize("kind", ["host", "device"])
@pytest.mark.parametrize("grown_mb", [1500.0, 3000.0, 4200.0])
@pytest.mark.parametrize(("step_ms", "pass_s"), [(3.0, 23.0), (4.0, 60.0), (3.5, 300.0)])
@pytest.mark.parametrize("passes", [1.05, 1.2, 3.0])
def test_a_cache_that_fills_in_the_first_pass_is_not(
    one_rank: Any, kind: str, grown_mb: float, step_ms: float, pass_s: float, passes: float
) -> None:
    run, rank = one_rank
    steps, records = round(passes * pass_s * 1e3 / step_ms), round(passes * min(pass_s * 2, 200))
    cached = make_steps(kind, grown_mb, fills_in(1 / passes), steps=steps, step_ms=step_ms, records=records)
    for record in cached:
        record.epoch = int(record.step / steps * passes)
    write_run(run, rank, cached)
    assert list_growths(run) == []


@pytest.mark.parametrize("kind", ["host", "device"])
@pytest.mark.parametrize(("leaks", "count"), [(False, 0), (True, 1)])
def test_a_second_training_has_a_first_pass_again(one_rank: Any, kind: str, leaks: bool, count: int) -> None:
    run, rank = one_rank
    records = make_steps(
        kind, 4000.0, (lambda part: part) if leaks else (lambda part: min(max(4 * part - 2, 0.0), 1.0))
    )
    for index, record in enumerate(records):
        record.epoch = [0, 1, 0, 1][index // 50]  # two trainings of two passes; the cache fills in the third
    write_run(run, rank, records)
    assert len(list_growths(run)) == count


@pytest.mark.parametrize("sizes", [{"steps": 240}, {"records": 8}, {"steps": 1800, "step_ms": 0.5}])
def test_few_steps_records_or_seconds_say_nothing(one_rank: Any, sizes: dict[str, Any]) -> None:
    run, rank = one_rank
    write_run(run, rank, make_steps("device", 20_000.0, **{"records": 40, **sizes}))
    assert list_growths(run) == []


@pytest.mark.parametrize(
    "cost", [{"stayed": ["memory"]}, {"level": "extreme"}, {"flags": ["MEMORY"]}, {"level": "off"}, {"stayed": None}]
)
def test_where_the_probe_was_there_its_silence_counts(one_rank: Any, cost: dict[str, Any]) -> None:
    run, rank = one_rank
    write_run(run, rank, make_steps("device", 20_000.0), **cost)
    assert list_growths(run) == []


CREEP = {
    "kind": "device",
    "grown_mb": 400.0,
    "from_step": 3000,
    "steps": 99,
    "piled_up": True,
    "sure": True,
    "graphs": 99,
}


@pytest.mark.parametrize("t", [1004.0, 1030.0])
def test_the_word_of_the_probe_stands_alone(one_rank: Any, t: float) -> None:
    run, rank = one_rank
    creep = Observation(t=t, probe="memory", part="CREEP", step=9000, text="", values=CREEP)
    write_run(run, rank, make_steps("device", 20_000.0), others=[creep])
    (finding,) = list_growths(run)
    assert finding.title.startswith("device memory grew 400 MB") and "99 more tensors with a graph" in str(
        finding.evidence
    )
    assert not any("read off" in line for line in finding.evidence)
    assert finding.first_step == (3000 if t == 1004.0 else min(3000, finding.first_step))


def test_of_several_ranks_one_is_told(make_stream: Any) -> None:
    run = make_stream()
    for number in range(2):
        write_run(run, run.begin_rank(number, 2), make_steps("device", 20_000.0, seed=number))
    (finding,) = list_growths(run)
    assert any(line.startswith("also on rank ") for line in finding.evidence)


def join_memories(host: list[Step], device: list[Step]) -> list[Step]:
    """The device memory of one training beside the host memory of another."""
    for record, other in zip(host, device, strict=True):
        record.device_mb, record.device_peak_mb = other.device_mb, other.device_peak_mb
    return host


def make_creep(t: float, kind: str, **values: Any) -> Observation:
    return Observation(t=t, probe="memory", part="CREEP", step=9000, text="", values={**CREEP, "kind": kind, **values})


def test_a_note_on_the_host_does_not_hide_a_leak_on_the_device(one_rank: Any) -> None:
    run, rank = one_rank
    device = make_steps("device", 9000.0, begins_at(0.5), passes=12)
    write_run(run, rank, join_memories(make_steps("host", 20_000.0, passes=12), device))
    assert {(one.severity, one.title.split()[0]) for one in list_growths(run)} == {
        ("info", "host"),
        ("warning", "device"),
    }


@pytest.mark.parametrize("kinds", [("host", "device"), ("device", "host")])
def test_a_note_of_one_rank_does_not_hide_a_leak_of_another(make_stream: Any, kinds: tuple[str, str]) -> None:
    run = make_stream()
    for number, kind in enumerate(kinds):
        write_run(run, run.begin_rank(number, 2), make_steps(kind, 20_000.0, seed=number))
    assert {(one.severity, one.title.split()[0]) for one in list_growths(run)} == {
        ("info", "host"),
        ("warning", "device"),
    }


@pytest.mark.parametrize("graphs", [(True, False), (False, True)])
def test_the_gravest_of_the_ranks_counts(make_stream: Any, graphs: tuple[bool, bool]) -> None:
    run = make_stream()
    for number, piled_up in enumerate(graphs):
        creep = make_creep(1001.0, "host", piled_up=piled_up)
        write_run(run, run.begin_rank(number, 2), make_steps("host", 0.0), others=[creep])
    (finding,) = list_growths(run)
    assert finding.severity == "warning"


def test_the_probe_takes_back_no_word_on_the_other_memory(one_rank: Any) -> None:
    run, rank = one_rank
    creep = make_creep(1040.0, "host", piled_up=False)
    write_run(run, rank, make_steps("device", 20_000.0), others=[creep])
    assert {(one.severity, one.title.split()[0]) for one in list_growths(run)} == {
        ("info", "host"),
        ("warning", "device"),
    }


@pytest.mark.parametrize("begins", [(0.0, 0.3), (0.3, 0.0)])
@pytest.mark.parametrize("speaks", [0, 1])
def test_the_probe_of_any_rank_may_know_better(make_stream: Any, begins: tuple[float, float], speaks: int) -> None:
    run = make_stream()
    for number, begin in enumerate(begins):
        others = [make_creep(1045.0, "device")] if number == speaks else []
        write_run(run, run.begin_rank(number, 2), make_steps("device", 20_000.0, begins_at(begin)), others=others)
    (finding,) = list_growths(run)
    is_first = begins[speaks] == 0.0
    assert ("99 more tensors with a graph" in str(finding.evidence)) is is_first
    assert any(line.startswith(f"also on rank {1 - speaks if is_first else speaks}") for line in finding.evidence)


@pytest.mark.parametrize("grown_mb", [1500.0, 2200.0, 4000.0])
@pytest.mark.parametrize("full_s", [10.0, 30.0, 45.0])
def test_a_buffer_on_the_device_that_fills_is_at_most_a_note(one_rank: Any, grown_mb: float, full_s: float) -> None:
    run, rank = one_rank
    write_run(run, rank, make_steps("device", grown_mb, fills_in(full_s / 50.0)))
    assert [finding.severity for finding in list_growths(run)] in ([], ["info"])


@pytest.mark.parametrize("grown_mb", [6000.0, 20_000.0])
def test_without_passes_a_note_becomes_a_warning_once_it_is_much(one_rank: Any, grown_mb: float) -> None:
    run, rank = one_rank
    write_run(run, rank, make_steps("device", grown_mb, steps=80_000))
    (finding,) = list_growths(run)
    assert finding.severity == "warning" and not any(line.startswith("again") for line in finding.evidence)


@pytest.mark.parametrize("grown_mb", [9000.0, 17_000.0, 40_000.0])
def test_a_mapped_file_read_at_random_is_named_as_a_possible_cause(one_rank: Any, grown_mb: float) -> None:
    run, rank = one_rank
    write_run(run, rank, make_steps("host", grown_mb, lambda part: 1 - math.exp(-part), steps=80_000))
    for finding in list_growths(run):
        assert finding.severity == "info" and "np.memmap" in finding.cause


def add_older_peak(records: list[Step], peak_mb: float) -> list[Step]:
    """An evaluation of full length before the records: the peak is that of the whole run."""
    for record in records:
        peak_mb = record.device_peak_mb = max(record.device_peak_mb or 0.0, peak_mb)
    return records


@pytest.mark.parametrize("grown_mb", [1500.0, 3000.0, 9000.0])
@pytest.mark.parametrize("touched", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("peak_share", [0.5, 0.9, 1.0, 1.3])
def test_sequences_that_grow_below_an_older_peak_are_at_most_a_note(
    one_rank: Any, grown_mb: float, touched: float, peak_share: float
) -> None:
    run, rank = one_rank
    peak_mb = BASE_MB + 500.0 + peak_share * grown_mb * (1 + touched)
    write_run(run, rank, add_older_peak(make_steps("device", grown_mb, passes=6, touched=touched), peak_mb))
    assert [finding.severity for finding in list_growths(run)] in ([], ["info"])


@pytest.mark.parametrize(("peak_mb", "severity"), [(3000.0, "warning"), (9000.0, "warning"), (30_000.0, "info")])
@pytest.mark.parametrize("noise_mb", [0.0, 100.0])
def test_a_leak_below_an_older_peak_is_a_note_until_it_exceeds_it(
    one_rank: Any, peak_mb: float, severity: str, noise_mb: float
) -> None:
    run, rank = one_rank
    write_run(run, rank, add_older_peak(make_steps("device", 20_000.0, passes=6, noise_mb=noise_mb), peak_mb))
    (finding,) = list_growths(run)
    assert finding.severity == severity
    assert any(line.startswith("below a peak of before") for line in finding.evidence) is (severity == "info")


HOSTILE_STEPS = [10**400, -(10**400), (1 << 53) + 1]


@pytest.mark.parametrize("step", HOSTILE_STEPS, ids=["long", "low", "high"])
@pytest.mark.parametrize(("grown_mb", "count"), [(0.0, 0), (20_000.0, 1)])
def test_a_step_that_no_program_reaches_is_left_out(one_rank: Any, step: int, grown_mb: float, count: int) -> None:
    run, rank = one_rank
    records = make_steps("device", grown_mb, passes=4)
    records[100].step = step
    write_run(run, rank, records)
    assert len(list_growths(run)) == count
