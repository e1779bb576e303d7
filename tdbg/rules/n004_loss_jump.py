"""TD-N004: the loss jumps and stays up."""

from collections import deque
from collections.abc import Iterable

from tdbg.core.events import Event, Finding, Params, Step
from tdbg.core.observations import Evidence
from tdbg.core.rule_base import Link
from tdbg.core.rundir import ProcessDir
from tdbg.core.window import compute_median
from tdbg.rules import RULES, PerProcessRule
from tdbg.rules._series import Surge, Window
from tdbg.rules._trained_model import TrainedModel
from tdbg.rules.text import format_figure
from tdbg.rules.view import View, to_finite

RATIO = 2.0
MADS = 10.0
LOG_SIGMAS = 4.0
LASTING_STEPS = 5
WARM_STEPS = 30
CHANGE_STEPS = 20  # after which other parameters are on record at the latest
LAST_RECORDS = 20  # of the run, whose median says whether the loss has come back


STAYED_UP = ", and stayed up"
CAME_BACK = (
    "one large update, harder data for a while, or a loss that is weighted or reduced otherwise from that step on"
)


class _State:
    silent: bool = False  # told already, or a loss for which a jump means nothing
    step: int = 0
    found: Finding | None = None

    def __init__(self) -> None:
        self.model = TrainedModel()
        self.base = 0.0  # before the jump
        self.last: deque[float] = deque(maxlen=LAST_RECORDS)  # losses since the jump
        self.restart()

    def restart(self) -> None:
        """Another model is trained from here on: its loss is no jump of the one before."""
        self.per_call_base = 0.0  # its median before the surge
        self.held = 0  # steps in a row with a loss per call as far up
        self.since, self.first_loss = 0, 0.0
        self.surge = Surge(ratio=RATIO, mads=MADS, sigmas=LOG_SIGMAS, lasting=LASTING_STEPS, warm=WARM_STEPS)
        self.per_call = Window()


@RULES.add
class LossJump(PerProcessRule[_State]):
    """Says when the loss leaves its course upwards and stays there.

    What it does: Keeps the last 64 losses per rank. It speaks when 5 losses in a row lie above twice the
    median, above median + 10 median absolute deviations, and above 4 robust deviations of the logarithm. Silent
    in the first 30 steps, also of another model that is trained later, for losses that can be zero or negative,
    and where two optimizers play against each other (GAN): a jump means nothing there. Where the last 20 losses
    on record are no higher than those before the jump, it is a note: a weight or the reduction of the loss may
    have changed.

    Why it matters: A jump that lasts is a divergence that has not become NaN yet, or data that changed under
    way. Averages shown by progress bars hide it for hundreds of steps.

    Example:
        TD-N004 warning: the loss jumped from 2.1 to 9.8 at step 120, rank 0, and stayed up

    What to do: See whether the learning rate jumped too (TD-S001), or the gradients (TD-G001). If not, look at
    the data from that step on: a shard, a stage of a curriculum, labels out of range. Gradient clipping and a
    longer warm-up are the usual remedies; restart from a checkpoint before the step.

    Thresholds: Twice the median and median + 10 MAD, 5 in a row, after 30 steps. The median and its deviation
    replace mean and sigma because one outlier moves those (Hampel 1974). Where the number of backward calls in
    a step grew, the loss per call must have jumped too.
    """

    code = "TD-N004"
    title = "loss jump"
    severity = "warning"
    leads_to = (Link("TD-G001", least=0, most=50),)
    kept = _State
    listens = (Step, Params)

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        if isinstance(event, Params):
            self._follow_parameters(self._states[process.label], event)
        return super().feed(process, event)

    def _follow_parameters(self, state: _State, event: Params) -> None:
        """Written anew where the optimizer holds other parameters, a few steps after that."""
        state.silent = state.silent or len(event.optimizers) > 1
        if state.model.is_replaced(event):
            if state.found is not None and state.step - (state.found.first_step or 0) <= CHANGE_STEPS:
                state.found.severity = "info"
                state.found.cause = "another model is trained from about that step on"
            state.restart()

    def evaluate(self, process: ProcessDir, state: _State, event: Step) -> Finding | None:
        loss, state.step = to_finite(event.loss), event.step
        if state.found is not None and loss is not None:
            state.last.append(loss)
        if loss is None or state.silent:
            return None
        state.silent = loss <= 0 or bool(event.other_losses)
        if state.silent:
            return None
        per_call = loss / max(event.micro, 1)
        before = state.per_call.median
        state.per_call.push(per_call)
        surged = state.surge.add_value(loss)
        if state.surge.streak == 1:
            state.per_call_base = before
        more_calls = per_call <= RATIO * state.per_call_base  # a sum grows with its summands
        state.held = 0 if state.surge.streak == 0 or more_calls else state.held + 1
        if state.held == 1:
            state.since, state.first_loss = event.step, loss
        if not surged or state.held < LASTING_STEPS:
            return None
        state.silent, state.base = True, state.surge.base
        state.found = self._make_jump_finding(process, state)
        return state.found

    def finish(self, view: View) -> Iterable[Finding]:
        """A loss that has come back is no divergence."""
        for state in self._states.values():
            found, last = state.found, state.last
            if found is not None and len(last) == LAST_RECORDS and compute_median(last) <= state.base:
                found.title = found.title.removesuffix(STAYED_UP) + ", and came back"
                found.severity = "info"
                found.cause = CAME_BACK
        return ()

    def _make_jump_finding(self, process: ProcessDir, state: _State) -> Finding:
        surge, since = state.surge, state.since
        return self.make_finding(
            f"the loss jumped from {format_figure(surge.base)} to {format_figure(state.first_loss)} at step {since},"
            f" {process.display_name}{STAYED_UP}",
            first_step=since,
            rank=process.rank,
            phase="loss",
            evidence=[
                f"median of the steps before: {format_figure(surge.base)}; {LASTING_STEPS} steps in a row above"
                f" {RATIO:g}x of it, the highest {surge.peak / surge.base:.1f}x",
            ],
            cause="the update was too large, or the data, or the weight or reduction of the loss, changed from that step on",
            try_next="see TD-S001 and TD-G001 of this run; check the batches from that step on",
            grade=Evidence.STATISTICAL.grade_word,
        )
