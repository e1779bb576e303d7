"""TD-M002: memory ran out."""

from tdbg.core.events import Finding
from tdbg.core.observations.memory import AllocationFailed
from tdbg.core.rule_base import Link
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES, ObservingRule
from tdbg.rules.text import format_figure

MAX_KINDS = 5


@RULES.add
class OutOfMemory(ObservingRule[None]):
    """Says what held the memory when it ran out.

    What it does: With the flag MEMORY (or from level advanced on) it looks at the moment an out-of-memory error
    leaves backward or ends the process: what was asked for, what was in use, the bytes of parameters, gradients,
    optimizer state and activations, and the largest tensors alive. On CUDA the allocator's snapshot is kept too.

    Why it matters: The error itself names the last allocation, which is seldom the one that is too large.

    Example:
        TD-M002 error: out of device memory at step 12, rank 0: 4,295 MB were asked for at model.py:88

    What to do: If activations dominate: a smaller batch with accumulation, activation checkpointing, bfloat16. If
    optimizer state does: a sharded or 8-bit optimizer. If memory is reserved but not allocated: fragmentation, try
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. If it grew over the steps: TD-M001 says what piles up.

    Thresholds: None.
    """

    code = "TD-M002"
    title = "out of memory"
    severity = "error"
    leads_to = (Link("TD-R003", least=-1, most=1),)
    observes = (AllocationFailed,)

    def evaluate(self, process: ProcessDir, state: None, seen: AllocationFailed) -> Finding | None:
        asked = f": {seen.tried_mb:,.0f} MB were asked for" if seen.tried_mb else ""
        where = f" at {seen.line}" if seen.line else ""
        too_large = bool(seen.tried_mb and seen.total_mb and seen.tried_mb > seen.total_mb)
        held = [
            f"{name} {format_figure(mb)} MB" for name, mb in seen.collect_held_mb().items() if mb and name != "buffers"
        ]
        in_use = {
            "host": seen.host_mb,
            "host peak": seen.host_peak_mb,
            "device": seen.device_mb,
            "device reserved": seen.device_reserved_mb,
            "device peak": seen.device_peak_mb,
        }
        use = [f"{name} {format_figure(mb)} MB" for name, mb in in_use.items() if mb is not None]
        return self.make_finding(
            f"out of {seen.kind} memory at step {seen.step}, {process.display_name}{asked}{where}",
            first_step=seen.step,
            rank=process.rank,
            phase="train",
            evidence=[
                seen.error,
                *([f"in use: {', '.join(use)}"] if use else []),
                *([f"held by the model at the last look: {', '.join(held)}"] if held else []),
                *[f"alive: {line}" for line in seen.top[:MAX_KINDS]],
                *([f"the allocator's snapshot: {process.label}/{seen.snapshot}"] if seen.snapshot else []),
            ],
            cause=(
                f"this one allocation is larger than all the memory of the {seen.kind}, {seen.total_mb:,.0f} MB"
                if too_large
                else "see what is alive, the largest first: `tdbg report` lists it"
            ),
            try_next=(
                "look at the shape that this line computes"
                if too_large
                else "use a smaller batch with accumulation, activation checkpointing, or lower precision"
            ),
        )
