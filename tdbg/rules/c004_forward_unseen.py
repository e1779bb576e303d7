"""TD-C004: no module's forward was seen."""

from collections.abc import Iterable

from tdbg.core.events import Event, Finding, Note
from tdbg.core.observations import Evidence
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES, Rule

UNSEEN, OF_TENSORS = "forward-unseen", "forward-of-tensors"


@RULES.add
class ForwardUnseen(Rule):
    """Says that parameters get gradients although no module's forward was seen.

    What it does: Repeats, as a finding, the note of a rank in which no hook on a root module ever fired while
    the optimizer stepped.

    Why it matters: Without the forward pass neither the batch of a bad step nor the module that made it can be
    named.

    Example:
        TD-C004 warning: rank 0: no module's forward was seen

    What to do: Call the model itself, `model(x)`: `.forward()` bypasses every hook, those of DDP and FSDP too.
    Parameters outside any module give a note: only steps, losses and gradients are watched.

    Thresholds: None.
    """

    code = "TD-C004"
    title = "no forward pass was seen"
    severity = "warning"
    grade = Evidence.LOCAL.grade_word
    listens = (Note,)

    def __init__(self) -> None:
        self._given: list[Finding] = []

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        if not isinstance(event, Note) or event.code not in (UNSEEN, OF_TENSORS):
            return ()
        of_tensors = event.code == OF_TENSORS
        new = self.make_finding(
            f"{process.display_name}: {event.text}",
            first_step=event.step,
            rank=process.rank,
            phase="forward",
            severity="info" if of_tensors else self.severity,
            cause="the parameters are plain tensors, not part of an nn.Module"
            if of_tensors
            else "the model is called through .forward()",
            try_next="nothing to do: steps, losses and gradients are still watched"
            if of_tensors
            else "call model(x), not model.forward(x)",
        )
        return self.report_once(self._given, new)
