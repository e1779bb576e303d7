"""What the probe `hang` sees: the same as the probe `distributed` of a rank that goes quiet, at every level."""

from typing import Any

from tdbg.core.events import doc
from tdbg.core.observations import Observed
from tdbg.core.observations.distributed import QuietRank, RankResumed


class HungRank(QuietRank):
    """Nothing has happened on this rank for longer than anything that it did before."""

    PROBE = "hang"

    activity: str = doc(
        "what the training thread does outside of collectives: sleep, lock, loader, checkpoint, compile, import, "
        "network, command, debugger, compute (its stack moves or it uses the CPU) or still (neither)",
        "",
    )
    alike: int | None = doc("earlier calls of that function with tensors of the same sizes, as far as torch keeps them")
    limit_s: float = doc("the time without progress after which it is told", 0.0)

    def text(self) -> str:
        """For how long, in what, and where."""
        doing = f" ({self.activity})" if self.activity and self.state == "elsewhere" else ""
        return super().text() + doing


class HungRankResumed(RankResumed):
    """A rank that was quiet goes on."""

    PROBE = "hang"


class TrainingLines(Observed):
    """The lines of the program that the training thread was at, in some two seconds of training."""

    PROBE, PART = "hang", "LINES"

    lines: list[Any] = doc("[file:line, function, part of the time], the largest part first", factory=list)

    def rows(self) -> list[tuple[str, str, float]]:
        """``lines`` but for rows that were not written by this version of the probe."""
        rows = [
            row for row in self.lines if isinstance(row, list) and len(row) == 3 and isinstance(row[2], int | float)
        ]
        return [(str(where), str(function), share) for where, function, share in rows]

    def text(self) -> str:
        """``train.py:41 in forward 62%, ...``."""
        return ", ".join(f"{where} in {function} {share:.0%}" for where, function, share in self.rows()[:3])
