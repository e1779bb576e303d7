"""TD-P005: torch.compile runs a function uncompiled."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.observations.compilation import CompilerGaveUp
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule


@RULES.add
class CompilerGaveUpRule(KindsRule):
    """Says when torch.compile has given up a function: at its recompile limit, or because it could not compile it.

    What it does: It reads the compiler's own list of compilations, at every level. It speaks when a function
    was compiled so often that the limit (`torch._dynamo.config.recompile_limit`, 8) is reached, and when
    compiling one failed and the program went on without (`suppress_errors`). What was compiled before the limit
    is still used where its guards hold; all else runs as plain Python.

    Why it matters: The program pays for compiling and gets the speed of eager code, and nothing fails: a
    warning among others is all that is shown.

    Example:
        TD-P005 warning: torch.compile reached its recompile limit for forward (train.py:12), rank 0

    What to do: Read the guard that failed last: a number or a text that changes from call to call is a constant
    to the compiler. Make it a tensor, mark a size with `torch._dynamo.mark_dynamic`, or keep it out of the
    compiled function. `TORCH_LOGS=recompiles` prints every reason.

    Thresholds: none of its own.
    """

    code = "TD-P005"
    title = "torch.compile gave up on a function"
    severity = "warning"
    observes = (CompilerGaveUp,)
    keeps_latest = True

    def evaluate(self, process: ProcessDir, seen: CompilerGaveUp) -> Iterable[tuple[str, Finding]]:
        for kind, places, reasons in (
            ("limit", seen.at_limit, seen.limit_reasons),
            ("failed", seen.failed, seen.fail_reasons),
        ):
            if not places:
                continue
            more = f" and {format_count(len(places) - 1, 'further function')}" if len(places) > 1 else ""
            what = "reached its recompile limit for" if kind == "limit" else "could not compile"
            found = self.make_finding(
                f"torch.compile {what} {places[0]}{more}, {process.display_name}",
                first_step=seen.step,
                rank=process.rank,
                phase="forward",
                evidence=[f"{place}: {reason}" for place, reason in zip(places, reasons, strict=False)],
                cause="the compiler treats a value that changes from call to call as a constant"
                if kind == "limit"
                else "the compiler or its backend failed, and the function runs as plain Python",
                try_next="TORCH_LOGS=recompiles prints every reason"
                if kind == "limit"
                else "TORCH_LOGS=graph_breaks,+dynamo prints the whole reason",
            )
            yield kind, found
