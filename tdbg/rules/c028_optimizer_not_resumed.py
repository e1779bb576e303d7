"""TD-C028: a run goes on from a checkpoint without its optimizer's state."""

from tdbg.core.events import Finding
from tdbg.core.observations.checkpoint import OptimizerNotResumed
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES, ObservingRule


@RULES.add
class OptimizerLeftInFile(ObservingRule[set[str]]):
    """Says when a resumed run restored the model, but left the optimizer's state in the checkpoint.

    What it does: In the opening inspection, with the flag CHECKPOINT, or from level advanced it follows what is
    read before the first updates. It speaks when the trained model was loaded from a file that holds an
    optimizer's state, the optimizer that updates began without any, and the run goes on: its scheduler was
    restored or set forward, or the next save counts on from the number in the file.

    Why it matters: Adam's averages are gone, its bias correction and a warm-up by its own count begin anew: the
    first updates are too large, the loss jumps, and hundreds of steps are lost at each restart.

    Example:
        TD-C028 warning: resumed from ckpt.pt without the optimizer: AdamW begins without its state (the next
        save says epoch 13), rank 0

    What to do: `optimizer.load_state_dict(checkpoint["optimizer"])` before the first step.

    Thresholds: The optimizer must have been given nothing up to the third update. A run that counts from zero
    is taken for fine-tuning, and is no finding.
    """

    code = "TD-C028"
    title = "resumed without the optimizer"
    severity = "warning"
    leads_to = ("TD-N004", "TD-G004")
    observes = (OptimizerNotResumed,)
    kept = set

    def evaluate(self, process: ProcessDir, state: set[str], seen: OptimizerNotResumed) -> Finding | None:
        return self.make_finding(
            f"resumed from {seen.path or 'memory'} without the optimizer: {seen.optimizer} begins without its state"
            f" ({seen.sign}), {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="load",
            evidence=[seen.text()],
            cause="optimizer.load_state_dict() was not called",
            try_next="load the optimizer's state from the same file, before the first step",
        )
