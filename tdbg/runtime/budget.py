"""tdbg's own cost in a rank: timed, and held under a share of the wall time."""

import math
import threading
from collections import defaultdict

ALWAYS_STEPS = 8  # so many first steps are looked at whatever it costs: most faults come early
SMOOTHING = 0.2
EXTRAS = "extras"  # what flags and the levels above basic add, all together
REQUEST_S = 0.05  # what a request in a live run may cost at once
OVERDRAFT = 2.0  # times what was saved may be spent on a look, so that it is not cut short; the rest is owed
SAVING_SHARE = 0.25  # of what is earned is put aside for looks at doubling intervals, until one can be paid
EXTRAS_SHARE = 0.7  # of the budget may go into them; the rest keeps records and the watch for bad values going


class Budget:
    """A token bucket: work is allowed while own time plus its likely cost fits into what was earned.

    Wall time earns at the share in force; the share changes with the level. It sees the time spent inside
    tdbg's hooks, and adds what each entry costs besides (`calibrate`); it does not see kernels that run later on
    an accelerator.
    """

    def __init__(self, share_pct: float, now: float) -> None:
        self.share = share_pct / 100.0
        self.start = now
        self.own_s = 0.0
        self.start_up_s = 0.0
        self.report_s = 0.0
        self.asked_s = 0.0
        self.checked_s = 0.0  # in checks that are made in every step, whatever was spent
        self.called_s = 0.0  # in diagnostics that the program calls itself
        self._banked_s = 0.0  # earned at the shares before this one
        self._since = now
        self.allowance_s = 0.0  # own time for the opening inspection, besides the share; never refilled
        self.inspection_s = 0.0  # spent of it, as of the last inspection that is over
        self._allowed_since: float | None = None  # while it may be spent
        self._spending_rate = self._credit_s = 0.0
        self._owed_s = 0.0  # while it may be spent: what was overspent before, which it does not pay
        self._target_s = 0.0  # to be saved for a look to come
        self._saving_since = now
        self._granted_s = 0.0  # while what was saved is spent
        self._threads = _Threads()
        self.by_part: defaultdict[str, float] = defaultdict(float)
        self._likely_s: dict[str, float] = {}
        self._spent_s: defaultdict[str, float] = defaultdict(float)
        self._entry_s: dict[str, float] = {}  # what each booking of a part costs besides
        self._extras_before_s = 0.0  # spent on extras up to the step before
        self._extras_step_s = 0.0  # what a step costs in which extras are looked at, smoothed

    def calibrate(self, entry_s: dict[str, float]) -> None:
        """Add so many seconds to each booking of these parts: the way into the hook and out of it."""
        self._entry_s = entry_s

    def entry_s(self, part: str) -> float:
        """What each booking of a part costs besides, as it was calibrated."""
        return self._entry_s.get(part, 0.0)

    def earned_s(self, now: float) -> float:
        """What the shares in force so far allow without what is saved, with what may be spent of the allowance."""
        earned, since = self.earned_by_share_s(now) + self._granted_s, self._allowed_since
        if self._target_s:
            earned -= self._saved_s(now)
        if since is None:
            return earned
        return (
            earned
            + self._owed_s
            + min(self.allowance_s - self.inspection_s, self._credit_s + self._spending_rate * (now - since))
        )

    def save_up(self, target_s: float, now: float) -> None:
        """From now on put a part of what is earned aside, up to ``target_s``; what was spent on a look is settled."""
        self._target_s, self._saving_since, self._granted_s = target_s, now, 0.0
        self._settle_extras(now)

    def _saved_s(self, now: float) -> float:
        return min(self._target_s, SAVING_SHARE * self.share * (now - self._saving_since))

    def has_saved(self, now: float) -> bool:
        """True once as much is there as was to be saved."""
        return self._saved_s(now) >= self._target_s

    def spend_saved(self, now: float) -> None:
        """Let what was saved be spent from now on, also where glances at each step cost more than the share."""
        saved_s, self._target_s = self._saved_s(now), 0.0
        self._granted_s = max(self.own_s + OVERDRAFT * saved_s - self.earned_s(now), 0.0)

    @property
    def is_allowance_open(self) -> bool:
        """True while the allowance may be spent."""
        return self._allowed_since is not None

    def open_allowance(self, now: float, rate: float, credit_s: float = 0.0) -> None:
        """From now on the allowance may be spent: ``credit_s`` at once, and then ``rate`` of the time since.

        The first time it pays for what was overspent until now; later that stays owed, and stops no look meanwhile.
        """
        self.close_allowance(now)
        owed_s = max(self._over_share_s(now), 0.0)
        if self.inspection_s == 0.0:
            self._charge_allowance(min(owed_s, self.allowance_s))
        elif self.inspection_s < self.allowance_s:
            self._owed_s = owed_s
        self._allowed_since, self._spending_rate, self._credit_s = now, rate, credit_s

    def is_allowance_spent(self, now: float) -> bool:
        """True once the share alone would not have paid for what was done, and the whole allowance is used up."""
        return self._over_share_s(now) - self._owed_s >= self.allowance_s - self.inspection_s

    def close_allowance(self, now: float) -> None:
        """Charge what was spent above the share to the allowance; what is left of it is kept for a later inspection."""
        used_s = self.spent_of_allowance_s(now) - self.inspection_s
        self._allowed_since, self._owed_s = None, 0.0
        self._charge_allowance(used_s)
        self._settle_extras(now)

    def settle_debt(self, now: float, most_s: float = math.inf) -> None:
        """Charge what was spent above the share until now to the allowance, as far as that goes, ``most_s`` at most."""
        debt_s = min(max(self._over_share_s(now), 0.0), most_s)
        self._charge_allowance(min(debt_s, max(self.allowance_s - self.inspection_s, 0.0)))

    def _charge_allowance(self, seconds: float) -> None:
        self.inspection_s += seconds
        self._banked_s += seconds

    def _settle_extras(self, now: float) -> None:
        """What the steps of an inspection have cost holds back none of those that follow, and does not space them."""
        spent = self._spent_s[EXTRAS]
        self._spent_s[EXTRAS] = min(spent, EXTRAS_SHARE * self.earned_by_share_s(now))
        self._extras_before_s -= spent - self._spent_s[EXTRAS]
        self._extras_step_s = 0.0

    def spent_of_allowance_s(self, now: float) -> float:
        """What the inspection has used so far."""
        if self._allowed_since is None:
            return self.inspection_s
        spent_s = max(self._over_share_s(now) - self._owed_s, 0.0)
        return self.inspection_s + min(spent_s, self.allowance_s - self.inspection_s)

    def _over_share_s(self, now: float) -> float:
        return self.own_s - self.earned_by_share_s(now)

    def earned_by_share_s(self, now: float) -> float:
        """What the shares in force so far allow, with what was charged to the allowance."""
        return self._banked_s + self.share * (now - self._since)

    def change_share(self, share_pct: float, now: float) -> None:
        """From now on another share is earned; what was earned so far stays."""
        self._banked_s = self.earned_by_share_s(now)
        self._since, self.share = now, share_pct / 100.0

    def forgive_debt(self, now: float) -> None:
        """Let what was overspent so far not hold back what was asked for now, and pay its first looks.

        All of it stays in the cost that is told.
        """
        spent = max(self.own_s, self._spent_s[EXTRAS] / EXTRAS_SHARE)
        self._banked_s += max(spent - self.earned_s(now), 0.0) + REQUEST_S
        self._extras_step_s = 0.0  # nor does what other looks cost before space out those that are asked for

    def exclude_idle_time(self, seconds: float) -> None:
        """Time in which tdbg was off: it earns nothing."""
        self.start += seconds
        self._since += seconds
        self._saving_since += seconds
        if self._allowed_since is not None:
            self._allowed_since += seconds

    def charge(self, part: str, seconds: float, *, asked: bool = False) -> None:
        """Book time that a hook has used, less what was excused meanwhile. asked: as `charge_to_user`, all of it."""
        threads = self._threads
        used = max(seconds - threads.excused_s, 0.0) + self._entry_s.get(part, 0.0)
        threads.excused_s = 0.0
        if asked:
            self.asked_s += used
            return
        self.own_s += used
        self.by_part[part] += used

    def spend_on_checks(self, part: str, seconds: float) -> None:
        """Book time of a check that is never left out: told apart, as it would use up what pays for everything else."""
        threads = self._threads
        used = max(seconds - threads.excused_s, 0.0) + self._entry_s.get(part, 0.0)
        threads.excused_s = 0.0
        self.checked_s += used

    def charge_fast(self, part: str, seconds: float) -> None:
        """The same as `charge`, for paths of a few microseconds in which nothing is excused."""
        used = seconds + self._entry_s.get(part, 0.0)
        self.own_s += used
        self.by_part[part] += used

    def book_times(self, part: str, times: int) -> None:
        """The same for so many entries that are too short to be timed: what they cost as calibrated."""
        used = times * self._entry_s.get(part, 0.0)
        self.own_s += used
        self.by_part[part] += used

    def charge_to_user(self, seconds: float) -> None:
        """Leave out time that goes into what the user asked for by name, whatever it costs: told apart, as it would
        use up what pays for watching the run."""
        self.asked_s += seconds
        self.exclude(seconds)

    def exclude(self, seconds: float) -> None:
        """Leave out time inside the hook that is running now.

        Opening files happens once, however long the run, and the report of a bad step is what the rest
        is there for: both are reported apart and must not silence the records that follow.
        """
        self._threads.excused_s += seconds

    def record_cost(self, kind: str, seconds: float, *, extra: bool = False) -> None:
        """Remember what one piece of work of this kind cost (it is booked by `charge` as well)."""
        before = self._likely_s.get(kind)
        self._likely_s[kind] = seconds if before is None else before + SMOOTHING * (seconds - before)
        self._spent_s[kind] += seconds
        if extra:
            self._spent_s[EXTRAS] += seconds

    def step_done(self) -> None:
        """A step has ended: what its extras cost together says how many such steps can be afforded."""
        spent = self._spent_s[EXTRAS]
        seconds, self._extras_before_s = spent - self._extras_before_s, spent
        if seconds > 0.0:
            before = self._extras_step_s
            self._extras_step_s = before + SMOOTHING * (seconds - before) if before else seconds

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
        earned = self.earned_s(now)
        likely = sum(map(self.likely_s, kinds))
        if self.own_s + likely + reserve_s > earned:
            return False
        return not besides or self.own_s - self._spent_s[besides] + likely <= part * earned

    def allows_extra(self, kind: str, now: float) -> bool:
        """True if work that a flag or a higher level asks for fits into the share, and into the extras' part of it."""
        earned = self.earned_s(now)
        likely = self.likely_s(kind)
        return self.own_s + likely <= earned and self._spent_s[EXTRAS] + likely <= EXTRAS_SHARE * earned

    def compute_stride(self, kind: str, step_s: float) -> int:
        """Every how many steps this work fits into the share, rounded up to a power of two.

        Ranks with different speeds then sample on common steps, so that none holds up the others at a
        step of its own.
        """
        return self.stride_of(self.likely_s(kind), self.share * step_s)

    def extras_stride(self, kind: str, step_s: float) -> int:
        """The same for what flags and levels add: all of it is done on common steps, this kind among it."""
        return self.stride_of(max(self._extras_step_s, self.likely_s(kind)), EXTRAS_SHARE * self.share * step_s)

    @staticmethod
    def stride_of(cost_s: float, earned_s: float) -> int:
        """Every how many steps work of this cost fits into so many seconds a step: a power of two."""
        wanted = cost_s / max(earned_s, 1e-9)
        stride = 1
        while stride < wanted and stride < 1024:
            stride *= 2
        return stride


class _Threads(threading.local):
    """What was excused in the hook that runs now, by thread: hooks run beside each other."""

    excused_s = 0.0
