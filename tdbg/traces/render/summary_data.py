"""Traces as plain data: what `tdbg trace --json` prints and the viewer serves. Times in nanoseconds."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from tdbg.core.tables import to_json_value
from tdbg.traces.analyze import summary_figures
from tdbg.traces.analyze.rank_comparison import compare_loaded, compare_ranks
from tdbg.traces.parse.trace_files import TraceFile
from tdbg.traces.render.flame_rows import available_views, build_tree, count_cut_calls, sort_rows
from tdbg.traces.summary import Summary
from tdbg.traces.trace_options import format_label

Loaded = Sequence[tuple[TraceFile, Summary]]
TABLES = ("operators", "kernels", "copies", "waits", "regions", "modules", "updates", "saves", "loads")


def describe_summaries(every: Loaded, left: Sequence[int] = (), rows: int | None = None) -> dict[str, Any]:
    """The summary of each trace, and how the ranks differ. left: ranks that were left out.

    rows: of each table those of the longest total time, at most so many; ``left_out`` has how many others there are.
    """
    data: list[dict[str, Any]] = []
    for one, read in every:
        kept = summary_figures.select_steady_steps(read)
        derived = {
            "verdict": summary_figures.format_verdict(read),
            "median_step_ms": summary_figures.typical_length(read) / 1e6,
            "parts": summary_figures.compute_part_shares(kept),
            "flops_per_step": summary_figures.compute_step_flops(read),
            "border_steps": [step.number for step in summary_figures.select_border_steps(read)],
        }
        whole = asdict(read if rows is None else replace(read, **_cut_tables(read, rows)))
        if rows is not None:
            whole["left_out"] = {
                name: count for name in TABLES if (count := len(getattr(read, name)) - len(whole[name])) > 0
            }
        del whole["flames"]  # `tdbg trace flame --json` has them
        data.append({**whole, "attempt": one.attempt, "window": one.window, **derived})
        data[-1]["rank"] = read.rank if read.rank is not None else one.rank
    apart = compare_ranks(compare_loaded(every))
    comparison = {"ranks": asdict(apart) if apart else None, "ranks_left_out": left}
    plain: dict[str, Any] = to_json_value({"times": "ns", "traces": data, **comparison})
    return plain


def _cut_tables(read: Summary, rows: int) -> dict[str, Any]:
    """The tables that are longer, each with its first ``rows`` by total time, in the order that they had."""
    found = {}
    for name in TABLES:
        table = getattr(read, name)
        if len(table) > rows:
            longest = sorted(range(len(table)), key=lambda at: -table[at].total)[:rows]
            found[name] = [table[at] for at in sorted(longest)]
    return found


def describe_flames(every: Loaded, by: str) -> dict[str, Any]:
    """The call tree of each trace, row by row. by: operator, stack or module; empty: what there is."""
    data = []
    for one, read in every:
        rows = [
            {name: getattr(row, name) for name in ("name", "kind", "depth", "calls", "own", "total")}
            for row in sort_rows(build_tree(read, by))
        ]
        way = by or next(iter(available_views(read)), "operator")
        about = {
            "trace": format_label(one, read),
            "by": way,
            "steps": len(read.steps),
            "calls_cut": count_cut_calls(read, by),
        }
        data.append({**about, "rows": rows})
    plain: dict[str, Any] = to_json_value({"times": "ns", "traces": data})
    return plain
