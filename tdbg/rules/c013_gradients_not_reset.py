"""TD-C013: gradients are never reset."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.observations.training_loop import LoopFault
from tdbg.core.rule_base import Link
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule


@RULES.add
class GradientsNotReset(KindsRule):
    """Says when each update uses the gradients of all updates before it, because nothing resets them.

    What it does: With the flag TRAINING_LOOP it follows two gradients of every optimizer. It speaks when, at the
    first backward after an update, they are the same tensors as at that update, untouched and not zero, so that
    the new gradient is added to the old one, TRAINING_LOOP.lasting times in a row.

    Why it matters: The update then follows the sum of all gradients since the start: the loss falls at first, then
    swings or diverges, and a lower learning rate only hides it.

    Example:
        TD-C013 error: SGD never resets its gradients: each update adds to all before it, from step 2, rank 0

    What to do: Call `optimizer.zero_grad()` once for every update: before the first backward of the window, or
    right after `step()`. With several models in one optimizer `model.zero_grad()` of one of them is not enough.

    Thresholds: TRAINING_LOOP.lasting, 3 updates in a row. A loop that resets by hand (`p.grad = None`,
    `grad.zero_()`) is seen to do so; one that changes its gradients in any other way between update and backward
    is left alone.
    """

    code = "TD-C013"
    title = "gradients not reset"
    severity = "error"
    leads_to = ("TD-G001", "TD-G004", "TD-N004", Link("TD-N001", least=0))
    observes = (LoopFault,)

    def evaluate(self, process: ProcessDir, seen: LoopFault) -> Iterable[tuple[str, Finding]]:
        if seen.kind != "unreset":
            return ()
        name, since = seen.optimizer, seen.since
        found = self.make_finding(
            f"{name} never resets its gradients: each update adds to all before it,"
            f" from step {since}, {process.display_name}",
            first_step=since,
            rank=process.rank,
            phase="train",
            evidence=[
                f"{format_count(seen.streak, 'update')} in a row, to step {seen.step}: the gradients of the update before"
                " were still in place, untouched, when backward added the next ones"
            ],
            cause="no call of zero_grad() reaches these parameters",
            try_next="call optimizer.zero_grad() once for every update",
        )
        return [("unreset", found)]
