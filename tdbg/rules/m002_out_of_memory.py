"""TD-M002: memory ran out."""

from dataclasses import dataclass

from tdbg.core.events import Finding, Observation
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES, ObservingRule
from tdbg.rules.text import figure
from tdbg.rules.view import finite

HELD = ("parameters_mb", "gradients_mb", "optimizer_mb", "activations_mb")
MAX_KINDS = 5


@dataclass(slots=True)
class _State:
    """Nothing is kept: the first error of a rank counts."""


@RULES.add
class OutOfMemory(ObservingRule[_State]):
    """Says what held the memory when it ran out.

    What it does: With the flag MEMORY (or from level advanced on) it looks at the moment an out-of-memory error
    leaves backward or ends the process: what was asked for, what was in use, the bytes of parameters, gradients,
    optimizer state and activations, and the largest tensors alive. On CUDA the allocator's snapshot is kept too.

    Why it matters: The error itself names the last allocation, which is seldom the one that is too large.

    Example:
        TD-M002 error: out of device memory at step 12, rank 0: 4,295 MB were asked for

    What to do: If activations dominate: a smaller batch with accumulation, activation checkpointing, bfloat16. If
    optimizer state does: a sharded or 8-bit optimizer. If memory is reserved but not allocated: fragmentation, try
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. If it grew over the steps: TD-M001 says what piles up.

    Thresholds: None.
    """

    code = "TD-M002"
    title = "out of memory"
    severity = "error"
    probe = "memory"
    kept = _State

    def see(self, process: ProcessDir, state: _State, event: Observation) -> Finding | None:
        values = event.values
        if event.part != "OOM":
            return None
        tried = finite(values.get("tried_mb"))
        asked = f": {tried:,.0f} MB were asked for" if tried else ""
        held = [f"{name.removesuffix('_mb')} {figure(values[name])} MB" for name in HELD if values.get(name)]
        use = [
            f"{name.removesuffix('_mb').replace('_', ' ')} {figure(values[name])} MB" for name in _USE if name in values
        ]
        file = values.get("snapshot")
        return self.found(
            f"out of {values.get('kind', 'host')} memory at step {event.step}, rank {process.rank}{asked}",
            first_step=event.step,
            rank=process.rank,
            phase="train",
            evidence=[
                str(values.get("error", "")),
                *([f"in use: {', '.join(use)}"] if use else []),
                *([f"held by the model at the last look: {', '.join(held)}"] if held else []),
                *[f"alive: {line}" for line in values.get("top", ())[:MAX_KINDS]],
                *([f"the allocator's snapshot: {process.label}/{file}"] if file else []),
            ],
            cause="see what is largest above",
            try_next="a smaller batch with accumulation, activation checkpointing, or a lower precision",
        )


_USE = ("host_mb", "host_peak_mb", "device_mb", "device_reserved_mb", "device_peak_mb")
