"""A summary on a terminal: bars, tables, and a line of memory."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from tdbg.core.output import print_lines
from tdbg.core.tables import format_count, format_short, format_size, print_table, safe
from tdbg.traces.analyze import summary_figures
from tdbg.traces.analyze.summary_figures import counted_flops, format_ms
from tdbg.traces.parse import event_names
from tdbg.traces.parse.trace_files import TraceFile
from tdbg.traces.render import memory_text
from tdbg.traces.render.flame_rows import available_views, build_module_tree, largest_rows, sort_rows
from tdbg.traces.summary import Operator, Summary
from tdbg.traces.trace_options import format_label

WIDE = 40  # signs of a bar
STANDS_OUT = 0.10  # more work of a rank's own than the others', as TD-P115 warns


def print_summary(every: Sequence[tuple[TraceFile, Summary]], top: int, shapes: bool) -> None:
    """All of it; of several traces a line each, and the slowest whole."""
    if len(every) > 1:
        from tdbg.traces.analyze.rank_comparison import slowest_first

        _print_ranks(every)
        every = slowest_first(every)[:1]
        print_lines(["", f"the slowest of them, {safe(format_label(*every[0]))}:"])
    for one, read in every:
        _print_head(one, read)
        _print_bar(read)
        _print_flops(read)
        _print_operators(read, top, shapes)
        _print_device(read, top)
        for memory in read.memory:
            memory_text.print_memory(memory, read, min(top, 5))
        _print_modules(read, top)
        _print_works("regions", [work for work in read.regions if _is_own(work.name)], top)


def _print_head(one: TraceFile, read: Summary) -> None:
    devices = sorted(set(read.devices)) or (["accelerator"] if read.device else ["cpu"])
    known = [f"rank {read.rank} of {read.world_size}" if read.world_size else format_label(one, read)]
    known += [", ".join(map(format_short, devices)), format_count(read.events, "event")]
    print_lines([safe("; ".join(known))])
    lengths = [step.length for step in read.steps]
    if read.steps and read.steps[0].number is None:
        print_lines([f"no steps are marked in the trace; it lasts {format_ms(read.steps[0].length)} ms in all"])
    elif lengths:
        numbers = f"{format_count(len(read.steps), 'step')} ({read.steps[0].number} to {read.steps[-1].number})"
        print_lines(
            [
                f"{numbers}, median {format_ms(summary_figures.typical_length(read))} ms, {format_ms(min(lengths))} to {format_ms(max(lengths))} ms"
            ]
        )
    for step in summary_figures.select_border_steps(read):
        print_lines([f"step {step.number} took {format_ms(step.length)} ms and is left out of the bar"])
    print_lines([summary_figures.format_verdict(read)])


def _print_bar(read: Summary) -> None:
    steps = summary_figures.select_steady_steps(read)
    shares = summary_figures.compute_part_shares(steps)
    count = max(len(steps), 1)
    length = sum(step.length for step in steps) / count
    print()
    for name, share in shares.items():
        if share >= 0.0005 or (share and name in (event_names.FORWARD, event_names.BACKWARD)):
            print(f"{name:<13} {'█' * round(share * WIDE):<{WIDE}} {share:6.1%} {format_ms(share * length):>7} ms")


def _print_ranks(every: Sequence[tuple[TraceFile, Summary]]) -> None:
    from tdbg.traces.analyze.rank_comparison import own_time

    rows: list[tuple[Any, ...]] = []
    shown = [name for name in event_names.BAR if any(name in step.bar for _, read in every for step in read.steps)]
    for one, read in every:
        steps = summary_figures.select_steady_steps(read)
        shares = summary_figures.compute_part_shares(steps)
        cells = (f"{shares.get(name, 0.0):.0%}" for name in shown)
        owned = median(own_time(step) for step in steps) if steps else 0
        rows.append(
            (
                format_label(one, read),
                len(read.steps),
                format_ms(summary_figures.typical_length(read)),
                format_ms(owned),
                *cells,
            )
        )
    print_table(("trace", "steps", "median ms", "own ms", *shown), rows)
    _print_rank_differences(every)


def _print_rank_differences(every: Sequence[tuple[TraceFile, Summary]]) -> None:
    """What makes the ranks differ; nothing for several windows of one."""
    from tdbg.traces.analyze.rank_comparison import COVERS, compare_loaded, compare_ranks

    found = compare_ranks(compare_loaded(every))
    if found is None:
        return
    worst = next(one for one in found.each if one.label == found.slowest)
    print()
    if worst.extra >= STANDS_OUT:
        what = "the longer part is" if found.covers >= COVERS else "no single part explains it, the largest is"
        print_lines(
            [
                safe(
                    f"{worst.label} does {worst.extra:.0%} more work than the others, {format_ms(worst.own)} ms a step;"
                    f" {what} {found.longest}, by {format_ms(found.longer)} ms"
                )
            ]
        )
    else:
        print_lines([f"no rank stands out: the slowest does {worst.extra:.1%} more work than the others"])
    if found.common:
        print_lines(
            [
                f"skew: own work differs by {format_ms(found.skew)} ms a step ({format_count(found.common, 'step')} in common)"
            ]
        )
    exposed = sorted(found.each, key=lambda one: -one.exposed)
    if not exposed[0].exposed:
        print_lines(["exposed communication: none"])
        return
    most, least = exposed[0], exposed[-1]
    print_lines(
        [
            safe(
                f"exposed communication: {format_ms(least.exposed)} ms a step on {least.label}"
                f" to {format_ms(most.exposed)} ms on {most.label}"
            )
        ]
    )


def _print_operators(read: Summary, top: int, shapes: bool) -> None:
    found = sorted(read.operators, key=lambda one: -one.own) if shapes else summary_figures.by_name(read.operators)
    whole = sum(one.own for one in found)
    if not whole:
        return
    print_lines(["", f"operators, {len(found):,} in all, by self time"])
    framed = any(one.frames for one in found)
    columns = ["self ms", "share", "total ms", "calls", "operator"]
    rated = read.device is None and any(one.flops for one in found[:top])
    columns[4:4] = ["GFLOP/s"] if rated else []
    columns += (["shapes"] if shapes else []) + (["from"] if framed else [])
    print_table(columns, (_operator_row(one, whole, shapes, framed, rated) for one in found[:top]))


def _operator_row(one: Operator, whole: int, shapes: bool, framed: bool, rated: bool) -> list[Any]:
    row: list[Any] = [format_ms(one.own), f"{one.own / whole:.1%}", format_ms(one.total), one.calls]
    row += [f"{one.flops / one.total:.3g}" if one.flops and one.total else None] if rated else []
    row.append(format_short(one.name, 60))
    row += [format_short(one.shapes, 50)] if shapes else []
    return row + ([format_short(summary_figures.called_from(one) or "-", 50)] if framed else [])


def _print_device(read: Summary, top: int) -> None:
    device = read.device
    if device is None:
        return
    span = max(device.end - device.start, 1)
    print_lines(
        [
            "",
            f"accelerator: busy {device.busy / span:.1%} of {format_ms(span)} ms, {format_count(device.launches, 'launch')}",
        ]
    )
    if device.busy_of:
        print_lines([safe("; ".join(summary_figures.each_busy(device)))])
    for line in summary_figures.format_launch_delays(device):
        print_lines([line])
    if device.communication:
        hidden = device.overlap / device.communication
        print_lines(
            [f"communication: {format_ms(device.communication)} ms, {hidden:.1%} of it overlapped with computation"]
        )
    kind = summary_figures.sum_kernel_families(read.kernels)
    matrix = kind.get("tensor", 0) + kind.get("matrix", 0)
    if matrix:
        on = kind.get("tensor", 0)
        print_lines([f"matrix kernels: {format_ms(matrix)} ms, {on / matrix:.0%} of it on tensor cores by kernel name"])
    works = [(format_ms(one.total), one.calls, one.kind, format_short(one.name, 70)) for one in read.kernels[:top]]
    print_table(("total ms", "calls", "kind", "kernel"), works)
    copies = [
        (format_ms(one.total), one.calls, format_size(one.nbytes), format_short(one.name, 70))
        for one in read.copies[:top]
    ]
    if copies:
        print_table(("total ms", "calls", "bytes", "copy"), copies)
    if read.waits:
        print_table(
            ("total ms", "calls", "wait"), ((format_ms(one.total), one.calls, one.name) for one in read.waits[:top])
        )
    if read.closing_wait:
        print_lines([f"not counted: the profiler's own wait at its end, {format_ms(read.closing_wait)} ms"])


def _print_flops(read: Summary) -> None:
    """What was computed, and how fast, where shapes tell."""
    done = summary_figures.compute_step_flops(read)
    if not done:
        return
    length = summary_figures.typical_length(read)
    rate = f", {counted_flops(done / length * 1e9)}/s over the whole step" if length else ""
    print_lines(["", f"{counted_flops(done)} a step{rate} (matrix products, convolutions, attention)"])


def _print_modules(read: Summary, top: int) -> None:
    """Modules within modules: those with most time, in the order of the tree."""
    if "module" not in available_views(read):
        return
    root, steps = build_module_tree(read), max(len(read.steps), 1)
    kept = largest_rows(root, max(top, 1))
    rows = [
        (
            format_ms(row.total / steps),
            format_ms(row.own / steps),
            row.calls,
            "  " * min(row.depth - 1, 30) + format_short(row.display_name, 60),
        )
        for row in sort_rows(root)
        if id(row) in kept
    ]
    print_lines(["", f"modules, {len(sort_rows(root)):,} in all, forward ms per step; self: without child modules"])
    print_table(("total ms", "self ms", "calls", "module"), rows)


def _is_own(name: str) -> bool:
    return not name.startswith((event_names.LOADER, *event_names.OPTIMIZERS, *event_names.COLLECTIVES))


def _print_works(what: str, works: Sequence[Any], top: int) -> None:
    if works:
        print_lines(["", what])
        rows = ((format_ms(one.total), one.calls, format_short(one.name, 70)) for one in works[:top])
        print_table(("total ms", "calls", what.removesuffix("s")), rows)
