"""TD-C011: a resumed run does not go on where it stopped."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.observations.checkpoint import CounterBehind, RunResumed
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule

CAUSES = {
    "optimizer": (
        "the optimizer was made anew after its state had been loaded",
        "load the optimizer's state last, into the optimizer that is used",
    ),
    "scheduler": (
        "scheduler.load_state_dict() was not called",
        "load the scheduler's state as well: the learning rate starts over without it",
    ),
    "counter": (
        "the loop starts its counter at zero instead of at the value that was loaded",
        "read the counter from the checkpoint: schedules, logs and file names go by it",
    ),
}


@RULES.add
class ResumeMismatch(KindsRule):
    """Says when a run that restored its optimizer did not restore the rest: scheduler, step counter, the right object.

    What it does: With the flag CHECKPOINT (or from level advanced) it follows loads up to the third update, and the
    next save. It speaks when the optimizer's state was restored and another optimizer updates; when the file holds
    a scheduler's state, the restored optimizer has a scheduler, and that one starts from zero; and when the next
    save records a smaller step or epoch than the checkpoint the run was resumed from.

    Why it matters: The run goes on without an error: with Adam's averages gone, at the learning rate of the first
    step, or overwriting older checkpoints under their numbers.

    Example:
        TD-C011 warning: resumed from ckpt.pt without its scheduler: the learning rate starts over, rank 0

    What to do: Restore model, optimizer, scheduler, scaler, sampler and counters together, before the first step.

    Thresholds: None. A run that loads weights alone (fine-tuning) is not taken for a resumed one.
    """

    code = "TD-C011"
    title = "resumed run starts over"
    severity = "warning"
    observes = (RunResumed, CounterBehind)

    def evaluate(self, process: ProcessDir, seen: RunResumed | CounterBehind) -> Iterable[tuple[str, Finding]]:
        if seen.fault not in CAUSES:
            return ()
        cause, try_next = CAUSES[seen.fault]
        found = self.make_finding(
            f"{self._format_title(seen)}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="load",
            evidence=[seen.text()],
            cause=cause,
            try_next=try_next,
        )
        return [(seen.fault, found)]

    def _format_title(self, seen: RunResumed | CounterBehind) -> str:
        if isinstance(seen, CounterBehind):
            return f"resumed at {seen.name} {seen.recorded}, and the next save says {seen.saved}"
        path = seen.path or "memory"
        if seen.fault == "scheduler":
            return f"resumed from {path} without its scheduler: the learning rate starts over"
        return f"resumed from {path}, but another optimizer makes the updates"
