"""TD-M001: memory grows from step to step."""

from dataclasses import dataclass

from tdbg.core.events import Finding, Observation
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES, ObservingRule
from tdbg.rules.text import figure
from tdbg.rules.view import finite

MAX_KINDS = 4


@dataclass(slots=True)
class _State:
    """Nothing is kept: the probe judges."""


@RULES.add
class MemoryCreep(ObservingRule[_State]):
    """Says when host or device memory grows from step to step, and what it is that piles up.

    What it does: With the flag MEMORY (or from level advanced on) it follows the memory at the end of steps, the
    first 5 left out. Growth counts if it goes on in each fifth of at least 50 steps; a jump, or an allocator that
    slows down, does not. Half way and at the end the live tensors are counted by kind. It speaks when memory grew
    by MEMORY.creep_pct and tensors that keep their graph became steadily more, or when it grew by MEMORY.creep_mb
    whatever it is made of (for host memory not in the first pass over the data: caches fill then). Host memory that
    grows without graphs is only info: a buffer may be meant to fill.

    Why it matters: A loss or an output kept with its graph keeps all activations of its step. The run ends in an
    out-of-memory error hours later, on a line that has nothing to do with it, or is killed without a word.

    Example:
        TD-M001 warning: host memory grew 214 MB in 51 steps (4.2 MB a step) since step 6, rank 0

    What to do: Append `loss.item()` or `loss.detach()`, not `loss`; run evaluation under `torch.no_grad()`; empty
    lists of outputs. The evidence names the kind of tensor and, where Python knows, the list that holds them.

    Thresholds: MEMORY.creep_pct 10 and MEMORY.creep_mb 1074 (1 GiB over 50 steps, as traceml has it); at least
    32 MB; one more tensor with a graph in 4 steps.
    """

    code = "TD-M001"
    title = "memory creep"
    severity = "warning"
    probe = "memory"
    kept = _State

    def see(self, process: ProcessDir, state: _State, event: Observation) -> Finding | None:
        values = event.values
        if event.part != "CREEP" or not values.get("sure"):
            return None
        grown, steps = finite(values.get("grown_mb")) or 0.0, int(finite(values.get("steps")) or 1)
        kind, since = values.get("kind", "host"), values.get("from_step")
        graphs = bool(values.get("piled_up"))
        return self.found(
            f"{kind} memory grew {grown:,.0f} MB in {steps} steps ({figure(grown / max(steps, 1))} MB a step) since"
            f" step {since}, rank {process.rank}",
            severity="warning" if graphs or kind == "device" else "info",
            first_step=since,
            rank=process.rank,
            phase="train",
            evidence=[
                f"{figure(finite(values.get('grown_pct')))} % more than at step {since}, and it goes on at step"
                f" {event.step}",
                *self._piles(values, graphs),
                *[f"alive: {line}" for line in values.get("top", ())[:MAX_KINDS]],
            ],
            cause=(
                "losses or outputs are kept together with their graph"
                if graphs
                else "something fills: a list of results, a cache, a buffer"
            ),
            try_next="keep .item() or .detach() of what is kept; evaluate under torch.no_grad(); empty what is done with",
        )

    def _piles(self, values: dict[str, object], graphs: bool) -> list[str]:
        lines = []
        if graphs:
            lines.append(f"{values.get('graphs')} more tensors with a graph in {values.get('graph_steps')} steps")
        growing = values.get("growing")
        lines += [str(line) for line in growing[:MAX_KINDS]] if isinstance(growing, list) else []
        return [*lines, f"held by {values['holder']}"] if values.get("holder") else lines
