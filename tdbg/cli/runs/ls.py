"""`tdbg runs ls`: one line a run."""

from typing import TYPE_CHECKING

from tdbg.core.command_spec import JSON, Args, Argument, Command, Option, Options
from tdbg.core.output import print_json, print_lines, print_messages

if TYPE_CHECKING:
    from tdbg.launch.run_list import RunEntry

HELP = """List the runs of a folder, the newest first: state, verdict, duration, last loss.

        tdbg runs
        tdbg runs ls /data/runs --limit 50
        tdbg runs --json

    The verdict is the one that was saved when the run ended; `tdbg report RUN` computes it anew. Exits with 1 if there is no run.
    """
OPTIONS: Options = {
    "limit": Option(("--limit",), "N", "Show at most N runs; 0 shows all.", least=0),
    "json": JSON,
}
COLUMNS = ("run", "state", "duration", "steps", "last loss", "verdict")
ARGUMENT = Argument("DIR", "The folder of the runs; ./tdbg_runs if left out.", field="folder", many=False)


class LsArgs(Args):
    """What `ls` can be asked."""

    folder: str | None = None
    limit: int = 20
    json: bool = False


def list_runs(args: LsArgs) -> int:
    """Print the list; 1 if there is no run."""
    from pathlib import Path

    from tdbg.core.errors import TdbgError
    from tdbg.core.rundir import RUNS, RunDir
    from tdbg.core.tables import format_count, print_table
    from tdbg.launch.run_list import describe_run_entry, list_run_paths
    from tdbg.rules.text import format_figure

    folder = Path(args.folder or RUNS)
    if args.folder is not None and not folder.is_dir():
        raise TdbgError(
            f"there is no folder {folder}", "name the folder that holds the run directories, such as ./tdbg_runs"
        )
    paths = list_run_paths(folder)
    shown = paths[: args.limit or len(paths)]
    entries = [describe_run_entry(RunDir(path)) for path in shown]
    if args.json:
        print_json(
            "runs",
            {"folder": str(folder), "runs": [one.as_dict() for one in entries], "left_out": len(paths) - len(shown)},
        )
        return 0 if paths else 1

    rows = [
        (one.name, one.state, format_length(one.duration_s), one.steps, format_figure(one.loss), _describe_verdict(one))
        for one in entries
    ]
    if rows:
        print_table(COLUMNS, rows)
    if len(paths) > len(shown):
        print_lines([f"and {format_count(len(paths) - len(shown), 'older run')}: --limit 0 shows all"])
    if not paths:
        print_messages(f"there is no run in {folder}: `tdbg run -- COMMAND` makes one")
    return 0 if paths else 1


def _describe_verdict(one: "RunEntry") -> str:
    from tdbg.rules.text import clip_text

    if one.title:
        more = f" (+{len(one.codes) - 1})" if len(one.codes) > 1 else ""
        return clip_text(one.title, 70) + more
    if one.severity is None:
        return "still running" if one.state == "running" else "none saved: tdbg report computes it"
    return f"{one.verdict}, {one.exit}" if one.exit and one.exit != "exit 0" else one.verdict


def format_length(seconds: float | None) -> str | None:
    """``14.1 s``, ``3 min``, ``26 h 5 min``."""
    if seconds is None:
        return None
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


COMMAND = Command(list_runs, LsArgs, HELP, OPTIONS, ARGUMENT)
