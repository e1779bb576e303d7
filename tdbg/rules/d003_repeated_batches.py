"""TD-D003: batches that come again within a pass."""

from tdbg.core.events import Finding
from tdbg.core.observations.dataloader import RepeatedBatch
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, ObservingRule


@RULES.add
class RepeatedBatches(ObservingRule[set[str]]):
    """Says when a loader hands out batches that it has handed out before in the same pass.

    What it does: With the flag DATALOADER (or at level advanced) it takes a fingerprint of sampled batches, labels
    included, and speaks when 3 of a pass, and a quarter of those compared, were there before in it. Samplers that
    draw with replacement are left alone, and endless ones that come round after a whole pass. A stream (an
    IterableDataset) may repeat itself; it counts only where neighbouring workers give the same.

    Why it matters: With n workers that each read the whole stream, every sample is trained on n times an epoch: the
    epoch takes n times as long, and validation figures are those of a model that saw its data n times.

    Example:
        TD-D003 warning: batch 2 holds what batch 1 held: 4 of 8 batches compared are repeats in one pass, rank 0

    What to do: In an IterableDataset use `torch.utils.data.get_worker_info()` to give each worker its own part (and
    each rank, under DDP). In a map-style dataset look for an index that is ignored or a sampler that repeats.

    Thresholds: 3 repeats and 25 % of the batches compared; batches of fewer than 32 elements or 8 different values
    are not judged.
    """

    code = "TD-D003"
    title = "repeated batches"
    severity = "warning"
    observes = (RepeatedBatch,)
    kept = set

    def evaluate(self, process: ProcessDir, state: set[str], seen: RepeatedBatch) -> Finding | None:
        workers = seen.workers
        shared = seen.iterable and workers > 1
        cause = "the dataset ignores its index, or the sampler gives indices twice"
        try_next = "compare the indices in the BATCH lines of the debug log with what the dataset returns for them"
        if shared:
            cause = f"each of {format_count(workers, 'worker')} reads the whole stream"
            try_next = "give each worker its part: torch.utils.data.get_worker_info() in __iter__"
        return self.make_finding(
            f"batch {seen.batch} holds what batch {seen.first} held: {seen.repeats} of"
            f" {format_count(seen.compared, 'batch')} compared are repeats in one pass, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="input",
            evidence=[
                f"{seen.dataset} with {format_count(workers, 'worker')}",
                *([f"dataset indices of the repeated one: {seen.indices}"] if seen.indices else []),
            ],
            cause=cause,
            try_next=try_next,
        )
