"""Stretches without hooks on root modules, where even a hook that does nothing costs more than the budget."""

import math
import time

from tdbg.probes.budget import ALWAYS_STEPS, Budget
from tdbg.probes.roots import Roots
from tdbg.probes.roster import Roster
from tdbg.probes.search import is_anything_compiled
from tdbg.probes.state import State

CEILING = 0.05  # a glance at each step and call may cost this share, beyond a budget that is smaller by default
SHORT_STEP_S = 0.5e-3  # only steps shorter than this: of others the origin of a bad value is worth more than the budget
IDLE_STEPS = 3  # so many steps, or
IDLE_CALLS = 8  # calls without gradients, in a row show what a glance costs
SHORTEST_S, LONGEST_S = 0.05, 2.0
SMOOTHING = 0.3
SEEN_CALLS = frozenset(("first-bad", "loader-wait"))  # probes of the default level, which do well with some calls


class DutyCycle:
    """Takes the hooks of root modules away for a stretch when they cost too much, and puts them back.

    The length of a stretch is what the budget needs to earn what was overspent. While the hooks are away, updates
    are counted and losses checked; neither goes through a module. In a stretch without updates (``for_calls``)
    nothing but a backward pass, an update or a batch brings the hooks back: calls are not seen, nor counted.

    strict: the user named a budget; a glance may then cost no more than that.
    """

    def __init__(self, state: State, budget: Budget, roots: Roots, roster: Roster, *, strict: bool) -> None:
        self._state = state
        self._budget = budget
        self._roots = roots
        self._roster = roster
        self._strict = strict
        self.is_away = False
        self.for_calls = False
        self.until = 0.0
        self.steps = 0  # counted while the hooks were away
        self._away_s = 0.0
        self._left_at = 0.0
        self._step_s = math.inf  # the shortest step since the hooks are back
        self._share = 0.0  # of the time of a step that is only glanced at, smoothed
        self._idle_steps = 0  # since the hooks are back
        self._step_at = self._step_own_s = 0.0
        self._calls = 0  # in a row, without gradients and not affordable
        self._calls_at = self._calls_own_s = 0.0

    def away_s(self, now: float) -> float:
        """Seconds in which the hooks were away."""
        return self._away_s + (now - self._left_at if self.is_away else 0.0)

    def step_ended(self, now: float, *, glanced: bool, planned: bool) -> None:
        """A step has ended. glanced: no more than that was done in it. planned: the next one is to be watched."""
        own_s, self._calls = self._budget.own_s, 0
        if glanced:
            share = (own_s - self._step_own_s) / max(now - self._step_at, 1e-9)
            self._share += (SMOOTHING if self._idle_steps else 1.0) * (share - self._share)
            self._idle_steps += 1
            self._step_s = min(self._step_s, now - self._step_at)
        self._step_at, self._step_own_s = now, own_s
        if planned or self._idle_steps < IDLE_STEPS or self._state.step < ALWAYS_STEPS:
            return
        if (
            self._state.world_size == 1
            and self._step_s < SHORT_STEP_S
            and self._is_too_dear(self._share)
            and self._may_leave(now)
        ):
            self._leave(now, for_calls=False)

    def training_continues(self) -> None:
        """A call with gradients, or a backward pass: calls without are no longer in a row."""
        self._calls = 0
        if self.for_calls:
            self.come_back(time.perf_counter())

    def call_glanced(self, now: float) -> None:
        """A call without gradients begins that is only counted.

        Where nothing is trained such calls are the steps of the run, and are seen.
        """
        if not self._state.step:
            return
        self._calls += 1
        if self._calls == 1:
            self._calls_at, self._calls_own_s = now, self._budget.own_s
        elif self._calls > IDLE_CALLS:
            self._calls = 0
            share = (self._budget.own_s - self._calls_own_s) / max(now - self._calls_at, 1e-9)
            seen = {
                probe.name for point in ("call_begins", "call_ended") for probe, _ in self._roster.subscribers[point]
            }
            if seen <= SEEN_CALLS and self._is_too_dear(share) and self._may_leave(now):
                self._leave(now, for_calls=True)

    def batch_taken(self, now: float) -> None:
        """The program's loader handed out a batch."""
        if self.for_calls and now >= self.until:
            self.come_back(now)

    def come_back(self, now: float) -> None:
        """Put the hooks back."""
        if self.is_away:
            self._away_s += now - self._left_at
            self.is_away = self.for_calls = False
            self._idle_steps = self._calls = 0
            self._step_s = math.inf
            self._step_at, self._step_own_s = now, self._budget.own_s
            self._roots.pause(False)

    def _is_too_dear(self, share: float) -> bool:
        allowed = self._budget.share
        return share > (allowed if self._strict else max(allowed, CEILING))

    def _may_leave(self, now: float) -> bool:
        state = self._state
        if self.is_away or not state.active or state.quiet or state.rerunning or self._roster.subscribers["must_watch"]:
            return False
        return (
            self._budget.own_s > self._budget.earned_s(now) and not is_anything_compiled()
        )  # a graph may hold our hooks

    def _leave(self, now: float, *, for_calls: bool) -> None:
        debt_s = self._budget.own_s - self._budget.earned_s(now)
        stretch_s = min(max(debt_s / max(self._budget.share, 1e-9), SHORTEST_S), LONGEST_S)
        self.is_away, self.for_calls = True, for_calls
        self._left_at, self.until = now, now + stretch_s
        self._roots.pause(True)
