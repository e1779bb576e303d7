"""What may be looked at, and when: budget, selection, common steps of ranks, probes that come and go."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tdbg.core.config import Selection
from tdbg.core.errors import TdbgError
from tdbg.core.events import Observation, ProbeOff
from tdbg.probes import PROBES, Probe
from tdbg.probes.catalog import CATALOG
from tdbg.runtime.budget import ALWAYS_STEPS, EXTRAS_SHARE, Budget
from tdbg.runtime.plan import LEAST_EVERY_S, MAX_DEAF, RECORDED_STEPS, Planner
from tests.probes.conftest import Watch


@pytest.fixture
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The planner's clock, set by hand."""
    now = [0.0]
    monkeypatch.setattr("tdbg.runtime.plan.time.perf_counter", lambda: now[0])
    return now


def play_looks(
    planner: Planner, clock: list[float], cost_s: dict[str, float], steps: int, step_s: float
) -> dict[str, list[int]]:
    """Play steps in which each kind of work is done when it may be."""
    done: dict[str, list[int]] = {kind: [] for kind in cost_s}
    for step in range(1, steps + 1):
        for kind, seconds in cost_s.items():
            if planner.should_sample(kind, step):
                done[kind].append(step)
                planner.budget.record_cost(kind, seconds, extra=True)
                planner.budget.charge(kind, seconds)
        clock[0] += step_s
        planner.plan_next_step(step, focus=False)
    return done


def test_extras_keep_within_their_part_of_the_budget(fake_clock: list[float]) -> None:
    planner = Planner(Budget(3.0, now=0.0), Selection())
    done = play_looks(planner, fake_clock, {"a": 0.004, "b": 0.001}, steps=2000, step_s=0.05)
    share = planner.budget.own_s / fake_clock[0]
    assert 0.8 * EXTRAS_SHARE * 0.03 <= share <= 1.05 * EXTRAS_SHARE * 0.03
    assert done["a"][:ALWAYS_STEPS] == list(range(1, ALWAYS_STEPS + 1))


def test_ranks_of_unlike_speed_look_at_common_steps(fake_clock: list[float]) -> None:
    found = []
    for step_s in (0.05, 0.06):
        fake_clock[0] = 0.0
        planner = Planner(Budget(3.0, now=0.0), Selection())
        planner.world_size = 2
        found.append(play_looks(planner, fake_clock, {"a": 0.004, "b": 0.001}, steps=1000, step_s=step_s))
        assert planner.budget.own_s <= 1.05 * 0.03 * fake_clock[0]
    slow = [step for step in found[0]["a"] if step > 100]
    fast = [step for step in found[1]["a"] if step > 100]
    assert slow and (set(slow) <= set(fast) or set(fast) <= set(slow))
    assert [step for step in found[0]["b"] if step > 100] == slow, "all that is added is done on the same steps"


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_requested_in_a_live_run_is_looked_at_whatever_was_spent(fake_clock: list[float], ranks: int) -> None:
    planner = Planner(Budget(1.0, 0.0), Selection())
    planner.world_size = ranks
    play_looks(planner, fake_clock, {"modules": 0.002}, 1000, 0.03)
    planner.budget.charge("call_ended", 60.0)  # what no budget stops, on a loaded machine
    planner.exempt_from_budget(1001)
    watched = []
    for step in range(1001, 1101):
        planner.plan_next_step(step - 1, focus=False)
        watched += [step] if planner.plan.watch and planner.should_sample("memory", step) else []
        fake_clock[0] += 0.03
    assert watched == [1001, 1002, 1003, 1004]


def test_selection_by_numbers() -> None:
    assert [n for n in range(1, 13) if Selection(every=4).is_step_selected(n)] == [4, 8, 12]
    assert [n for n in range(1, 13) if Selection(steps="2:4,9:").is_step_selected(n)] == [2, 3, 4, 9, 10, 11, 12]
    assert [n for n in range(1, 13) if Selection(every=2, steps="3:8").is_step_selected(n)] == [3, 5, 7]
    assert [n for n in range(8) if Selection(ranks="0,3-5").is_rank_selected(n)] == [0, 3, 4, 5]
    assert all(Selection().is_step_selected(n) and Selection().is_rank_selected(n) for n in range(5))


@pytest.mark.parametrize("text", ["a", "1:x", "5:3", "1-3", ":", "1.5", "-1"])
def test_a_range_that_is_none(text: str) -> None:
    with pytest.raises(TdbgError, match="steps cannot be"):
        Selection(steps=text)


def test_a_change_of_share_keeps_what_was_earned() -> None:
    budget = Budget(1.0, now=0.0)
    budget.change_share(10.0, now=100.0)
    assert budget.earned_s(100.0) == pytest.approx(1.0)
    assert budget.earned_s(110.0) == pytest.approx(2.0)
    budget.exclude_idle_time(5.0)
    assert budget.earned_s(115.0) == pytest.approx(2.0)


class Breaks(Probe):
    """A probe that raises wherever it can."""

    name = "breaks"
    levels = ()

    def attach(self) -> None:
        self.patch(torch, "relu", before=self._raise_broken)

    def _raise_broken(self, args: Any, kwargs: Any) -> None:
        raise ValueError("broken")

    def update_begins(self, optimizer: Any) -> None:
        raise ValueError("broken")


def train_model(steps: int) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        torch.relu(model(torch.randn(2, 4))).sum().backward()
        optimizer.step()


def test_a_probe_that_raises_is_gone_and_its_patches_too(start_watch: Callable[..., Watch]) -> None:
    one = start_watch()
    plain = torch.relu
    one.monitor.activate_probes([*CATALOG.select_probes("basic", {}), Breaks])
    assert torch.relu is not plain
    train_model(3)
    assert [name for name, _ in one.failures] == ["breaks"]
    assert torch.relu is plain
    assert not any(isinstance(event, ProbeOff) for event in one.events), "that is for the agent to write"
    assert [step.step for step in one.train_steps] == [1, 2, 3]
    one.failures.clear()


def test_probes_come_and_go_while_training(start_watch: Callable[..., Watch]) -> None:
    one = start_watch()
    train_model(2)
    hooks = one.monitor.hook_count()
    one.monitor.level_overrides.change_now("advanced", {"FORWARD": True}, "api", for_steps=3)
    train_model(6)
    seen = [event.step for event in one.events if isinstance(event, Observation) and event.probe == "forward"]
    assert seen == [3, 4, 5]
    assert one.monitor.settings.level == "basic" and "FORWARD" not in one.monitor.settings.flags
    assert one.monitor.hook_count() == hooks
    assert [event.why for event in one.events if type(event).__name__ == "Switch"] == ["api", "end"]


def play_glances(planner: Planner, clock: list[float], steps: int) -> list[int]:
    """Play steps of 20 ms with a glance of 80 us wherever the planner does not forbid it."""
    done = []
    for step in range(1, steps + 1):
        clock[0] += 0.02
        if planner.plan.deaf:
            planner.plan.deaf -= 1
            if planner.plan.deaf:
                continue
        else:
            done.append(step)
            planner.budget.charge("glance", 80e-6)
        planner.plan_next_step(step, focus=False)
    return done


def test_a_budget_that_was_named_holds_even_where_a_glance_is_too_dear(fake_clock: list[float]) -> None:
    named = Planner(Budget(0.2, now=0.0), Selection(), strict=True)
    assert 0.3 < len(play_glances(named, fake_clock, 1000)) / 1000 < 0.55
    assert named.budget.own_s <= 1.02 * 0.002 * fake_clock[0]
    fake_clock[0] = 0.0
    default = Planner(Budget(0.2, now=0.0), Selection())
    assert len(play_glances(default, fake_clock, 1000)) == 1000, "without a number of the user's the glance comes first"


def test_even_a_budget_of_nothing_gets_a_glance_now_and_then(fake_clock: list[float]) -> None:
    done = play_glances(Planner(Budget(1e-6, now=0.0), Selection(), strict=True), fake_clock, 200)
    assert done[:RECORDED_STEPS] == list(range(1, RECORDED_STEPS + 1))
    gaps = [after - before for before, after in itertools.pairwise(done[RECORDED_STEPS:])]
    assert gaps.count(MAX_DEAF + 1) >= len(gaps) - 2 and max(gaps) == MAX_DEAF + 1, "but for the record now and then"


@pytest.mark.parametrize("strict", [False, True])
def test_steps_so_short_that_a_glance_is_too_dear_have_a_record_every_few_seconds(
    fake_clock: list[float], strict: bool
) -> None:
    """30 s of steps of 0.3 ms, where a glance takes 25 us and a record 300: otherwise there would be none at all."""
    planner, recorded = Planner(Budget(1.0, now=0.0), Selection(), strict=strict), []
    for step in range(1, 100_001):
        fake_clock[0] += 3e-4
        if planner.plan.deaf:
            planner.plan.deaf -= 1
            if planner.plan.deaf:
                continue
        elif planner.plan.record:
            recorded.append(fake_clock[0])
            planner.budget.charge("record", 300e-6)
        planner.budget.charge("glance", 25e-6)
        planner.plan_next_step(step, focus=False)
    late = [time for time in recorded if time > 1.0]
    assert 30 / (2 * LEAST_EVERY_S) - 1 <= len(late) <= 2 * 30 / LEAST_EVERY_S
    if strict:
        assert planner.budget.own_s <= 1.02 * 0.01 * fake_clock[0]


def test_a_rank_that_is_seldom_asked_has_its_records_nevertheless(fake_clock: list[float]) -> None:
    """60 s of steps of 7 ms: of some 300 steps the planner is asked in four, between stretches that are hardly watched."""
    planner, recorded = Planner(Budget(1.0, now=0.0), Selection()), []
    planner.budget.charge("glance", 10.0)
    for step in range(1, 8501):
        fake_clock[0] += 7e-3
        if step <= RECORDED_STEPS or step % 299 < 4:
            if planner.plan.record:
                recorded.append(fake_clock[0])
            planner.plan_next_step(step, focus=False)
    late = [0.0, *(time for time in recorded if time > 1.0), fake_clock[0]]
    assert max(after - before for before, after in itertools.pairwise(late)) < 2.5 * LEAST_EVERY_S
    assert len(late) < 60 / LEAST_EVERY_S + 3


def test_the_loss_is_checked_in_steps_that_no_budget_pays_for(start_watch: Callable[..., Watch]) -> None:
    """A budget that is as good as none leaves out the module and the batch; the step not before the allowance is used up."""
    one = start_watch(max_overhead=1e-4)
    one.monitor.budget.allowance_s = math.inf
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 200):
        loss = model(torch.randn(2, 4)).square().mean()
        (loss * (float("nan") if step == 100 else 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
    (bad,) = one.bad_values
    assert (bad.step, bad.until, bad.weights, bad.origin) == (100, 0, "intact", "here")


class Last(Probe):
    """A probe that says when it is switched off, and when the run ends."""

    name = "last"

    def switched_off(self) -> None:
        self.see("off")

    def run_ends(self) -> None:
        self.see("end")


@pytest.mark.parametrize(("switches", "said"), [([], ["end"]), ([False], ["off"]), ([False, True], ["off", "end"])])
def test_the_last_word_is_not_asked_for_while_switched_off(
    start_watch: Callable[..., Watch], switches: list[bool], said: list[str]
) -> None:
    one = start_watch()
    one.monitor.activate_probes([*CATALOG.select_probes("basic", {}), Last])
    train_model(2)
    for on in switches:
        one.monitor.set_active(on)
    one.monitor.finish_run()
    assert [event.text for event in one.events if isinstance(event, Observation)] == said


@pytest.mark.parametrize(
    ("chosen", "steps"),
    [
        ({}, [*range(1, ALWAYS_STEPS + 1), 16, 32]),
        ({"flags": {"DEVICE": True}}, list(range(1, 37))),
        ({"every": 7}, [7, 14, 21, 28, 35]),
        ({"steps": "3,17:19,33"}, [3, 17, 18, 19, 33]),
    ],
)
def test_a_probes_own_rate_is_for_those_who_chose_no_steps(
    start_watch: Callable[..., Watch], chosen: dict[str, Any], steps: list[int]
) -> None:
    one = start_watch(level="extreme", max_overhead=1e5, **chosen)
    train_model(36)
    looks = [event for event in one.events if isinstance(event, Observation) and event.probe == "device"]
    assert [event.step for event in looks if not event.part] == steps


def test_the_stride_of_extras_is_that_of_a_step_of_them() -> None:
    budget = Budget(10.0, now=0.0)
    budget.record_cost("once", 10.0, extra=True)
    for _ in range(80):
        budget.step_done()  # a step without extras is no cheap step of them
        budget.record_cost("a", 0.004, extra=True)
        budget.record_cost("b", 0.001, extra=True)
        budget.record_cost("record", 1.0)
        budget.step_done()
    earned_s = EXTRAS_SHARE * 0.1 * 0.05
    assert 1 < 0.005 / earned_s < 2
    assert [budget.extras_stride(kind, 0.05) for kind in ("a", "b", "never done")] == [2, 2, 2]
    assert budget.extras_stride("once", 0.05) == 1024


def test_a_file_that_could_not_be_loaded_is_told_once(
    start_watch: Callable[..., Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROBES.broken, "elsewhere:Absent", ImportError("absent"))
    one = start_watch()
    one.monitor.activate_probes(CATALOG.select_probes("advanced", {}))
    assert [name for name, _ in one.failures] == ["elsewhere:Absent"]
    one.failures.clear()


def test_the_first_steps_have_all_gradients_read_where_the_budget_pays(fake_clock: list[float]) -> None:
    planner = Planner(Budget(5.0, now=0.0), Selection())
    planner.budget.record_cost("full", 1e-6)
    for step in range(1, RECORDED_STEPS + 1):
        assert planner.plan.full, step
        fake_clock[0] += 0.02
        planner.plan_next_step(step, focus=False)


def test_so_many_first_steps_are_on_record_that_rules_know_what_is_usual(fake_clock: list[float]) -> None:
    planner = Planner(Budget(1e-6, now=0.0), Selection())
    recorded = []
    for step in range(1, 30):
        if planner.plan.record:
            recorded.append(step)
            planner.budget.charge("record", 1.0)
        fake_clock[0] += 0.02
        planner.plan_next_step(step, focus=False)
    assert recorded == list(range(1, RECORDED_STEPS + 1))
