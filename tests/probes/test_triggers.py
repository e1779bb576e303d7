"""Triggers go off when they should, do what they say, cool down, and stay silent on healthy runs."""

import math
import random
import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import pytest
import torch
from torch import nn

from tdbg.core.events import Observation, Step, Switch, Trigger
from tdbg.core.step_anomalies import LossSpike
from tdbg.probes.triggers import COOL_STEPS, ESCALATE_STEPS, MAX_DUMPS, SkipStreak, not_finite
from tests.probes.conftest import Watch

Start = Callable[..., Watch]
QUIET = 40  # steps before something happens: more than a spike needs to stand out from


@pytest.fixture
def start_watching_all(start_watch: Start) -> Start:
    """A monitor that may put every step on record, whatever that costs."""
    return lambda **settings: start_watch(max_overhead=1e5, **settings)


def train_steps(factors: Iterable[float], seed: int = 0) -> None:
    """One step a factor, which the loss is multiplied with; the losses lie around 1 and hardly move."""
    torch.manual_seed(seed)
    layer = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-6)
    target = torch.zeros(8, 1)
    for factor in factors:
        loss = factor * (1.0 + 0.1 * nn.functional.mse_loss(layer(torch.randn(8, 4)), target))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def list_triggers(seen: Watch) -> list[Trigger]:
    return [event for event in seen.events if isinstance(event, Trigger)]


def list_switches(seen: Watch) -> list[tuple[int, str, str]]:
    return [(event.step, event.level, event.why) for event in seen.events if isinstance(event, Switch)]


def make_spikes(*places: int, steps: int, factor: float = 20.0) -> list[float]:
    return [factor if number in places else 1.0 for number in range(1, steps + 1)]


def test_a_loss_spike_dumps_escalates_and_falls_back(start_watching_all: Start) -> None:
    seen = start_watching_all()
    train_steps(make_spikes(QUIET, steps=QUIET + 30))
    (found,) = list_triggers(seen)
    assert (found.step, found.condition, found.action) == (QUIET, "loss spike", "dump, level=advanced for 20")
    assert found.values["loss"] > 2 * found.values["median(loss)"] > 0
    assert list_switches(seen) == [(QUIET, "advanced", "trigger"), (QUIET + ESCALATE_STEPS, "basic", "end")]
    looked = {event.step for event in seen.events if isinstance(event, Observation) and event.probe == "tensor-stats"}
    assert looked and looked <= set(range(QUIET + 1, QUIET + ESCALATE_STEPS + 1))


def test_the_dump_holds_the_records_and_the_batch(start_watching_all: Start) -> None:
    seen = start_watching_all(keep_steps=5)
    train_steps(make_spikes(QUIET, steps=QUIET))
    (found,) = list_triggers(seen)
    assert list(seen.kept) == [found.dump] == [f"trigger_step{QUIET:08d}.json"]
    story = seen.kept[found.dump]
    assert [row["step"] for row in story["records"]] == list(range(QUIET - 4, QUIET + 1))
    assert story["records"][-1]["loss"] == found.values["loss"] and story["tensors"] == []
    ((step, parts),) = seen.saved
    ((args, _),) = parts["inputs"]
    assert step == QUIET and args[0].shape == (8, 4) and found.batch == "batch"


def test_the_history_of_tensors_is_in_the_dump_at_higher_levels(start_watching_all: Start) -> None:
    seen = start_watching_all(level="advanced")
    train_steps(make_spikes(QUIET, steps=QUIET + 2))
    (story,) = seen.kept.values()
    assert story["tensors"][-1]["step"] <= QUIET and story["tensors"][-1]["weight_rms"]
    assert list_switches(seen) == [(QUIET, "extreme", "trigger")]


def test_each_look_in_the_dump_names_its_tensors(start_watching_all: Start) -> None:
    seen = start_watching_all(level="advanced", keep_steps=1, when=["step == 100"])
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    names = [name for name, _ in model.named_parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for _ in range(101):
        model(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
    (story,) = seen.kept.values()
    assert [look["names"] for look in story["tensors"]] == [
        [names[i] for i in look["which"]] for look in story["tensors"]
    ]
    assert {name for look in story["tensors"] for name in look["names"]} == set(names)
    told = [event for event in seen.events if isinstance(event, Observation) and event.probe == "tensor-stats"]
    assert ["names" in event.values for event in told] == [True] + [False] * (len(told) - 1), "but told once"


def test_extreme_stays_extreme(start_watching_all: Start) -> None:
    seen = start_watching_all(level="extreme")
    train_steps(make_spikes(QUIET, steps=QUIET + 2))
    assert [found.action for found in list_triggers(seen)] == ["dump"] and list_switches(seen) == []


def test_cool_down(start_watching_all: Start) -> None:
    seen = start_watching_all()
    second, third = QUIET + 100, QUIET + COOL_STEPS + 10
    train_steps(make_spikes(QUIET, second, third, steps=third + 2))
    assert [found.step for found in list_triggers(seen)] == [QUIET, third]


def test_no_more_dumps_than_allowed(start_watching_all: Start) -> None:
    seen = start_watching_all(when=["loss > 10"])
    places = [QUIET + number * (COOL_STEPS + 1) for number in range(MAX_DUMPS + 2)]
    train_steps(make_spikes(*places, steps=places[-1] + 1))
    assert len(seen.kept) == MAX_DUMPS == len({found.dump for found in list_triggers(seen) if found.dump})
    both = [found for found in list_triggers(seen) if found.step == QUIET]
    assert {found.condition for found in both} == {"loss spike", "loss > 10"}, "both went off"
    assert len({found.dump for found in both}) == 1, "and share the dump of that step"
    assert [found.action for found in list_triggers(seen) if found.step == places[-1]] == ["level=advanced for 20", ""]


def test_a_bad_value_keeps_its_batch_once(start_watching_all: Start) -> None:
    seen = start_watching_all()
    train_steps([1.0] * 12 + [math.nan] * 3)
    (found,) = list_triggers(seen)
    assert (found.condition, found.step, found.batch) == ("non-finite", 13, "")
    assert [step for step, _ in seen.saved] == [13] and seen.bad_values[0].step == 13, "the report of it has the batch"
    assert found.values["loss"] == "nan" and "level=advanced for 20" in found.action


def test_a_condition_of_the_users_does_what_it_says(start_watching_all: Start) -> None:
    seen = start_watching_all(when=["loss > 10 and step > 5"], then=["level=extreme for 4, flag=MEMORY"])
    train_steps(make_spikes(2, 10, steps=20))
    (found,) = list_triggers(seen)
    assert (found.step, found.action, found.dump) == (10, "level=extreme, flag=MEMORY for 4", "")
    assert found.values["step"] == 10 and found.values["loss"] > 10
    changes = [event for event in seen.events if isinstance(event, Switch)]
    assert [(event.step, event.level, event.flags) for event in changes] == [
        (10, "extreme", {"MEMORY": True}),
        (14, "basic", {}),
    ]


def test_a_condition_that_stays_true_goes_off_once(start_watching_all: Start) -> None:
    seen = start_watching_all(when=["step >= 3"])
    train_steps([1.0] * (COOL_STEPS + 20))
    assert [(found.step, found.action) for found in list_triggers(seen)] == [(3, "dump")]


def test_a_condition_speaks_of_metrics_and_medians(start_watching_all: Start) -> None:
    seen = start_watching_all(when=["metric.accuracy < 0.5", "loss > 4 * median(loss)"], then=["dump", "dump, stop"])
    train_steps([1.0] * 3)
    seen.monitor.metrics["accuracy"] = 0.25
    train_steps([1.0] * 10 + [6.0])
    first, second = list_triggers(seen)
    assert first.values == {"metric.accuracy": 0.25} and not first.stop
    assert second.stop and second.action == "dump, stop" and second.values["median(loss)"] == pytest.approx(1, abs=0.3)


def test_nothing_goes_off_while_the_cost_is_measured(start_watching_all: Start) -> None:
    seen = start_watching_all(baseline=5, when=["loss > 10"])
    train_steps(make_spikes(QUIET, steps=QUIET + 2))
    assert list_triggers(seen) == [] and "triggers-off" in seen.notes


def test_an_escalation_does_not_touch_what_was_asked_for(start_watching_all: Start) -> None:
    seen = start_watching_all()
    seen.monitor.level_overrides.change_now("extreme", {}, "api", for_steps=QUIET + 10)
    train_steps(make_spikes(QUIET, steps=QUIET + 15))
    assert [found.action for found in list_triggers(seen)] == ["dump"]
    assert list_switches(seen) == [(0, "extreme", "api"), (QUIET + 10, "basic", "end")]


def test_history_cleared(start_watching_all: Start) -> None:
    seen = start_watching_all(when=["loss > 3 * median(loss)"])
    train_steps([1.0] * 31)
    seen.monitor.clear_history()
    train_steps([6.0])
    assert list_triggers(seen) == [], "there is nothing left that it stands out from"


# the conditions themselves


def make_losses(kind: str, seed: int) -> list[float]:
    """Healthy courses of a loss: noisy, falling, heavy-tailed, with plateaus and drops."""
    rng = random.Random(seed)
    course = {
        "gauss": lambda n: 2.0 + rng.gauss(0, 0.3),
        "falling": lambda n: 5.0 * math.exp(-n / 300) + 0.5 + rng.gauss(0, 0.05),
        "lognormal": lambda n: math.exp(rng.gauss(0, 0.7)),
        "wild": lambda n: math.exp(rng.gauss(0, 1.2)),
        "gamma": lambda n: rng.gammavariate(2.0, 0.5),
        "steps": lambda n: (3.0 if n < 300 else 1.0) * (1 + 0.1 * rng.random()),
        "cyclic": lambda n: 1.0 + 0.4 * math.sin(n / 30) + 0.1 * rng.random(),
        "constant": lambda n: 0.69,
        "tiny": lambda n: 1e-6 * (1 + rng.random()),
    }[kind]
    return [max(course(number), 1e-9) for number in range(1000)]


@pytest.mark.parametrize(
    "kind", ["gauss", "falling", "lognormal", "wild", "gamma", "steps", "cyclic", "constant", "tiny"]
)
def test_healthy_courses_are_silent(kind: str) -> None:
    alarms = 0
    for seed in range(20):
        spike = LossSpike()
        alarms += sum(spike.is_met(Step(step=n, loss=loss, micro=1)) for n, loss in enumerate(make_losses(kind, seed)))
    assert alarms == 0


@pytest.mark.parametrize("kind", ["gauss", "falling", "gamma", "steps", "cyclic", "constant", "tiny"])
def test_a_spike_is_seen(kind: str) -> None:
    spike, course = LossSpike(), make_losses(kind, 1)
    course[600] = 100 * median(course[:600])
    assert [n for n, loss in enumerate(course) if spike.is_met(Step(step=n, loss=loss, micro=1))] == [600]


@pytest.mark.parametrize("change", [{"loss": -1.0}, {"other_losses": [1.0]}])
def test_losses_that_mean_something_else_have_no_spikes(change: dict[str, Any]) -> None:
    spike = LossSpike()
    records = [Step(step=n, loss=1.0, micro=1) for n in range(100)]
    for name, value in change.items():
        setattr(records[3], name, value)
    assert not any(spike.is_met(record) for record in [*records, Step(step=101, loss=90.0, micro=1)])


def test_more_summands_are_no_spike() -> None:
    spike = LossSpike()
    records = [Step(step=n, loss=1.0 + 0.01 * (n % 3), micro=1) for n in range(100)]
    assert not any(spike.is_met(record) for record in [*records, Step(step=101, loss=32.0, micro=32)])


def test_skip_streaks() -> None:
    def find_first_streak(skips: range) -> int | None:
        streak = SkipStreak()
        records = (Step(step=n, skipped=n in skips) for n in range(1, 100))
        return next((record.step for record in records if streak.is_met(record)), None)

    assert find_first_streak(range(1, 11)) is None, "the scale comes down from its first value"
    assert find_first_streak(range(1, 30)) == 12
    assert find_first_streak(range(50, 54)) is None
    assert find_first_streak(range(50, 60)) == 54


def test_not_finite() -> None:
    assert not_finite(Step(loss="nan")) and not_finite(Step(loss=1.0, finite=False)) and not_finite(Step(loss="-inf"))
    assert not not_finite(Step(loss=1.0, finite=False, skipped=True)), "the scaler has dealt with it"
    assert not not_finite(Step(loss=1.0, finite=None)) and not not_finite(Step())


def test_cost(start_watching_all: Start) -> None:
    seen = start_watching_all(when=["loss > 1e9 or grad_norm > 1e9 or skipped"])
    probe = seen.monitor.find_probe("triggers")
    records = [Step(step=n, loss=1.0 + 0.1 * (n % 7), grad_norm=1.0, micro=1, finite=True) for n in range(1, 2001)]
    for record in records[:100]:
        probe.record_written(record)
    best = math.inf
    for _ in range(5):
        begun = time.perf_counter()
        for record in records:
            probe.record_written(record)
        best = min(best, (time.perf_counter() - begun) / len(records))
    assert best < 20e-6, f"{best * 1e6:.1f} us a record"


# between samples


@pytest.fixture
def start_watching_some(start_watch: Start, monkeypatch: pytest.MonkeyPatch) -> Start:
    """A monitor that puts every tenth step on record, once the first eight are done."""

    def start_sparse(**settings: Any) -> Watch:
        seen = start_watch(max_overhead=1e5, **settings)
        planner, plan_next = seen.monitor._planner, seen.monitor._planner.plan_next_step

        def plan_sparsely(step: int, *, focus: bool, **more: bool) -> None:
            plan_next(step, focus=focus, **more)
            rest = step >= 8 and (step + 1) % 10 and not focus
            if rest:
                planner.plan.watch = planner.plan.record = planner.plan.full = planner.plan.small = False

        monkeypatch.setattr(planner, "plan_next_step", plan_sparsely)
        return seen

    return start_sparse


def test_a_spike_between_samples_is_put_on_record(start_watching_some: Start) -> None:
    seen = start_watching_some()
    train_steps(make_spikes(395, steps=400))
    (found,) = list_triggers(seen)
    assert (found.step, found.condition, found.batch) == (395, "loss spike", "batch")
    assert 20 < found.values["loss"] < 25
    steps = [record.step for record in seen.train_steps]
    assert len(steps) < 60 and 395 in steps
    ((args, _),) = seen.saved[0][1]["inputs"]
    assert args[0].shape == (8, 4)
    assert seen.train_steps[steps.index(395)].step_ms is None, "nobody timed it"


def test_a_condition_on_the_loss_holds_between_samples(start_watching_some: Start) -> None:
    seen = start_watching_some(
        when=["loss > 10", "loss > 10 and grad_norm > 0", "loss > 10 and not skipped"], then=["dump"]
    )
    train_steps(make_spikes(25, steps=40))
    assert [(found.step, found.condition) for found in list_triggers(seen)] == [
        (25, "loss > 10"),
        (25, "loss > 10 and not skipped"),
    ], "true for what is known; the norm of that step was not looked at"


def test_what_stays_true_costs_one_record(start_watching_some: Start) -> None:
    seen = start_watching_some(when=["step > 20 and loss > 0"], then=["dump"])
    train_steps([1.0] * 60)
    assert [found.step for found in list_triggers(seen)] == [21]
    assert [record.step for record in seen.train_steps if record.step > 8] == [10, 20, 21, 30, 40, 50, 60]


def test_a_part_of_a_steps_losses_makes_no_record(start_watching_some: Start) -> None:
    """Accumulation: the second of two losses spikes, when the first is past."""
    seen = start_watching_some(when=["loss > 10"], then=["dump"])
    layer = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-6)
    for step in range(1, 40):
        optimizer.zero_grad()
        for number in range(2):
            factor = 100.0 if (step, number) == (25, 1) else 1.0
            (factor * (1.0 + layer(torch.ones(1, 4)).square().mean())).backward()
        optimizer.step()
    assert list_triggers(seen) == [] and 25 not in [record.step for record in seen.train_steps]


def test_looking_between_samples_cannot_hurt(start_watching_some: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = start_watching_some()
    probe = seen.monitor.find_probe("triggers")
    monkeypatch.setattr(probe._spike, "is_outlier", lambda loss: 1 / 0)
    train_steps([1.0] * 20)
    assert [name for name, _ in seen.failures] == ["triggers"] and seen.monitor.suspects is None
    assert seen.monitor.step == 20
    seen.failures.clear()


def test_a_complex_loss_between_samples_is_no_suspect(start_watching_some: Start) -> None:
    seen = start_watching_some(when=["loss > 10"])
    layer = nn.Linear(4, 1, dtype=torch.complex64)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-6)
    for step in range(1, 41):
        loss = layer(torch.ones(1, 4, dtype=torch.complex64)).sum() * (1e3 + 1j if step == 25 else 1.0)
        loss.backward(gradient=torch.ones_like(loss))
        optimizer.step()
        optimizer.zero_grad()
    assert list_triggers(seen) == [] and seen.bad_values == [] and seen.monitor.step == 40
    assert all(record.loss is None and record.grad_norm for record in seen.train_steps)
