"""The opening inspection: what it adds to the default level, what it may spend, and what is left afterwards."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tdbg.core.events import Observation
from tdbg.core.flags import FLAGS
from tdbg.core.observations import OF_INSPECTION
from tdbg.probes import OPENING
from tdbg.probes.catalog import CATALOG
from tdbg.runtime.budget import Budget
from tdbg.runtime.change_watch import MAX_OF_KIND, ChangeWatch
from tdbg.runtime.inspection import AGAIN_STEPS, OPENING_STEPS, SETTLING_STEPS


def train_model(steps: int, rest_s: float = 0.0) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(steps, 4), torch.randn(steps, 1)), batch_size=1)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        time.sleep(rest_s)


def list_probe_names(seen: Any) -> set[str]:
    return {probe.name for probe in seen.monitor.dispatcher.probes}


ADDED = {probe.name for probe in CATALOG.load_inspection_probes()}
STAYING = {"checkpoint", "dataloader", "memory", "rank-weights", "schedule", "validation"}


def test_what_the_inspection_alone_has_is_listed_for_the_rules() -> None:
    woken = {flag.probe for flag in FLAGS}
    assert sorted(p.name for p in CATALOG.load_inspection_probes() if not p.levels and p.name not in woken) == sorted(
        OF_INSPECTION
    )


def test_every_opening_step_is_on_record_and_the_probes_leave_a_program_of_short_steps(
    start_watch: Callable[..., Any],
) -> None:
    seen = start_watch(max_overhead=0.01)
    seen.monitor.inspection.begin_inspection(1.0)
    assert list_probe_names(seen) >= ADDED and len(ADDED) == len(OPENING)
    train_model(OPENING_STEPS + 30)
    assert [record.step for record in seen.train_steps][:OPENING_STEPS] == list(range(1, OPENING_STEPS + 1))
    assert list_probe_names(seen) & ADDED == {"checkpoint"}, "which waits for the first file"
    assert not seen.monitor.hooks.before_each and not seen.monitor.hooks.after_each, "at no cost a step"
    cost = seen.monitor.build_cost()
    assert 0.0 < cost.inspection_ms < 1000.0 and cost.allowance_ms == 1000.0
    last = max(event.step for event in seen.events if isinstance(event, Observation))
    assert 8 <= last <= OPENING_STEPS


def test_what_costs_little_stays_where_steps_are_long(start_watch: Callable[..., Any]) -> None:
    seen = start_watch(max_overhead=None)
    seen.monitor.inspection.begin_inspection(1.0)
    train_model(OPENING_STEPS + 90, rest_s=0.015)
    assert list_probe_names(seen) & ADDED == STAYING
    readings = [e.step for e in seen.events if isinstance(e, Observation) and e.probe == "memory" and not e.part]
    late = [step for step in readings if step > OPENING_STEPS]
    assert len(late) <= 2, late  # looks at doubling intervals


@pytest.mark.parametrize("baselines", [0, 3])
def test_the_first_pass_is_over_a_few_steps_after_it_however_short_the_steps_are(
    start_watch: Callable[..., Any], baselines: int
) -> None:
    """baselines: calls without gradients before the first step, which are not the pass that is meant."""
    seen = start_watch(max_overhead=None)
    seen.monitor.inspection.begin_inspection(1.0)
    run = Long(seen, baselines=baselines)
    assert seen.monitor.eval_calls == baselines
    run.run_steps(300)
    assert seen.monitor.duty.is_away or seen.monitor.duty.steps, "stretches are hardly watched"
    while seen.monitor.duty.is_away:
        run.run_steps(1)
    run.model.eval()
    with torch.no_grad():
        run.model(torch.randn(2, 4))
    run.model.train()
    assert seen.monitor.inspects_pass and "validation" in list_probe_names(seen)
    run.run_steps(SETTLING_STEPS + 1)
    assert not seen.monitor.inspects_pass and "validation" not in list_probe_names(seen) - STAYING


class Layers(nn.Sequential):
    """Of a class of its own: torch compiles nothing of a Sequential that is the root."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return x


class Long:
    """A training that goes on after its opening steps, and notes in which steps the inspection is open again."""

    def __init__(self, seen: Any, *, others: int = 0, baselines: int = 0) -> None:
        self.seen = seen
        self.model = Layers(nn.Linear(4, 4), nn.Dropout(0.1), nn.Linear(4, 1))
        self.head = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.others = [torch.optim.SGD(self.head.parameters(), lr=0.01) for _ in range(others)]
        self.open: list[int] = []
        with torch.no_grad():
            for _ in range(baselines):
                self.model(torch.randn(2, 4))
        self.run_steps(OPENING_STEPS + 10)
        self.open.clear()

    def run_steps(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.randn(2, 4)).square().mean().backward()
            self.optimizer.step()
            for other in self.others:
                self.head(torch.randn(2, 4)).square().mean().backward()
                other.step()
            if self.seen.monitor.inspection.is_open and not self.seen.monitor.inspection.is_later_look_open:
                self.open.append(self.seen.monitor.step)


def _add_group(run: Long) -> None:
    run.optimizer.add_param_group({"params": list(nn.Linear(4, 4).parameters())})


def _freeze_layer(run: Long) -> None:
    run.model[0].requires_grad_(not run.model[0].weight.requires_grad)


def _swap_head(run: Long) -> None:
    run.model[2] = nn.Linear(4, 1)


def _change_mode(run: Long) -> None:
    run.model.train(not run.model.training)


def _wrap_model(run: Long) -> None:
    run.model = nn.Sequential(run.model, nn.Linear(1, 1))


def _change_rate(run: Long) -> None:
    run.optimizer.param_groups[0]["lr"] /= 2


def _evaluate_model(run: Long) -> None:
    run.model.eval()
    with torch.no_grad():
        run.model(torch.randn(2, 4))
    run.model.train()


CHANGES = [_add_group, _freeze_layer, _swap_head, _change_mode, _wrap_model]


@pytest.mark.parametrize("change", CHANGES)
def test_a_training_that_becomes_another_one_is_looked_at_again(start_watch: Callable[..., Any], change: Any) -> None:
    torch.manual_seed(0)  # a loss that happens to spike is recorded for five steps of its own
    seen = start_watch(max_overhead=1e5)
    seen.monitor.inspection.begin_inspection(1.0)
    run = Long(seen)
    for _ in range(5):
        before = len(run.open)
        change(run)
        run.run_steps(20)
        if len(run.open) > before:
            last = run.open[before:]
            assert len(last) == AGAIN_STEPS and last == list(range(last[0], last[0] + AGAIN_STEPS))
    assert len(run.open) == 3 * AGAIN_STEPS, "each kind three times in a run"
    assert not seen.monitor.inspection.is_open


def test_a_model_that_is_compiled_later_is_looked_at_again(start_watch: Callable[..., Any]) -> None:
    seen = start_watch(max_overhead=1e5)
    seen.monitor.inspection.begin_inspection(1.0)
    run = Long(seen)
    run.run_steps(20)
    assert run.open == []
    run.model.compile(backend="eager")
    run.run_steps(20)
    assert len(run.open) == AGAIN_STEPS


@pytest.mark.parametrize("used_up", ["wrapper", "compiled", "mode"])
def test_a_kind_that_is_used_up_hides_no_other(used_up: str) -> None:
    """Both have changed at the same check."""
    model = nn.Linear(2, 2)
    facts = {"compiled": False, "roots": [model]}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = ChangeWatch(lambda: optimizer, lambda: facts["roots"], lambda: facts["compiled"])

    def change() -> None:
        match used_up:
            case "wrapper":
                facts["roots"] = [nn.Sequential(facts["roots"][0])]
            case "compiled":
                facts["compiled"] = not facts["compiled"]
            case "mode":
                model.train(not model.training)

    kinds = [watch.find_change()]
    for _ in range(MAX_OF_KIND + 1):
        change()
        kinds.append(watch.find_change())
    assert kinds == ["", *[used_up] * MAX_OF_KIND, ""]
    for _ in range(MAX_OF_KIND + 1):
        change()
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
        kinds.append(watch.find_change())
    assert kinds[-MAX_OF_KIND - 1 :] == [*["groups"] * MAX_OF_KIND, ""], (
        "the parameters of a group are no second reason"
    )


@pytest.mark.parametrize("change", [_change_rate, _evaluate_model, lambda run: None])
def test_what_every_training_does_is_no_change(start_watch: Callable[..., Any], change: Any) -> None:
    seen = start_watch(max_overhead=1e5)
    seen.monitor.inspection.begin_inspection(1.0)
    run = Long(seen, others=1)
    for _ in range(4):
        change(run)
        run.run_steps(20)
    assert run.open == []


def test_after_a_spike_of_the_loss_five_steps_are_on_record(start_watch: Callable[..., Any]) -> None:
    """They tell a spike from a jump."""
    seen = start_watch(max_overhead=1e-6)
    seen.monitor.inspection.begin_inspection(1.0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x, y = torch.randn(8, 4), torch.randn(8, 1)
    for step in range(1, 101):
        optimizer.zero_grad()
        (nn.functional.mse_loss(model(x), y) * (20.0 if step >= 80 else 1.0 + step / 1000)).backward()
        optimizer.step()
    recorded = [record.step for record in seen.train_steps if record.step > OPENING_STEPS]
    spiked = [step for step in recorded if step >= 80]
    assert spiked[: 1 + AGAIN_STEPS] == list(range(spiked[0], spiked[0] + 1 + AGAIN_STEPS))
    assert len(recorded) - len(spiked) <= 3, "the budget alone pays for few"


def test_nothing_is_looked_at_again_once_the_allowance_is_spent(start_watch: Callable[..., Any]) -> None:
    seen = start_watch(max_overhead=1e5)
    seen.monitor.inspection.begin_inspection(1.0)
    run = Long(seen)
    seen.monitor.budget.inspection_s = 1.0
    _add_group(run)
    run.run_steps(20)
    assert run.open == []


@pytest.mark.parametrize(("allowance_s", "steps"), [(0.0, 0), (1e-6, 8)])
def test_without_an_allowance_there_is_no_inspection(
    start_watch: Callable[..., Any], allowance_s: float, steps: int
) -> None:
    seen = start_watch(max_overhead=0.01)
    seen.monitor.inspection.begin_inspection(allowance_s)
    assert bool(list_probe_names(seen) & ADDED) == bool(allowance_s)
    train_model(steps + 5)
    assert not list_probe_names(seen) & ADDED


def test_a_level_that_has_the_probes_anyway_keeps_them(start_watch: Callable[..., Any]) -> None:
    seen = start_watch(max_overhead=None, level="advanced")
    before = list_probe_names(seen)
    seen.monitor.inspection.begin_inspection(1.0)
    assert list_probe_names(seen) == before | ADDED
    train_model(OPENING_STEPS + 5)
    assert list_probe_names(seen) == before


def test_a_level_that_has_the_probes_keeps_their_pace(start_watch: Callable[..., Any]) -> None:
    seen = start_watch(max_overhead=1e5, level="advanced")
    seen.monitor.inspection.begin_inspection(1.0)
    train_model(OPENING_STEPS + 40)
    readings = [e.step for e in seen.events if isinstance(e, Observation) and e.probe == "memory" and not e.part]
    assert [step for step in readings if step > OPENING_STEPS] == list(range(52, OPENING_STEPS + 41, 4))


def test_a_flag_keeps_its_probe_and_its_pace(start_watch: Callable[..., Any]) -> None:
    seen = start_watch(max_overhead=50.0, flags={"MEMORY": True})
    seen.monitor.inspection.begin_inspection(1.0)
    train_model(OPENING_STEPS + 40, rest_s=0.004)
    assert "memory" in list_probe_names(seen)
    readings = [e.step for e in seen.events if isinstance(e, Observation) and e.probe == "memory" and not e.part]
    assert len([step for step in readings if step > OPENING_STEPS]) > 10


def test_an_allowance_is_spent_at_half_speed_and_never_refilled() -> None:
    budget = Budget(1.0, now=0.0)
    budget.allowance_s = 1.0
    assert budget.earned_s(10.0) == pytest.approx(0.1)
    budget.open_allowance(10.0, rate=0.5)
    assert budget.earned_s(11.0) == pytest.approx(0.11 + 0.5)
    assert budget.earned_s(20.0) == pytest.approx(0.2 + 1.0)
    budget.charge("step", 0.6)
    assert not budget.is_allowance_spent(20.0)
    budget.close_allowance(20.0)
    assert budget.inspection_s == pytest.approx(0.4)
    assert budget.earned_s(20.0) == pytest.approx(0.6)  # the share alone from here on
    budget.open_allowance(20.0, rate=0.5)
    assert budget.earned_s(30.0) == pytest.approx(0.6 + 0.1 + 0.6)
    budget.charge("step", 5.0)
    assert budget.is_allowance_spent(30.0)
    budget.close_allowance(30.0)
    assert budget.inspection_s == pytest.approx(1.0)
    budget.open_allowance(30.0, rate=0.5)
    assert budget.earned_s(40.0) == pytest.approx(0.6 + 0.6 + 0.2)


def test_what_is_owed_from_before_is_not_paid_by_a_later_inspection_and_stops_none_of_its_looks() -> None:
    budget = Budget(1.0, now=0.0)
    budget.allowance_s = 1.0
    budget.open_allowance(0.0, rate=0.5)
    budget.charge("step", 0.2)
    budget.close_allowance(10.0)
    assert budget.inspection_s == pytest.approx(0.1)
    budget.charge("step", 2.0)  # glances that cost more than the share
    owed_s = budget.own_s - budget.earned_s(100.0)
    budget.open_allowance(100.0, rate=0.5, credit_s=0.1)
    assert budget.earned_s(100.0) == pytest.approx(budget.own_s + 0.1) and not budget.is_allowance_spent(100.0)
    budget.charge("step", 0.3)
    assert budget.spent_of_allowance_s(101.0) == pytest.approx(0.1 + 0.29)
    budget.close_allowance(101.0)
    assert budget.inspection_s == pytest.approx(0.39)
    assert budget.own_s - budget.earned_s(101.0) == pytest.approx(owed_s), "it is owed as before"


def test_a_part_of_an_allowance_may_be_spent_at_once() -> None:
    budget = Budget(1.0, now=0.0)
    budget.allowance_s = 1.0
    budget.open_allowance(0.0, rate=0.5, credit_s=0.25)
    assert budget.earned_s(0.0) == pytest.approx(0.25)
    assert budget.earned_s(1.0) == pytest.approx(0.01 + 0.25 + 0.5)
    assert budget.earned_s(9.0) == pytest.approx(0.09 + 1.0), "no more than the allowance"
    budget.open_allowance(9.0, rate=0.5)
    assert budget.earned_s(9.0) == pytest.approx(0.09), "a later inspection has none"


def test_what_is_not_spent_does_not_add_to_the_budget() -> None:
    budget = Budget(1.0, now=0.0)
    budget.allowance_s = 1.0
    budget.open_allowance(0.0, rate=0.5)
    budget.change_share(2.0, 10.0)
    budget.close_allowance(10.0)
    assert budget.inspection_s == 0.0 and budget.earned_s(20.0) == pytest.approx(0.1 + 0.2)
