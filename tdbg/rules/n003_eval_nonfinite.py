"""TD-N003: NaN or Inf in evaluation."""

from collections import defaultdict
from collections.abc import Iterable

from tdbg.core.events import Event, Finding, NonFinite, Start
from tdbg.core.observations import Evidence
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, Rule
from tdbg.rules.text import format_kind, get_kept_path
from tdbg.rules.view import View, get_launch_number

SAVED = "look at the saved batch: "
BATCHES = "empty samples, fully masked rows, half precision"
# By the phase, where that says more than what evaluation is known for.
CAUSES = {
    "input": "the batch held it before the first module saw it",
    "optimizer": "the weight itself is not finite: an update, a load or another write made it so before this call",
}
TRIES = {
    "input": "decoding, normalisation (division by a zero std), missing values",
    "optimizer": "evaluate an earlier checkpoint, and look for what wrote the weight: the updates before, a load, an EMA or"
    " weight swap",
}


@RULES.add
class EvalNonFinite(Rule):
    """Names the module whose output turned NaN or Inf during evaluation.

    What it does: Reports the first non-finite output that a rank saw outside training (no gradients recorded).
    Where training had a NaN before, since the last restart, it is told as `info`: a consequence, not a finding of
    its own.

    Why it matters: Metrics swallow NaN: an accuracy computed from NaN logits is a plausible, wrong number, and
    an average over a validation set with one NaN batch is NaN or, worse, skips it. Best-checkpoint logic then
    keeps the wrong weights.

    Example:
        TD-N003 error: first NaN in evaluation at step 200, rank 0, head.norm (LayerNorm)

    What to do: Look at the saved batch: empty samples, all-masked attention rows and padding-only batches are
    the usual causes, and evaluation is where they appear first. Compare dtype: evaluation often runs in half
    precision without the loss scaler's checks. Where the finding names a weight, the batch is not at fault: look
    for what wrote the weight, and evaluate an earlier checkpoint.

    Thresholds: None: any NaN or Inf in the model's output; -Inf alone (masked logits) does not count.
    """

    code = "TD-N003"
    title = "NaN or Inf in evaluation"
    severity = "error"
    listens = (Start, NonFinite)

    def __init__(self) -> None:
        # By launch of the job: a restart goes on from a checkpoint that the NaN before it may not have touched.
        self._given: defaultdict[int, list[Finding]] = defaultdict(list)
        self._train_steps: dict[int, int] = {}
        self._launches: dict[str, int] = {}

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        if isinstance(event, Start):
            self._launches[process.label] = get_launch_number(process, event)
        if not isinstance(event, NonFinite):
            return ()
        ran_in = self._launches.get(process.label, process.attempt)
        if not event.eval:
            self._train_steps[ran_in] = min(self._train_steps.get(ran_in, event.step), event.step)
            return ()
        named = f"{event.module} ({event.module_class})" if event.module_class else event.module
        size = f": {event.count:,} of {format_count(event.numel, 'element')}" if event.count and event.numel else ""
        what = f"weight {event.parameter}" if event.phase == "optimizer" else f"{event.phase} {event.tensor}"
        evidence = [f"{what}{size}, {event.dtype.removeprefix('torch.')} {event.shape}"]
        evidence += [f"batch kept: {get_kept_path(process.label, event.batch)}"] if event.batch else []
        evidence += [f"note: {event.note}"] if event.note else []
        again = f" attempt {process.attempt}" if process.attempt else ""
        new = self.make_finding(
            f"first {format_kind(event.kind)} in evaluation at step {event.step}, {process.display_name}{again}"
            + (f", {named}" if named else ""),
            severity=self._choose_severity(ran_in, event.step),
            first_step=event.step,
            rank=process.rank,
            phase=event.phase,
            module=event.module,
            evidence=evidence,
            cause=CAUSES.get(event.phase, ""),
            try_next=_choose_advice(event),
            grade=Evidence.LOCAL.grade_word,
        )
        return self.report_from(process, self._given[ran_in], new)

    def finish(self, view: View) -> Iterable[Finding]:
        for ran_in, given in self._given.items():
            for finding in given:
                finding.severity = self._choose_severity(ran_in, finding.first_step or 0)
                if finding.severity == "info":
                    trained = self._train_steps[ran_in]
                    finding.cause = f"training had a NaN or Inf at step {trained} (TD-N001): this follows from it"
        return ()

    def _choose_severity(self, ran_in: int, step: int) -> str:
        return "info" if ran_in in self._train_steps and self._train_steps[ran_in] <= step else self.severity


def _choose_advice(event: NonFinite) -> str:
    if event.phase == "optimizer":
        return TRIES[event.phase]
    return (SAVED if event.batch else "look for ") + TRIES.get(event.phase, BATCHES)
