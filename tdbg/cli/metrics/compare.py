"""`tdbg metrics compare`: how the numbers of runs differ, and from which step on."""

from typing import TYPE_CHECKING

from tdbg.cli.on_stores import read_from_stores
from tdbg.core.command_spec import JSON, Argument, Command, Option, Options
from tdbg.core.output import print_json, print_lines, print_messages
from tdbg.metrics.metrics_options import SELECTION, Selected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tdbg.metrics.rows.row_files import Place
    from tdbg.metrics.rows.series import Series
    from tdbg.metrics.rows.series_diff import SeriesComparison, SeriesPair

HELP = """Compare the metrics of runs: best and last, and the first step where series diverge.

    Each further run is compared with the first, key by key and rank by rank, at the steps that both have. Values may
    differ by --tolerance, a share of the larger one, such as 0.01 or 1% (1e-6 if left out), or by 'spread', for runs that
    are not meant to be equal: 3 times the spread of the series' own steps; they diverge at 3 steps in a row beyond it.
    NaN equals NaN. The exit code is 1 if any
    series diverges, or if nothing is comparable. Times, rates and memory differ on any machine: they count only
    where --key asks for them by their exact names, not where a glob such as 'val/*' fits them.

    Examples:
        tdbg metrics compare tdbg_runs/before tdbg_runs/after
        tdbg metrics compare before after --tolerance 1% --key 'val/*'
        tdbg metrics compare --tolerance spread seed1 seed2 seed3
    """
ARGUMENT = Argument(
    "PATH", "Two runs or more, their URLs, folders or files; with one alone the newest run is compared with it."
)
OPTIONS: Options = {
    **SELECTION,
    "tolerance": Option(("--tolerance",), "SHARE", "A share such as 0.01 or 1%, or spread; 1e-6 if left out."),
    "json": JSON,
}
TOLERANCE = 1e-6


class CompareArgs(Selected):
    """What `compare` can be asked."""

    tolerance: str = ""
    json: bool = False


def compare_metrics(args: CompareArgs) -> int:
    """Print how they differ; 1 if any series parts, or if two runs share none."""
    from tdbg.core.errors import TdbgError
    from tdbg.core.tables import safe
    from tdbg.metrics.metrics_options import report_skipped_rows
    from tdbg.metrics.rows.row_files import find_rows_files
    from tdbg.metrics.rows.series_diff import SeriesComparison

    paths = list(args.paths)
    if not paths:
        raise TdbgError("no runs were named", "name two: `tdbg metrics compare BEFORE AFTER`")
    paths += [""] if len(paths) == 1 else []
    tolerance = _parse_tolerance(args.tolerance)
    wanted = _build_key_filter(list(args.key))
    first, *others = [find_rows_files(path, args.ranks) for path in paths]
    if len(args.paths) == 1:
        _report_newest(first, others[0])
    found: list[tuple[str, SeriesComparison]] = []
    for other in others:
        one = SeriesComparison(first, other, tolerance, wanted)
        if not found:
            report_skipped_rows(first.name, one.counts[0])
        report_skipped_rows(other.name, one.counts[1])
        found.append((other.name, one))
    if not any(one.pairs for _, one in found):
        hint = "`tdbg metrics show` tells the keys of a run; times, rates and memory need their exact names"
        raise TdbgError("there are no such keys in these runs", hint)
    if args.json:
        _print_json(first.name, found, tolerance)
    else:
        for name, one in found:
            _print_comparison(first.name, name, one)
    apart = [name for name, one in found if not any(pair.together for pair in one.pairs.values())]
    for name in apart:
        print_messages(safe(f"{first.name} and {name}: nothing to compare: they share no key at any step"))
    return int(bool(apart) or any(pair.differs for _, one in found for pair in one.pairs.values()))


def _report_newest(first: "Place", newest: "Place") -> None:
    """Say which run stands for the second one; TdbgError where that is the first."""
    from tdbg.core.errors import TdbgError
    from tdbg.core.tables import safe

    if {one.path.resolve() for one in first.files} & {one.path.resolve() for one in newest.files}:
        raise TdbgError(f"{first.name} is the newest run itself", "name two: `tdbg metrics compare BEFORE AFTER`")
    print_messages(safe(f"one run was named: it is compared with the newest, {newest.name}"))


def _parse_tolerance(text: str) -> float | None:
    """A share; None for the spread."""
    from tdbg.core.errors import TdbgError
    from tdbg.metrics.rows.series_diff import SPREAD

    if not text:
        return TOLERANCE
    if text == SPREAD:
        return None
    try:
        found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise TdbgError(f"--tolerance cannot be {text!r}", "write a share such as 0.01 or 1%, or spread")
    return found


def _build_key_filter(globs: "Sequence[str]") -> "Callable[[str], bool]":
    from functools import lru_cache

    from tdbg.metrics.keys import OF_MACHINE
    from tdbg.metrics.metrics_options import key_filter

    chosen = key_filter(globs)
    return lru_cache(65_536)(lambda key: chosen(key) and (key in globs or not key.endswith(OF_MACHINE)))


def _print_comparison(first: str, other: str, found: "SeriesComparison") -> None:
    from tdbg.core.tables import format_count, format_short, print_table
    from tdbg.metrics.metrics_options import format_key

    pairs = [pair for _, pair in sorted(found.pairs.items())]
    parted = [pair for pair in pairs if pair.first_divergence]
    shared = [pair for pair in pairs if pair.together]
    print_lines([f"A: {format_short(first)}", f"B: {format_short(other)}", _format_verdict(parted, shared)])
    ranks = len({pair.rank for pair in pairs}) > 1
    columns = ["key", "A best", "B best", "A last", "B last", "steps", "diverges at", "A there", "B there", "differ"]
    print_table(
        [*columns, *(["rank"] if ranks else [])],
        _iter_rows(parted + [p for p in shared if not p.first_divergence], ranks),
    )
    for side, those in (("A", [p for p in pairs if p.b is None]), ("B", [p for p in pairs if p.a is None])):
        if those:
            names = ", ".join(format_key(pair.key, 60) for pair in those[:8])
            print_messages(
                f"only {side} has {format_count(len(those), 'key')}: {names}{' ...' if len(those) > 8 else ''}"
            )
    apart = [pair for pair in pairs if pair.a and pair.b and not pair.together]
    for pair in apart[:8]:
        print_messages(f"{format_key(pair.key)}: the runs share no step")


def _format_verdict(parted: "Sequence[SeriesPair]", shared: "Sequence[SeriesPair]") -> str:
    from tdbg.metrics.metrics_options import format_key

    if not shared:
        return "nothing to compare: they share no key at any step"
    if not parted:
        return f"no difference in {len(shared):,} series"
    first = min(parted, key=lambda pair: pair.first_divergence[0] if pair.first_divergence else 0)
    assert first.first_divergence is not None
    return f"{len(parted)} of {len(shared)} series diverge, first at step {first.first_divergence[0]:,}: {format_key(first.key)}"


def _iter_rows(pairs: "Sequence[SeriesPair]", ranks: bool) -> "Iterator[Sequence[object]]":
    from tdbg.metrics.metrics_options import format_key

    for pair in pairs:
        bests = [one.best.value if one and one.best else None for one in (pair.a, pair.b)]
        lasts = [one.last.value if one else None for one in (pair.a, pair.b)]
        there = pair.first_divergence or (None, None, None)
        line = [format_key(pair.key), *bests, *lasts, pair.together, *there, pair.differing_steps]
        yield [*line, *([pair.rank] if ranks else [])]


def _print_json(first: str, found: "Sequence[tuple[str, SeriesComparison]]", tolerance: float | None) -> None:
    from tdbg.core.tables import to_json_value
    from tdbg.metrics.rows.series_diff import SPREAD

    def build_series_dict(one: "Series | None") -> dict[str, object] | None:
        if one is None:
            return None
        best = one.best._asdict() if one.best else None
        return {"latest": one.last._asdict(), "best": best, "count": one.count, "not_finite": one.non_finite}

    def build_pair_dict(pair: "SeriesPair") -> dict[str, object]:
        at = dict(zip(("step", "a", "b"), pair.first_divergence, strict=True)) if pair.first_divergence else None
        return {
            "key": pair.key,
            "source": pair.source,
            "rank": pair.rank,
            "a": build_series_dict(pair.a),
            "b": build_series_dict(pair.b),
            "steps": pair.together,
            "steps_of_a_alone": pair.only_a,
            "steps_of_b_alone": pair.only_b,
            "parted": at,
            "steps_apart": pair.differing_steps,
            "largest_difference": pair.largest_difference,
        }

    data = {
        "a": first,
        "tolerance": SPREAD if tolerance is None else tolerance,
        "compared": [
            {
                "b": name,
                "differs": any(pair.differs for pair in one.pairs.values()),
                "series": [build_pair_dict(pair) for _, pair in sorted(one.pairs.items())],
            }
            for name, one in found
        ],
    }
    print_json("metrics-compare", to_json_value(data))


COMMAND = Command(read_from_stores(compare_metrics, "metrics"), CompareArgs, HELP, OPTIONS, ARGUMENT)
