"""TD-C015: the calls of the training loop come in the wrong order, or twice."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.observations.training_loop import LoopFault
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule

KINDS = {
    "late_clip": (
        "gradients are clipped after {optimizer} has used them",
        "clip_grad_norm_() comes after step(), where it changes nothing",
        "clip between backward and step()",
    ),
    "twice": (
        "the same loss goes backward twice for each update of {optimizer}",
        "backward(retain_graph=True) and a second backward() of the same tensor: its gradient counts twice",
        "call backward() once; if two gradients are wanted, keep or clear the first",
    ),
}


@RULES.add
class CallOrder(KindsRule):
    """Says when gradients are clipped after the update, or one loss is sent backward twice.

    What it does: With the flag TRAINING_LOOP it follows backward, clipping and updates. It speaks when clipping
    runs only between an update and the next backward, or when the very same loss tensor goes backward twice, with
    nothing cleared in between, for TRAINING_LOOP.lasting updates in a row.

    Why it matters: Both run without an error. Clipping after the update protects from nothing; a gradient counted
    twice is a learning rate doubled.

    Example:
        TD-C015 warning: gradients are clipped after SGD has used them, from step 2, rank 0

    What to do: The order is zero_grad, backward, clipping, step, each once (backward and forward once a
    micro-batch).

    Thresholds: TRAINING_LOOP.lasting, 3 updates in a row. Backward with `inputs=` or weights of its own is left
    alone.
    """

    code = "TD-C015"
    title = "calls out of order"
    severity = "warning"
    observes = (LoopFault,)

    def evaluate(self, process: ProcessDir, seen: LoopFault) -> Iterable[tuple[str, Finding]]:
        kind = seen.kind
        if kind not in KINDS:
            return ()
        title, cause, try_next = KINDS[kind]
        since = seen.since
        found = self.make_finding(
            f"{title.format(optimizer=seen.optimizer)}, from step {since}, {process.display_name}",
            first_step=since,
            rank=process.rank,
            phase="train",
            evidence=[f"{format_count(seen.streak, 'update')} in a row, to step {seen.step}"],
            cause=cause,
            try_next=try_next,
        )
        return [(kind, found)]
