"""TD-M001: memory grows from step to step."""

from tdbg.core.events import Finding
from tdbg.core.observations.memory import MemoryGrowth
from tdbg.core.rule_base import Link
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, ObservingRule
from tdbg.rules.text import format_figure

MAX_KINDS = 4


@RULES.add
class MemoryCreep(ObservingRule[None]):
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
    leads_to = (Link("TD-M002", least=0), Link("TD-M003", least=0))
    observes = (MemoryGrowth,)

    def evaluate(self, process: ProcessDir, state: None, seen: MemoryGrowth) -> Finding | None:
        if not seen.sure:
            return None
        graphs = seen.piled_up
        return self.make_finding(
            f"{seen.kind} memory grew {seen.grown_mb:,.0f} MB in {format_count(seen.steps, 'step')}"
            f" ({format_figure(seen.mb_per_step)} MB a step) since step {seen.from_step}, {process.display_name}",
            severity="warning" if graphs or seen.kind == "device" else "info",
            first_step=seen.from_step,
            rank=process.rank,
            phase="train",
            evidence=[
                f"{format_figure(seen.grown_pct)} % more than at step {seen.from_step}, still growing at step {seen.step}",
                *self._describe_piles(seen),
                *[f"alive: {line}" for line in seen.top[:MAX_KINDS]],
            ],
            cause=(
                "losses or outputs are kept with their autograd graph"
                if graphs
                else "a list of results, a cache or a buffer grows"
            ),
            try_next="keep .item() or .detach() of losses and outputs; evaluate under torch.no_grad(); clear lists after use",
        )

    def _describe_piles(self, growth: MemoryGrowth) -> list[str]:
        lines = []
        if growth.piled_up:
            lines.append(
                f"{format_count(growth.graphs, 'more tensor')} with a graph in {format_count(growth.graph_steps, 'step')}"
            )
        lines += growth.growing[:MAX_KINDS]
        return [*lines, f"held by {growth.holder}"] if growth.holder else lines
