"""TD-A002: GradScaler skips an update because of a real NaN or Inf."""

from tdbg.core.events import Finding
from tdbg.core.observations.amp import SkipExplained, UpdateSkipped
from tdbg.core.rule_base import Link
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, ObservingRule, Reported
from tdbg.rules.text import format_figure, format_loss_scale


@RULES.add
class RealNanHidden(ObservingRule[Reported]):
    """Says when a skipped update is no matter of the loss scale: the loss itself, or the gradient, is NaN or Inf.

    What it does: With the flag AMP (or level advanced) it looks at the updates that GradScaler skips. It speaks
    when the unscaled loss of such a step is NaN or Inf, or when gradients are NaN, and none Inf, in 8 skipped
    updates in a row, while the scale is halved each time.

    Why it matters: GradScaler cannot tell a real NaN from an overflow. It skips the update and halves the scale,
    in silence: the program goes on, the fault stays, and the scale ends so low that good gradients are lost too.

    Example:
        TD-A002 warning: GradScaler skipped step 130 at scale 65536, but the loss itself is NaN, rank 0

    What to do: Find the NaN (TD-N001 names the module where it is found; --flag AUTOGRAD_ANOMALY for one that
    arises in backward). An Inf loss in fp16 is an overflow in the forward pass: keep losses, norms and softmax in
    float32, or use bfloat16.

    Thresholds: One step for the loss, since the scale is applied after it. 8 for gradients: halved 8 times, a
    scale of 65,536 is 256, where only gradients above 255 could still overflow.
    """

    code = "TD-A002"
    title = "GradScaler hides a real NaN or Inf"
    severity = "warning"
    leads_to = ("TD-A001", Link("TD-N002", least=0))
    observes = (UpdateSkipped, SkipExplained)
    kept = Reported

    def evaluate(self, process: ProcessDir, state: Reported, seen: UpdateSkipped | SkipExplained) -> Finding | None:
        if state.is_reported or not seen.real:
            return None
        state.is_reported = True
        of_loss = seen.real == "loss"
        streak, rows = (seen.streak, seen.bad or []) if isinstance(seen, UpdateSkipped) else (0, [])
        if of_loss:
            what = f"but the loss itself is {format_figure(seen.loss)}"
        else:
            what = f"the {format_count(streak, 'update')} up to it as well: NaN gradients at every scale"
        evidence = [
            f"not finite: {row['name']}, {format_count(row['count'], 'element')} ({row['kind']})" for row in rows[:4]
        ]
        return self.make_finding(
            f"GradScaler skipped step {seen.step} at scale {format_loss_scale(seen.scale)}, {what}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="loss" if of_loss else "gradient",
            evidence=[seen.text(), *evidence],
            cause="a NaN or Inf that no loss scale can prevent: bad input, a division, log or sqrt at its edge",
            try_next="see TD-N001 of this run, or use --flag AUTOGRAD_ANOMALY; use bfloat16 if the forward pass gives Inf",
        )
