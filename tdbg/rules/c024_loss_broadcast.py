"""TD-C024: a loss over all pairs of predictions and targets, which broadcasting made."""

from tdbg.core.events import Finding
from tdbg.core.observations.backward import LossGraph
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES, ObservingRule, Reported


@RULES.add
class LossBroadcast(ObservingRule[Reported]):
    """Says when a loss compares every prediction with every target, because (N, 1) and (N) were broadcast to (N, N).

    What it does: With the flag BACKWARD, or in the opening inspection and its later looks, it reads the graph
    of each loss of the first 3 steps, as autograd holds it. It speaks where the difference under a mean or sum
    is N by N, and the prediction in it has the shape (N, 1) or (N); and where mse_loss, l1_loss, smooth_l1_loss
    or huber_loss broadcast like that.

    Why it matters: The best that such a loss can reach is the mean of all targets, for every sample. It falls at
    first, as the mean is learned, and then stays.

    Example:
        TD-C024 warning: the loss is over (32, 32) pairs: predictions of (32, 1) broadcast against targets, rank 0

    What to do: Give both the same shape: `target.unsqueeze(1)`, or `prediction.squeeze(1)`; and assert it.

    Thresholds: none. Where both operands need a gradient, all pairs are meant (contrastive and ranking losses).
    Where the prediction was given its shape right before the difference, the finding is for information.
    """

    code = "TD-C024"
    title = "loss over all pairs of predictions and targets"
    severity = "warning"
    observes = (LossGraph,)
    kept = Reported

    def evaluate(self, process: ProcessDir, state: Reported, seen: LossGraph) -> Finding | None:
        fault = next((fault for fault in seen.faults if fault["kind"] == "broadcast"), None)
        if fault is None or state.is_reported:
            return None
        state.is_reported = True
        shape, into = fault["shape"], fault.get("into", [])
        text = f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
        return self.make_finding(
            f"the loss is over ({', '.join(map(str, into))}) pairs: predictions of {text} broadcast against targets,"
            f" {process.display_name}",
            severity=self.severity if fault["certain"] else "info",
            first_step=seen.step,
            rank=process.rank,
            phase="loss",
            evidence=[f"the graph of the loss of step {seen.step}: {' <- '.join(seen.operations)}"],
            cause="predictions and targets differ by a dimension of size 1",
            try_next="use target.unsqueeze(1) or prediction.squeeze(1) to give both the same shape",
        )
