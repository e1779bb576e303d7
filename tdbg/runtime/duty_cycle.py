"""Stretches in which root modules are hardly watched, or have no hooks, as even a glance costs more than the budget."""

import math
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from tdbg.core.guard import Guard
from tdbg.runtime.budget import ALWAYS_STEPS, Budget
from tdbg.runtime.dispatcher import ProbeDispatcher
from tdbg.runtime.root_modules import Roots, Skip, Target
from tdbg.runtime.root_search import is_anything_compiled
from tdbg.runtime.state import State

KEEPING_SHARE = 0.015  # so much of a step may go into keeping its calls, with which a bad value's origin is found,
KEEPING_PART = 0.4  # and not more than this part of a budget that the user named
KEEPING_S = 8e-6  # what that costs besides the way into a hook and out of it
SKIPPED_STEPS = 32  # so many steps in a row are skipped, or as many as fit into a time, if that is more
IDLE_STEPS = 3  # so many steps, or
EVALUATION_CALLS = 1000  # so many are seen at least in a program that only evaluates
IDLE_CALLS = 8  # calls without gradients, in a row show what a glance costs
SHORTEST_S, LONGEST_S = 0.05, 2.0
SMOOTHING = 0.3
PATIENCE_S = 0.05  # the other thread is done much sooner; what a signal handler interrupted never is


class Rarity(NamedTuple):
    """How rarely skipped steps are looked at: as a whole after so many seconds, their loss in one of so many."""

    look_s: float
    check_every: int  # a power of two


EACH_LOSS = Rarity(0.1, 1)
# The first that the budget pays for. Less than 8 steps do not pay for the way to a hook that only counts; a bad loss is
# named with the range of steps since the last check.
RARITIES = tuple(Rarity(*one) for one in ((0.1, 8), (0.1, 16), (0.1, 32), (0.2, 32), (0.4, 32), (0.4, 64), (0.4, 128)))
SEEN_CALLS = frozenset(("dataloader", "first-bad", "loader-wait", "memory"))  # probes that do well with some calls


class DutyCycle:
    """Has root modules watched less for a stretch when that costs too much, and as before after it.

    The length of a stretch is what the budget needs to earn what was overspent. In it updates are counted and losses
    checked, each or one of several; neither goes through a module. Where a step is long enough its calls are still kept, so that a bad loss can
    be located; else the hooks are away. In a stretch without updates (``for_calls``) they always are, and nothing but
    a backward pass, an update or a batch brings them back, and a timer where nothing has been trained: calls are not
    seen, nor counted.

    strict: the user named a budget. checks_all: each loss is to be checked, whatever the budget says.
    """

    def __init__(
        self,
        state: State,
        budget: Budget,
        roots: Roots,
        dispatcher: ProbeDispatcher,
        *,
        strict: bool = False,
        checks_all: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._state = state
        self._budget = budget
        self._roots = roots
        self._dispatcher = dispatcher
        self._strict, self._checks_all = strict, checks_all
        self._clock = clock
        # Called before each call of a root in a stretch that keeps them, where the other does not say that this is all.
        self.keep_call: Target | None = None
        self.hold_call_for_rerun: Skip | None = None
        self.ended: Callable[[], None] = lambda: None
        self.is_away = False  # a stretch has begun
        self.for_calls = False
        self.keeps_calls = False
        self.until = 0.0
        self.steps = 0  # counted while the hooks were away
        self.unchecked_losses = 0
        self.counted_steps = 0  # of which nothing was seen but the update
        self._away_s = 0.0
        self._left_at = self._owed_s = 0.0
        self._step_s = math.inf  # the shortest step since the hooks are back
        self._share = 0.0  # of the time of a step that is only glanced at, smoothed
        self._idle_steps = 0  # since the hooks are back
        self._step_at = self._step_own_s = 0.0
        self._calls = 0  # in a row, without gradients and not affordable
        self._calls_at = self._calls_own_s = 0.0
        self._steps_until = self._calls_until = 0.0  # of a stretch that was interrupted by calls, or by steps
        self._may_keep = False  # in a stretch of steps
        self._changing = threading.Lock()  # held while a stretch begins or ends
        self._waker: threading.Thread | None = None
        self._guard = Guard("duty")

    def away_s(self, now: float) -> float:
        """Seconds in which the hooks were away."""
        return self._away_s + (now - self._left_at if self.is_away and not self.keeps_calls else 0.0)

    def step_ended(self, now: float, *, glanced: bool, planned: bool) -> None:
        """A step has ended. glanced: no more than that was done in it. planned: the next one is to be watched."""
        own_s, self._calls = self._budget.own_s, 0
        if glanced:
            share = (own_s - self._step_own_s) / max(now - self._step_at, 1e-9)
            self._share += (SMOOTHING if self._idle_steps else 1.0) * (share - self._share)
            self._idle_steps += 1
            self._step_s = min(self._step_s, now - self._step_at)
        self._step_at, self._step_own_s = now, own_s
        if planned or self._state.step < max(ALWAYS_STEPS, self._state.reviews_until):
            return
        if now < self._steps_until and self._may_leave(now):  # evaluation interrupted a stretch
            self._begin_stretch(now, self._steps_until, for_calls=False)
            return
        if self._idle_steps < IDLE_STEPS:
            return
        if self._state.world_size == 1 and self._is_too_dear(self._share) and self._may_leave(now):
            self._may_keep = self._can_keep_calls(now)
            self._begin_stretch(now, self._stretch_end(now), for_calls=False)

    def _can_keep_calls(self, now: float) -> bool:
        """True where the calls of skipped steps are kept: at no more than a share of the step, and once the allowance is
        used up only if the budget pays for it and the check of each loss, which alone it is good for.
        """
        budget, keeping_s = self._budget, self._budget.entry_s("call_begins") + KEEPING_S
        if budget.is_allowance_spent(now) and keeping_s + budget.entry_s("skipped_step") > budget.share * self._step_s:
            return False
        allowed = min(KEEPING_SHARE, KEEPING_PART * budget.share) if self._strict else KEEPING_SHARE
        return keeping_s <= allowed * self._step_s

    def plan_skipping(self, now: float) -> tuple[int, int]:
        """So many steps of a stretch need not be looked at as a whole, not beyond its end, and how often their loss is
        checked: in one of so many.
        """
        rarity = self._choose_rarity(now)
        steps = min((self.until - now) / max(self._step_s, 1e-9), self._most_skipped(rarity))
        return max(int(steps), 0), rarity.check_every

    def _most_skipped(self, rarity: Rarity) -> float:
        """Steps from one that is looked at whole to the next."""
        return max(rarity.look_s / max(self._step_s, 1e-9), SKIPPED_STEPS)

    def _choose_rarity(self, now: float) -> Rarity:
        """Each loss is checked while the allowance lasts, and where the step's calls are kept, so that a bad loss can be
        located; else it is as the budget has it.
        """
        budget = self._budget
        if self._checks_all or self.keeps_calls or not budget.is_allowance_spent(now):
            return EACH_LOSS
        unchecked_s, checked_s = budget.entry_s("unchecked_step"), budget.entry_s("skipped_step")
        allowed_s = budget.share * self._step_s
        if checked_s <= allowed_s:
            return EACH_LOSS
        if "counted_batch" in budget.by_part:
            allowed_s -= budget.entry_s("counted_batch")
        checking_s = checked_s - unchecked_s + budget.entry_s("counting")
        look_s = self._share * self._step_s

        def is_affordable(rarity: Rarity) -> bool:
            cost_s = unchecked_s + checking_s / rarity.check_every + look_s / self._most_skipped(rarity)
            return cost_s <= allowed_s

        return next(filter(is_affordable, RARITIES), RARITIES[-1])

    def training_continues(self) -> None:
        """A call with gradients, or a backward pass: calls without are no longer in a row."""
        self._calls = 0
        if self.for_calls:
            self._interrupt_stretch(self._clock())

    def evaluation_begins(self, now: float) -> None:
        """A call without gradients, in a stretch of steps that keeps their calls."""
        self._interrupt_stretch(now)

    def _interrupt_stretch(self, now: float) -> None:
        """Put the hooks back for steps between calls, or calls between steps; the stretch goes on after the first."""
        steps_until, calls_until, step_s = self._steps_until, self._calls_until, self._step_s
        if self.for_calls:
            calls_until = self.until
        else:
            steps_until = self.until
        self._restore_hooks(now, steps_until, calls_until)
        self._step_s = step_s

    def call_glanced(self, now: float) -> None:
        """A call without gradients begins that is only counted.

        Where nothing is trained such calls are the steps of the run: many of them are seen first.
        """
        if not self._state.step and self._state.eval_calls < EVALUATION_CALLS:
            return
        if now < self._calls_until and self._may_leave(now):  # steps interrupted a stretch
            self._begin_stretch(now, self._calls_until, for_calls=True)
            return
        self._calls += 1
        if self._calls == 1:
            self._calls_at, self._calls_own_s = now, self._budget.own_s
        elif self._calls > IDLE_CALLS:
            self._calls = 0
            share = (self._budget.own_s - self._calls_own_s) / max(now - self._calls_at, 1e-9)
            seen = {
                probe.name
                for point in ("call_begins", "call_ended")
                for probe, _ in self._dispatcher.subscribers[point]
            }
            if seen <= SEEN_CALLS and self._is_too_dear(share) and self._may_leave(now):
                self._begin_stretch(now, self._stretch_end(now), for_calls=True)

    def batch_taken(self, now: float) -> None:
        """The program's loader handed out a batch."""
        if self.is_away and now >= self.until:
            self.come_back(now)

    def come_back(self, now: float) -> None:
        """Put the hooks back."""
        self._restore_hooks(now)

    def _restore_hooks(self, now: float, steps_until: float = 0.0, calls_until: float = 0.0) -> None:
        """Put the hooks back. steps_until, calls_until: the ends of stretches that are to go on afterwards."""
        if not self.is_away or not self._changing.acquire(timeout=PATIENCE_S):
            return  # a signal handler came in between
        try:
            self._away_s = self.away_s(now)
            self.ended()
            if now >= self.until and not self.for_calls:
                self._state.owes_after_stretch = self._budget.own_s - self._budget.earned_s(now) > self._owed_s / 2.0
            self.is_away = self.for_calls = self.keeps_calls = False
            self._idle_steps = self._calls = 0
            self._steps_until, self._calls_until = steps_until, calls_until
            self._step_s = math.inf
            self._step_at, self._step_own_s = now, self._budget.own_s
            self._roots.keep_only(None, None)
            self._roots.pause_hooks(False)
        finally:
            self._changing.release()

    def forked(self) -> None:
        """In a forked child: the thread that was to bring the hooks back is not there."""
        self._changing, self._waker = threading.Lock(), None
        self.come_back(self._clock())

    def _wake_up(self) -> None:
        """Have a thread put the hooks back when the stretch is over: one, however often steps interrupt it."""
        if self._waker is None or not self._waker.is_alive():
            self._waker = threading.Thread(
                target=self._guard.call_guarded, args=[self._wait_for_stretch_end], name="tdbg-duty", daemon=True
            )
            self._waker.start()

    def _wait_for_stretch_end(self) -> None:
        """Until no stretch for calls is left, not even one that steps have interrupted."""
        while True:
            with self._changing:
                now = self._clock()
                until = self.until if self.for_calls else self._calls_until
                if until <= now and not self.for_calls:
                    self._waker = None
                    return
            if until > now:
                time.sleep(until - now)
            else:
                self.come_back(now)

    def _is_too_dear(self, share: float) -> bool:
        return share > self._budget.share

    def _may_leave(self, now: float) -> bool:
        state = self._state
        if (
            self.is_away
            or not state.active
            or state.quiet
            or state.rerunning
            or state.inspects_pass
            or self._dispatcher.subscribers["must_watch"]
        ):
            return False
        return (
            self._budget.own_s > self._budget.earned_s(now) and not is_anything_compiled()
        )  # a graph may hold our hooks

    def _stretch_end(self, now: float) -> float:
        """When the budget will have earned what was overspent."""
        debt_s = self._budget.own_s - self._budget.earned_s(now)
        return now + min(max(debt_s / max(self._budget.share, 1e-9), SHORTEST_S), LONGEST_S)

    def _begin_stretch(self, now: float, until: float, *, for_calls: bool) -> None:
        if not self._changing.acquire(timeout=PATIENCE_S):
            return
        try:
            self.is_away, self.for_calls = True, for_calls
            self._left_at, self.until = now, until
            self._owed_s = self._budget.own_s - self._budget.earned_s(now)
            if self._may_keep and not for_calls and self.keep_call is not None:
                self.keeps_calls = True
                self._roots.keep_only(self.keep_call, self.hold_call_for_rerun)
            else:
                self._roots.pause_hooks(True)
            if for_calls:  # nothing else of what brings the hooks back need ever come
                self._wake_up()
        finally:
            self._changing.release()
