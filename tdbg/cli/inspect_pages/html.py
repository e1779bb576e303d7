"""`tdbg inspect-pages html`: captured tensors as one page for a browser."""

from typing import TYPE_CHECKING

from tdbg.core.command_spec import Argument, Command, Option, Options
from tdbg.pages.selection.tensor_selection import PICKING, Picking

if TYPE_CHECKING:
    from pathlib import Path

    from tdbg.pages.render.html_report import Report

HELP = """Write captured tensors as one HTML file that opens without a server and loads nothing.

    It lists datapoints and layers, with a search; of a tensor it shows figures, histogram, and its values as a map, a
    grid of channels or an image. If a datapoint holds a list of tokens, or a tensor of their ids, as long as an
    axis, attention is labelled with them. Large tensors are shown as means of blocks, and the page
    says so.

    Examples:
        tdbg inspect-pages html -o captured.html --layer 'layers.*.attn*'
        tdbg inspect-pages html tdbg_runs/20261121-031500-train -o failing.html --keys 17,23 --size 100MB
    """
ARGUMENT = Argument("PATH", "A run, a folder of pages or a page; the newest run if left out.")
OPTIONS: Options = {
    "output": Option(("--output", "-o"), "FILE", "The file to write."),
    **PICKING,
    "limit": Option(("--limit",), "N", "At most N datapoints.", least=0),
    "size": Option(("--size",), "SIZE", "Values that the file may hold, before they become text."),
    "force": Option(("--force",), "", "Overwrite a file that is there."),
    "json": Option(("--json",), "", "Print what was written as one JSON document."),
}


class HtmlArgs(Picking):
    """What `html` can be asked."""

    output: str = ""
    limit: int = 50
    size: str = "24MB"
    force: bool = False
    json: bool = False


def write_html_page(args: HtmlArgs) -> int:
    """Write the page; 1 if some tensors could not be read."""
    from pathlib import Path

    from tdbg.core.config import parse_bytes
    from tdbg.core.errors import TdbgError
    from tdbg.pages.export.exporter import new_file
    from tdbg.pages.read.problem_messages import say_problems
    from tdbg.pages.render.html_report import Document
    from tdbg.pages.selection.tensor_selection import TensorSelection

    if not args.output:
        raise TdbgError("missing option: -o FILE", "name the file to write: -o captured.html")
    target, total_bytes = Path(args.output), parse_bytes(args.size)
    picks = TensorSelection(args.paths, args)
    document = Document(picks, f"{picks.pages.path} - tdbg", args.limit, total_bytes)
    if document.is_empty:
        raise picks.build_empty_error()
    with new_file(target, args.force) as file:
        report = document.write_html(file)
    say_problems(picks.pages)
    _report_result(report, target)
    if args.json:
        from tdbg.core.output import print_json

        print_json("pages-html", {"file": str(target), "bytes": target.stat().st_size, **report._asdict()})
    return 1 if report.unreadable else 0


def _report_result(report: "Report", target: "Path") -> None:
    from tdbg.core.output import print_messages
    from tdbg.core.tables import format_count, format_short, format_size

    what = f"{format_count(report.datapoints, 'datapoint')}, {format_count(report.tensors, 'tensor')}"
    print_messages(f"wrote {what} ({format_size(target.stat().st_size)}) to {format_short(target, 1000)}")
    if report.left_out:
        print_messages(
            f"{format_count(report.left_out, 'datapoint')} left out: --limit, --keys and --steps choose others"
        )
    if report.shrunk:
        print_messages(
            f"{format_count(report.shrunk, 'tensor')} shown in part or as means: --size makes room, --layer chooses"
        )
    if report.without:
        print_messages(f"{format_count(report.without, 'tensor')} with figures alone")
    if report.unreadable:
        print_messages(f"{format_count(report.unreadable, 'tensor')} could not be read")


COMMAND = Command(write_html_page, HtmlArgs, HELP, OPTIONS, ARGUMENT)
