"""TD-S001: the learning rate jumps, and the run suffers."""

import math
from dataclasses import dataclass

from tdbg.core.events import Finding, Step
from tdbg.core.observations import Evidence
from tdbg.core.rule_base import Link
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES, PerProcessRule
from tdbg.rules._series import Window
from tdbg.rules.text import format_figure
from tdbg.rules.view import to_finite

RATIO = 10.0
OVER_HIGHEST = 2.0
WARM_STEPS = 10
WATCH_RECORDS = 30
WATCH_STEPS = 100
RECENT = 16  # records that tell what was normal just before
REACTIONS = 3
LOSS_RATIO = 2.0
GRAD_RATIO = 10.0
LOG_SIGMAS = 4.0


@dataclass(slots=True, repr=False, eq=False)
class _Spike:
    """A jump of the learning rate whose effect is awaited."""

    step: int
    before: float
    after: float
    loss: float
    loss_limit: float
    norm_limit: float
    last_step: int  # of the record before
    seen: int = 0
    bad: int = 0
    worst: str = ""


class _State:
    step: int = 0
    highest: float = 0.0
    spike: _Spike | None = None
    is_reported: bool = False

    def __init__(self) -> None:
        self.rates, self.losses, self.norms = Window(), Window(RECENT), Window(RECENT)


@RULES.add
class LearningRateSpike(PerProcessRule[_State]):
    """Names the step at which the learning rate jumped, when loss or gradients then went wrong.

    What it does: Watches the largest learning rate of all parameter groups. A jump is a rate more than 10 times
    the median of the last 64 and more than twice the highest so far. It is told only if, within 30 records and
    100 steps, the run suffers: 3 losses above twice their median or 3 gradient norms above 10 times theirs (and
    beyond 4 robust deviations of the last 16), or a NaN or Inf. Warm-up (10 steps), cosine, cyclic and
    restarting schedules return to rates already seen, so they stay silent.

    Why it matters: Loss jump, explosion and NaN are what a learning-rate accident looks like from outside; the
    rate itself is rarely plotted next to them.

    Example:
        TD-S001 error: learning rate jumped 100x at step 120 (0.001 to 0.1), and the loss went from 2.1 to 14

    What to do: Find who set it: the scheduler's formula, a scheduler stepped per epoch in one place and per
    step in another, a resumed optimizer state with another base rate, a config override.

    Thresholds: 10x the running median, 2x the highest rate so far, and a reaction. A jump without a reaction
    (frozen layers thawed, a stage of a curriculum) is nobody's business.
    """

    code = "TD-S001"
    title = "learning-rate spike"
    severity = "error"
    leads_to = (
        Link("TD-N001", least=0, most=50),
        Link("TD-N004", least=0, most=50),
        Link("TD-G001", least=0, most=50),
        Link("TD-G004", least=0, most=50),
    )
    kept = _State

    def evaluate(self, process: ProcessDir, state: _State, event: Step) -> Finding | None:
        if not event.lr or state.is_reported:
            return None
        rate = max((rate for value in event.lr if (rate := to_finite(value)) is not None), default=0.0)
        if state.spike is None and self._has_jumped(state, rate):
            state.spike = _begin_spike(state, event.step, rate)
        state.rates.push(rate)
        state.highest, state.step = max(state.highest, rate), event.step
        if state.spike is None:
            _push_loss_and_grad_norm(state, event)
            return None
        return self._watch_spike(process, state, state.spike, event)

    @staticmethod
    def _has_jumped(state: _State, rate: float) -> bool:
        known = len(state.rates) >= WARM_STEPS and state.rates.median > 0
        return known and rate > RATIO * state.rates.median and rate > OVER_HIGHEST * state.highest

    def _watch_spike(self, process: ProcessDir, state: _State, spike: _Spike, event: Step) -> Finding | None:
        spike.seen += 1
        if spike.seen > WATCH_RECORDS or event.step > spike.step + WATCH_STEPS:
            state.spike = None
            return None
        worst = _describe_reaction(spike, event)
        if worst:
            spike.bad += 1
            spike.worst = worst
        if spike.bad < REACTIONS and not _is_ruined(event):
            return None
        state.is_reported = True
        return self._make_spike_finding(process, spike)

    def _make_spike_finding(self, process: ProcessDir, spike: _Spike) -> Finding:
        times = spike.after / spike.before
        gap = (
            [f"no record between steps {spike.last_step} and {spike.step}"] if spike.step > spike.last_step + 1 else []
        )
        return self.make_finding(
            f"learning rate jumped {times:,.0f}x at step {spike.step} ({format_figure(spike.before)} to"
            f" {format_figure(spike.after)}), {process.display_name}, and {spike.worst or 'loss or gradients became NaN'}",
            first_step=spike.step,
            rank=process.rank,
            phase="optimizer",
            evidence=[
                f"before it: median loss {format_figure(spike.loss)}, learning rate {format_figure(spike.before)}",
                *gap,
            ],
            cause="the update was too large for the weights at that point",
            try_next="find what set the rate: scheduler, resumed optimizer state, or a config override",
            grade=Evidence.LOCAL.grade_word,
        )


def _begin_spike(state: _State, step: int, rate: float) -> _Spike:
    """Fix what is normal at the moment of the jump, so that the effect is measured against it."""
    losses, norms = state.losses, state.norms
    return _Spike(
        step=step,
        before=state.rates.median,
        after=rate,
        last_step=state.step,
        loss=losses.median,
        loss_limit=_compute_noise_limit(losses, LOSS_RATIO),
        norm_limit=_compute_noise_limit(norms, GRAD_RATIO),
    )


def _compute_noise_limit(window: Window, ratio: float) -> float:
    """What a value must exceed to be no noise; nothing does, where too little is known or values may be negative."""
    if len(window) < WARM_STEPS or window.lowest <= 0:
        return math.inf
    return window.median * max(ratio, math.exp(min(LOG_SIGMAS * window.compute_log_sigma(), 100.0)))


def _is_ruined(event: Step) -> bool:
    return event.finite is False and not event.skipped


def _push_loss_and_grad_norm(state: _State, event: Step) -> None:
    loss, norm = to_finite(event.loss), to_finite(event.grad_norm)
    if loss is not None:
        state.losses.push(loss)
    if norm is not None:
        state.norms.push(norm)


def _describe_reaction(spike: _Spike, event: Step) -> str:
    """How this step suffers from the jump, in words; empty if it does not."""
    loss, norm = to_finite(event.loss), to_finite(event.grad_norm)
    if _is_ruined(event):
        return "loss or gradients became NaN or Inf"
    if loss is not None and loss > spike.loss_limit:
        return f"the loss went from {format_figure(spike.loss)} to {format_figure(loss)}"
    if norm is not None and norm > spike.norm_limit:
        return f"the gradient norm rose to {format_figure(norm)}"
    return ""
