"""The opening inspection: the first steps are looked at fully, whatever the level, paid from an allowance of their own."""

import math
import time
from collections.abc import Callable, Iterable

from tdbg.core.window import compute_median
from tdbg.runtime.budget import Budget
from tdbg.runtime.listener import LATER_STEPS, Listener
from tdbg.runtime.state import State

OPENING_STEPS = 50
AGAIN_STEPS = 5  # when the training has become another one
LATER_SPARE = 1.25  # so many times what the last look has cost is saved for the next one
FIRST_LATER_STEP = 2 * OPENING_STEPS
PRESENCE_SHARE = 0.5  # of the budget may go into probes that stay, besides their looks
REVIEW_STEPS = 25  # so many tell whether they cost as little as was expected
CHECK_STEPS = 4  # from one comparison with what the training was to the next, which finds all caches cold
LEAST_PART = 0.05  # of what these steps have cost: to let a probe go that has less of it saves nothing
SETTLING_STEPS = 4  # after a pass, until it and the updates that follow have been judged
# Of the time since the first step: beyond the part below, steps take at most twice their time on average.
SPENDING_RATE = 0.5
# Of the allowance may be spent at once: steps of a millisecond would earn nothing before it is over.
PART_AT_ONCE = 0.25


class Inspection:
    """Adds the probes of the inspection to those of the level until it is over.

    load: the classes of these probes. activate: called with them when it begins and with none when it ends. changed: the
    kind of change that the training went through since it was last called, or nothing. is_told_of_updates: whether
    a probe at work is, watched or not. strict: the user named a budget, for which every probe leaves.
    """

    def __init__(
        self,
        state: State,
        budget: Budget,
        load: Callable[[], list[type[Listener]]],
        activate: Callable[[Iterable[type[Listener]]], None],
        changed: Callable[[], str] = str,
        is_told_of_updates: Callable[[type[Listener]], bool] = lambda probe: False,
        *,
        strict: bool = False,
    ) -> None:
        self._state = state
        self._budget = budget
        self._load = load
        self._activate = activate
        self._changed = changed
        self._is_told_of_updates = is_told_of_updates
        self._strict = strict
        self._since = self._own_s = self._step_s = 0.0
        self._until = 0  # the step after which it is over; 0: it has not begun
        self.is_open = False
        self._staying: frozenset[type[Listener]] = frozenset()
        self._pass_at = 0  # the step after which the first evaluation pass began, if it came after the opening steps
        self._is_asked_for = False  # to be repeated after this step, although nothing has changed
        self._waiting: frozenset[type[Listener]] = frozenset()  # for a checkpoint, at no cost a step
        self._checkpoints: set[str] = set()  # kinds (load, save) that were met after the opening steps
        self._review_at = math.inf  # from this step on the presence of what stays is measured
        self._reviewed: list[
            tuple[float, float, dict[type[Listener], float]]
        ] = []  # steps: time, tdbg's part, the probes'
        self._before: tuple[float, float, dict[type[Listener], float]] | None = (
            None  # the same sums as of the step before
        )
        self._overspent_s = 0.0  # beyond the share, at the end of measured steps
        self._later_at = math.inf  # the step of the next look at doubling intervals
        self._is_later = False  # such a look is open, which the budget pays

    @property
    def is_repeat_open(self) -> bool:
        """True while a few steps are looked at again: after a change or a checkpoint, or at doubling intervals."""
        return self.is_open and not self._is_opening

    @property
    def is_later_look_open(self) -> bool:
        """True in the few steps of a look at doubling intervals, which the budget pays."""
        return self._is_later

    @property
    def is_at_work(self) -> bool:
        """True while it has probes that do more than wait."""
        return self.is_open or bool(self._staying)

    @property
    def _is_opening(self) -> bool:
        return self.is_open and self._until == OPENING_STEPS

    @property
    def _staying_or_waiting(self) -> list[type[Listener]]:
        """The probes that are there between looks."""
        return [*self._staying, *self._waiting]

    def waits_with(self, probe: type[Listener]) -> bool:
        """True for a probe that stays for checkpoints alone: it looks at the first of each kind after the opening steps."""
        return probe in self._waiting and not self.is_open and not self._is_asked_for

    def has_ended_for(self, probe: type[Listener]) -> bool:
        """True for a probe that the inspection added and that stays now that it is over."""
        return probe in self._staying and not self.is_open

    def has_looked_again(self, probe: type[Listener]) -> bool:
        """True for a probe that was there for as many steps of the running look at doubling intervals as it needs."""
        is_coming = self._is_later and probe not in self._staying
        return is_coming and self._state.step >= self._until - LATER_STEPS + probe.comes_back

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
        self._state.stayed = None  # not known before it is over

    def step_ended(self) -> None:
        """A step has ended, or a call where nothing is trained: the inspection may be over. Cost: a comparison."""
        if not self.is_open:
            if self._pass_at and self._state.step >= self._pass_at + SETTLING_STEPS:
                self._pass_at, self._state.inspects_pass = 0, False
                self._budget.close_allowance(time.perf_counter())
                self._activate(self._staying_or_waiting)
            elif self._until and self._state.attended == self._state.step and not self._pass_at:
                self._check_between_looks()
            return
        now = time.perf_counter()
        if self._is_later:
            if self._state.step >= self._until:
                self._end_later_look(now)
            return
        if not self._budget.is_allowance_open:
            self._since, self._own_s = now, self._budget.own_s
            # What the few steps of a later inspection earn is there with the first of them: on average none doubles.
            at_once_s = PART_AT_ONCE * self._budget.allowance_s
            credit_s = SPENDING_RATE * AGAIN_STEPS * self._step_s if self.is_repeat_open else at_once_s
            self._budget.open_allowance(now, SPENDING_RATE, credit_s)
        steps = self._state.step or self._state.eval_calls
        if steps >= self._until or self._budget.is_allowance_spent(now):
            self.end_inspection(now)

    def _check_between_looks(self) -> None:
        """Between looks: one may be due, or a probe cost more than it should."""
        step = self._state.step
        if self._has_reason():
            self._inspect_again()
        elif step >= self._later_at:
            self._begin_later_look(time.perf_counter())
        if self.is_open:
            self._before = None  # these steps are no glances
        elif self._state.owes_after_stretch:
            self._state.owes_after_stretch = False
            self._let_go(
                [probe for probe in self._staying if self._may_leave(probe) and self._is_told_of_updates(probe)]
            )
        elif step >= self._review_at:
            self._review_presence(time.perf_counter())

    def evaluation_begins(self) -> None:
        """The first call without gradients of a process that has trained: its pass is looked at as the first steps were.

        So is a pass that a probe asked for.
        """
        added = {probe for probe in self._load() if probe.inspects_evaluation} - self._staying
        if self._is_later:  # there is one first pass, and its probes may not be those of this look
            self._end_later_look(time.perf_counter())
        if self._budget.allowance_s and added and not self.is_open:
            self._pass_at, self._state.inspects_pass = self._state.step, True
            self._budget.open_allowance(time.perf_counter(), SPENDING_RATE)
            self._activate([*self._staying_or_waiting, *added])

    def ask_for_repetition(self) -> None:
        """The next steps are to be looked at as the first were: one step stands out, and those after it tell what it was."""
        self._is_asked_for = True

    def ask_for_pass(self, *, wanted: bool) -> None:
        """The next evaluation pass is to be looked at as the first is, or not."""
        self._state.wants_pass = wanted

    def checkpoint_met(self, kind: str) -> bool:
        """The program has saved or loaded a file. True for the first of its kind after the opening steps, if it can be paid.

        The steps that follow it are looked at as the first were.
        """
        is_known = not self._until or self._is_opening or kind in self._checkpoints
        if is_known or self._budget.allowance_s <= self._budget.inspection_s:
            return False
        self._checkpoints.add(kind)
        self.ask_for_repetition()
        return True

    def _has_reason(self) -> bool:
        """True if the training has changed, or a few more steps were asked for."""
        asked, self._is_asked_for = self._is_asked_for, False
        return (self._state.step % CHECK_STEPS == 0 and bool(self._changed())) or asked

    def _inspect_again(self) -> None:
        """The training has become another one: a few of its steps are looked at as the first were, if that can be paid."""
        if self._budget.allowance_s <= self._budget.inspection_s:
            if self._waiting:  # a probe that was woken for it rests again
                self._activate(self._staying_or_waiting)
            return
        self._until, self.is_open = self._state.step + AGAIN_STEPS, True
        self._activate(self._load())

    def _begin_later_look(self, now: float) -> None:
        """Look for a few steps at what can begin to go wrong late, once what was saved of the budget pays for it.

        Of several ranks none looks at a step of its own: what cannot be paid in that step waits for the next one.
        """
        step = self._state.step
        if self._state.world_size > 1 and not (step == self._later_at and self._budget.has_saved(now)):
            while self._later_at <= step:
                self._later_at *= 2
            return
        if not self._budget.has_saved(now):
            return
        self._later_at = 2 * step
        self._until, self.is_open, self._is_later = step + LATER_STEPS, True, True
        self._own_s = self._budget.own_s
        self._budget.spend_saved(now)
        coming = [probe for probe in self._load() if probe.comes_back and probe not in self._staying]
        self._activate([*self._staying_or_waiting, *coming])

    def _end_later_look(self, now: float) -> None:
        """What it has cost is saved for the next one; what it cost above the share is paid from the allowance's rest."""
        self.is_open = self._is_later = False
        self._budget.settle_debt(now)
        self._budget.save_up(LATER_SPARE * (self._budget.own_s - self._own_s), now)
        self._activate(self._staying_or_waiting)

    def end_inspection(self, now: float) -> None:
        """From now on the level's budget holds, and of the added probes those stay whose presence it pays for."""
        self.is_open = False
        self._budget.close_allowance(now)
        if self._until != OPENING_STEPS:
            self._activate(self._staying_or_waiting)
            return
        self._changed()  # what is compared with from now on
        steps = max((self._state.step or self._state.eval_calls) - 1, 1)
        own_s = self._budget.own_s - self._own_s
        self._step_s = max(now - self._since - own_s, 0.0) / steps
        self._later_at = FIRST_LATER_STEP
        self._budget.save_up(LATER_STEPS * own_s / steps, now)
        earned_s = PRESENCE_SHARE * self._budget.share * self._step_s
        stay = []
        for probe in sorted(self._load(), key=lambda probe: probe.presence_s):
            earned_s -= probe.presence_s
            if earned_s >= 0.0:
                stay.append(probe)
        self._staying = frozenset(stay)
        self._state.stayed = [probe.name for probe in stay]
        self._begin_review(self._state.step)
        if self._budget.allowance_s > self._budget.inspection_s:
            self._waiting = frozenset(probe for probe in self._load() if probe.inspects_checkpoint) - self._staying
        self._activate(self._staying_or_waiting)

    def _begin_review(self, step: float) -> None:
        """Measure what the steps after this one cost, if a probe is there that could go."""
        self._review_at = step if self._staying else math.inf
        if 0 < self._review_at <= self._state.step:  # at once; looks and passes may come between these steps
            self._state.reviews_until = self._state.step + 2 * REVIEW_STEPS
        self._reviewed, self._before = [], None

    def _review_presence(self, now: float) -> None:
        """Let the dearest of the probes that stay go where a step without a look costs more than the budget.

        What presence costs is known in advance for a warm loop alone: between the kernels of a real one, or on a slow
        core, it is several times that. Of the measured steps the median counts: a look, an evaluation pass or a
        checkpoint in a few of them is no presence.
        """
        budget = self._budget
        parts = {probe: budget.by_part.get(probe.name, 0.0) for probe in self._staying}
        if self._before is not None:
            since, own_s, before = self._before
            costs = {probe: seconds - before[probe] for probe, seconds in parts.items()}
            self._reviewed.append((now - since, budget.own_s - own_s, costs))
        self._before = now, budget.own_s, parts
        if len(self._reviewed) < REVIEW_STEPS:
            return
        self._state.reviews_until = 0
        step_s = compute_median(one[0] for one in self._reviewed)
        spent_s = compute_median(one[1] for one in self._reviewed)
        over_s = spent_s - budget.share * step_s
        leaving = self._choose_leaving(over_s, spent_s) if budget.own_s > budget.earned_s(now) else []
        # These steps were watched whatever was spent: a part of the inspection, but not one that pays for more glances.
        self._overspent_s = max(self._overspent_s, budget.own_s - budget.earned_by_share_s(now))
        if leaving:
            self._let_go(leaving)
            self._begin_review(self._state.step)
        else:
            self._begin_review(2 * self._state.step)

    def run_ends(self, now: float) -> None:
        """What measured steps took above the share, and the run did not earn again, is told as the inspection's."""
        self._budget.settle_debt(now, self._overspent_s)

    def _choose_leaving(self, over_s: float, spent_s: float) -> list[type[Listener]]:
        """The dearest of the probes that stay, until a step costs ``over_s`` less than ``spent_s``.

        What is told of every update keeps a single rank from skipping steps, however little it costs itself; and what is
        told of calls, a program that only evaluates from skipping those.
        """
        costs_s = {
            probe: compute_median(one[2][probe] for one in self._reviewed)
            for probe in self._staying
            if self._may_leave(probe)
        }
        leaving = []
        for probe in sorted(costs_s, key=lambda probe: -costs_s[probe]):
            holds_up = self._state.world_size == 1 and (not self._state.step or self._is_told_of_updates(probe))
            if over_s > 0.0 and (holds_up or costs_s[probe] > LEAST_PART * spent_s):
                leaving.append(probe)
                over_s -= costs_s[probe]
        return leaving

    def _may_leave(self, probe: type[Listener]) -> bool:
        return self._strict or probe.can_be_removed

    def _let_go(self, leaving: list[type[Listener]]) -> None:
        """These probes stay no longer; one that can wait for a checkpoint at no cost does that.

        What they have cost beyond the budget until this was known belongs to the inspection.
        """
        if not leaving:
            return
        self._budget.settle_debt(time.perf_counter())
        self._staying -= frozenset(leaving)
        names = {probe.name for probe in leaving}
        self._state.stayed = [name for name in self._state.stayed or () if name not in names]
        if self._budget.allowance_s > self._budget.inspection_s:
            self._waiting |= frozenset(probe for probe in leaving if probe.inspects_checkpoint)
        self._activate(self._staying_or_waiting)
