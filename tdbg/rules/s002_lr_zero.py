"""TD-S002: training with a learning rate of zero, or below."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from tdbg.core.events import Event, Finding, Observation, Step
from tdbg.core.observations import Evidence
from tdbg.core.observations.optimizer import NO_RATE, ParameterGroups
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, PerProcessRule
from tdbg.rules._parameter_groups import KnownGroups, format_groups, format_members, get_group
from tdbg.rules.text import format_figure
from tdbg.rules.view import View, to_finite

ZERO_STEPS = 20
STEEP_PART = 50
# Recursive schedulers may end a hair below zero; that is rounding, not a negative rate.
ROUNDING = 1e-6
CAUSES = (
    "the schedule ended before the training, or starts at zero and is stepped too rarely",
    "the schedule is stepped more often than its formula expects, or decays too fast for a run of this length; one that"
    " is meant to fall steeply to 0 looks the same",
)


class _State:
    since: int = 0
    zeros: int = 0
    largest: float = 0.0  # of the rates of these steps
    highest: float = 0.0
    is_reported: bool = False

    def __init__(self) -> None:
        self.known = KnownGroups()
        self.first_rates: list[float | None] = []


@RULES.add
class LearningRateZero(PerProcessRule[_State]):
    """Says when the learning rate of every group is zero or practically zero, or one is negative.

    What it does: Reports the 20th step in a row whose rates are all zero, or the last of more steps whose rates are
    all below 1e-10 of the highest rate so far, or at once a rate that is negative. It names the optimizer, or the
    group of the negative rate, with the first of its parameters if they are on record (flag OPTIMIZER, or the
    opening inspection). A rate of zero in one group while another group learns is reported by TD-S010.

    Why it matters: Nothing is learned, and nothing fails: a scheduler that ran out before the training did, or
    one that starts at zero and is stepped once an epoch, wastes whole epochs in silence. So does a factor for an
    epoch that is applied at every step: 0.8 ** 400 is 1e-39. A negative rate climbs instead of descending.

    Example:
        TD-S002 warning: the learning rate has been 0 for 20 steps, since step 981, rank 0
        TD-S002 warning: the learning rate has been below 1e-10 of its highest for 20 steps, since step 105,
        rank 0

    What to do: Compare the scheduler's number of steps with the real one: accumulation, several ranks and
    dropped last batches change it. Set a floor (`eta_min`) if training is to go on.

    Thresholds: 20 steps: a warm-up that begins at zero and a decay that ends at zero have one or two. Rates
    that are only practically zero must last 2 % of the steps before as well: a polynomial decay of power 4 ends
    like this.
    """

    code = "TD-S002"
    title = "learning rate zero or negative"
    severity = "warning"
    leads_to = ("TD-S007", "TD-K001")
    listens: ClassVar[tuple[type[Event], ...]] = (Step, Observation)
    kept = _State

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        """Steps go to `evaluate`; which parameters the groups hold is kept."""
        seen = ParameterGroups.from_event(event)
        if seen is not None:
            self._states[process.label].known.add(seen)
        return super().feed(process, event)

    def evaluate(self, process: ProcessDir, state: _State, event: Step) -> Finding | None:
        rates = [rate for value in event.lr if (rate := to_finite(value)) is not None]
        if not event.lr or (state.is_reported and not state.zeros):
            return None
        if len(event.lr) != len(state.first_rates):
            state.first_rates = [to_finite(value) for value in event.lr]
        high, low = max(rates, default=1.0), min(rates, default=1.0)
        state.highest = max(state.highest, high)
        if low < _compute_limit(state) and not state.is_reported:
            return self._make_negative_finding(process, state, event)
        largest = max(abs(high), abs(low))
        if largest > NO_RATE * state.highest:
            state.zeros, state.largest = 0, 0.0
            return None
        state.since = event.step if state.zeros == 0 else state.since
        state.largest = max(state.largest, largest)
        state.zeros = event.step - state.since + 1
        if state.zeros < _count_wanted(state) or state.is_reported:
            return None
        return self._make_zero_finding(process, state)

    def finish(self, view: View) -> Iterable[Finding]:
        longest = max((state.zeros for state in self._states.values() if state.is_reported), default=0)
        if self._given and longest > ZERO_STEPS:
            self._given[0].evidence.insert(0, f"{format_count(longest, 'step')} with such a rate up to the end")
        return ()

    def _make_negative_finding(self, process: ProcessDir, state: _State, event: Step) -> Finding:
        limit = _compute_limit(state)
        rates = [to_finite(value) for value in event.lr]
        negative = [index for index, rate in enumerate(rates) if rate is not None and rate < limit]
        known = state.known.find_groups(state.first_rates)
        figures = format_figure([rates[index] for index in negative])
        place = f" of {format_groups(known, negative)}" if len(rates) > 1 else ""
        state.is_reported = True
        return self.make_finding(
            f"the learning rate{place} is negative: {figures}, {process.display_name}",
            severity="error",
            first_step=event.step,
            rank=process.rank,
            phase="optimizer",
            evidence=[
                f"highest rate before: {format_figure(state.highest)}",
                *_list_members(known, negative),
            ],
            cause="the schedule's formula, or a multiplier of the rate, went below zero",
            try_next="find what set the rate: the scheduler beyond its last step, or a sign in the configuration",
            grade=Evidence.LOCAL.grade_word,
        )

    def _make_zero_finding(self, process: ProcessDir, state: _State) -> Finding:
        state.is_reported = True
        rate = f"below {NO_RATE:g} of its highest" if state.largest else "0"
        steps = format_count(_count_wanted(state), "step")
        known = state.known.find_groups(state.first_rates)
        return self.make_finding(
            f"the learning rate has been {rate} for {steps}, since step {state.since}, {process.display_name}",
            first_step=state.since,
            rank=process.rank,
            phase="optimizer",
            evidence=[
                f"highest rate before: {format_figure(state.highest)}",
                *_format_largest(state),
                *_list_members(known, range(len(state.first_rates))),
            ],
            cause=CAUSES[state.largest > 0],
            try_next="compare the scheduler's number of steps with the real one",
            grade=Evidence.LOCAL.grade_word,
        )


def _count_wanted(state: _State) -> int:
    """So many steps in a row: a schedule that falls steeply to 0 is next to it for the last few hundredths of the run."""
    return max(ZERO_STEPS, state.since // STEEP_PART) if state.largest else ZERO_STEPS


def _list_members(known: ParameterGroups | None, indices: Sequence[int]) -> list[str]:
    """Which parameters the optimizer changes by these rates, if that is on record."""
    members = format_members(known, indices)
    if known is None or not members:
        return []
    listed = sum(get_group(known, index) is not None for index in indices)
    part = f"the first {format_count(listed, 'group')} of " if listed < len(indices) else ""
    return [f"parameters of {part}{known.optimizer}: {members}"]


def _format_largest(state: _State) -> list[str]:
    return [f"the largest since: {format_figure(state.largest)}"] if state.largest else []


def _compute_limit(state: _State) -> float:
    """A rate below it is negative, and no rounding."""
    return -ROUNDING * max(state.highest, ROUNDING)
