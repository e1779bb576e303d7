"""`tdbg inspect-pages verify`: is what was captured whole?"""

from typing import TYPE_CHECKING

from tdbg.core.command_spec import JSON, Args, Argument, Command, Options
from tdbg.core.output import print_json, print_lines, print_messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tdbg.pages.read.page_sources import Problem

HELP = """Say whether what was captured is whole.

    Looks at journals, records, headers, and the checksums of the data where there are any. A problem is a line on stdout;
    one that loses nothing, such as a page that was never sealed, begins with `note:`. Exits with 1 if something is wrong.

    Examples:
        tdbg inspect-pages verify
        tdbg inspect-pages verify tdbg_runs/20261121-031500-train/rank0003 --json
    """
ARGUMENT = Argument("PATH", "A run, a rank's folder, a folder of pages, or one page; the newest run if left out.")
OPTIONS: Options = {"json": JSON}


class VerifyArgs(Args):
    """What `verify` can be asked."""

    json: bool = False


def run_verification(args: VerifyArgs) -> int:
    """Print the problems; 1 if any of them is grave."""
    from tdbg.pages.progress_bar import Progress
    from tdbg.pages.repair.verification import verify_pages
    from tdbg.pages.selection.locations import resolve_place

    where = resolve_place(args.paths)
    with Progress("verify") as progress:
        problems = verify_pages(where, progress.advance)
    grave = any(problem.grave for problem in problems)
    if args.json:
        print_json("pages-verify", {"path": where, "whole": not grave, "problems": build_problem_dicts(problems)})
    else:
        print_problems(problems)
    if not grave:
        print_messages(f"{where} is whole")
    return 1 if grave else 0


def print_problems(problems: "Sequence[Problem]") -> None:
    """A line each."""
    from tdbg.core.tables import safe

    for problem in problems:
        print_lines([safe(f"{'' if problem.grave else 'note: '}{problem}")])


def build_problem_dicts(problems: "Sequence[Problem]") -> list[dict[str, object]]:
    """The same for JSON."""
    return [{"path": str(problem.path), "text": problem.text, "grave": problem.grave} for problem in problems]


COMMAND = Command(run_verification, VerifyArgs, HELP, OPTIONS, ARGUMENT)
