"""`tdbg inspect-pages recover`: make whole again what a killed process left."""

from tdbg.core.command_spec import JSON, Args, Argument, Command, Option, Options
from tdbg.core.output import print_json, print_lines, print_messages

HELP = """Seal the pages that a killed process left, and rebuild lost journals.

    Nothing is overwritten, and the files of a process that still writes are left alone. What was captured can be read
    without this too; a sealed page can also be opened by any safetensors reader. Running it again is safe.
    Exits with 1 if something remains wrong.

    Examples:
        tdbg inspect-pages recover
        tdbg inspect-pages recover tdbg_runs/20261121-031500-train
    """
ARGUMENT = Argument("PATH", "A run, a rank's folder, or a folder of pages; the newest run if left out.")
OPTIONS: Options = {
    "force": Option(
        ("--ignore-live-writer",),
        "",
        "Recover even if the writing process may still run, for example on another host.",
        old_names=("--force",),
    ),
    "json": JSON,
}


class RecoverArgs(Args):
    """What `recover` can be asked."""

    force: bool = False
    json: bool = False


def run_recovery(args: RecoverArgs) -> int:
    """Print what was done, and what remains; 1 if any of that is grave."""
    from tdbg.cli.inspect_pages.verify import build_problem_dicts, print_problems
    from tdbg.core.tables import safe
    from tdbg.pages.repair.recovery import recover_pages
    from tdbg.pages.selection.locations import resolve_place

    where = resolve_place(args.paths)
    found = recover_pages(where, force=args.force)
    if args.json:
        print_json(
            "pages-recover", {"path": where, "done": found.done, "problems": build_problem_dicts(found.problems)}
        )
    else:
        for line in found.done:
            print_lines([safe(line)])
        print_problems(found.problems)
    if not found.done:
        print_messages("there was nothing to do")
    return 1 if any(problem.grave for problem in found.problems) else 0


COMMAND = Command(run_recovery, RecoverArgs, HELP, OPTIONS, ARGUMENT)
