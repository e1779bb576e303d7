"""TD-P001: the host waits for the accelerator many times a step."""

from collections import Counter

from tdbg.core.events import Finding
from tdbg.core.observations.device import StepPlaces
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES, ObservingRule, Reported

LOOKS = 3


class _State(Reported):
    def __init__(self) -> None:
        self.in_a_row: Counter[str] = Counter()  # line -> looks


@RULES.add
class SyncsInStep(ObservingRule[_State]):
    """Says which line makes the host wait for the accelerator again and again within one step.

    What it does: With the flag DEVICE (or at level extreme), on sampled steps of a model on an accelerator, it
    counts calls that wait or copy (`.item()`, `.tolist()`, `.cpu()`, `.to(...)`, `float(tensor)`, `if tensor:`)
    by line of the program. It speaks when one line does so DEVICE.syncs times a step in 3 consecutive sampled
    steps. On the CPU nothing waits, and nothing is said; the counts stand in the log all the same.

    Why it matters: Each such call lets the accelerator's queue run empty. A loop over the samples of a batch
    that asks for one number each can cost more than the step itself.

    Example:
        TD-P001 warning: 256 waits or copies a step at train.py:48 .item(), rank 0

    What to do: Collect on the device and read once: `torch.stack(values).tolist()`, or `losses.mean().item()`
    every n steps. Build constants on the device. Use pinned memory and `non_blocking=True` for batches.

    Thresholds: DEVICE.syncs 16 a step from one line; 3 sampled steps. A logged loss and a few metrics stay
    below it.
    """

    code = "TD-P001"
    title = "waits for the accelerator in the step"
    severity = "warning"
    observes = (StepPlaces,)
    kept = _State

    def evaluate(self, process: ProcessDir, state: _State, seen: StepPlaces) -> Finding | None:
        if seen.over is None or state.is_reported:
            return None
        found = seen.counts_by_line
        state.in_a_row = Counter({line: state.in_a_row[line] + 1 for line in found})
        lasting = [line for line in found if state.in_a_row[line] >= LOOKS]
        if not lasting:
            return None
        state.is_reported = True
        return self.make_finding(
            f"{found[lasting[0]]} waits or copies a step at {lasting[0]}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="train",
            evidence=[
                f"{LOOKS} consecutive sampled steps, the last at step {seen.step}",
                *[f"{line}: {found[line]} a step" for line in lasting[1:4]],
                f"in total {format_count(seen.syncs or 0, 'wait')} and {format_count(seen.copies or 0, 'copy')} in that step",
                *([f"input {join_limited(seen.inputs, 2)}"] if seen.inputs else []),
            ],
            cause="a loop reads single numbers from the accelerator",
            try_next="collect values on the device and read them once a step: torch.stack(values).tolist()",
        )
