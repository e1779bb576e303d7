"""`tdbg trace compare`: whether a step became slower, and what of it."""

from typing import TYPE_CHECKING, Any

from tdbg.core.command_spec import JSON, Argument, Command, Option, Options
from tdbg.core.output import print_json, print_lines, print_messages
from tdbg.traces.trace_options import SELECTION, Selected

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tdbg.traces.analyze.significance import Shift
    from tdbg.traces.analyze.trace_baseline import Baseline
    from tdbg.traces.analyze.trace_comparison import OpChange, TraceComparison
    from tdbg.traces.parse.trace_files import TraceFile

HELP = """Compare the steps of two runs: slower or not, and what changed.

    A difference counts if it exceeds the spread of both sides' steps, which takes at least three steps a side.
    Below the verdict are the parts of a step, each judged by its own spread, and the operators and kernels
    whose time in a step changed by 1 % of a step and more. B slower beyond the spread and by more than --tolerance (5 %
    if left out) makes the exit code 1. Runs of one program may differ by more than the steps of each do, above all on
    a busy machine: a baseline of several runs knows by how much, and then B must be beyond all of them.

    Each side is a trace, a folder, a run, or a baseline: the few kilobytes that --save writes of one run or several.

    Examples:
        tdbg trace compare tdbg_runs/before tdbg_runs/after
        tdbg trace compare --save baseline.json tdbg_runs/good1 tdbg_runs/good2 tdbg_runs/good3
        tdbg trace compare baseline.json --tolerance 10%
    """
ARGUMENT = Argument("PATH", "A, and B: traces, folders, runs or baselines; B is the newest run if left out.")
OPTIONS: Options = {
    "tolerance": Option(("--tolerance",), "SHARE", "How much slower B may be, such as 0.1 or 10%; 0.05 if left out."),
    "save": Option(("--save",), "FILE", "Do not compare: save the given runs as a baseline."),
    "ranks": SELECTION["ranks"],
    "windows": Option(("--windows",), "NAME", "Of several windows of a rank all, or the last."),
    "top": Option(("--top",), "N", "Lines of each table."),
    "json": JSON,
}


class CompareArgs(Selected):
    """What `compare` can be asked."""

    tolerance: str = ""
    save: str = ""
    windows: str = "all"
    top: int = 10
    json: bool = False


def compare_runs(args: CompareArgs) -> int:
    """Print how they differ; 1 if B is slower by more than is allowed."""
    from tdbg.traces.trace_options import check_top

    check_top(args.top)
    from tdbg.core.errors import TdbgError

    paths = list(args.paths)
    if args.save:
        return _save_baseline(args, paths or [""])
    if not 1 <= len(paths) <= 2:
        raise TdbgError(f"{len(paths)} paths were given", "name A and B, or A alone: B is the newest run then")
    from tdbg.traces.analyze.trace_comparison import compare_traces

    allowed = _parse_tolerance(args.tolerance)
    a, b = paths[0], paths[1] if len(paths) == 2 else ""
    ours, theirs = _find_traces(args, a), _find_traces(args, b)
    _check_distinct(ours, theirs)
    one, other = _build_side(a, ours), _build_side(b, theirs)
    if one is None or other is None:
        return 1
    found = compare_traces(one, other, allowed)
    if args.json:
        _print_json(found)
    else:
        _print_comparison(found, args.top)
    return int(found.is_regression)


def _check_distinct(a: "Baseline | list[TraceFile]", b: "Baseline | list[TraceFile]") -> None:
    """TdbgError where both sides are the same traces: these never differ."""
    from tdbg.core.errors import TdbgError
    from tdbg.core.tables import safe
    from tdbg.traces.parse.trace_files import run_name

    if (
        isinstance(a, list)
        and isinstance(b, list)
        and {_identify_trace(one) for one in a} == {_identify_trace(one) for one in b}
    ):
        hint = "name another run as B, or profile the program again: B is the newest run if left out"
        raise TdbgError(f"A and B are the same traces, of {safe(run_name(a[0].path))}", hint)


def _identify_trace(one: "TraceFile") -> "tuple[Path, int | None]":
    return one.path.resolve(), one.part


def _parse_tolerance(text: str) -> float:
    from tdbg.traces.analyze.trace_comparison import TOLERANCE
    from tdbg.traces.trace_options import parse_share

    return parse_share("--tolerance", text) if text else TOLERANCE


def _find_traces(args: CompareArgs, path: str) -> "Baseline | list[TraceFile]":
    """The traces of a side, or what a baseline keeps of them."""
    from tdbg.traces.analyze.trace_baseline import load_baseline
    from tdbg.traces.trace_options import select_traces

    kept = load_baseline(path) if path else None
    return kept or select_traces(CompareArgs(paths=[path] if path else [], ranks=args.ranks, windows=args.windows))


def _build_side(path: str, found: "Baseline | list[TraceFile]") -> "Baseline | None":
    """One of the two; None where its traces hold no event, which is said."""
    from tdbg.traces.analyze.trace_baseline import make_baseline
    from tdbg.traces.parse.trace_files import run_name
    from tdbg.traces.trace_options import is_empty, load_summaries

    if not isinstance(found, list):
        return found
    every = load_summaries(found)
    return None if is_empty(every) else make_baseline(path or f"the newest run ({run_name(found[0].path)})", every)


def _save_baseline(args: CompareArgs, paths: list[str]) -> int:
    from pathlib import Path

    from tdbg.core.tables import format_count, safe
    from tdbg.traces.analyze.trace_baseline import merge_baselines, save_baseline

    sides = [_build_side(path, _find_traces(args, path)) for path in paths]
    if None in sides:
        return 1
    kept = merge_baselines([one for one in sides if one is not None])
    save_baseline(kept, Path(args.save))
    print_messages(safe(f"{args.save}: {format_count(len(kept.steps), 'step')} of {kept.name}"))
    return 0


# as text


def _print_comparison(found: "TraceComparison", top: int) -> None:
    from tdbg.core.tables import print_table, safe
    from tdbg.traces.analyze.summary_figures import format_ms
    from tdbg.traces.analyze.trace_comparison import is_notable

    for name, one in (("A", found.a), ("B", found.b)):
        print_lines([safe(f"{name}: {_describe_baseline(one)}")])
    print_lines([_format_verdict(found)])
    if found.a.steps and found.b.steps:
        rows = (
            (p.name, format_ms(p.a), format_ms(p.b), _format_signed_ms(p.b - p.a), _format_yes_no(is_notable(p, found)))
            for p in found.parts
        )
        print_lines(["", "parts of a step"])
        print_table(("part", "A ms", "B ms", "change ms", "beyond its spread"), rows)
    for what, changes in (("operators by their own time", found.operators), ("kernels", found.kernels)):
        if changes:
            print_lines(["", f"{what}, for each step: what changed by 1 % of a step and more, {len(changes):,} in all"])
            columns = ("A ms", "B ms", "change ms", "A calls", "B calls", what.partition(" ")[0].removesuffix("s"))
            print_table(columns, _iter_rows(changes[:top]))
    for note in found.notes:
        print_messages(safe(note))


def _describe_baseline(one: "Baseline") -> str:
    from tdbg.core.tables import format_count, format_short
    from tdbg.traces.analyze.significance import median_deviation
    from tdbg.traces.analyze.summary_figures import format_ms

    if not one.steps:
        return f"{format_short(one.name)}: no steps"
    from statistics import median

    lengths = one.lengths
    ranks = f" of {format_count(len(one.ranks), 'rank')}" if len(one.ranks) > 1 else ""
    ranks += f" of {format_count(len(one.medians), 'run')}" if len(one.medians) > 1 else ""
    spread = f"{format_ms(min(lengths))} to {format_ms(max(lengths))}, half of them within {format_ms(median_deviation(lengths))}"
    return f"{format_short(one.name)}: {format_count(len(lengths), 'step')}{ranks}, median {format_ms(median(lengths))} ms ({spread})"


def _format_verdict(found: "TraceComparison") -> str:
    change = found.change
    if found.verdict == "too few steps":
        measured = f" (measured: {change.guess:+.1%})" if found.a.steps and found.b.steps else ""
        return f"too few steps to tell a difference from chance{measured}: `tdbg profile --active 5` records more"
    interval = f"{change.confidence:.0%} interval {change.low:+.1%} to {change.high:+.1%}"
    if found.verdict == "no difference":
        of = "the runs" if found.change.sign else "the steps"
        return f"no difference beyond the spread of {of}: {change.guess:+.1%} ({interval})"
    allowed = f"; {found.tolerance:.1%} is allowed" if found.verdict == "slower" else ""
    return f"B is {found.verdict}: a step takes {change.guess:+.1%} ({interval}){allowed}"


def _format_signed_ms(ns: float) -> str:
    from tdbg.traces.analyze.summary_figures import format_ms

    return f"{'-' if ns < 0 else '+'}{format_ms(abs(ns))}"


def _format_yes_no(is_beyond: bool) -> str:
    return "yes" if is_beyond else "no"


def _iter_rows(changes: "Sequence[OpChange]") -> "Iterator[tuple[Any, ...]]":
    from tdbg.core.tables import format_short
    from tdbg.traces.analyze.summary_figures import format_ms

    for one in changes:
        calls = (f"{one.a_calls:.4g}", f"{one.b_calls:.4g}")
        yield (
            format_ms(one.a_time),
            format_ms(one.b_time),
            _format_signed_ms(one.grown),
            *calls,
            format_short(one.name, 70),
        )


# as JSON


def _print_json(found: "TraceComparison") -> None:
    from dataclasses import asdict
    from statistics import median

    from tdbg.core.tables import to_json_value
    from tdbg.traces.analyze.trace_comparison import is_notable

    def build_baseline_dict(one: "Baseline") -> dict[str, Any]:
        middle = median(one.lengths) / 1e6 if one.steps else None
        return {
            "name": one.name,
            "steps": len(one.steps),
            "median_step_ms": middle,
            "runs": len(one.medians),
            "ranks": one.ranks,
        }

    def build_shift_dict(one: "Shift") -> dict[str, Any]:
        return {**asdict(one), "known": one.is_known}

    data = {
        "verdict": found.verdict,
        "regression": found.is_regression,
        "tolerance": found.tolerance,
        "change": build_shift_dict(found.change),
        "a": build_baseline_dict(found.a),
        "b": build_baseline_dict(found.b),
        "times": "ns",
        "parts": [{**asdict(one), "notable": is_notable(one, found)} for one in found.parts],
        "operators": [asdict(one) for one in found.operators],
        "kernels": [asdict(one) for one in found.kernels],
        "notes": found.notes,
    }
    print_json("trace-compare", to_json_value(data))


COMMAND = Command(compare_runs, CompareArgs, HELP, OPTIONS, ARGUMENT)
