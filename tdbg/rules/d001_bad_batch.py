"""TD-D001: NaN or Inf in the data itself."""

from tdbg.core.events import Finding
from tdbg.core.observations.dataloader import BadValues
from tdbg.core.rule_base import Link
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES, ObservingRule
from tdbg.rules.text import format_kind


@RULES.add
class BadBatch(ObservingRule[set[str]]):
    """Names the batch, and where it can the samples of the dataset, that hold NaN or Inf.

    What it does: With the flag DATALOADER (or at level advanced) the batches of every DataLoader are looked at. It
    speaks when a batch on the host holds a value that is not finite and the loss computed from it is not finite
    either: missing values that the program masks out leave the loss finite and are nobody's business. The dataset's
    own indices are named where the sampler gave them.

    Why it matters: One such value ruins the weights in one step. TD-N001 says that the input was bad; this says
    which samples to look at.

    Example:
        TD-D001 error: NaN in tensor 0 of batch 7 (dataset index 1042), and the loss is not finite, rank 0

    What to do: Look at those samples; clean or drop them, or check with `torch.isfinite` in `__getitem__`. A
    division by a standard deviation of zero is a common source.

    Thresholds: One batch is enough.
    """

    code = "TD-D001"
    title = "bad values in a batch"
    severity = "error"
    leads_to = (Link("TD-N001", least=0, most=1, same=("rank",)),)
    observes = (BadValues,)
    kept = set

    def evaluate(self, process: ProcessDir, state: set[str], seen: BadValues) -> Finding | None:
        if seen.loss_finite is not False:
            return None
        indices, rows = list(map(str, seen.indices)), list(map(str, seen.rows))
        one = "dataset index" if len(indices) == 1 else "dataset indices"
        which = f" ({one} {join_limited(indices, 4)})" if indices else ""
        return self.make_finding(
            f"{format_kind(seen.kind)} in tensor {seen.tensor} of batch {seen.batch}"
            f"{which}, and the loss is not finite, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="input",
            evidence=[
                f"{seen.dataset}: {format_count(seen.count, 'element')} not finite",
                *([f"positions in the batch: {join_limited(rows, 8)}"] if rows else []),
            ],
            cause="the samples hold NaN or Inf, or a transform produces them",
            try_next="check these samples; --flag AUGMENTATION shows whether a transform produced the value",
        )
