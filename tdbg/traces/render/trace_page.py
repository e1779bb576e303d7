"""Summaries of traces as one HTML file that needs no network: graphs by plotly, whose script is embedded.

Everything that comes from a trace is JSON in which no ``<`` stands, and reaches the page as text, never as markup. The
page may load nothing and run only the two scripts whose hashes it names.
"""

from collections.abc import Sequence
from typing import IO, Any

from tdbg.core.tables import format_count, format_short, format_size, to_json_value
from tdbg.core.webpage import write_graphs
from tdbg.traces.analyze import summary_figures
from tdbg.traces.analyze.rank_comparison import slowest_first
from tdbg.traces.parse import event_names
from tdbg.traces.parse.trace_files import TraceFile
from tdbg.traces.render import flame_rows
from tdbg.traces.summary import Memory, Step, Summary, Work
from tdbg.traces.trace_options import format_label

WHOLE = 8  # traces that are shown whole, the slowest first
LANES = 64  # traces beside each other
SEGMENTS = 4_000  # steps in all lanes
NODES = 1_200  # of a tree
LEAST = 0.001  # of the peak that somebody held
LINES = 300  # of a table
LETTERS = 160  # of a name

Pairs = Sequence[tuple[TraceFile, Summary]]


def write_page(file: IO[bytes], every: Pairs, title: str) -> None:
    """Write the page. Raises TdbgError without plotly, OSError."""
    write_graphs(file, "tdbg.traces", title, describe_page(every), shared=("charts",), own=("trace", "page"))


def describe_page(every: Pairs) -> dict[str, Any]:
    """All that the page shows, as plain data."""
    plain: dict[str, Any] = to_json_value(_build_document(every))
    return plain


def _build_document(every: Pairs) -> dict[str, Any]:
    slowest = slowest_first(every)[:WHOLE]
    lanes, note = _build_lanes(every)
    parts = [part for part in event_names.BAR if any(part in lane["mean_ms"] for lane in lanes)]
    bar_note = "Wall-clock time, mean of the steps; steps of three times the median or more are left out."
    return {
        "parts": parts,
        "bar_note": bar_note,
        "lanes": lanes,
        "lanes_note": note,
        "traces": [_build_trace(one, read) for one, read in slowest],
    }


def _build_lanes(every: Pairs) -> tuple[list[dict[str, Any]], str]:
    """Each trace's steps where they were in time, and what is to be said about that."""
    shown = every[:LANES]
    begins = [read.base_us * 1000 + (read.steps[0].start if read.steps else 0) for _, read in shown]
    ends = [read.base_us * 1000 + read.end for _, read in shown]
    together = max(begins, default=0) < min(ends, default=1)
    most = max(SEGMENTS // max(len(shown), 1), 1)
    lanes = []
    for (one, read), begin in zip(shown, begins, strict=True):
        zero = (min(begins) if together else begin) - read.base_us * 1000
        steady = summary_figures.select_steady_steps(read)
        length = sum(step.length for step in steady) / max(len(steady), 1) / 1e6
        means = {name: share * length for name, share in summary_figures.compute_part_shares(steady).items()}
        steps = [_build_step(step, zero) for step in read.steps[:most]]
        lanes.append(
            {"label": format_short(format_label(one, read), 60), "mean_ms": means, "length_ms": length, "steps": steps}
        )
    note = ["Within a step, parts are in the order of the bar, not in time order."]
    if len(shown) > 1 and not together:
        note.append("The traces were recorded at different times: each begins at 0.")
    if len(every) > len(shown):
        note.append(f"{format_count(len(every) - len(shown), 'trace')} more left out.")
    if any(len(read.steps) > most for _, read in shown):
        note.append(f"Only the first {format_count(most, 'step')} of each.")
    return lanes, " ".join(note)


def _build_step(step: Step, zero: int) -> dict[str, Any]:
    parts = {name: ns / 1e6 for name, ns in step.bar.items() if ns}
    start, length = (step.start - zero) / 1e6, step.length / 1e6
    return {"number": step.number, "start_ms": start, "length_ms": length, "parts": parts}


def _build_trace(one: TraceFile, read: Summary) -> dict[str, Any]:
    return {
        "label": format_short(format_label(one, read), 60),
        "rank": read.rank if read.rank is not None else one.rank,
        "attempt": one.attempt,
        "window": one.window,
        "verdict": _capitalize_first(summary_figures.format_verdict(read)),
        "facts": [format_short(fact, LETTERS) for fact in _list_facts(one, read)],
        "begins": [(step.start - read.start) / 1e6 for step in read.steps[:100] if step.number is not None],
        "flames": {way: _build_flame(read, way) for way in flame_rows.available_views(read)},
        "memory": [_build_memory(memory, read) for memory in read.memory],
        "tables": [table for table in _build_tables(read) if table["rows"]],
    }


def _capitalize_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def _list_facts(one: TraceFile, read: Summary) -> list[str]:
    devices = sorted(set(read.devices)) or (["accelerator"] if read.device else ["cpu"])
    length = summary_figures.typical_length(read)
    done = summary_figures.compute_step_flops(read)
    facts = [
        f"rank {read.rank} of {read.world_size}" if read.world_size else format_label(one, read),
        ", ".join(devices),
        f"{format_count(len(read.steps), 'step')}, median {summary_figures.format_ms(length)} ms",
        format_count(read.events, "event"),
    ]
    if done and length:
        facts.append(
            f"{summary_figures.counted_flops(done)} a step, {summary_figures.counted_flops(done / length * 1e9)}/s"
        )
    if read.device is not None:
        span = max(read.device.end - read.device.start, 1)
        facts += [f"accelerator busy {read.device.busy / span:.1%}", *summary_figures.each_busy(read.device)]
        facts += summary_figures.format_launch_delays(read.device)
    facts += [
        f"step {step.number} took {summary_figures.format_ms(step.length)} ms"
        for step in summary_figures.select_border_steps(read)[:5]
    ]
    return facts + read.problems[:10]


def _build_flame(read: Summary, way: str) -> dict[str, Any]:
    """A tree as rows: number of the name, of the row above, kind, calls, total and own nanoseconds."""
    root = flame_rows.build_tree(read, way)
    every = flame_rows.sort_rows(root)
    kept = flame_rows.largest_rows(root, NODES)
    names: dict[str, int] = {}
    rows: list[tuple[int, int, str, int, int, int]] = [(-1, -1, "", 0, root.total, root.own)]
    numbers: list[int] = [0]  # of the rows above, by depth
    for row in every:
        if id(row) not in kept:
            continue
        del numbers[row.depth :]
        name = format_short(row.display_name, LETTERS)
        rows.append((names.setdefault(name, len(names)), numbers[-1], row.kind, row.calls, row.total, row.own))
        numbers.append(len(rows) - 1)
    note = "Host time; click a part to zoom in, click the top row to go back."
    left, lost = len(every) - len(rows) + 1, flame_rows.count_cut_calls(read, way)
    note += f" {format_count(left, 'row')} with less time left out." if left else ""
    note += (
        f" {format_count(lost, 'call')} did not fit into the tree: their time counts as the caller's." if lost else ""
    )
    depth = max((row.depth for row in every if id(row) in kept), default=0)
    return {"names": list(names), "rows": rows, "steps": max(len(read.steps), 1), "depth": depth, "note": note}


def _build_memory(memory: Memory, read: Summary) -> dict[str, Any]:
    line = [((time - read.start) / 1e6, most, least) for time, most, least in memory.line]
    line = [(0.0, memory.first, memory.first), *line, ((read.end - read.start) / 1e6, memory.last, memory.last)]
    at = (memory.peak_at - read.start) / 1e6
    note = f"Peak {format_size(memory.peak)} at {at:,.1f} ms, {format_size(memory.last)} at the end."
    held = [
        (amount, 100 * amount / max(memory.peak, 1), format_short(name, LETTERS))
        for name, amount in memory.holders.items()
        if amount >= LEAST * memory.peak
    ]
    return {
        "device": format_short(memory.device, 40),
        "note": note,
        "line": line,
        "peak": memory.peak,
        "peak_ms": at,
        "holders": held,
    }


def _build_tables(read: Summary) -> list[dict[str, Any]]:
    operators = summary_figures.by_name(read.operators)
    framed, rated = any(one.frames for one in operators), read.device is None and any(one.flops for one in operators)
    whole = sum(one.own for one in operators) or 1
    columns = ["self ms", "share %", "total ms", "calls", *(["GFLOP/s"] if rated else []), "operator"]
    rows = []
    for one in operators[:LINES]:
        row: list[Any] = [one.own / 1e6, 100 * one.own / whole, one.total / 1e6, one.calls]
        row += [one.flops / one.total if one.flops and one.total else None] if rated else []
        row.append(format_short(one.name, LETTERS))
        rows.append(row + ([format_short(summary_figures.called_from(one) or "-", LETTERS)] if framed else []))
    columns += ["from"] if framed else []
    found = [_build_table("Operators", columns, rows, len(operators))]
    for title, works in (("Kernels", read.kernels), ("Copies", read.copies), ("Waits", read.waits)):
        found.append(
            _build_table(title, ["total ms", "calls", title[:-1].lower().replace("ie", "y")], *_build_work_rows(works))
        )
    return [*found, _build_table("Regions", ["total ms", "calls", "region"], *_build_work_rows(read.regions))]


def _build_work_rows(works: Sequence[Work]) -> tuple[list[list[Any]], int]:
    return [[one.total / 1e6, one.calls, format_short(one.name, LETTERS)] for one in works[:LINES]], len(works)


def _build_table(title: str, columns: list[str], rows: list[list[Any]], count: int) -> dict[str, Any]:
    note = "Over the whole trace." + (f" The first {len(rows):,} of {count:,}." if count > len(rows) else "")
    return {"title": title, "columns": columns, "rows": rows, "note": note}
