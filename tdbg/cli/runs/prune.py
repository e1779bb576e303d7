"""`tdbg runs prune`: old runs go."""

from typing import TYPE_CHECKING

from tdbg.core.command_spec import Args, Argument, Command, Option, Options
from tdbg.core.output import print_lines, print_messages

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HELP = """Remove old runs, after asking.

        tdbg runs prune --keep 20
        tdbg runs prune --older 30d
        tdbg runs prune --keep 20 --older 30d --dry-run

    With both options, a run is removed only if it is not among the N newest and ended longer than AGE ago. A run that
    may still be running, or that another user owns, is kept; a link is neither followed nor removed. With --older, a
    run of another host that recorded no end counts as ended once it has written nothing for a week.
    """
OPTIONS: Options = {
    "keep": Option(("--keep",), "N", "Keep the N newest runs.", least=0, shows_default=False),
    "older": Option(("--older",), "AGE", "Only runs that ended longer ago than this: 12h, 30d, 8w."),
    "dry_run": Option(("--dry-run",), "", "Print what would go, and remove nothing."),
    "yes": Option(("--yes",), "", "Do not ask."),
}
ARGUMENT = Argument("DIR", "The folder of the runs; ./tdbg_runs if left out.", field="folder", many=False)
SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
NOT_GIVEN = -1


class PruneArgs(Args):
    """What `prune` can be given."""

    folder: str | None = None
    keep: int = NOT_GIVEN
    older: str = ""
    dry_run: bool = False
    yes: bool = False


def prune_runs(args: PruneArgs) -> int:
    """Remove them; 1 if there was nothing to remove, or the answer was no."""
    import time
    from pathlib import Path

    from tdbg.core.errors import TdbgError
    from tdbg.core.rundir import RUNS
    from tdbg.core.tables import format_count, format_size, safe
    from tdbg.launch.run_list import list_run_paths, measure_run, remove_leftovers, remove_run, select_old_runs

    if args.keep == NOT_GIVEN and not args.older:
        raise TdbgError("missing option: --keep N or --older AGE", "write --keep 20, --older 30d, or both")
    folder = Path(args.folder or RUNS)
    if not folder.is_dir():
        raise TdbgError(f"there is no folder {folder}", "name the folder that the runs are in")
    older_s = _parse_age(args.older) if args.older else None
    chosen, kept = select_old_runs(list_run_paths(folder), max(args.keep, 0), older_s, time.time())
    print_messages(*map(safe, kept))
    if not chosen:
        print_messages("there is no run to remove")
        return 1
    size = sum(map(measure_run, chosen))
    what = f"{format_count(len(chosen), 'run')}, {format_size(size)}"
    if args.dry_run:
        print_lines([f"would remove {what}:", *(f"  {safe(path.name)}" for path in chosen)])
        return 0
    if not args.yes and not _confirm_removal(chosen, what):
        print_messages("nothing was removed")
        return 1
    remove_leftovers(folder)
    for path in chosen:
        try:
            remove_run(path)
        except OSError as error:
            raise TdbgError(
                f"cannot remove {path}: {error.strerror or error}", "check who owns the files in it"
            ) from None
    print_lines([f"removed {what}"])
    return 0


def _parse_age(text: str) -> float:
    from tdbg.core.errors import TdbgError

    number, unit = text[:-1], text[-1:]
    try:
        found = float(number) * SECONDS[unit]
    except (ValueError, KeyError):
        found = -1.0
    if not 0 <= found < float("inf"):
        raise TdbgError(f"--older cannot be {text!r}", "write a number with m, h, d or w: 30d")
    return found


def _confirm_removal(chosen: "Sequence[Path]", what: str) -> bool:
    """True for yes. Raises TdbgError where there is nobody to ask."""
    import sys

    from tdbg.core.errors import TdbgError
    from tdbg.core.tables import safe

    if not sys.stdin.isatty():
        raise TdbgError(f"{what} would go, and there is no terminal to ask at", "add --yes, or --dry-run to see them")
    print_messages(*(f"  {safe(path.name)}" for path in chosen[:20]))
    if len(chosen) > 20:
        print_messages(f"  and {len(chosen) - 20:,} more")
    sys.stderr.write(f"tdbg: remove {what}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


COMMAND = Command(prune_runs, PruneArgs, HELP, OPTIONS, ARGUMENT)
