"""tdbg's own cost in a rank: timed, and held under a share of the wall time."""

import time
from collections import defaultdict

ALWAYS_STEPS = 20  # so many first steps are looked at whatever it costs: most faults come early
SMOOTHING = 0.2


class Budget:
    """A token bucket: work is allowed while own time plus its likely cost fits into share x elapsed.

    It sees the time spent inside tdbg's hooks, not the slower call path that a hook causes in torch,
    nor kernels that run later on an accelerator.
    """

    def __init__(self, share_pct: float, now: float) -> None:
        self.share = share_pct / 100.0
        self.start = now
        self.own_s = 0.0
        self.start_up_s = 0.0
        self.by_part: defaultdict[str, float] = defaultdict(float)
        self._likely_s: dict[str, float] = {}

    def spend(self, part: str, seconds: float) -> None:
        """Book time that a hook has used."""
        self.own_s += seconds
        self.by_part[part] += seconds

    def start_up(self, seconds: float) -> None:
        """Book time that is needed once, however long the run: reported apart, not against the share."""
        self.own_s -= seconds
        self.start_up_s += seconds

    def learn(self, kind: str, seconds: float) -> None:
        """Remember what one piece of work of this kind cost."""
        before = self._likely_s.get(kind)
        self._likely_s[kind] = seconds if before is None else before + SMOOTHING * (seconds - before)

    def likely_s(self, kind: str) -> float:
        """The smoothed cost of one piece of work."""
        return self._likely_s.get(kind, 0.0)

    def allows(self, kind: str, now: float) -> bool:
        """True if one more piece of this work keeps the cost under the share."""
        return self.own_s + self.likely_s(kind) <= self.share * (now - self.start)

    def stride(self, kind: str, step_s: float) -> int:
        """Every how many steps this work fits, rounded up to a power of two.

        Ranks with different speeds then sample on common steps, so that none holds up the others at a
        step of its own.
        """
        wanted = self.likely_s(kind) / max(self.share * step_s, 1e-9)
        stride = 1
        while stride < wanted and stride < 1024:
            stride *= 2
        return stride

    def pct(self) -> float:
        """Own cost as percent of the wall time since tdbg woke up."""
        return 100.0 * self.own_s / max(time.perf_counter() - self.start, 1e-9)
