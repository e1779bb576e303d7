"""TD-D012: workers of a loader that draw the same random numbers."""

from tdbg.core.events import Finding
from tdbg.core.observations.worker_states import SameRandomState
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES, ObservingRule

GLOBAL = ("random", "numpy.random", "torch")  # torch seeds these for each worker before worker_init_fn is called


@RULES.add
class SameAugmentation(ObservingRule[set[str]]):
    """Says when two workers of a loader that trains draw the same random numbers, so augment in the same way.

    What it does: In the opening inspection and its later looks each worker tells a checksum of its random
    generators before and after its first fetch: `random`, `numpy.random`, torch, and generators that the
    dataset or its transforms hold. It speaks when two workers went from the same state to the same other state.

    Why it matters: With N workers there are N times fewer different augmentations than there seem to be, and
    samples that stand at the same place of neighbouring batches are cropped, flipped and mixed alike.

    Example:
        TD-D012 warning: workers 0, 1 of Images draw the same random numbers from dataset.rng, rank 0

    What to do: torch seeds `random`, `numpy.random` and itself for each worker; a `worker_init_fn` that seeds
    them with a constant undoes that. A generator on the dataset is copied into every worker with its state:
    make it in the worker, seeded with `torch.initial_seed()`.

    Thresholds: None. Streams are left out: their workers may shuffle alike before each takes its share. So are
    loaders that no update was made of, workers of a forkserver, and spawned ones outside Linux.
    """

    code = "TD-D012"
    title = "the same augmentation in every worker"
    severity = "warning"
    observes = (SameRandomState,)
    kept = set

    def evaluate(self, process: ProcessDir, state: set[str], seen: SameRandomState) -> Finding | None:
        cause = "a generator that the dataset holds is copied into every worker with its state"
        try_next = "make the generator in the worker: numpy.random.default_rng(torch.initial_seed())"
        if seen.source in GLOBAL:
            cause = (
                "worker_init_fn seeds every worker alike" if seen.has_init else "the dataset seeds every worker alike"
            )
            try_next = "leave the seeds that torch gives each worker, or add get_worker_info().id to the seed"
        return self.make_finding(
            f"workers {join_limited(seen.workers, 8)} of {seen.dataset} draw the same random numbers from {seen.source},"
            f" {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="input",
            evidence=[
                f"{len(seen.workers)} of {format_count(seen.reported, 'worker')} had the same random state before and after their first fetch"
            ],
            cause=cause,
            try_next=try_next,
        )
