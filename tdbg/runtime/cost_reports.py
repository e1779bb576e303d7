"""What tdbg itself has cost so far, told every few seconds."""

import time
from collections.abc import Callable

from tdbg.core.config import Settings
from tdbg.core.events import Cost, Event
from tdbg.runtime.budget import Budget
from tdbg.runtime.duty_cycle import DutyCycle
from tdbg.runtime.state import State

COST_EVERY_S = 5.0


class CostReports:
    """Makes a Cost event of what the budget has booked: a sign of life, also where no record is affordable."""

    def __init__(
        self, state: State, settings: Settings, budget: Budget, duty: DutyCycle, emit: Callable[[Event], None]
    ) -> None:
        self._state = state
        self._settings = settings
        self._budget = budget
        self._duty = duty
        self._emit = emit
        self._reported_at = 0.0

    def report_if_due(self, now: float) -> None:
        """Tell of it, if the last time is long enough ago. Cost: a comparison."""
        if now - self._reported_at >= COST_EVERY_S:
            self._reported_at = now
            self._emit(self.build_cost())

    def build_cost(self) -> Cost:
        """tdbg's own cost so far."""
        state, settings, budget = self._state, self._settings, self._budget
        now = time.perf_counter() if state.active else state.off_at
        return Cost(
            step=state.step,
            evals=state.eval_calls,
            own_ms=round(budget.own_s * 1e3, 3),
            wall_ms=round((now - budget.start) * 1e3, 3),
            startup_ms=round(budget.start_up_s * 1e3, 3),
            report_ms=round(budget.report_s * 1e3, 3),
            checks_ms=round(budget.checked_s * 1e3, 3),
            capture_ms=round(budget.asked_s * 1e3, 3),
            diagnostics_ms=round(budget.called_s * 1e3, 3),
            budget_pct=settings.budget_pct,
            earned_ms=round((budget.earned_by_share_s(now) - budget.inspection_s) * 1e3, 3),
            inspection_ms=round(budget.spent_of_allowance_s(now) * 1e3, 3),
            allowance_ms=round(budget.allowance_s * 1e3, 3),
            inspected=state.inspected,
            stayed=state.stayed,
            sampled=state.sampled,
            away_ms=round(self._duty.away_s(now) * 1e3, 3),
            away_steps=self._duty.steps,
            unchecked_losses=self._duty.unchecked_losses,
            by_part={part: round(seconds * 1e3, 3) for part, seconds in budget.by_part.copy().items()},
            level=settings.level,
            flags=[name for name, value in settings.flags.items() if value is not False],
        )
