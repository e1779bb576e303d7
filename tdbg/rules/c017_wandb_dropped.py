"""TD-C017: Weights & Biases drops what is logged for a step that has passed."""

from collections.abc import Iterable

from tdbg.core.events import Event, Finding, Observation
from tdbg.core.observations import Evidence
from tdbg.core.observations.wandb_metrics import WandbDroppedCall, WandbFinished
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES, Rule

KEYS_SHOWN = 4


@RULES.add
class WandbDropped(Rule):
    """Says that calls of wandb.log gave a step that had passed, so that what they sent is not kept.

    What it does: The probe behind WANDB_METRICS compares the ``step=`` of each call with the step the run is at. A
    lower one is dropped by wandb, with one warning that is easily missed or silenced.

    Why it matters: The chart stays empty or ends in the middle; nothing else fails, and the figures are lost.

    Example:
        TD-C017 warning: wandb dropped val/loss: logged for step 1 when the run was at step 500, after training step
        500, rank 0

    What to do: Give all calls the same counter, or none a step at all: a call without ``step=`` moves the run on by
    one, so mixing both ends here too. For several axes: `run.define_metric("val/*", step_metric="epoch")`, and log
    the epoch as a value. After a resume, go on from `run.step`.

    Thresholds: One call.
    """

    code = "TD-C017"
    title = "wandb dropped values logged for an earlier step"
    severity = "warning"
    grade = Evidence.LOCAL.grade_word
    listens = (Observation,)
    observes = (WandbDroppedCall, WandbFinished)

    def __init__(self) -> None:
        self._given: list[Finding] = []
        self._of: dict[str, Finding] = {}  # process -> its finding
        self._keys: dict[str, list[str]] = {}

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        call, finished = WandbDroppedCall.from_event(event), WandbFinished.from_event(event)
        if call is not None and process.label not in self._of:
            self._keys[process.label] = list(call.keys)
            new = self._of[process.label] = self._make_dropped_finding(process, call)
            return self.report_from(process, self._given, new)
        if call is not None and process.label in self._of:
            self._update_count(process, call.dropped, call.keys)
        if finished is not None and process.label in self._of:
            self._update_count(process, finished.dropped, [])
        return ()

    def _make_dropped_finding(self, process: ProcessDir, call: WandbDroppedCall) -> Finding:
        keys = join_limited(call.keys, KEYS_SHOWN)
        return self.make_finding(
            f"wandb dropped {keys or 'a call'}: logged for step {call.wandb_step} when the run was at step"
            f" {call.current_step}, after training step {call.step}, {process.display_name}",
            first_step=call.step,
            rank=process.rank,
            evidence=[f"{format_count(call.dropped, 'call')} dropped, the first with {keys}"],
            cause="wandb accepts steps in rising order only; these calls count in another unit, or start again after a resume",
            try_next="use one step counter for all calls, or run.define_metric for a second axis",
        )

    def _update_count(self, process: ProcessDir, dropped: int, keys: list[str]) -> None:
        """Bring the number of calls up to date."""
        finding, seen = self._of[process.label], self._keys[process.label]
        seen += [key for key in keys if key not in seen]
        line = f"{format_count(dropped, 'call')} dropped, with {join_limited(seen, KEYS_SHOWN)}"
        if finding.rank == process.rank and finding.evidence:
            finding.evidence[0] = line
