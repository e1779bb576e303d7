"""TD-C014: gradients are cleared before an update has used them."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.observations.training_loop import LoopFault
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule

TRY = {
    "emptied": "move zero_grad() before backward, or after step()",
    "thrown": "call zero_grad() once for every update, not for every micro-batch",
    "tail": "update once more at the end of the epoch, or make its length a multiple of the window (drop_last)",
}


@RULES.add
class GradientsThrownAway(KindsRule):
    """Says when gradients are cleared before an update: all of them, some of each window, or the epoch's last ones.

    What it does: With the flag TRAINING_LOOP it follows zero_grad, backward and updates. It speaks when gradients
    that backward has just filled are cleared before the update, so that nothing is updated; when zero_grad runs for
    every micro-batch of a window, so that only the last counts; and, as an information, when the last micro-batches
    of two epochs in a row are cleared without an update.

    Why it matters: Nothing fails: an optimizer passes over parameters without a gradient. The model stays as it is,
    or learns from a fraction of the batch that was paid for.

    Example:
        TD-C014 error: gradients are cleared before SGD can use them, from step 2, rank 0
        TD-C014 warning: 3 of 4 backward calls of each update are thrown away, from step 2, rank 0

    What to do: The order is zero_grad, backward (as often as the window says), clipping, step.

    Thresholds: TRAINING_LOOP.lasting, 3 updates in a row; of a window only where each backward had a batch of its
    own (attacks and sharpness-aware steps go backward twice over one batch): by its DataLoader, or where there is
    none by what the model was called with; 2 epochs in a row.
    """

    code = "TD-C014"
    title = "gradients thrown away"
    severity = "warning"
    leads_to = ("TD-G003", "TD-G005", "TD-S007", "TD-S011")
    observes = (LoopFault,)

    def evaluate(self, process: ProcessDir, seen: LoopFault) -> Iterable[tuple[str, Finding]]:
        kind, since = seen.kind, seen.since
        if kind not in TRY:
            return ()
        title, evidence = self._describe_fault(seen)
        found = self.make_finding(
            f"{title}, from step {since}, {process.display_name}",
            severity={"emptied": "error", "tail": "info"}.get(kind, self.severity),
            first_step=since,
            rank=process.rank,
            phase="train",
            evidence=[f"{evidence}, to step {seen.step}"],
            cause="zero_grad() comes too early" if kind != "tail" else "the epoch is not a multiple of the window",
            try_next=TRY[kind],
        )
        return [(kind, found)]

    def _describe_fault(self, seen: LoopFault) -> tuple[str, str]:
        """Title and evidence."""
        lasting = f"{format_count(seen.streak, 'update')} in a row"
        if seen.kind == "emptied":
            return f"gradients are cleared before {seen.optimizer} can use them", lasting
        if seen.kind == "thrown":
            part = f"{seen.thrown} of {seen.window}"
            return f"{part} backward calls of each update are thrown away", lasting
        part = f"the last {format_count(seen.dropped or 0, 'backward call')} of {seen.backwards}"
        return f"{part} in an epoch went into no update", f"{format_count(seen.streak, 'epoch')} in a row"
