"""TD-D005: a data loader failed."""

from tdbg.core.events import Finding
from tdbg.core.observations.dataloader import LoaderFailed
from tdbg.core.rule_base import Link
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, ObservingRule
from tdbg.rules.text import clip_text

HINTS = (
    ("bus error", "shared memory is full", "enlarge /dev/shm, or use fewer workers or smaller batches"),
    ("out of shared memory", "shared memory is full", "enlarge /dev/shm, or use fewer workers or smaller batches"),
    ("killed", "the system ended a worker, most often for want of memory", "fewer workers; keep less per worker"),
    ("too many open files", "every tensor in flight holds a file", "set_sharing_strategy('file_system')"),
    ("timed out", "a worker took longer than the loader's timeout", "look at what the worker reads from"),
    ("exited unexpectedly", "a worker ended by itself", "num_workers=0 shows its own error"),
)


@RULES.add
class WorkerError(ObservingRule[set[str]]):
    """Names the worker, the batch, the samples and the original error when a data loader fails.

    What it does: With the flag DATALOADER (or at level advanced) it reports each exception that came out of a
    DataLoader instead of a batch: the worker's number, the original exception with file and line, the number of the
    batch, and the dataset's indices in it where the sampler gave them.

    Why it matters: The error of a worker arrives wrapped in two tracebacks of the loader and without the indices:
    which of a million samples is broken is the first question and the hardest to answer.

    Example:
        TD-D005 error: worker 2 failed at batch 17: ValueError: truncated image (data.py:40), rank 0

    What to do: Fetch the named samples one by one (`dataset[i]`). A worker that was killed by a signal left no
    error: look at memory and at the size of /dev/shm.

    Thresholds: none.
    """

    code = "TD-D005"
    title = "data loader failed"
    severity = "error"
    leads_to = (Link("TD-R003", least=-1, most=1),)
    observes = (LoaderFailed,)
    kept = set

    def evaluate(self, process: ProcessDir, state: set[str], seen: LoaderFailed) -> Finding | None:
        error, where = seen.error, seen.where
        who = f"worker {seen.worker}" if seen.worker is not None else "the data loader"
        hint = next((hint for hint in HINTS if hint[0] in error.lower()), None)
        return self.make_finding(
            f"{who} failed at batch {seen.batch}: {clip_text(error, 120)}"
            f"{f' ({where})' if where else ''}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="input",
            evidence=[
                f"{seen.dataset} with {format_count(seen.workers, 'worker')}",
                *([f"dataset indices in that batch: {seen.indices}"] if seen.indices else []),
            ],
            cause=hint[1] if hint else "the dataset, a transform or the collate function cannot handle a sample",
            try_next=hint[2] if hint else "fetch these samples one by one: dataset[i]",
        )
