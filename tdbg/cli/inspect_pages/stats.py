"""`tdbg inspect-pages stats`: the figures of each layer over all datapoints."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tdbg.core.command_spec import JSON, Argument, Command, Option, Options
from tdbg.pages.selection.locations import GROUPING, SELECTION, Grouped

if TYPE_CHECKING:
    from tdbg.pages.read.page_set import PageSet
    from tdbg.pages.selection.grouping import GroupMembership
    from tdbg.pages.selection.iteration import ReadErrors
    from tdbg.pages.stats.group_stats import GroupStats

HELP = """Figures of each layer over all datapoints: mean, spread, zeros, quantiles.

    Values are read once, in bounded memory. With --group-by or --scores the datapoints are split by a number: the
    upper half against the lower half, or a group for each value if there are few. `apart` shows
    how far the groups are from each other: the largest difference of a figure of single samples (mean, std, zero
    share, absmax), in units of its spread within the groups.

    Examples:
        tdbg inspect-pages stats --layer 'layers.*:output'
        tdbg inspect-pages stats tdbg_runs/train --group-by loss
        tdbg inspect-pages stats --scores failed.csv
    """
ARGUMENT = Argument("PATH", "A run, a rank's folder, a folder of pages, or one page; the newest run if left out.")
OPTIONS: Options = {
    "layer": Option(("--layer",), "GLOB", "Only layers of this pattern, or below this name; repeatable."),
    **GROUPING,
    **SELECTION,
    "json": JSON,
}
COLUMNS = ("path", "tensors", "values", "nan", "inf", "zero", "mean", "std", "min", "q05", "median", "q95", "max")
SIDES = ("mean", "std", "zero_share", "absmax")


class StatsArgs(Grouped):
    """What `stats` can be asked."""

    layer: Sequence[str] = ()
    json: bool = False


def show_stats(args: StatsArgs) -> int:
    """Print the figures; 1 if there is no such layer."""
    from tdbg.core.output import print_messages
    from tdbg.pages.read.problem_messages import say_problems
    from tdbg.pages.selection.grouping import GroupMembership
    from tdbg.pages.selection.iteration import ReadErrors
    from tdbg.pages.selection.locations import open_pages

    troubles = ReadErrors()
    grouped = bool(args.group_by or args.scores)
    with open_pages(args.paths) as pages:
        found = _collect_stats(pages, args, troubles, GroupMembership(pages, args) if grouped else None)
        say_problems(pages)
    if args.json:
        _print_json(found)
    elif grouped:
        _print_groups(found)
    elif found.list_paths():
        _print_layers(found)
    if not found.list_paths():
        print_messages("no layer fits")
    return troubles.report_remaining() or (0 if found.list_paths() else 1)


def _collect_stats(
    pages: "PageSet", args: StatsArgs, troubles: "ReadErrors", members: "GroupMembership | None"
) -> "GroupStats":
    """The figures of each layer; members: of each sample the group that it is in, where there are groups."""
    from tdbg.pages.selection.iteration import iter_sample_tensors, make_progress
    from tdbg.pages.selection.layer_globs import match_layers
    from tdbg.pages.selection.locations import select_datapoints
    from tdbg.pages.stats.group_stats import GroupStats
    from tdbg.pages.stats.value_stats import parse_recorded_stats

    found, is_chosen = GroupStats(samples=members is not None), match_layers(args.layer)
    every = select_datapoints(pages, args)
    wholes = ((datapoint, list(datapoint.tensors.values())) for datapoint in every)
    with make_progress(pages, args, is_chosen, "stats") as progress:
        for datapoint, tensors in wholes if members is None else iter_sample_tensors(every):
            group = "" if members is None else members.find_group(datapoint)
            if group is None:
                continue
            for tensor in tensors:
                if is_chosen(tensor.path):
                    found.add_tensor(group, datapoint, tensor, troubles)
                    progress.advance(tensor.nbytes)
            for path, figures in parse_recorded_stats(datapoint).items() if not tensors else ():
                if is_chosen(path):
                    found.add_figures(group, path, figures)
    found.flush()
    return found


def _print_layers(found: "GroupStats") -> None:
    from tdbg.core.tables import print_table

    print_table(COLUMNS, (_build_row(found, path, "") for path in found.list_paths()))


def _build_row(found: "GroupStats", path: str, group: str) -> tuple[Any, ...]:
    figures = found.compute_stats(path, group)
    named = figures.as_dict()
    share = figures.zero_share
    head = (path, found.count_tensors(path, group), figures.count, figures.nan, figures.inf)
    return (*head, None if share is None else f"{share:.1%}", *(named.get(name) for name in COLUMNS[6:]))


def _print_groups(found: "GroupStats") -> None:
    """Two groups side by side; of more a line for each."""
    from tdbg.core.tables import print_table

    groups = found.list_groups()
    paths = sorted(found.list_paths(), key=lambda path: -(found.measure_separation(path)[0] or 0.0))
    if len(groups) > 2:
        rows = (
            (*_build_apart_cells(found, path), group, *_build_row(found, path, group)[1:])
            for path in paths
            for group in groups
        )
        print_table(("path", "apart", "in", "group", *COLUMNS[1:]), rows)
        return
    sides = [(name, group) for name in ("nan", *SIDES) for group in groups]
    columns = ("path", "apart", "in", *(f"{name} {group}" for name, group in sides))
    rows = (
        (*_build_apart_cells(found, path), *(_build_side_cell(found, path, group, name) for name, group in sides))
        for path in paths
    )
    print_table(columns, rows)


def _build_apart_cells(found: "GroupStats", path: str) -> tuple[Any, ...]:
    apart, name = found.measure_separation(path)
    return path, None if apart is None else round(apart, 2), name or None


def _build_side_cell(found: "GroupStats", path: str, group: str, name: str) -> Any:
    if not found.has_layer(path, group):
        return None
    value = found.compute_stats(path, group).as_dict()[name]
    return f"{value:.1%}" if name == "zero_share" and value is not None else value


def _print_json(found: "GroupStats") -> None:
    from tdbg.core.output import print_json
    from tdbg.core.tables import to_json_value

    data = []
    for path in found.list_paths():
        one: dict[str, Any] = {"path": path}
        if found.samples:
            apart, name = found.measure_separation(path)
            one |= {"apart": apart, "in": name or None, "groups": {}}
            for group in found.list_groups():
                if found.has_layer(path, group):
                    one["groups"][group] = {
                        "tensors": found.count_tensors(path, group),
                        **found.compute_stats(path, group).as_dict(),
                    }
        else:
            one |= {"tensors": found.count_tensors(path, ""), **found.compute_stats(path, "").as_dict()}
        data.append(one)
    print_json("pages-stats", to_json_value(data))


COMMAND = Command(show_stats, StatsArgs, HELP, OPTIONS, ARGUMENT)
