"""What the probe `hang` sees. With the flag DISTRIBUTED, quiet ranks are written as of the probe `distributed`."""

from typing import Any

from tdbg.core.events import doc
from tdbg.core.observations import Observed
from tdbg.core.observations.distributed import QuietRank, RankResumed


class HungRank(QuietRank):
    """Nothing has happened on this rank for longer than anything that it did before."""

    PROBE = "hang"


class HungRankResumed(RankResumed):
    """A rank that was quiet goes on."""

    PROBE = "hang"


class RankAlive(Observed):
    """No training step for 20 s: the rank is alive, and others that wait for it know where it is."""

    PROBE, PART = "hang", "ALIVE"

    where: str = doc("the program's own line that the training thread is at", "")

    def text(self) -> str:
        """``no training step for a while, at eval.py:41 in evaluate``."""
        return f"no training step for a while, at {self.where}"


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
