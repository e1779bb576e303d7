"""TD-L022: one batch that the model cannot learn by heart."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.observations.preflight import BatchOverfitted
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule


@RULES.add
class BatchNotOverfitted(KindsRule):
    """Says when the loss of a single batch does not fall, whatever the learning rate.

    What it does: `tdbg run --preflight` trains on the first batch alone: Adam with 1e-2, 1e-3 and 1e-4, up to
    60 updates each, with the same random numbers in each pass. The weights are put back. The loss must fall by
    a tenth at one of the rates. The program's own optimizer, schedule and regularisation have no part in it.

    Why it matters: A model that cannot learn one batch learns no data set. The cause lies between input and
    loss: a graph that is cut, features that are constant, an output activation that does not fit the loss.

    Example:
        TD-L022 warning: one batch cannot be overfitted: cross_entropy falls only from 1.1 to 1.08 in 60 updates

    What to do: Look for `detach()`, `no_grad`, `argmax` or rounding between input and loss, for an output
    activation that the loss applies again, and at what the first layers return for two different samples.

    Thresholds: The loss falls by less than a tenth, or gives no parameter a gradient. Skipped: a loss that
    still falls in the last third of the updates, models of which most weights are frozen, soft targets. Tried
    with one loss function of torch's whose lower bound is 0, on the output of the model alone, or with the loss
    that the model returns.
    """

    code = "TD-L022"
    title = "one batch cannot be overfitted"
    severity = "warning"
    observes = (BatchOverfitted,)

    def evaluate(self, process: ProcessDir, seen: BatchOverfitted) -> Iterable[tuple[str, Finding]]:
        if not seen.was_tried or seen.fell or seen.falls or not self.is_news(process, "stays"):
            return ()
        what = (
            f"no parameter receives a gradient of {seen.loss}"
            if seen.cut
            else f"{seen.loss} falls only from {seen.first:.3g} to {seen.last:.3g} in {format_count(seen.updates, 'update')}"
        )
        rates = "" if seen.cut else f", Adam at 1e-2, 1e-3 and 1e-4; the best was {seen.rate:g}"
        found = self.make_finding(
            f"one batch cannot be overfitted: {what}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="forward",
            evidence=[f"{seen.root} in train mode{rates}"],
            cause="the graph is cut"
            if seen.cut
            else "the graph is cut, features are constant, or the output activation does not fit the loss",
            try_next="look for detach(), no_grad, argmax or rounding between input and loss",
        )
        return [("stays", found)]
