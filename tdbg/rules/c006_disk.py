"""TD-C006: the disk or the disk budget left out part of the record."""

import os
from collections.abc import Iterable
from pathlib import Path

from tdbg.core.events import Cost, Event, Finding, Note
from tdbg.core.observations import Evidence
from tdbg.core.rundir import ProcessDir, list_unwritten_processes
from tdbg.core.tables import format_count
from tdbg.rules import RULES, Rule
from tdbg.rules.view import View

FULL_BYTES = 1_000_000  # less than that is free
CODES = ("disk-vectors", "disk-steps")


@RULES.add
class DiskNote(Rule):
    """Says that events were thinned out or lost: for want of disk space, or with the run directory.

    What it does: Reports the notes a rank leaves when half and nine tenths of `--disk-budget` are used, and
    events that could not be written at all. Thinned records are `info`, lost ones a warning. Where a rank could
    not write any further, or the run directory was removed while the command ran, it says after which step
    nothing was seen.

    Why it matters: Series with gaps look like steps that never happened.

    Example:
        TD-C006 info: rank 0: half the disk budget is used: per-parameter vectors are thinned out

    What to do: Give more (`--disk-budget 5GB`) or free space. Training is never stopped for it.

    Thresholds: Half and nine tenths of the budget (1 GB a rank, unless told otherwise).
    """

    code = "TD-C006"
    title = "records thinned out or lost for want of disk space"
    severity = "warning"
    grade = Evidence.LOCAL.grade_word
    listens = (Note, Cost)

    def __init__(self) -> None:
        self._given: dict[str, list[Finding]] = {}

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        if not isinstance(event, Note) or event.code not in CODES:
            return ()
        new = self.make_finding(
            f"{process.display_name}: {event.text}",
            severity="info",
            first_step=event.step,
            rank=process.rank,
            try_next="give more with --disk-budget",
        )
        return self.report_from(process, self._given.setdefault(event.code, []), new)

    def finish(self, view: View) -> Iterable[Finding]:
        yield from self._find_unseen(view)
        lost = [found for found in view.list_active_processes() if found.cost is not None and found.cost.dropped]
        total = sum(found.cost.dropped for found in lost if found.cost is not None)
        if lost:
            yield self.make_finding(
                f"{format_count(total, 'event')} could not be written ({lost[0].display_name}{' and others' if len(lost) > 1 else ''})",
                rank=lost[0].rank,
                cause="the disk or the disk budget was full",
                try_next="free space, or give more with --disk-budget",
            )

    def _find_unseen(self, view: View) -> Iterable[Finding]:
        """What the verdict cannot know of."""
        if not view.over:
            return
        ranks = [found for found in view.list_rank_processes() if found.end is None]
        removed = not view.run.path.is_dir()
        if not removed:
            unwritten = list_unwritten_processes(view.run)
            full = view.exit_code == 0 and not view.info.get("end") and _is_full(view.run.path)  # nor could we
            ranks = [one for one in ranks if full or (one.start and (one.start.host, one.start.pid) in unwritten)]
        if not ranks:
            return
        first = min(ranks, key=lambda found: (found.step, found.rank or 0))
        others = f" (and of {format_count(len(ranks) - 1, 'other rank')})" if len(ranks) > 1 else ""
        yield self.make_finding(
            f"nothing was seen of {first.display_name} after step {first.step}{others}:"
            f" {'the run directory was removed' if removed else 'its events could not be written'}",
            first_step=first.step,
            rank=first.rank,
            cause="" if removed else "the disk, a quota or the largest size of a file (`ulimit -f`) was reached",
            try_next="choose a --run-dir that nothing deletes during the run"
            if removed
            else "free space, or choose another --run-dir",
        )


def _is_full(folder: Path) -> bool:
    try:
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize < FULL_BYTES
    except OSError:
        return False
