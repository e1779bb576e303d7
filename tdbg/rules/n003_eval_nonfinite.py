"""TD-N003: NaN or Inf in evaluation."""

from collections.abc import Iterable

from tdbg.events import Event, Finding, NonFinite
from tdbg.rules import RULES, Rule
from tdbg.rules.text import counted, kept_in, kind_name
from tdbg.rules.view import View
from tdbg.rundir import ProcessDir


@RULES.add
class EvalNonFinite(Rule):
    """Names the module whose output turned NaN or Inf during evaluation.

    What it does: Reports the first non-finite output that a rank saw outside training (no gradients recorded).
    Where training had a NaN before, it is told as `info`: a consequence, not a finding of its own.

    Why it matters: Metrics swallow NaN: an accuracy computed from NaN logits is a plausible, wrong number, and
    an average over a validation set with one NaN batch is NaN or, worse, skips it. Best-checkpoint logic then
    keeps the wrong weights.

    Example:
        TD-N003 error: first NaN in evaluation at step 200, rank 0, head.norm (LayerNorm)

    What to do: Look at the saved batch: empty samples, all-masked attention rows and padding-only batches are
    the usual causes, and evaluation is where they appear first. Compare dtype: evaluation often runs in half
    precision without the loss scaler's checks.

    Thresholds: None: any NaN or Inf in the model's output; -Inf alone (masked logits) does not count.
    """

    code = "TD-N003"
    title = "NaN or Inf in evaluation"
    severity = "error"
    listens = (NonFinite,)

    def __init__(self) -> None:
        self._given: list[Finding] = []
        self._train_step: int | None = None

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        if not isinstance(event, NonFinite):
            return ()
        if not event.eval:
            self._train_step = min(self._train_step or event.step, event.step)
            return ()
        named = f"{event.module} ({event.module_class})" if event.module_class else event.module
        size = f": {event.count:,} of {counted(event.numel, 'element')}" if event.count and event.numel else ""
        evidence = [f"{event.phase} {event.tensor}{size}, {event.dtype.removeprefix('torch.')} {event.shape}"]
        evidence += [f"batch kept: {kept_in(process.label, event.batch)}"] if event.batch else []
        evidence += [f"note: {event.note}"] if event.note else []
        new = self.found(
            f"first {kind_name(event.kind)} in evaluation at step {event.step}, rank {process.rank}"
            + (f", {named}" if named else ""),
            severity=self._severity(event.step),
            first_step=event.step,
            rank=process.rank,
            phase=event.phase,
            module=event.module,
            evidence=evidence,
            try_next="look at the saved batch: empty samples, rows that are masked throughout, half precision",
        )
        return self.once(self._given, new)

    def finish(self, view: View) -> Iterable[Finding]:
        for finding in self._given:
            finding.severity = self._severity(finding.first_step or 0)
            if finding.severity == "info":
                finding.cause = f"training had a NaN or Inf at step {self._train_step} (TD-N001): this follows from it"
        return ()

    def _severity(self, step: int) -> str:
        return "info" if self._train_step is not None and self._train_step <= step else self.severity
