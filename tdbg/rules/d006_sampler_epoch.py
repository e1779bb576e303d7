"""TD-D006: every epoch takes the samples in the same order."""

from tdbg.core.events import Finding
from tdbg.core.observations.dataloader import SamplerNotSet
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES, ObservingRule


@RULES.add
class SamplerEpoch(ObservingRule[set[str]]):
    """Says when `set_epoch` of a DistributedSampler was not called between two training epochs.

    What it does: With the flag DATALOADER (or at level advanced) it reads the epoch of a shuffling
    DistributedSampler when a pass begins. It speaks when a pass that trains (an optimizer has stepped in it) has
    the epoch of the training pass before. Passes that only evaluate do not count.

    Why it matters: The sampler shuffles with seed + epoch. Without `set_epoch` every epoch has the same order and
    the same batches on every rank, and accuracy suffers without any error.

    Example:
        TD-D006 warning: pass 2 trains in the order of pass 1: the sampler's epoch is still 0, rank 0

    What to do: `loader.sampler.set_epoch(epoch)` before each `for batch in loader`.

    Thresholds: none.
    """

    code = "TD-D006"
    title = "the sampler's epoch is not set"
    severity = "warning"
    observes = (SamplerNotSet,)
    kept = set

    def evaluate(self, process: ProcessDir, state: set[str], seen: SamplerNotSet) -> Finding | None:
        return self.make_finding(
            f"pass {seen.passes} trains in the order of pass {seen.before}: the sampler's epoch is"
            f" still {seen.sampler_epoch}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="input",
            evidence=[f"{seen.dataset}: a DistributedSampler with shuffle, its set_epoch was not called"],
            cause="set_epoch is missing in the loop over epochs, or called on another sampler",
            try_next="call loader.sampler.set_epoch(epoch) before each pass",
        )
