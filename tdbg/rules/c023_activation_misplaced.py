"""TD-C023: a softmax or sigmoid where the loss function has its own, or over the batch."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.observations.backward import GraphFault, LossGraph
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule

LOSSES = {
    "LogSoftmax": "cross_entropy",
    "NllLoss": "nll_loss",
    "NllLoss2D": "nll_loss",
    "BinaryCrossEntropyWithLogits": "binary_cross_entropy_with_logits",
    "BinaryCrossEntropy": "binary_cross_entropy",
    "MseLoss": "mse_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
}
TITLES = {
    "twice": "{given} before {loss}, which applies its own",
    "batch": "{given} over the batch dimension before {loss}",
    "probabilities": "nll_loss is given probabilities, without a logarithm",
}
CAUSES = {
    "twice": "the loss function expects logits and is given probabilities",
    "batch": "softmax with dim=0: the classes of one sample do not sum to 1, but the samples of one class do",
    "probabilities": "softmax where log_softmax is needed",
}
ADVICE = {
    "twice": "remove the {given} at the end of the model, and apply it to predictions alone",
    "batch": "dim=1, or dim=-1: the dimension of the classes",
    "probabilities": "log_softmax instead of softmax, or cross_entropy on the logits",
}


@RULES.add
class ActivationMisplaced(KindsRule):
    """Says when a softmax or sigmoid stands before a loss function that applies it itself, or works over the batch.

    What it does: With the flag BACKWARD, or in the opening inspection and its later looks, it reads the graph
    of each loss of the first 3 steps, as autograd holds it. It speaks where a softmax goes straight into
    cross_entropy or log_softmax, a sigmoid or softmax into binary_cross_entropy_with_logits, a softmax into
    nll_loss without a logarithm, and where the softmax before a loss works over the batch dimension. Casts and
    changes of shape in between do not count.

    Why it matters: A second softmax squeezes the logits into 0 to 1: the loss cannot fall below a bound (1.46 for
    10 classes where 0 is possible), and gradients are small. A softmax over the batch couples the samples of a
    batch: in evaluation the predictions depend on who else is in it.

    Example:
        TD-C023 warning: softmax before cross_entropy, which applies its own: (32, 10), rank 0

    What to do: Give the loss function what it expects: logits for `cross_entropy` and
    `binary_cross_entropy_with_logits`, log-probabilities for `nll_loss`. Apply softmax to predictions alone,
    along the dimension of the classes.

    Thresholds: none. What runs inside a compiled region or a checkpointed part has no graph that could be read.
    """

    code = "TD-C023"
    title = "softmax or sigmoid in the wrong place"
    severity = "warning"
    leads_to = ("TD-G002",)
    observes = (LossGraph,)

    def evaluate(self, process: ProcessDir, seen: LossGraph) -> Iterable[tuple[str, Finding]]:
        return [
            (fault["kind"], self._make_misplaced_finding(process, seen, fault))
            for fault in seen.faults
            if fault["kind"] in TITLES and self.is_news(process, fault["kind"])
        ]

    def _make_misplaced_finding(self, process: ProcessDir, seen: LossGraph, fault: GraphFault) -> Finding:
        words = {"given": fault["given"].lower(), "loss": LOSSES.get(fault["loss"], fault["loss"])}
        words["given"] = {"logsoftmax": "log_softmax"}.get(words["given"], words["given"])
        shape = f"({', '.join(map(str, fault['shape']))})"
        return self.make_finding(
            f"{TITLES[fault['kind']].format(**words)}: {shape}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="loss",
            evidence=[f"the graph of the loss of step {seen.step}: {' <- '.join(seen.operations)}"],
            cause=CAUSES[fault["kind"]],
            try_next=ADVICE[fault["kind"]].format(**words),
        )
