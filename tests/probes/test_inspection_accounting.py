"""What the opening inspection and its later looks may spend, over generated step times and costs of looks."""

import itertools
import random
from collections.abc import Callable, Iterable
from types import SimpleNamespace

import pytest

from tdbg.core.config import Selection
from tdbg.runtime import inspection as inspection_module
from tdbg.runtime import plan as plan_module
from tdbg.runtime.budget import ALWAYS_STEPS, OVERDRAFT, SAVING_SHARE, Budget
from tdbg.runtime.inspection import OPENING_STEPS, PART_AT_ONCE, SPENDING_RATE, Inspection
from tdbg.runtime.listener import LATER_STEPS, Listener
from tdbg.runtime.plan import Planner
from tdbg.runtime.state import State

SEEDS = range(60)


class Coming(Listener):
    """A probe that is there in later looks."""

    name = "coming"
    comes_back = LATER_STEPS


class Played:
    """A training on a clock of its own: the real accounting, with costs drawn from a seed."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch, share_pct: float = 1.0) -> None:
        draw = random.Random(seed)
        self.now = 0.0
        clock = SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr(inspection_module, "time", clock)
        monkeypatch.setattr(plan_module, "time", clock)
        self.state = State()
        self.state.reset_state()
        self.budget = Budget(share_pct, 0.0)
        self.planner = Planner(self.budget, Selection.from_settings(SimpleNamespace(steps="", every=0, ranks="")))
        self.inspection = Inspection(self.state, self.budget, lambda: [Coming], self._note_probes)
        self.allowance_s = draw.choice([0.1, 1.0, 5.0])
        self.step_s = 10 ** draw.uniform(-4, 0)
        self.jitter = draw.choice([0.0, 0.3])
        self.looks_s = [10 ** draw.uniform(-5, -1.5) for _ in range(draw.randint(1, 6))]
        self.draw = draw
        self.program_s = 0.0
        self.first_at = self.first_s = 0.0  # when the first step had ended, and what tdbg had spent in it
        self.later_steps: list[int] = []
        self.inspection.begin_inspection(self.allowance_s)

    def _note_probes(self, probes: Iterable[type[Listener]]) -> None:
        self.is_looking = Coming in list(probes)

    @property
    def longest_look_s(self) -> float:
        return max(self.looks_s)

    def take_step(self) -> tuple[float, float]:
        """One step: what it took without tdbg, and tdbg's part."""
        step, before_s = self.state.step + 1, self.budget.own_s
        if self.is_looking:
            self.later_steps += [step] * (step > OPENING_STEPS)
            for place, look_s in enumerate(self.looks_s):
                if self.planner.should_sample(f"look-{place}", step):
                    self.now += look_s
                    self.budget.charge("look", look_s)
                    self.budget.record_cost(f"look-{place}", look_s, extra=True)
        step_s = self.step_s * (1.0 + self.draw.uniform(-self.jitter, self.jitter))
        self.now += step_s
        self.program_s += step_s
        self.state.step = self.state.attended = step
        self.inspection.step_ended()
        self.planner.plan_next_step(step, focus=False, inspects=self.inspection.is_open)
        if step == 1:
            self.first_at, self.first_s = self.now, self.budget.own_s
        return step_s, self.budget.own_s - before_s

    def bound_s(self) -> float:
        """What may have been spent until now: in the first step, by the budget, of the allowance, and one look too many."""
        share_s = self.budget.share * self.now
        earned_s = PART_AT_ONCE * self.allowance_s + SPENDING_RATE * (self.now - self.first_at)
        return share_s + min(max(self.allowance_s, self.first_s), self.first_s + earned_s) + self.longest_look_s


Make = Callable[..., Played]


@pytest.fixture
def make_played(monkeypatch: pytest.MonkeyPatch) -> Make:
    return lambda seed, share_pct=1.0: Played(seed, monkeypatch, share_pct)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_opening_spends_a_quarter_at_once_and_then_half_of_the_time(make_played: Make, seed: int) -> None:
    played = make_played(seed)
    always_s = 0.0  # the first steps are looked at whatever that costs
    while played.inspection.is_open:
        played.take_step()
        if played.state.step <= ALWAYS_STEPS:
            always_s = played.budget.own_s
        assert played.budget.own_s <= max(always_s, played.bound_s()) + 1e-9
        # So the steps until now took at most twice their own time, half of the allowance, and twice two looks.
        most_s = 2.0 * (played.program_s + PART_AT_ONCE * played.allowance_s + played.first_s + played.longest_look_s)
        assert played.now * (1.0 - 2.0 * played.budget.share) <= max(most_s, played.program_s + always_s) + 1e-9
    assert played.state.step <= OPENING_STEPS
    assert played.budget.inspection_s <= played.allowance_s + 1e-9


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_takes_what_was_left_and_half_of_its_own_time(make_played: Make, seed: int) -> None:
    played = make_played(seed)
    while played.inspection.is_open:
        begun = played.now
        left_s = max(played.bound_s() - played.longest_look_s - played.budget.own_s, 0.0)
        _, own_s = played.take_step()
        if played.state.step > ALWAYS_STEPS:
            earned_s = (SPENDING_RATE + played.budget.share) * (played.now - begun)
            assert own_s <= left_s + earned_s + played.longest_look_s + 1e-9


def test_a_single_step_may_more_than_double(make_played: Make) -> None:
    """The part that may be spent at once is for steps so short that they earn nothing: the promise is one over all steps."""
    played = make_played(0)
    played.allowance_s, played.step_s, played.jitter, played.looks_s = 1.0, 0.001, 0.0, [0.004]
    played.inspection.open_inspection(1.0)
    steps = [played.take_step() for _ in range(OPENING_STEPS)]
    assert max(own_s / step_s for step_s, own_s in steps) == pytest.approx(4.0)
    assert sum(own_s for _, own_s in steps) <= 0.001 * OPENING_STEPS + 2.0 * PART_AT_ONCE


@pytest.mark.parametrize("seed", SEEDS)
def test_later_looks_come_at_doubling_steps_and_the_share_pays_for_them(make_played: Make, seed: int) -> None:
    share_pct = [0.5, 1.0, 10.0][seed % 3]
    played = make_played(seed, share_pct)
    for _ in range(4000):
        played.take_step()
        if played.inspection.is_open and not played.inspection.is_later_look_open:
            continue
        share_s = played.budget.share * played.now
        overdraft_s = (OVERDRAFT - 1.0) * SAVING_SHARE * share_s
        always_s = ALWAYS_STEPS * sum(played.looks_s)
        most_s = share_s + overdraft_s + played.longest_look_s + max(played.budget.inspection_s, always_s)
        assert played.budget.own_s <= most_s + 1e-9
    begins = [step for step in played.later_steps if step - 1 not in played.later_steps]
    assert all(later >= 2 * earlier - 1 for earlier, later in itertools.pairwise(begins))
    assert all(begin > 2 * OPENING_STEPS for begin in begins)
    assert len(played.later_steps) == LATER_STEPS * len(begins) or played.inspection.is_open


def test_what_a_later_look_overspends_is_paid_from_the_rest_of_the_allowance(make_played: Make) -> None:
    """So that the share holds in a run that ends before such a debt is earned."""
    played, ended = make_played(0), 0
    played.allowance_s, played.step_s, played.jitter, played.looks_s = 5.0, 0.03, 0.0, [0.004]
    played.inspection.open_inspection(5.0)
    for _ in range(4000):
        was_open = played.inspection.is_later_look_open
        played.budget.charge_fast("glance", 0.9 * played.budget.share * played.step_s)  # made in each step
        played.take_step()
        if was_open and not played.inspection.is_later_look_open:
            ended += 1
            assert played.budget.inspection_s < played.budget.allowance_s
            spent_s = played.budget.own_s - played.budget.inspection_s
            assert spent_s <= played.budget.share * played.now + 1e-9
    assert ended >= 3


def test_steps_that_pay_for_them_are_looked_at_when_they_are_due(make_played: Make) -> None:
    played = make_played(0, 10.0)
    played.step_s, played.jitter, played.looks_s = 0.1, 0.0, [0.001]
    for _ in range(1000):
        played.take_step()
    begins = [step for step in played.later_steps if step - 1 not in played.later_steps]
    assert begins == [101, 201, 401, 801]


def test_ranks_look_at_common_steps(make_played: Make) -> None:
    """Where a look cannot be paid at its step, it waits for the next one: no rank has steps of its own."""
    played = make_played(0, 1.0)
    played.state.world_size = 2
    played.step_s, played.jitter, played.looks_s = 0.01, 0.0, [0.001]
    for _ in range(4000):
        played.take_step()
    begins = [step for step in played.later_steps if step - 1 not in played.later_steps]
    assert begins and {begin - 1 for begin in begins} <= {100 * 2**power for power in range(6)}


# probes that stay, and cost more than they say


class Dear(Listener):
    """Says that its presence costs next to nothing."""

    name = "dear"
    presence_s = 1e-9


class Modest(Listener):
    """The same, and it is true more often."""

    name = "modest"
    presence_s = 1e-9


def play_presence(
    seed: int, monkeypatch: pytest.MonkeyPatch, glance_s: float, costs_s: dict[str, float], look_s: float = 0.0
) -> tuple[set[str], Budget]:
    """A training of steps of about 10 ms: which probes are there at its end."""
    played = Played(seed, monkeypatch)
    there: set[str] = set()

    def note_probes(probes: Iterable[type[Listener]]) -> None:
        there.clear()
        there.update(probe.name for probe in probes)

    inspection = Inspection(played.state, played.budget, lambda: [Dear, Modest], note_probes)
    inspection.begin_inspection(1.0)
    for step in range(1, 600):
        played.now += 0.01 * (1.0 + played.draw.uniform(-0.2, 0.2))
        for part, seconds in (("glance", glance_s), *((name, costs_s[name]) for name in sorted(there))):
            played.now += seconds
            played.budget.charge_fast(part, seconds)
        if look_s and step % 8 == 0 and "dear" in there:
            played.now += look_s
            played.budget.charge_fast("dear", look_s)
        played.state.step = played.state.attended = step
        inspection.step_ended()
    assert sorted(played.state.stayed or ()) == sorted(there)
    return there, played.budget


@pytest.mark.parametrize("seed", range(20))
def test_a_probe_that_costs_more_than_the_budget_does_not_stay(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    dear_s = 10 ** draw.uniform(-3.9, -3.0)  # 1 % of a step are 100 us
    there, budget = play_presence(seed, monkeypatch, 30e-6, {"dear": dear_s, "modest": 20e-6})
    assert there == {"modest"}
    assert budget.own_s <= budget.earned_by_share_s(600 * 0.013) + 60 * dear_s


@pytest.mark.parametrize("seed", range(20))
def test_probes_that_the_budget_pays_for_stay(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    each_s = 10 ** draw.uniform(-6.0, -4.6)
    there, _ = play_presence(seed, monkeypatch, 30e-6, {"dear": each_s, "modest": each_s})
    assert there == {"dear", "modest"}


@pytest.mark.parametrize("seed", range(5))
def test_cheap_probes_stay_where_the_glance_alone_is_too_dear(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    there, _ = play_presence(seed, monkeypatch, 400e-6, {"dear": 2e-6, "modest": 2e-6})
    assert there == {"dear", "modest"}


@pytest.mark.parametrize("seed", range(5))
def test_looks_in_some_of_the_steps_are_no_presence(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    there, _ = play_presence(seed, monkeypatch, 30e-6, {"dear": 10e-6, "modest": 10e-6}, look_s=0.01)
    assert there == {"dear", "modest"}
