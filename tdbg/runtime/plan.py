"""What the next step may cost: decided once a step, from what was earned and what each look has cost so far."""

import math
import time
from dataclasses import dataclass, field

from tdbg.core.config import Selection
from tdbg.runtime.budget import ALWAYS_STEPS, Budget

RECORDED_STEPS = 12  # so many first steps are on record whatever that costs: rules need ten to know what is usual
REQUEST_STEPS = 4  # the same for what was requested in a live run, in the steps after the switch: somebody waits for it
CHEAP_SHARE = 0.8  # of the budget; the rest is kept for steps whose gradients are all looked at
MAX_DEAF = 16  # steps in a row
LEAST_EVERY_S = 2.0  # a record that often at least: of short steps the glance alone is more than the budget
RESERVE_STEPS = 20  # so many steps of watching must stay affordable after a look at all gradients,
RESERVE_SHARE = 0.05  # but no more than this part of what was earned so far is held back


@dataclass(slots=True)
class Plan:
    """What is affordable in the step that is running."""

    record: bool = True  # write a record
    full: bool = True  # look at all gradients
    small: bool = True  # look at a few small gradients
    watch: bool = True  # keep references to the batch, time the forward pass
    deaf: int = 0  # so many steps are counted and nothing else, until the budget allows as much as a glance
    extras: dict[str, bool] = field(default_factory=dict)  # what flags and higher levels add, decided when asked

    def open_up(self, everything: bool) -> None:
        """Do everything in the running step; or count it, and nothing else."""
        self.full = self.small = self.watch = self.record = everything
        self.deaf = int(not everything)


class Planner:
    """Makes the plan of each step. Ranks of one job look at common steps: their numbers alone decide.

    strict: the user named a budget. It then holds even where the glance at each loss, some 25 to 80 us a step, is
    more than it pays for; otherwise that glance comes before the budget, unless steps are skipped (`DutyCycle`).
    """

    def __init__(self, budget: Budget, selection: Selection, *, strict: bool = False) -> None:
        self.budget = budget
        self.selection = selection
        self.strict = strict
        self._inspects = False
        self._rested = False
        self._recorded_at = 0.0  # when the last step on record ended
        self._granted_until = ALWAYS_STEPS  # what flags and levels add is done up to this step, whatever was spent
        self.plan = Plan()
        self.rank = 0
        self.world_size = 1

    def plan_next_step(self, step: int, *, focus: bool, inspects: bool = False, glances: bool = False) -> None:
        """Decide what is affordable after ``step``. focus: something is going on, put every step on record.

        inspects: the opening inspection is going on, which pays from its allowance and has every step on record.
        glances: each step is to get a glance, as what it costs is measured.
        """
        self._inspects = inspects
        self.plan.extras.clear()
        self.budget.step_done()
        if step < ALWAYS_STEPS:
            return
        now = time.perf_counter()
        plan, allows = self.plan, self.budget.allows
        if plan.record:
            self._recorded_at = now
        plan.deaf = 0
        if inspects:
            plan.full = self.budget.own_s <= self.budget.earned_s(now)
            plan.watch = plan.small = plan.record = True
            return
        if step < max(RECORDED_STEPS, self._granted_until):
            plan.full = self._affords_full(step, now)
            plan.watch = plan.small = plan.record = True
            return
        if not focus and self.budget.own_s > self.budget.earned_s(now):  # nothing fits: no need to ask for each
            plan.full = plan.watch = plan.small = plan.record = False
            until = self._until_record(step, now)
            if not until:
                plan.watch = plan.small = plan.record = True
                return
            self._rested = self.strict and not (self._rested or glances)  # after a rest comes a glance, paid for or not
            if self._rested:
                debt_s = self.budget.own_s - self.budget.earned_s(now)
                plan.deaf = min(
                    1 + int(debt_s / max(self.budget.share * self._step_s(step, now), 1e-9)), MAX_DEAF, until
                )
            return
        if focus:
            plan.watch = plan.small = plan.record = True
            return
        plan.full = self._affords_full(step, now)
        # Watching comes before recording: without it a fault is seen a step late, and its module is lost.
        spare = CHEAP_SHARE if self.budget.spent_on("full") else 1.0
        plan.watch = plan.small = plan.full or allows(("watch", "small"), now, spare, besides="full")
        plan.record = plan.full or (plan.watch and allows(("watch", "small", "record"), now, spare, besides="full"))

    def _affords_full(self, step: int, now: float) -> bool:
        """True if all gradients can be read in the step after ``step``."""
        likely = self.budget.likely_s
        reserve_s = RESERVE_STEPS * (likely("watch") + likely("small"))
        reserve_s = min(reserve_s, RESERVE_SHARE * self.budget.earned_s(now))
        if not self.budget.allows(("full", "record", "watch"), now, reserve_s=reserve_s):
            return False
        return self.world_size == 1 or (step + 1) % self.budget.compute_stride("full", self._step_s(step, now)) == 0

    def exempt_from_budget(self, first_step: int) -> None:
        """Let what was requested in a live run look in its first steps, also where the budget is spent.

        All ranks switch at the same step, so they look at the same steps.
        """
        self._granted_until = first_step + REQUEST_STEPS - 1

    def should_sample(self, kind: str, step: int) -> bool:
        """True if a flag's or level's work of this kind is to be done in ``step``, the running one."""
        known = self.plan.extras.get(kind)
        if known is None:
            known = self.plan.extras[kind] = self._can_afford(kind, step)
        return known

    def _can_afford(self, kind: str, step: int) -> bool:
        if not (self.selection.is_step_selected(step) and self.selection.is_rank_selected(self.rank)):
            return False
        if step <= self._granted_until:
            return True
        now = time.perf_counter()
        if self._inspects:
            return self.budget.own_s <= self.budget.earned_s(now)
        if self.world_size > 1:
            due = step % self.budget.extras_stride(kind, self._step_s(step, now)) == 0
            return due and self.budget.own_s <= self.budget.earned_s(now)
        return self.budget.allows_extra(kind, now)

    def _until_record(self, step: int, now: float) -> int:
        """How many steps come between this one and the next that has a record in any case; ranks have it in common.

        A rank that is alone goes by the time: nobody asks it in a stretch that is hardly watched, where a step of a
        certain number may well be.
        """
        if self.world_size == 1:
            return math.ceil(max(self._recorded_at + LEAST_EVERY_S - now, 0.0) / max(self._step_s(step, now), 1e-9))
        _, exponent = math.frexp(LEAST_EVERY_S / max(self._step_s(step, now), 1e-9))
        stride = 1 << max(exponent, 0)
        return stride - 1 - step % stride

    def _step_s(self, step: int, now: float) -> float:
        return (now - self.budget.start) / max(step, 1)
