"""TD-D015: batches with fewer rows than samples fetched for them."""

from tdbg.core.events import Finding
from tdbg.core.observations.dataloader import FewerRows
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, ObservingRule


@RULES.add
class SamplesFolded(ObservingRule[set[str]]):
    """Notes that most batches hold fewer samples than the loader fetched for them.

    What it does: In the opening inspection (and with the flag DATALOADER, or at level advanced) it compares the
    number of indices that the sampler gave for a batch with the leading dimensions of its tensors and the
    lengths of its lists. It speaks when all of these are smaller in three quarters of 4 batches or more. It is
    silent where the samples may lie elsewhere: along another dimension (time first), in several dimensions
    (ways and shots), or in several tensors of one shape (support and query).

    Why it matters: Samples that the collate function drops are never trained on, and an evaluation without
    them measures something else. Samples that it folds into others lose their borders: attention and losses
    run across them.

    Example:
        TD-D015 info: batches have fewer rows than samples fetched: 96 for 128 in 8 of 8 batches looked at,
        rank 0

    What to do: Print the number of samples that the collate function gets and the shapes that it returns.
    Ignore this if it packs sequences or leaves out unusable samples on purpose.

    Thresholds: 4 batches, 75 %, at least 4 samples fetched for a batch. Always info: packing does it on purpose.
    Streams, loaders without automatic batching, and batches with objects of the program's own are left out.
    """

    code = "TD-D015"
    title = "fewer rows in a batch than samples fetched"
    severity = "info"
    observes = (FewerRows,)
    kept = set

    def evaluate(self, process: ProcessDir, state: set[str], seen: FewerRows) -> Finding | None:
        if seen.dataset in state:
            return None
        state.add(seen.dataset)
        collate = seen.collate or "the collate function"
        return self.make_finding(
            f"batches have fewer rows than samples fetched: {seen.held} for {seen.fetched} in {seen.count} of"
            f" {format_count(seen.looked, 'batch')} looked at, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="input",
            evidence=[
                f"{seen.dataset}, batch {seen.batch}: {'; '.join(seen.shapes)}",
                *([f"dataset indices of this batch: {seen.indices}"] if seen.indices else []),
            ],
            cause=f"samples are dropped, or folded into others, by {collate}; packing of sequences does so on purpose",
            try_next=f"print how many samples {collate} gets, and the shapes that it returns",
        )
