"""Rates of zero, or below, in some groups of an optimizer: generated courses of rates, and what is said of each."""

import random
from collections.abc import Callable, Iterable, Sequence

import pytest
from streams import Stream

from tdbg.core.events import Finding, Observation, Step, decode, encode
from tdbg.core.observations.optimizer import Group, ParameterGroups

STEPS = 200
Rates = Callable[[int, int], float]  # step, group -> rate
GROUPS = (2, 3, 8, 12)


def make_groups(
    count: int, rates: Sequence[float], *, initial: float | None = None, trainable: int = 5, name: str = "layer"
) -> list[Group]:
    """What is on record of the first eight groups."""
    with_initial = {} if initial is None else {"initial_lr": initial}
    return [
        {
            "lr": rates[index],
            **with_initial,
            "trainable": trainable,
            "names": [f"{name}{index}.{part}" for part in "abc"][:trainable],
        }
        for index in range(min(count, 8))
    ]


def see_groups(count: int, groups: list[Group], optimizer: str = "AdamW") -> Observation:
    seen = ParameterGroups(optimizer=optimizer, groups=groups, group_count=count)
    return Observation(probe=seen.PROBE, part=seen.PART, values=seen.as_values())


def emit_run(
    run: Stream, rank: str, rates: Rates, count: int, *, steps: Iterable[int] = range(1, STEPS + 1), named: bool = True
) -> None:
    """The records of a training; the groups are known from the first step on."""
    if named:
        run.emit_events(rank, see_groups(count, make_groups(count, [rates(1, index) for index in range(count)])))
    for step in steps:
        run.emit_events(rank, Step(step=step, loss=2.0, lr=[rates(step, index) for index in range(count)]))
    run.end_process(rank, STEPS)


def find_all(run: Stream) -> list[Finding]:
    return run.judge_stream().findings


def fall(at: int, *groups: int) -> Rates:
    """A linear decay whose end some groups reach before the others."""
    return lambda step, group: 0.0 if group in groups and step >= at else 1e-3 * (1 - step / 1000)


@pytest.mark.parametrize("count", GROUPS)
@pytest.mark.parametrize("at", [2, 17, 90, 161])
@pytest.mark.parametrize("named", [True, False])
def test_a_group_whose_rate_falls_to_zero_is_named(
    one_rank: tuple[Stream, str], count: int, at: int, named: bool
) -> None:
    run, rank = one_rank
    emit_run(run, rank, fall(at, count - 1), count, named=named)
    (finding,) = find_all(run)
    assert (finding.code, finding.first_step, finding.severity) == ("TD-S010", at, "warning")
    assert finding.title.startswith(f"group {count - 1} {'of AdamW ' if named else ''}has had a learning rate of 0")
    known = named and count <= 8
    assert (f"layer{count - 1}.a, layer{count - 1}.b, layer{count - 1}.c and 2 more" in finding.title) == known
    assert finding.grade == ("located" if known else "local")


@pytest.mark.parametrize("start", [True, False])
def test_all_groups_of_a_kind_are_named(one_rank: tuple[Stream, str], start: bool) -> None:
    run, rank = one_rank
    emit_run(run, rank, fall(1 if start else 50, 1, 3), 4)
    (finding,) = find_all(run)
    assert finding.title.startswith(
        f"groups 1, 3 of AdamW have had a learning rate of 0 since step {1 if start else 50}"
    )
    assert finding.evidence[1:] == [f"group {n}: layer{n}.a, layer{n}.b, layer{n}.c and 2 more" for n in (1, 3)]


def test_a_rate_that_falls_is_told_beside_one_that_never_was(one_rank: tuple[Stream, str]) -> None:
    run, rank = one_rank
    emit_run(run, rank, lambda step, group: 0.0 if group == 0 or (group == 1 and step >= 60) else 1e-3, 3)
    (finding,) = find_all(run)
    assert finding.title.startswith("group 0 of AdamW") and finding.first_step == 1
    assert finding.evidence[1].startswith("group 1 of AdamW too, since step 60: layer1.a")


def test_between_sparse_records_the_fall_is_bracketed(one_rank: tuple[Stream, str]) -> None:
    run, rank = one_rank
    emit_run(run, rank, fall(90, 1), 2, steps=[*range(1, 51), 64, *range(96, 201, 8)])
    (finding,) = find_all(run)
    assert finding.first_step == 96 and "no record between steps 64 and 96" in finding.evidence


HEALTHY: dict[str, Rates] = {
    "all end at 0": lambda step, group: 1e-3 * max(1 - step / 150, 0.0) if step < 185 else 1e-4,
    "all end at 0 at once": lambda step, group: max(10**-group * (1 - step / 190), 0.0),
    "one ends a little before": lambda step, group: max(1 - step / (180 + 15 * group), 0.0),
    "warm-up from 0": lambda step, group: min((step - 1) / 50, 1.0) * 10**-group,
    "warm-up from 0 of one": lambda step, group: min((step - 1) / 100, 1.0) if group else 0.1,
    "cyclic": lambda step, group: abs((step + 30 * group) % 100 - 50) / 50,
    "cyclic, 0 for long": lambda step, group: 0.0 if group and step % 120 >= 60 else 0.1,
    "in turns": lambda step, group: 0.1 if step // 50 % 2 == min(group, 1) else 0.0,
    "two stages": lambda step, group: 0.1 if (step < 100) == (group == 0) else 0.0,
    "thawed one by one": lambda step, group: 0.1 if step > 25 * group else 0.0,
    "frozen one by one": lambda step, group: 0.0 if group and step > 40 * group else 0.1,
    "too late to tell": fall(175, 1),
    "touches 0": lambda step, group: 0.0 if group == 1 and step in (50, 90, 200) else 0.1,
}


@pytest.mark.parametrize("count", [3, 8])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("kind", HEALTHY)
def test_schedules_that_know_zero_are_healthy(one_rank: tuple[Stream, str], kind: str, count: int, named: bool) -> None:
    """Initial rates are those that a scheduler leaves in the groups."""
    run, rank = one_rank
    rates = HEALTHY[kind]
    if named:
        groups = make_groups(count, [rates(1, index) for index in range(count)], initial=0.1)
        run.emit_events(rank, see_groups(count, groups))
    emit_run(run, rank, rates, count, named=False)
    assert "TD-S010" not in [finding.code for finding in find_all(run)]


@pytest.mark.parametrize("at", [1, 50])
def test_a_group_without_trainable_parameters_is_no_fault(one_rank: tuple[Stream, str], at: int) -> None:
    run, rank = one_rank
    run.emit_events(rank, see_groups(2, make_groups(2, [0.1, 0.1 if at > 1 else 0.0], trainable=0)))
    emit_run(run, rank, fall(at, 1), 2, named=False)
    assert find_all(run) == []


def test_what_is_frozen_when_its_rate_falls_is_no_fault(one_rank: tuple[Stream, str]) -> None:
    """The groups are seen again at the step that froze it."""
    run, rank = one_rank
    rates = fall(60, 1)
    emit_run(run, rank, rates, 2, steps=range(1, 60))
    frozen = [make_groups(2, [0.1, 0.0])[0], make_groups(2, [0.1, 0.0], trainable=0)[1]]
    run.emit_events(rank, see_groups(2, frozen))
    for step in range(60, 200):
        run.emit_events(rank, Step(step=step, loss=2.0, lr=[rates(step, 0), rates(step, 1)]))
    assert find_all(run) == []


def test_nothing_is_said_where_the_last_record_is_long_past(one_rank: tuple[Stream, str]) -> None:
    run, rank = one_rank
    emit_run(run, rank, fall(10, 1), 2, steps=range(1, 90))
    assert find_all(run) == []


def test_of_two_optimizers_the_names_are_those_of_the_one_with_these_rates(one_rank: tuple[Stream, str]) -> None:
    run, rank = one_rank
    run.emit_events(rank, see_groups(2, make_groups(2, [0.5, 0.5], name="critic"), "SGD"))
    emit_run(run, rank, fall(60, 1), 2)
    (finding,) = find_all(run)
    assert "layer1.a" in finding.title and "AdamW" in finding.title


def test_of_two_optimizers_with_equal_rates_neither_is_named(one_rank: tuple[Stream, str]) -> None:
    run, rank = one_rank
    first = fall(60, 1)(1, 0)
    run.emit_events(rank, see_groups(2, make_groups(2, [first, first], name="critic")))
    emit_run(run, rank, fall(60, 1), 2)
    (finding,) = find_all(run)
    assert finding.title.startswith("group 1 has had a learning rate of 0 since step 60, rank 0")


@pytest.mark.parametrize("count", GROUPS)
@pytest.mark.parametrize("named", [True, False])
def test_a_group_with_a_negative_rate_is_named(one_rank: tuple[Stream, str], count: int, named: bool) -> None:
    run, rank = one_rank
    where = random.Random(count).randrange(min(count, 8))
    emit_run(run, rank, lambda step, group: -1e-3 if group == where and step > 30 else 1e-3, count, named=named)
    (finding,) = find_all(run)
    of_which = " of AdamW" if named else ""
    assert (finding.code, finding.severity, finding.first_step, finding.grade) == ("TD-S002", "error", 31, "local")
    assert finding.title.startswith(f"the learning rate of group {where}{of_which} is negative: -0.001, rank 0")
    members = f"parameters of AdamW: layer{where}.a, layer{where}.b, layer{where}.c and 2 more"
    assert (members in finding.evidence) == named


@pytest.mark.parametrize("count", [1, *GROUPS])
@pytest.mark.parametrize("named", [True, False])
def test_the_parameters_of_an_optimizer_without_a_rate_are_named(
    one_rank: tuple[Stream, str], count: int, named: bool
) -> None:
    run, rank = one_rank
    emit_run(run, rank, lambda step, group: 1e-3 * (step < 50), count, named=named)
    finding = next(one for one in find_all(run) if one.code == "TD-S002")
    part, more = "the first 8 groups of " if count > 8 else "", 5 * min(count, 8) - 3
    members = f"parameters of {part}AdamW: layer0.a, layer0.b, layer0.c and {more} more"
    assert (finding.first_step, members in finding.evidence) == (50, named), finding.evidence


def test_a_group_that_is_not_listed_was_frozen_with_the_others(one_rank: tuple[Stream, str]) -> None:
    """Ten groups, of which the first eight are on record; nine are frozen, and their rate is set to 0."""
    run, rank = one_rank
    rates = fall(90, *range(9))
    run.emit_events(rank, see_groups(10, make_groups(10, [rates(1, index) for index in range(10)])))
    for step in range(1, STEPS + 1):
        if step == 90:
            run.emit_events(rank, see_groups(10, make_groups(10, [rates(step, n) for n in range(10)], trainable=0)))
        run.emit_events(rank, Step(step=step, loss=2.0, lr=[rates(step, index) for index in range(10)]))
    run.end_process(rank, STEPS)
    assert find_all(run) == []


def test_a_run_that_was_cut_off_may_have_gone_on_with_a_rate(one_rank: tuple[Stream, str]) -> None:
    run, rank = one_rank
    rates = fall(90, 1)
    for step in range(1, STEPS + 1):
        run.emit_events(rank, Step(step=step, loss=2.0, lr=[rates(step, index) for index in range(2)]))
    assert "TD-S010" not in [one.code for one in run.judge_stream(-9).findings]


def test_a_group_that_gets_a_rate_later_is_a_note(one_rank: tuple[Stream, str]) -> None:
    """A backbone that is frozen by its rate for a while."""
    run, rank = one_rank
    emit_run(run, rank, lambda step, group: 0.0 if group == 1 and step < 100 else 1e-3, 2)
    (finding,) = find_all(run)
    assert (finding.code, finding.severity) == ("TD-S010", "info")
    assert finding.evidence[-1] == "later they had a learning rate above 0"


def test_a_rate_that_is_not_a_number_loses_no_record() -> None:
    found = decode(encode(Step(step=3, lr=[float("nan"), 1e-3])))
    assert isinstance(found, Step) and found.lr == ["nan", 1e-3]
