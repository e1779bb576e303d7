"""TD-C016: a checkpoint could not be saved."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.observations.checkpoint import SaveFailed
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule


@RULES.add
class CheckpointNotSaved(KindsRule):
    """Says when a save to disk failed, whatever the program made of the exception.

    What it does: With the flag CHECKPOINT (or from level advanced) it sees exceptions that leave `torch.save`,
    safetensors and `torch.distributed.checkpoint`.

    Why it matters: Many loops catch such an error and go on, and the file that is left behind may be half written.
    The loss shows when the run is to be resumed.

    Example:
        TD-C016 error: saving ckpt.pt failed at step 400: OSError: No space left on device, rank 0

    What to do: Free the disk, check quota and permissions, write to a temporary file and rename it when it is
    whole.

    Thresholds: None. Saves into memory do not count.
    """

    code = "TD-C016"
    title = "checkpoint not saved"
    severity = "error"
    observes = (SaveFailed,)

    def evaluate(self, process: ProcessDir, seen: SaveFailed) -> Iterable[tuple[str, Finding]]:
        if not seen.path:
            return ()
        found = self.make_finding(
            f"saving {seen.path} failed at step {seen.step}: {seen.error}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="save",
            evidence=[f"{seen.call} raised after {seen.took_s:g} s"]
            + ([f"{seen.size_mb:g} MB had been written"] if seen.size_mb is not None else []),
            cause="no space, no permission, or an object that cannot be pickled",
            try_next="write to a temporary file and rename it when it is complete; do not swallow the exception",
        )
        return [("failed", found)]
