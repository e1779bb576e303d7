"""The opening inspection: the first steps are looked at fully, whatever the level, paid from an allowance of their own."""

import time
from collections.abc import Callable, Iterable

from tdbg.runtime.budget import Budget
from tdbg.runtime.listener import Listener
from tdbg.runtime.state import State

OPENING_STEPS = 50
AGAIN_STEPS = 5  # when the training has become another one
PRESENCE_SHARE = 0.5  # of the budget may go into probes that stay, besides their looks
SETTLING_STEPS = 4  # after a pass, until it and the updates that follow have been judged
SPENDING_RATE = 0.5  # of the time since the first step: beyond the part below, no step more than doubles
PART_AT_ONCE = (
    0.25  # of the allowance may be spent at once: steps of a millisecond would earn nothing before it is over
)


class Inspection:
    """Adds the probes of the inspection to those of the level until it is over.

    load: the classes of these probes. activate: called with them when it begins and with none when it ends. changed: the
    kind of change that the training went through since it was last called, or nothing.
    """

    def __init__(
        self,
        state: State,
        budget: Budget,
        load: Callable[[], list[type[Listener]]],
        activate: Callable[[Iterable[type[Listener]]], None],
        changed: Callable[[], str] = str,
    ) -> None:
        self._state = state
        self._budget = budget
        self._load = load
        self._activate = activate
        self._changed = changed
        self._since = self._own_s = self._step_s = 0.0
        self._until = 0  # the step after which it is over; 0: it has not begun
        self.is_open = False
        self._staying: frozenset[type[Listener]] = frozenset()
        self._pass_at = 0  # the step after which the first evaluation pass began, if it came after the opening steps
        self._is_asked_for = False  # to be repeated after this step, although nothing has changed

    @property
    def is_repeat_open(self) -> bool:
        """True while a few steps are looked at again, because the training has become another one."""
        return self.is_open and self._until != OPENING_STEPS

    def has_ended_for(self, probe: type[Listener]) -> bool:
        """True for a probe that the inspection added and that stays now that it is over."""
        return probe in self._staying and not self.is_open

    def begin_inspection(self, allowance_s: float) -> None:
        """The process is about to take its first steps. allowance_s: 0 for no inspection."""
        if allowance_s > 0.0:
            self.open_inspection(allowance_s)
            self._activate(self._load())

    def open_inspection(self, allowance_s: float) -> None:
        """In a forked child, which has its own first steps and the probes already."""
        self._budget.allowance_s = allowance_s
        self._until, self.is_open = OPENING_STEPS, True
        self._state.inspected = [probe.name for probe in self._load()]

    def step_ended(self) -> None:
        """A step has ended, or a call where nothing is trained: the inspection may be over. Cost: a comparison."""
        if not self.is_open:
            if self._pass_at and self._state.step >= self._pass_at + SETTLING_STEPS:
                self._pass_at, self._state.inspects_pass = 0, False
                self._budget.close_allowance(time.perf_counter())
                self._activate(self._staying)
            elif self._until and self._state.attended == self._state.step and not self._pass_at and self._has_reason():
                self._inspect_again()
            return
        now = time.perf_counter()
        if not self._budget.is_allowance_open:
            self._since, self._own_s = now, self._budget.own_s
            # What the few steps of a later inspection earn is there with the first of them: on average none doubles.
            at_once_s = PART_AT_ONCE * self._budget.allowance_s
            credit_s = SPENDING_RATE * AGAIN_STEPS * self._step_s if self.is_repeat_open else at_once_s
            self._budget.open_allowance(now, SPENDING_RATE, credit_s)
        steps = self._state.step or self._state.eval_calls
        if steps >= self._until or self._budget.is_allowance_spent(now):
            self.end_inspection(now)

    def evaluation_begins(self) -> None:
        """The first call without gradients of a process that has trained: its pass is looked at as the first steps were."""
        added = {probe for probe in self._load() if probe.inspects_evaluation} - self._staying
        if self._budget.allowance_s and added and not self.is_open:
            self._pass_at, self._state.inspects_pass = self._state.step, True
            self._budget.open_allowance(time.perf_counter(), SPENDING_RATE)
            self._activate([*self._staying, *added])

    def ask_for_repetition(self) -> None:
        """The next steps are to be looked at as the first were: one step stands out, and those after it tell what it was."""
        self._is_asked_for = True

    def _has_reason(self) -> bool:
        """True if the training has changed, or a few more steps were asked for."""
        asked, self._is_asked_for = self._is_asked_for, False
        return bool(self._changed()) or asked

    def _inspect_again(self) -> None:
        """The training has become another one: a few of its steps are looked at as the first were, if that can be paid."""
        if self._budget.allowance_s <= self._budget.inspection_s:
            return
        self._until, self.is_open = self._state.step + AGAIN_STEPS, True
        self._activate(self._load())

    def end_inspection(self, now: float) -> None:
        """From now on the level's budget holds, and of the added probes those stay whose presence it pays for."""
        self.is_open = False
        self._budget.close_allowance(now)
        if self._until != OPENING_STEPS:
            self._activate(self._staying)
            return
        self._changed()  # what is compared with from now on
        steps = max((self._state.step or self._state.eval_calls) - 1, 1)
        self._step_s = max(now - self._since - (self._budget.own_s - self._own_s), 0.0) / steps
        earned_s = PRESENCE_SHARE * self._budget.share * self._step_s
        stay = []
        for probe in sorted(self._load(), key=lambda probe: probe.presence_s):
            earned_s -= probe.presence_s
            if earned_s >= 0.0:
                stay.append(probe)
        self._staying = frozenset(stay)
        self._state.stayed = [probe.name for probe in stay]
        self._activate(stay)
