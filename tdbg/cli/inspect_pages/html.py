"""`tdbg inspect-pages html`: captured tensors as one page for a browser."""

from typing import TYPE_CHECKING

from tdbg.core.command_spec import Argument, Command, Option, Options
from tdbg.pages.selection.tensor_selection import PICKING, Picking

if TYPE_CHECKING:
    from pathlib import Path

    from tdbg.pages.render.html_report import Report

HELP = """Write captured tensors as one HTML file that opens without a server and loads nothing.

    It lists datapoints and layers, with a search; of a tensor it shows figures, histogram, and its values as a map, a
    grid of channels or an image. Where a datapoint has a list of tokens, or a tensor of their ids, of the length of an
    axis, attention is labelled with them, whatever its length. Large tensors are shown as means of blocks, and the page
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


def run(args: HtmlArgs) -> int:
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
        raise picks.nothing()
    with new_file(target, args.force) as file:
        report = document.write(file)
    say_problems(picks.pages)
    _tell(report, target)
    if args.json:
        from tdbg.core.output import print_json

        print_json("pages-html", {"file": str(target), "bytes": target.stat().st_size, **report._asdict()})
    return 1 if report.unreadable else 0


def _tell(report: "Report", target: "Path") -> None:
    from tdbg.core.output import say
    from tdbg.core.tables import counted, short, size

    what = f"{counted(report.datapoints, 'datapoint')}, {counted(report.tensors, 'tensor')}"
    say(f"wrote {what} ({size(target.stat().st_size)}) to {short(target, 1000)}")
    if report.left_out:
        say(f"{counted(report.left_out, 'datapoint')} left out: --limit, --keys and --steps choose others")
    if report.shrunk:
        say(f"{counted(report.shrunk, 'tensor')} shown in part or as means: --size makes room, --layer chooses")
    if report.without:
        say(f"{counted(report.without, 'tensor')} with figures alone")
    if report.unreadable:
        say(f"{counted(report.unreadable, 'tensor')} could not be read")


COMMAND = Command(run, HtmlArgs, HELP, OPTIONS, ARGUMENT)
