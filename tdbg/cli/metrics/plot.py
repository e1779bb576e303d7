"""`tdbg metrics plot`: curves, in the terminal or as an HTML page."""

from typing import TYPE_CHECKING

from tdbg.cli.on_stores import read_from_stores
from tdbg.core.command_spec import Args, Argument, Command, Option, Options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tdbg.metrics.render.curves import Curve

HELP = """Plot metrics over steps, in the terminal or as an HTML page.

    Keys may be globs such as 'val/*' (in quotes: a shell reads them too). Each key has a graph of its own, with a curve
    for each rank. --smooth 0.9 draws the mean that TensorBoard draws. Long curves are thinned without losing an extreme.
    The page holds everything it needs, the script of plotly too, and opens without a network.

    Examples:
        tdbg metrics plot tdbg_runs/20261121-031500-train train/loss
        tdbg metrics plot 'val/acc1*' --ranks 0
        tdbg metrics plot --smooth 0.9 --html metrics.html 'train/*'
    """
ARGUMENT = Argument(
    "RUN|KEY", "A run, its URL, a folder or file (the newest run if left out), and keys or globs; all keys if left out."
)
OPTIONS: Options = {
    "ranks": Option(("--ranks", "--rank"), "RANGE", "Only these ranks, such as 0,3-5."),
    "smooth": Option(("--smooth",), "WEIGHT", "Weight of the earlier values, from 0 to less than 1, such as 0.9."),
    "html": Option(("--html",), "FILE", "Write one HTML file with graphs, that opens without a network."),
    "force": Option(("--force",), "", "With --html: overwrite a file that is there."),
    "height": Option(("--height",), "N", "Lines of a graph in the terminal."),
    "json": Option(("--json",), "", "Print the points as one JSON document."),
}
MOST_GRAPHS = 12  # in a terminal, unless keys were named


class PlotArgs(Args):
    """What `plot` can be asked."""

    ranks: str = ""
    smooth: str = ""
    html: str = ""
    force: bool = False
    height: int = 12
    json: bool = False


def plot_metrics(args: PlotArgs) -> int:
    """Draw it; 1 if there is nothing to draw."""
    from tdbg.core.errors import TdbgError
    from tdbg.core.output import print_messages
    from tdbg.core.tables import safe
    from tdbg.metrics.metrics_options import check_keys, report_skipped_rows
    from tdbg.metrics.render.curve_data import collect_curves
    from tdbg.metrics.rows.row_files import find_rows_files
    from tdbg.metrics.rows.row_reader import Reading

    if not 2 <= args.height <= 200:
        raise TdbgError(f"--height cannot be {args.height}", "write 2 to 200")
    where, globs = split_run_and_keys(list(args.paths))
    place = find_rows_files(where, args.ranks)
    reading = Reading(place.files)
    curves, known = collect_curves(reading, globs, _parse_smooth(args.smooth))
    report_skipped_rows(place.name, reading.counts)
    check_keys(globs if known else (), known)
    if not curves:
        print_messages(safe(f"{place.name}: there are no values to plot"))
        if not args.json:
            return 1
    if args.html:
        _write_html(args, place.name, curves)
    elif args.json:
        _print_json(place.name, curves)
    else:
        _print_curves(curves, args.height, len(curves) if globs else MOST_GRAPHS)
    return int(not curves)


def split_run_and_keys(words: "list[str]") -> "tuple[str, list[str]]":
    """The run, "" for the newest, and the keys."""
    from tdbg.metrics.metrics_options import is_place

    return (words[0], words[1:]) if words and is_place(words[0]) else ("", words)


def _parse_smooth(text: str) -> float:
    from tdbg.core.errors import TdbgError

    try:
        found = float(text or 0)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1:
        raise TdbgError(f"--smooth cannot be {text!r}", "write a number from 0 to less than 1, such as 0.9")
    return found


def _print_curves(curves: "Mapping[str, Sequence[Curve]]", height: int, most: int) -> None:
    import shutil

    from tdbg.core.output import print_messages
    from tdbg.core.tables import format_count, safe
    from tdbg.metrics.metrics_options import format_key
    from tdbg.metrics.render.braille_plot import draw_graph

    width = min(shutil.get_terminal_size((80, 24)).columns, 120)
    for number, (key, those) in enumerate(curves.items()):
        if number >= most:
            print_messages(
                f"{format_count(len(curves) - most, 'more key', 'is')} left out: name keys or globs to see them"
            )
            break
        print(
            f"{'' if not number else chr(10)}{format_key(key, 200)}  {safe(', '.join(_format_curve_name(one, those) for one in those[:8]))}"
        )
        for line in draw_graph(those, width, height):
            print(line)


def _format_curve_name(one: "Curve", those: "Sequence[Curve]") -> str:
    from tdbg.core.tables import format_cell

    words = []
    if len({other.rank for other in those}) > 1:
        words.append(f"rank {one.rank}")
    if len({other.source for other in those}) > 1:
        words.append(one.source)
    name = f"{' '.join(words)}: " if words else "last "
    return f"{name}{format_cell(one.last)}" + (f" ({one.non_finite} not finite)" if one.non_finite else "")


def _print_json(name: str, curves: "Mapping[str, Sequence[Curve]]") -> None:
    from tdbg.core.output import print_json
    from tdbg.core.tables import to_json_value
    from tdbg.metrics.render.curve_data import build_curve_dicts

    print_json("metrics-plot", to_json_value({"run": name, "curves": build_curve_dicts(curves)}))


def _write_html(args: PlotArgs, name: str, curves: "Mapping[str, Sequence[Curve]]") -> None:
    from tdbg.core.output import print_messages
    from tdbg.core.tables import format_count, safe
    from tdbg.metrics.render.curve_data import build_curve_dicts
    from tdbg.metrics.render.curve_page import write_page
    from tdbg.metrics.rows.table_files import resolve_table_path

    with resolve_table_path(args.html, args.force, binary=True) as file:
        write_page(file, build_curve_dicts(curves), name)
    print_messages(safe(f"{args.html}: {format_count(len(curves), 'key')}"))


COMMAND = Command(read_from_stores(plot_metrics, "metrics"), PlotArgs, HELP, OPTIONS, ARGUMENT)
