"""TD-A001: GradScaler skips too many updates."""

from tdbg.core.events import Finding, Step
from tdbg.core.observations import Evidence
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, PerProcessRule
from tdbg.rules.text import format_figure

STREAK = 5
START_STEPS = 20  # in which the scaler may come down from its first scale
START_STREAK = 12
SHARE = 0.2
RECENT = 100
RECENT_MIN = 50
_MASK = (1 << RECENT) - 1


class _State:
    steps: int = 0  # after the start
    recent: int = 0  # one bit a step: skipped
    streak: int = 0
    since: int = 0
    scale_then: float | str | None = None
    is_reported: bool = False


@RULES.add
class SkipStreak(PerProcessRule[_State]):
    """Says when GradScaler skips so many updates that training stands still.

    What it does: Speaks at 5 skipped updates in a row, or when more than 20 % of the last 100 (at least 50)
    were skipped. In the first 20 steps, while the scale comes down from 65,536, only 12 in a row count.

    Why it matters: A skipped update is a step without learning. Schedulers and step counters go on, so the run
    seems fine; a few skips are healthy, a streak means that the gradients overflow at any scale.

    Example:
        TD-A001 warning: GradScaler skipped 5 updates in a row from step 130 on, rank 0, scale now 2,048

    What to do: Where the scale falls and falls, the gradients hold a real NaN or Inf (see TD-N001), no
    overflow. Use bfloat16 where the device has it (no scaler needed), keep losses and norms in float32, or
    raise `growth_interval` if skips come at a steady beat.

    Thresholds: 5 in a row divide the scale by 32: healthy dynamic scaling skips one update in some 2,000
    (Micikevicius et al. 2018, "Mixed Precision Training", and torch's default growth_interval).
    """

    code = "TD-A001"
    title = "GradScaler skips many updates"
    severity = "warning"
    grade = Evidence.LOCAL.grade_word
    kept = _State

    def evaluate(self, process: ProcessDir, state: _State, event: Step) -> Finding | None:
        if event.scale is None:
            return None
        _count_skips(state, event)
        if state.is_reported:
            return None
        if state.streak >= (STREAK if event.step > START_STEPS + STREAK else START_STREAK):
            what = f"{format_count(state.streak, 'update')} in a row from step {state.since} on"
        elif state.steps >= RECENT_MIN and state.recent.bit_count() > SHARE * min(state.steps, RECENT):
            what = f"{state.recent.bit_count()} of the last {format_count(min(state.steps, RECENT), 'update')}"
        else:
            return None
        state.is_reported = True
        return self._make_skip_finding(process, state, event, what)

    def _make_skip_finding(self, process: ProcessDir, state: _State, event: Step, what: str) -> Finding:
        return self.make_finding(
            f"GradScaler skipped {what}, {process.display_name}, scale now {format_figure(event.scale)}",
            first_step=state.since if state.streak else event.step,
            rank=process.rank,
            phase="optimizer",
            evidence=[
                f"scale {format_figure(state.scale_then)} before the last skips, {format_figure(event.scale)} now"
            ],
            cause="gradients overflow at every scale tried: a real NaN or Inf, or activations beyond half precision",
            try_next="see TD-N001 of this run; try bfloat16, or float32 for the module it names",
        )


def _count_skips(state: _State, event: Step) -> None:
    if event.step > START_STEPS:
        state.steps += 1
        state.recent = (state.recent << 1 | event.skipped) & _MASK
    if not event.skipped:
        state.streak, state.since, state.scale_then = 0, 0, event.scale
        return
    state.streak = max(state.streak + 1, event.skipped_in_a_row)  # records of earlier ones may be missing
    state.since = event.step - event.skipped_in_a_row + 1 if event.skipped_in_a_row else state.since or event.step
