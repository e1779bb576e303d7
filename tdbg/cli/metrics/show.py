"""`tdbg metrics show`: the latest and the best of every metric."""

from typing import TYPE_CHECKING, Any

from tdbg.cli.on_stores import read_from_stores
from tdbg.core.command_spec import Command, Option, Options
from tdbg.core.output import print_json, print_lines, print_messages
from tdbg.metrics.metrics_options import ARGUMENT, SELECTION, Selected

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tdbg.metrics.rows.series import Point, Series, Tally

HELP = """Show the latest and the best of every metric, and its course.

    A line for each key, in the order of phases and tasks: unit, latest value with its step and epoch, best value with
    its own, how many values there were, and their course in small bars. A best is shown where the name says which
    direction is better (loss, accuracy, ...); else least and most stand in --json. Of several ranks the first is shown,
    and how far the latest values of the others lie apart. Copies under core/ are shown where --key asks for them.

    Examples:
        tdbg metrics show
        tdbg metrics show tdbg_runs/20261121-031500-train --key 'val/*'
        tdbg metrics show --ranks 3
    """
OPTIONS: Options = {
    **SELECTION,
    "json": Option(("--json",), "", "Print one JSON document, with every rank."),
}
COLUMNS = ("key", "unit", "latest", "step", "epoch", "best", "at step", "at epoch", "count", "course")


class ShowArgs(Selected):
    """What `show` can be asked."""

    json: bool = False


def show_metrics(args: ShowArgs) -> int:
    """Print it; 1 if there is no row."""
    from tdbg.core.tables import safe
    from tdbg.metrics.metrics_options import (
        NO_ROWS,
        check_keys,
        find_place,
        key_filter,
        report_skipped_rows,
        report_unwritten_rows,
    )
    from tdbg.metrics.rows.row_reader import Reading
    from tdbg.metrics.rows.series import build_tally
    from tdbg.metrics.rows.series_data import describe_metrics, list_series

    place = find_place(args)
    reading = Reading(place.files)
    found = build_tally(reading.iter_batches())
    report_skipped_rows(place.name, reading.counts)
    report_unwritten_rows(found)
    if not reading.counts.rows:
        print_messages(safe(f"{place.name}: {NO_ROWS}"))
    globs = list(args.key)
    check_keys(globs, (one.key for one in found.series.values()))
    wanted = key_filter(globs)
    every = list_series(found, wanted)
    if args.json:
        print_json("metrics-show", describe_metrics(place.name, every, found, reading.counts))
    else:
        _print_series(every, found, reading.counts.rows, wanted)
    return int(not reading.counts.rows)


def _print_series(every: "Sequence[Series]", found: "Tally", rows: int, wanted: Any) -> None:
    from tdbg.core.tables import format_count, format_short, print_table, safe
    from tdbg.metrics.metrics_options import format_key

    if not rows:
        return
    ranks = sorted(found.last)
    several = f" of {format_count(len(ranks), 'rank')}" if len(ranks) > 1 else ""
    end = found.last[ranks[0]]
    epoch = "" if end.epoch is None else f", epoch {end.epoch:g}"
    print_lines([f"{format_count(rows, 'row')}{several}, up to step {end.step:,}{epoch}"])
    by_key: dict[tuple[str, str], list[Series]] = {}
    for one in every:
        by_key.setdefault((one.key, one.source), []).append(one)
    keys = [key for key, _ in by_key]
    sources = len(set(keys)) < len(keys)
    columns = [*COLUMNS, *(["other ranks"] if several else []), *(["source"] if sources else [])]
    print_table(columns, _iter_table_rows(by_key, bool(several), sources))
    for (key, rank), text in sorted(found.texts.items()):
        if wanted(key) and rank == ranks[0]:
            print_lines([safe(f"{key}: {format_short(text)}")])
    bad = [(one.key, one.non_finite, one.rank) for one in every if one.non_finite]
    for key, count, rank in bad[:10]:
        print_messages(safe(f"{format_key(key)}: {format_count(count, 'value')} of rank {rank} not finite"))
    if found.left_out:
        print_messages(f"{format_count(found.left_out, 'value')} of further keys are left out: there are too many keys")


def _iter_table_rows(
    by_key: "dict[tuple[str, str], list[Series]]", several: bool, sources: bool
) -> "Iterator[Sequence[object]]":
    from tdbg.metrics.metrics_options import format_key
    from tdbg.metrics.rows.series import format_sparkline

    for (key, source), those in by_key.items():
        one = those[0]
        best = one.best
        at = (best.value, best.step, _format_epoch(best)) if best else (None, None, None)
        line = [format_key(key), one.unit or None, one.last.value, one.last.step, _format_epoch(one.last), *at]
        line += [f"{one.count:,}", format_sparkline(one.course.values)]
        yield [*line, *([_format_rank_differences(those)] if several else []), *([source] if sources else [])]


def _format_epoch(point: "Point") -> str | None:
    return None if point.epoch is None else f"{point.epoch:g}"


def _format_rank_differences(those: "Sequence[Series]") -> str:
    """What the latest values of those other ranks are that differ."""
    from tdbg.core.tables import format_cell

    first, *others = those
    if not others:
        return "-"
    apart = [one for one in others if one.last.value != first.last.value and not _both_nan(one, first)]
    if not apart:
        return "same"
    values = [one.last.value for one in apart]
    low, high = format_cell(min(values)), format_cell(max(values))
    ranks = ", ".join(str(one.rank) for one in apart[:4]) + (" ..." if len(apart) > 4 else "")
    return f"{low if low == high else f'{low} to {high}'} (rank{'s' if len(apart) > 1 else ''} {ranks})"


def _both_nan(one: "Series", other: "Series") -> bool:
    return one.last.value != one.last.value and other.last.value != other.last.value


COMMAND = Command(read_from_stores(show_metrics, "metrics"), ShowArgs, HELP, OPTIONS, ARGUMENT)
