"""TD-C012: evaluation runs in train mode."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.observations.validation import EvaluationPass
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule


@RULES.add
class EvaluationInTrainMode(KindsRule):
    """Says when a whole pass of evaluation ran in train mode, on a model with dropout or batch normalisation.

    What it does: With the flag VALIDATION (or from level advanced, and in the first pass after a step of training)
    it follows the calls between training steps. It speaks when a pass of at least VALIDATION.calls calls, each on a
    batch of a data loader, ran without gradients (or with gradients that nobody used) while the model and such
    layers were in train mode. Batches that the program cuts itself count where a loss was computed of each without
    gradients, by the model that is trained or by a loss function of torch, and no two were the same. Shorter passes
    count from the third in a row, where a loss was computed of each call and all begin with the same batch, which
    is not the first batch of training.

    Why it matters: Dropout makes the metrics worse and noisy. Batch normalisation is worse: it normalises by the
    evaluation batch, and changes the running statistics that the trained model will use.

    Example:
        TD-C012 error: evaluation runs in train mode: pass 1 after step 200, Net, 2 batch norm layers active, rank 0

    What to do: Call `model.eval()` before the pass and `model.train()` after it. `torch.no_grad()` does not do it.

    Thresholds: VALIDATION.calls, 3 calls with new inputs, from a pass that is at least 2 steps from the one before.
    Calls beside every step (a teacher), repeated calls on one input (Monte Carlo dropout), passes over the training
    data and layers with momentum None or 1 (recalibration of statistics) are left alone; without a data loader also
    whatever computes no loss: sampling, rollouts, targets.
    """

    code = "TD-C012"
    title = "evaluation in train mode"
    severity = "warning"
    observes = (EvaluationPass,)

    def evaluate(self, process: ProcessDir, seen: EvaluationPass) -> Iterable[tuple[str, Finding]]:
        if "train_mode" not in seen.faults or not self.is_news(process, "train_mode"):
            return ()
        layers = (seen.dropouts, "dropout layer"), (seen.norms, "batch norm layer")
        active = [format_count(count, noun) for count, noun in layers if count]
        found = self.make_finding(
            f"evaluation runs in train mode: pass {seen.number} after step {seen.step}, {seen.root},"
            f" {' and '.join(active)} active, {process.display_name}",
            severity="error" if seen.norms else self.severity,
            first_step=seen.step,
            rank=process.rank,
            phase="eval",
            evidence=[
                f"all {format_count(seen.seen, 'call')} that were looked at, of {seen.calls}: {seen.root} in train"
                f" mode, gradients {seen.gradients}"
            ],
            cause="model.eval() was not called",
            try_next="call model.eval() before the pass and model.train() after it",
        )
        return [("train_mode", found)]
