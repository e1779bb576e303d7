"""TD-P006: torch.compile ends graphs early."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.observations.compilation import GraphBreaks
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule


@RULES.add
class GraphBreaksRule(KindsRule):
    """Notes that torch.compile breaks graphs: a compiled function runs in several pieces with Python in between.

    What it does: It reads the compiler's own counter of graph breaks, at every level. The compiler counts a
    break when it compiles the place; the break then happens in every call that comes by.

    Why it matters: Each break costs a return to Python and keeps the compiler from joining operations across
    it. A few are usual, and in a large model cost little; many explain why compiling gains nothing.

    Example:
        TD-P006 info: torch.compile breaks its graph in 3 places (4 graphs), rank 0

    What to do: `TORCH_LOGS=graph_breaks` prints where. `print`, `.item()`, a condition on a tensor and calls
    into C are the usual ones; `torch.compile(fullgraph=True)` makes each an error.

    Thresholds: one break.
    """

    code = "TD-P006"
    title = "graph breaks of torch.compile"
    severity = "info"
    observes = (GraphBreaks,)
    keeps_latest = True

    def evaluate(self, process: ProcessDir, seen: GraphBreaks) -> Iterable[tuple[str, Finding]]:
        found = self.make_finding(
            f"torch.compile breaks its graph in {format_count(seen.breaks, 'place')} ({format_count(seen.graphs, 'graph')}),"
            f" {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="forward",
            evidence=list(seen.reasons),
            cause="",
            try_next="TORCH_LOGS=graph_breaks prints where",
        )
        yield "breaks", found
