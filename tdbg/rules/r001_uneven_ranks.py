"""TD-R001: ranks that stopped at different steps."""

from collections import defaultdict
from collections.abc import Iterable

from tdbg.core.events import JOINS_UNEVEN, Finding, Start
from tdbg.core.observations import Evidence
from tdbg.core.ranges import MAX_RANKS
from tdbg.core.rule_base import Needs
from tdbg.rules import RULES, Rule
from tdbg.rules.text import format_ranks
from tdbg.rules.view import ProcessView, View

GROWTH = 2  # of the distance between two records: the budget doubles it at a time

STILL_S = 5.0  # without a record, before a rank that was told to stop counts as one that stood still
JOINED = "the program joins uneven inputs (Join), which lets a rank end before others"
STOPPED_APART = "the run was told to stop, and its ranks do not wait for each other"


def _steps_until(view: View, found: ProcessView, stop_t: float) -> bool:
    """True if a rank lived, and made steps, until the run was told to stop."""
    if found.last is None or found.start is None or view.find_end_time(found) < stop_t:
        return False
    step_s = (found.last.t - found.start.t) / max(found.last.step, 1)
    return found.last.t >= stop_t - max(STILL_S, (1 + GROWTH * found.gap) * step_s)


@RULES.add
class UnevenRanks(Rule):
    """Says that the ranks of one job stopped at different steps, and which lags.

    What it does: At the end compares the steps of all ranks that are known to have ended, and names ranks that
    never took a step. In a run that was killed, one step of difference is chance and stays silent, and so is
    as much as may be missing from the record of a rank that could not say how far it came: beside such a rank
    the last records are compared, and not the last steps. Processes without a process group (world size 1) are
    no ranks of one job and are not compared, and ranks of a host that wrote to a run directory of its own are not
    judged.

    Why it matters: Ranks train in step. One that stops early leaves the others waiting in a collective until
    its timeout, often half an hour later, with an error that names the wrong rank.

    Example:
        TD-R001 error: ranks stopped at different steps: rank 1 at 12, ranks 0, 2-3 at 13

    What to do: Look at the rank that stopped first: its own exit (TD-R002), its traceback (TD-R003). If it
    ended well, its data ran out: use DistributedSampler with drop_last, or the Join context manager.

    Thresholds: After a clean end any difference counts. After a failure, or beside a rank that was killed, a
    difference of 1 step plus twice the largest gap between two records of that rank is ignored. Where every rank
    made steps until the run was told to stop (Ctrl-C, a signal), with 5 s or three times the steps between two of
    its records since its last one at most, it is a note; so it is after a clean end where the program uses
    `Join`.
    """

    code = "TD-R001"
    title = "ranks stopped at different steps"
    severity = "error"
    grade = Evidence.LOCAL.grade_word
    listens = (Start,)
    needs = Needs(ranks=2)

    def finish(self, view: View) -> Iterable[Finding]:
        ranks = [
            found for found in view.list_rank_processes() if found.start is not None and found.start.world_size > 1
        ]
        newest = max((found.launch for found in ranks), default=0)
        ranks = [found for found in ranks if found.launch == newest]  # a restart may use fewer ranks
        if not ranks or not view.over or not all(view.is_gone(found) for found in ranks):
            return ()
        world = max(found.start.world_size for found in ranks if found.start)
        known = {found.rank for found in ranks if found.rank is not None}.union(view.list_ranks_elsewhere())
        missing = sorted(set(range(min(world, MAX_RANKS))) - known)
        unsure = max((found.gap for found in ranks if found.end is None), default=0)
        steps: dict[int, list[int]] = defaultdict(list)
        for found in ranks:
            # Beside a rank that could not say how far it came, the others' last records count and not their last steps.
            steps[found.step if not unsure else found.last.step if found.last else 0].append(found.rank or 0)
        well = all(view.describe_ending(found) == "ended" for found in ranks)
        tolerated = 0 if well and not unsure else 1 + GROWTH * unsure
        uneven = max(steps) - min(steps) > tolerated
        # Without a failure a rank without steps may have another job (a parameter server): no matter of ours.
        if not uneven and not (missing and view.exit_code and max(steps) > 0):
            return ()
        finding = self._make_uneven_finding(steps, missing if view.exit_code else [], uneven, recorded=unsure > 0)
        if not missing and all(_steps_until(view, one, view.stop_t) for one in ranks):
            finding.severity, finding.cause = "info", STOPPED_APART
        elif not missing and well and any(JOINS_UNEVEN in one.notes for one in view.processes.values()):
            finding.severity, finding.cause, finding.try_next = "info", JOINED, ""
        return (finding,)

    def _make_uneven_finding(
        self, steps: dict[int, list[int]], missing: list[int], uneven: bool, *, recorded: bool
    ) -> Finding:
        parts = [f"{format_ranks(steps[step])} at {step}" for step in sorted(steps)[:4]]
        absent = f"{format_ranks(missing)} never took a step" if missing else ""
        what = "the last records of the ranks are from different steps" if recorded else self.title
        title = f"{what}: {', '.join(parts)}" if uneven else absent
        laggard = missing[0] if missing else min(steps[min(steps)])
        last = 0 if missing else min(steps)
        return self.make_finding(
            title,
            first_step=last,
            rank=laggard,
            evidence=[absent] if absent and uneven else [],
            cause="the rank named first stopped by itself, or its data ended before that of the others",
            try_next=f"check rank {laggard} after step {last}: its exit code, its traceback, its log",
        )
