"""`tdbg trace show`: where the time and the memory of a step went."""

from typing import TYPE_CHECKING

from tdbg.core.command_spec import JSON, Command, Option, Options
from tdbg.core.output import print_json
from tdbg.traces.trace_options import ARGUMENT, SELECTION, Selected

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tdbg.traces.parse.trace_files import TraceFile
    from tdbg.traces.summary import Summary

HELP = """Show where the time and memory of a step went.

    A bar for each rank divides the wall-clock time of its steps: input, copies to the device, forward, backward,
    optimizer, communication, idle, other. Below it the operators with the most time of their own, memory with its peak
    and what held it, and on accelerators kernels, copies and waits. Only the slowest rank is shown whole; with
    more than 8, only those that look slowest are read, and named. Works on traces of CPU and GPU, without torch.
    The summary is kept beside a large trace, so that a second look is quick.

    Examples:
        tdbg trace show
        tdbg trace show trace.json.gz --top 30 --shapes
        tdbg trace show tdbg_runs/20261121-031500-train --ranks 0,3
        tdbg trace show --html trace.html
    """
OPTIONS: Options = {
    **SELECTION,
    "top": Option(("--top",), "N", "Lines of each table."),
    "shapes": Option(("--shapes",), "", "Separate calls of an operator by their input shapes."),
    "html": Option(("--html",), "FILE", "Write it as one HTML file, with graphs, that opens without a network."),
    "force": Option(("--force",), "", "Overwrite a file that is there."),
    "perfetto": Option(("--perfetto",), "FILE", "Write the steps shown to a small trace too, for ui.perfetto.dev."),
    "json": JSON,
}


class ShowArgs(Selected):
    """What `show` can be asked."""

    top: int = 10
    shapes: bool = False
    html: str = ""
    force: bool = False
    perfetto: str = ""
    json: bool = False


def show_traces(args: ShowArgs) -> int:
    """Print it; 1 if the traces hold no event."""
    from tdbg.traces.trace_options import check_top

    check_top(args.top)
    from tdbg.traces.trace_options import check_output_path, is_empty, load_summaries, sample_ranks, select_traces

    found, left = sample_ranks(select_traces(args), args)
    html = check_output_path("--html", args.html, found, force=args.force) if args.html else None
    small = check_output_path("--perfetto", args.perfetto, found, force=args.force) if args.perfetto else None
    every = load_summaries(found, trees=html is not None)
    if html is not None:
        _write_html(every, html)
    if args.json:
        from tdbg.traces.render.summary_data import describe_summaries

        print_json("trace-show", describe_summaries(every, left))
    elif html is None:
        from tdbg.traces.render.summary_text import print_summary

        print_summary(every, args.top, args.shapes)
    if small is not None and any(read.events for _, read in every):
        from tdbg.cli.trace.slice import write_steps

        write_steps(every, "", small)
    return int(is_empty(every))


def _write_html(every: "Sequence[tuple[TraceFile, Summary]]", target: "Path") -> None:
    from tdbg.core.output import print_messages
    from tdbg.core.output_file import replace_file
    from tdbg.core.tables import format_size, safe
    from tdbg.traces.render.trace_page import write_page

    with replace_file(target) as file:
        write_page(file, every, f"{every[0][0].path.name if len(every) == 1 else f'{len(every)} traces'} - tdbg")
    print_messages(safe(f"wrote {format_size(target.stat().st_size)} to {target}: open it in a browser"))


COMMAND = Command(show_traces, ShowArgs, HELP, OPTIONS, ARGUMENT)
