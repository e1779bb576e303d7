"""`tdbg status`: how far a run is, read from the ends of its files."""

import sys
import time
from typing import TYPE_CHECKING, Any

from tdbg.cli.on_stores import read_from_stores
from tdbg.core.command_spec import JSON, RUN_ANYWHERE, Args, Command, Option, Options
from tdbg.core.output import print_json, print_lines, print_messages, print_styled
from tdbg.core.tables import format_count, print_table

if TYPE_CHECKING:
    from tdbg.launch.live import RankState, Snapshot

WATCH_S = 2.0
SHOWN_RANKS = 64
COLUMNS = ("rank", "state", "step", "steps/s", "loss", "level", "flags", "tdbg %", "last seen")
HOME_AND_CLEAR = "\x1b[H\x1b[J"


HELP = """Show how far a run is: rank, step, rate, loss, level, last finding.

        tdbg status
        tdbg status train --watch
        tdbg status tdbg_runs/20261121-031500-train --json
        tdbg status s3://bucket/runs/train

    Only the ends of the files are read, however long the run; nothing is written. Where the budget leaves steps
    out of the record, step and rate come from the heartbeat that each rank writes every 5 s. `last seen` is the
    age of a rank's last event. `tdbg %` is the cost as in the verdict: without the opening inspection, which has
    an allowance of its own.
    """
OPTIONS: Options = {
    "watch": Option(("--watch",), "", "Look again every 2 s, until the run ends."),
    "json": JSON,
}


class StatusArgs(Args):
    """What `status` can be given."""

    run: str | None = None
    watch: bool = False
    json: bool = False


def show_status(args: StatusArgs) -> int:
    """Print it, once or until the run ends."""
    from tdbg.core.rundir import RunDir
    from tdbg.launch.live import read_snapshot

    found = RunDir.open(args.run)
    print_messages(*found.list_unreadable())
    while True:
        snapshot = read_snapshot(found)
        if args.watch and sys.stdout.isatty() and not args.json:
            print_styled(HOME_AND_CLEAR, end="")
        print_json("status", snapshot.as_dict()) if args.json else print_snapshot(snapshot)
        sys.stdout.flush()
        if not args.watch or snapshot.ended:
            return 0
        time.sleep(WATCH_S)


def print_snapshot(snapshot: "Snapshot") -> None:
    """The page for people."""
    from tdbg.rules.text import clip_text

    state = f"ended, {snapshot.exit_text}" if snapshot.ended else "running"
    print_lines([f"run: {snapshot.run.place} ({state})"])
    if snapshot.ranks:
        print_table(COLUMNS, [build_rank_row(rank, snapshot) for rank in snapshot.ranks[:SHOWN_RANKS]], digits=4)
        if len(snapshot.ranks) > SHOWN_RANKS:
            print_lines([f"and {format_count(len(snapshot.ranks) - SHOWN_RANKS, 'more rank')}: --json shows all"])
    else:
        print_lines([f"no rank has done a step yet; processes that use torch: {snapshot.processes}"])
    if snapshot.restarts:
        print_lines([f"restarts: {clip_text(snapshot.restarts, 300)}"])
    print_lines([f"last finding: {describe_last_finding(snapshot)}"])


def build_rank_row(rank: "RankState", snapshot: "Snapshot") -> tuple[Any, ...]:
    """One line of the table."""
    from tdbg.rules.text import format_figure

    step = f"{rank.step} of {rank.planned}" if rank.planned else str(rank.step)
    seen = f"{max(snapshot.t - rank.last_t, 0.0):.0f} s ago" if rank.last_t else "-"
    loss, flags = format_figure(rank.loss), ", ".join(rank.flags) or "-"
    return rank.rank, rank.state, step, rank.rate, loss, rank.level, flags, rank.cost_pct, seen


def describe_last_finding(snapshot: "Snapshot") -> str:
    """The last finding that was told while the run went on."""
    from tdbg.rules.text import clip_text

    last = snapshot.finding
    if last is None:
        return "none"
    return clip_text(f"{last.get('code', '')} {last.get('severity', '')}: {last.get('title', '')}", 200)


COMMAND = Command(read_from_stores(show_status, "status", local="watch"), StatusArgs, HELP, OPTIONS, RUN_ANYWHERE)
