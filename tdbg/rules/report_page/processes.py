"""The processes of a run as its page shows them: their names, and which come first where there are too many."""

from collections.abc import Sequence

from tdbg.core.lazy_pattern import lazy_pattern
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_short
from tdbg.rules.rank_lines import RankRow
from tdbg.rules.verdict import Verdict

GOOD_ENDS = ("ended", "running")
NAME_LETTERS = 60
PID_FOLDER = lazy_pattern(r"pid(\d{1,10})-.*")  # of a process beside the one that is the rank


def name_process(process: ProcessDir) -> str:
    """``rank 3``, ``rank 3 attempt 1``, ``rank 3 pid 77``, or the folder of any other process."""
    if not process.is_rank:
        beside = PID_FOLDER.fullmatch(process.path.name)
        name = f"{process.display_name} pid {beside[1]}" if beside and process.rank is not None else process.label
        return format_short(name, NAME_LETTERS)
    return f"{process.display_name}" + (f" attempt {process.attempt}" if process.attempt else "")


def rows_by_folder(verdict: Verdict) -> dict[str, RankRow]:
    """How each process came to its end, by its folder."""
    return {row["folder"]: row for row in (*verdict.ranks, *verdict.others)}


def sort_by_interest(verdict: Verdict, processes: Sequence[ProcessDir]) -> list[ProcessDir]:
    """The processes that may have stepped: those with findings first, then bad ends, then rank 0, then in order."""
    rows = rows_by_folder(verdict)
    found_on = list(dict.fromkeys(finding.rank for finding in verdict.findings if finding.rank is not None))
    candidates = [process for process in processes if process.rank is not None or process.label in rows]

    def sort_key(process: ProcessDir) -> tuple[int, bool, bool, tuple[int, int, int, str]]:
        place = found_on.index(process.rank) if process.rank in found_on else len(found_on)
        row = rows.get(process.label)
        return place, row is None or row["ended"] in GOOD_ENDS, process.rank != 0, process.sort_key

    return sorted(candidates, key=sort_key)
