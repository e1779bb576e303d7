"""What the probe `compilation` sees."""

from tdbg.core.events import doc
from tdbg.core.observations import Evidence, Observed
from tdbg.core.tables import format_count


class CompilerGaveUp(Observed):
    """torch.compile runs functions without compiling them: at its recompile limit, or because compiling failed."""

    PROBE = "compilation"
    PART = "GAVE_UP"
    LEVEL = "W"
    EVIDENCE = Evidence.LOCATED

    at_limit: list[str] = doc(
        "functions that reached the recompile limit, with their lines, at most eight", factory=list
    )
    limit_reasons: list[str] = doc("the guard that failed last, for each of them", factory=list)
    failed: list[str] = doc("functions that could not be compiled, with their lines, at most eight", factory=list)
    fail_reasons: list[str] = doc("why compiling each of them failed", factory=list)
    graphs: int = doc("number of graphs compiled so far", 0)

    def text(self) -> str:
        """Which functions, and why."""
        limit = [
            f"{where} reached the recompile limit ({why})"
            for where, why in zip(self.at_limit, self.limit_reasons, strict=False)
        ]
        failed = [
            f"{where} was not compiled ({why})" for where, why in zip(self.failed, self.fail_reasons, strict=False)
        ]
        return "; ".join([*limit, *failed])


class GraphBreaks(Observed):
    """torch.compile ends graphs early, so that each call runs several with Python in between."""

    PROBE = "compilation"
    PART = "BREAKS"
    EVIDENCE = Evidence.LOCATED

    breaks: int = doc("number of graph breaks", 0)
    graphs: int = doc("number of graphs compiled so far", 0)
    reasons: list[str] = doc("reasons of the graph breaks, the most frequent first, at most eight", factory=list)

    def text(self) -> str:
        """How many, and why."""
        return f"{format_count(self.breaks, 'graph break')}, {format_count(self.graphs, 'graph')}: {'; '.join(self.reasons[:3])}"


class CompileTime(Observed):
    """When torch.compile compiled, and for how long: what is new since the line before."""

    PROBE = "compilation"
    PART = "TIME"
    EVIDENCE = Evidence.LOCATED

    seconds: float = doc("seconds of all compilations so far", 0.0)
    count: int = doc("number of compilations so far, forward and backward counted apart", 0)
    began: list[float] = doc("when the new ones began, in seconds since 1970, oldest first, at most 64", factory=list)
    took_s: list[float] = doc("how many seconds each of these took", factory=list)

    def text(self) -> str:
        """How many, and how long."""
        return f"{format_count(self.count, 'compilation')}, {self.seconds:.3g} s"
