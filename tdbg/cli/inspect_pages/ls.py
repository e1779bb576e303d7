"""`tdbg inspect-pages ls`: what was captured."""

from typing import TYPE_CHECKING

from tdbg.core.command_spec import JSON, Argument, Command, Option, Options
from tdbg.core.output import print_json, print_lines, print_messages
from tdbg.pages.selection.locations import SELECTION, Selected

if TYPE_CHECKING:
    from collections.abc import Collection

    from tdbg.pages.read.listing import Listing
    from tdbg.pages.read.page_set import PageSet

HELP = """List what was captured: layers, shapes, datapoints, bytes.

    Tensors are not read, only their records. What the writers left out or could not store, what is wrong with the files, and samples
    that several ranks captured (a sampler that pads) are told on stderr. Exits with 1 if nothing was captured.

    Examples:
        tdbg inspect-pages tdbg_runs/20261121-031500-train
        tdbg inspect-pages ls --datapoints --ranks 0 --steps 100:200
    """
ARGUMENT = Argument("PATH", "A run, a rank's folder, a folder of pages, or one page; the newest run if left out.")
OPTIONS: Options = {
    "datapoints": Option(("--datapoints",), "", "One line per datapoint instead of per layer."),
    **SELECTION,
    "json": JSON,
}
MAX_NAMED = 20  # outputs that could not be stored
LAYER_COLUMNS = ("path", "dtype", "shape", "datapoints", "bytes")


class LsArgs(Selected):
    """What `ls` can be asked."""

    datapoints: bool = False
    json: bool = False


def list_pages(args: LsArgs) -> int:
    """Print the list; 1 if there is nothing in it."""
    from tdbg.core.tables import format_count, safe
    from tdbg.pages.read.listing import Listing, SharedSamples
    from tdbg.pages.read.problem_messages import say_problems
    from tdbg.pages.selection.datapoint_data import describe_listing
    from tdbg.pages.selection.locations import describe_selectable, is_selected, open_pages, select_datapoints

    with open_pages(args.paths) as pages:
        found, shared = Listing(), SharedSamples()
        for datapoint in select_datapoints(pages, args):
            found.add_datapoint(datapoint)
            shared.add_datapoint(datapoint)
        if args.json:
            print_json("pages-list", describe_listing(pages, found, args, datapoints=args.datapoints))
        elif found.datapoints:
            print_lines([format_summary(found)])
            _print_listing(pages, found, args)
        say_problems(pages)
        for what, count in found.refused.most_common(MAX_NAMED):
            print_messages(safe(f"{format_count(count, 'datapoint', 'has')} outputs that were not stored: {what}"))
        if len(found.refused) > MAX_NAMED:
            print_messages(
                f"and {format_count(len(found.refused) - MAX_NAMED, 'more output')} that could not be stored; --json lists them"
            )
        if message := shared.describe():
            print_messages(safe(message))
    if not found.datapoints:
        print_messages(
            f"no datapoint fits; {describe_selectable(pages)}"
            if is_selected(args)
            else f"nothing was captured in {pages.path}"
        )
    return 0 if found.datapoints else 1


def _print_listing(pages: "PageSet", found: "Listing", args: LsArgs) -> None:
    from tdbg.core.tables import format_shape, join_limited, print_table
    from tdbg.pages.selection.datapoint_data import DATAPOINT_COLUMNS, build_datapoint_row
    from tdbg.pages.selection.locations import select_datapoints

    if args.datapoints:
        print_table(DATAPOINT_COLUMNS, map(build_datapoint_row, select_datapoints(pages, args)))
        return
    rows = []
    for row in found.list_layers():
        shapes = join_limited([format_shape(one) for one in row.shapes], 4)
        rows.append((row.path, ", ".join(row.dtypes) or "figures", shapes, row.datapoints, row.nbytes))
    if rows:
        print_table(LAYER_COLUMNS, rows)


def format_summary(found: "Listing") -> str:
    """One line: how much of what."""
    from tdbg.core.tables import format_count, format_size

    layers = found.list_layers()
    tensors, nbytes = sum(row.datapoints for row in layers if row.dtypes), sum(row.nbytes for row in layers)
    counts = ((found.datapoints, "datapoint"), (tensors, "tensor"), (len(layers), "layer"))
    parts = [format_count(count, thing) for count, thing in counts]
    spans = (("rank", found.ranks), ("step", found.steps), ("epoch", found.epochs))
    return ", ".join([*parts, format_size(nbytes), *(_format_span(name, values) for name, values in spans if values)])


def _format_span(name: str, values: "Collection[int]") -> str:
    low, high = min(values), max(values)
    return f"{name} {low}" if low == high else f"{name}s {low} to {high}"


COMMAND = Command(list_pages, LsArgs, HELP, OPTIONS, ARGUMENT)
