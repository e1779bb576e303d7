"""TD-S012: a cross-entropy that stays where guessing puts it, or ends far above."""

import math
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from tdbg.core.events import End, Event, Finding, Observation, Params, Step, as_float
from tdbg.core.observations import Observed
from tdbg.core.observations.backward import LossGraph
from tdbg.core.observations.optimizer import EmptyUpdates, ParameterGroups, UpdateSizes
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, ObservingRule, overwrite_finding, read_observations
from tdbg.rules._trained_model import TrainedModel
from tdbg.rules.text import format_figure
from tdbg.rules.view import to_finite

PATIENT_STEPS = 150  # since the rate rose last, until the loss is judged
CERTAIN_STEPS = 1000  # from here on it is a warning
WITHIN = 0.03  # of the loss of guessing, or of the first loss
FAR = 2.0  # times the loss of guessing, and times the first losses
AT_CHANCE, AS_AT_FIRST, FAR_ABOVE = "at chance level", "no better than at first", "far above chance level"
LEAST_LOSSES, MOST_LOSSES = 16, 100  # that are compared
LEAST_RATES = 16  # records in which the rate no longer rose
FIRST_LOSSES = 5
RISE = 1.02  # of the rate
FALLEN = 0.1  # so far below the loss of guessing it has begun to learn
NAMELESS = "parameter["  # so the name begins of a tensor that is in no module
SIGMAS = 3.0  # of the difference between the halves: more is a fall


@dataclass
class _State:
    classes: int | None = None  # None: the loss is no mean cross-entropy, or nothing is known of it
    sign: int = 1  # -1: the loss is the negative of the cross-entropy
    is_known: bool = False
    rate: float = 0.0
    begun: int = 0  # the step before the first of this model
    model: TrainedModel = field(default_factory=TrainedModel)
    since: int = 0  # the step in which the rate was highest first
    rates: int = 0  # records since then
    epoch: int | None = None
    first: list[float] = field(default_factory=list)
    losses: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=MOST_LOSSES))  # with their steps
    norms: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_LOSSES))
    step: int = 0
    ratio: float | None = None  # of the last update to the weights
    has_empty_updates: bool = False
    maximizes: dict[str, bool] = field(default_factory=dict)  # by class of the optimizer
    level: str = ""  # that was found
    has_several_optimizers: bool = False  # two models may play against each other, whose losses may rise
    trains_modules: bool = True
    found: Finding | None = None

    def restart(self, step: int) -> None:
        """Another model is trained from here on: a new run, as far as the loss is concerned."""
        self.begun, self.since, self.rate, self.rates = step, 0, 0.0, 0
        for kept in (self.first, self.losses, self.norms):
            kept.clear()


@RULES.add
class LearnsNothing(ObservingRule[_State]):
    """Says when a cross-entropy is no better than guessing after 150 steps, or far worse, and does not fall.

    What it does: It needs the graph of the loss (flag BACKWARD, or the opening inspection), which tells that the
    loss is a mean cross-entropy, and over how many classes. From 150 steps after the learning rate has stopped
    rising it compares the last losses on record with ln(classes), which a model gets that gives each class the
    same probability. It speaks when their mean is within 3 % of that, or above it and within 3 % of the first
    losses, and the later half is not lower than the earlier one by 3 standard errors. It also speaks when the mean
    is more than twice ln(classes) and more than twice the first losses. Of a loss that is the negative of a mean
    cross-entropy it says so alone, and of the cross-entropy. Another model that is trained later is judged anew.
    Where the loss has fallen by the end of the run, it becomes a note.

    Why it matters: Labels that were shuffled apart from their inputs, inputs of zeros, a model whose output does
    not depend on its input, and updates that do not reach the weights all look like this. A model that is far
    worse than one that guesses was driven off: updates that are too large, or that raise the loss.

    Example:
        TD-S012 info: the loss is at chance level after 150 steps: 2.304, ln(10 classes) = 2.303, rank 0
        TD-S012 warning: the loss is far above chance level after 400 steps: 807.5, ln(6 classes) = 1.792, rank 0

    What to do: Overfit one batch of 8 samples: where that works, look at the data (print inputs beside labels);
    where it does not, at the model and its updates. A small learning rate may only need more steps. Where the loss
    is far above, look for a wrong sign (`maximize=True`, a negated loss), then for a rate that is too high.

    Thresholds: 150 steps for information, as some healthy runs start as slowly; 1,000 steps after a whole epoch
    for a warning, or 150 where the loss is far above. 16 losses: those on record, and at the end the last 100
    that were checked. A rate that still rises (warm-up), and a loss of several terms, are left alone; a loss that
    is far above also where several optimizers have been used, as in a GAN.
    """

    code = "TD-S012"
    title = "loss stays at chance level, or ends far above it"
    severity = "warning"
    causes = (
        *("TD-C008", "TD-C010", "TD-C013", "TD-C014", "TD-C021", "TD-C023", "TD-C024", "TD-D002", "TD-D003", "TD-G002"),
        *("TD-G003", "TD-G005", "TD-N005", "TD-S002", "TD-S004", "TD-S005", "TD-S006", "TD-S007", "TD-S010", "TD-S011"),
        *("TD-G001", "TD-N004", "TD-S001", "TD-S008"),
    )
    listens: ClassVar[tuple[type[Event], ...]] = (Observation, Step, End, Params)
    observes = (LossGraph, UpdateSizes, EmptyUpdates, ParameterGroups)
    kept = _State

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        """Losses of training steps are followed; of observations the loss's graph and the size of updates."""
        state = self._states[process.label]
        for seen in read_observations(event, self.observes):
            self.evaluate(process, state, seen)
        if isinstance(event, Params):
            state.has_several_optimizers = state.has_several_optimizers or len(event.optimizers) > 1
            state.trains_modules = not all(name.startswith(NAMELESS) for name in event.names)
            if state.model.is_replaced(event):
                state.restart(state.step)
        if not state.classes:
            return ()
        found = None
        if isinstance(event, Step) and event.phase == "train" and not event.skipped:
            self._follow_loss(state, event)
            found = self._judge_loss(process, state, event.step)
        elif isinstance(event, End) and len(event.recent_losses) >= LEAST_LOSSES:
            first = event.step - len(event.recent_losses) + 1
            steps = event.recent_steps or range(first, event.step + 1)
            recent = [
                (step, state.sign * loss)
                for step, loss in zip(steps, event.recent_losses, strict=False)
                if step > state.begun
            ]
            state.losses = deque(recent, maxlen=MOST_LOSSES)
            was_found = state.found is not None
            found = self._judge_loss(process, state, event.step)
            if was_found:
                self._note_fall(state)
        return self.report_once(self._given, found) if found is not None else ()

    def evaluate(self, process: ProcessDir, state: _State, seen: Observed) -> None:
        """What the loss is, and how far the last update went."""
        if isinstance(seen, UpdateSizes):
            state.ratio = as_float(seen.ratio_median)
        elif isinstance(seen, EmptyUpdates):
            state.has_empty_updates = state.has_empty_updates or not seen.called  # others are updated
        elif isinstance(seen, ParameterGroups):
            state.maximizes[seen.optimizer] = any(group.get("maximize") is True for group in seen.groups)
        elif isinstance(seen, LossGraph):
            classes = seen.classes if (seen.classes or 0) > 1 else None
            sign = -1 if seen.negated else 1
            # Several losses, or one over a changing number of classes, are not judged.
            is_same = not state.is_known or (classes, sign) == (state.classes, state.sign)
            state.classes, state.sign, state.is_known = classes if is_same else None, sign, True

    def _follow_loss(self, state: _State, step: Step) -> None:
        loss, norm, state.step = to_finite(step.loss), to_finite(step.grad_norm), step.step
        if loss is None:
            return
        loss *= state.sign
        if len(state.first) < FIRST_LOSSES:
            state.first.append(loss)
        rate = max((found for found in map(to_finite, step.lr) if found is not None), default=0.0)
        if rate > RISE * state.rate or not state.since:
            state.rate, state.since, state.rates = rate, step.step, 0
            state.losses.clear()
        state.rates += 1
        state.epoch = step.epoch
        state.losses.append((step.step, loss))
        if norm is not None and step.scale is None:
            state.norms.append(norm)

    def _judge_loss(self, process: ProcessDir, state: _State, step: int) -> Finding | None:
        steps = step - state.since + 1
        # Losses of long ago say nothing of now: in a fast run few steps after the first fifty are on record.
        while state.losses and state.losses[0][0] <= step - max(MOST_LOSSES, steps // 2):
            state.losses.popleft()
        if steps < PATIENT_STEPS or state.rates < LEAST_RATES or len(state.losses) < LEAST_LOSSES:
            return None
        is_certain = steps >= CERTAIN_STEPS and state.epoch != 0
        level = self._find_level(state)
        if not level:
            return None
        severity = self.severity if is_certain or level == FAR_ABOVE else "info"
        if state.found is None:
            state.found, state.level = self._make_flat_finding(process, state, step, level, severity), level
            return state.found
        if self._given and self._given[0] is state.found and level == FAR_ABOVE != state.level:
            state.level = level
            overwrite_finding(state.found, self._make_flat_finding(process, state, step, level, severity))
        elif is_certain and self._given[0].severity == "info":
            self._given[0].severity = self.severity
        return None

    def _find_level(self, state: _State) -> str:
        """Where a loss stays that is no better than guessing, and not falling; empty where it is."""
        losses = [loss for _, loss in state.losses]
        half = len(losses) // 2
        early, late = losses[:half], losses[half:]
        error = math.sqrt(_compute_variance(early) / len(early) + _compute_variance(late) / len(late))
        if _compute_mean(early) - _compute_mean(late) > SIGMAS * error:
            return ""
        guessing, first, mean = math.log(state.classes or 1), _compute_mean(state.first), _compute_mean(losses)
        if state.sign < 0:  # an attack on inputs is meant to raise it, and trains no model
            return FAR_ABOVE if self._is_far_above(state, mean) and state.trains_modules else ""
        if abs(mean - guessing) <= WITHIN * guessing:
            return AT_CHANCE
        if mean > guessing and abs(mean - first) <= WITHIN * first:
            return AS_AT_FIRST
        return FAR_ABOVE if self._is_far_above(state, mean) else ""

    @staticmethod
    def _is_far_above(state: _State, mean: float) -> bool:
        bound = FAR * max(math.log(state.classes or 1), _compute_mean(state.first))
        return mean > bound and not state.has_several_optimizers

    def _note_fall(self, state: _State) -> None:
        """A model that began to learn late is a slow start."""
        mean = _compute_mean([loss for _, loss in state.losses]) if state.losses else math.inf
        guessing = math.log(state.classes or 1)
        least = (
            FAR * max(guessing, _compute_mean(state.first)) if state.level == FAR_ABOVE else (1.0 - FALLEN) * guessing
        )
        if self._given and self._given[0] is state.found and mean < least:
            self._given[0].severity = "info"
            self._given[0].evidence.insert(
                0, f"it fell later: mean of the last losses of the run {format_figure(mean)}"
            )

    def _make_flat_finding(self, process: ProcessDir, state: _State, step: int, level: str, severity: str) -> Finding:
        classes, mean = state.classes or 1, _compute_mean([loss for _, loss in state.losses])
        guessing = math.log(classes)
        evidence = [
            f"mean of the last {format_count(len(state.losses), 'loss')}: {format_figure(mean)}; of the first {len(state.first)}: {format_figure(_compute_mean(state.first))}",
            f"learning rate {format_figure(state.rate)}",
        ]
        if state.norms:
            evidence.append(f"gradient norm {format_figure(_compute_median(state.norms))} (median)")
        if state.ratio is not None:
            evidence.append(f"update to weight {format_figure(state.ratio)} (median of the sampled weights)")
        what = "the cross-entropy, whose negative is the loss," if state.sign < 0 else "the loss"
        return self.make_finding(
            f"{what} is {level} after {format_count(step - state.begun, 'step')}: {format_figure(mean)}, ln({format_count(classes, 'class')}) = {format_figure(guessing)},"
            f" {process.display_name}",
            severity=severity,
            first_step=step,
            rank=process.rank,
            phase="loss",
            evidence=evidence,
            cause=_find_suspect(state, level),
            try_next="check the sign of the loss and maximize=; lower the learning rate"
            if level == FAR_ABOVE
            else "overfit one batch of 8 samples; print the inputs and labels that the loss receives",
            grade="statistical",
        )


# `statistics` takes longer to import than most rules take to load.
def _compute_mean(values: Collection[float]) -> float:
    return math.fsum(values) / len(values)


def _compute_variance(values: Collection[float]) -> float:
    mean = _compute_mean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _compute_median(values: Collection[float]) -> float:
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _find_suspect(state: _State, level: str) -> str:
    """The first of what is suspicious in the record, in the order in which one would look."""
    if state.maximizes and all(state.maximizes.values()):
        return "the optimizer maximizes the loss: maximize=True"
    if state.sign < 0:
        return "the loss is the negative of a cross-entropy: training raises it"
    if state.has_empty_updates:
        return "the optimizer updates none of the parameters of this model (TD-S011)"
    if state.rate < 1e-7:
        return f"the learning rate is tiny: {format_figure(state.rate)}"
    if state.norms and _compute_median(state.norms) < 1e-6:
        return "gradients are close to zero: the loss hardly depends on the weights"
    if state.ratio is not None and state.ratio < 1e-6:
        return "updates are far smaller than the weights: a rate that is too small, or a format that is too coarse"
    if level == FAR_ABOVE:
        return "updates that are too large, or that raise the loss: a wrong sign of the loss or of the gradients"
    usual = "gradients and updates look usual" if state.ratio is not None else "gradients look usual"
    return f"{usual}: labels that do not belong to their inputs, or inputs that carry nothing"
