"""tdbg's own cost in a rank: timed, and held under a share of the wall time."""

from collections import defaultdict

ALWAYS_STEPS = 8  # so many first steps are looked at whatever it costs: most faults come early
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
        self.report_s = 0.0
        self._excused_s = 0.0
        self.by_part: defaultdict[str, float] = defaultdict(float)
        self._likely_s: dict[str, float] = {}
        self._spent_s: defaultdict[str, float] = defaultdict(float)

    def spend(self, part: str, seconds: float) -> None:
        """Book time that a hook has used, less what was excused meanwhile."""
        used = max(seconds - self._excused_s, 0.0)
        self._excused_s = 0.0
        self.own_s += used
        self.by_part[part] += used

    def excuse(self, seconds: float) -> None:
        """Leave out time inside the hook that is running now.

        Opening files happens once, however long the run, and the report of a bad step is what the rest
        is there for: both are reported apart and must not silence the records that follow.
        """
        self._excused_s += seconds

    def learn(self, kind: str, seconds: float) -> None:
        """Remember what one piece of work of this kind cost (it is booked by `spend` as well)."""
        before = self._likely_s.get(kind)
        self._likely_s[kind] = seconds if before is None else before + SMOOTHING * (seconds - before)
        self._spent_s[kind] += seconds

    def spent_on(self, kind: str) -> float:
        """Seconds that went into one kind of work."""
        return self._spent_s[kind]

    def likely_s(self, kind: str) -> float:
        """The smoothed cost of one piece of work."""
        return self._likely_s.get(kind, 0.0)

    def allows(
        self, kinds: tuple[str, ...], now: float, part: float = 1.0, *, besides: str = "", reserve_s: float = 0.0
    ) -> bool:
        """True if these pieces of work keep the cost under the share, with ``reserve_s`` left over.

        part, besides: they may also use only this part of the share, not counting what went into the kind
        ``besides``.
        """
        earned = self.share * (now - self.start)
        likely = sum(map(self.likely_s, kinds))
        if self.own_s + likely + reserve_s > earned:
            return False
        return not besides or self.own_s - self._spent_s[besides] + likely <= part * earned

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
