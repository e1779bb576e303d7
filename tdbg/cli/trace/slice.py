"""`tdbg trace slice`: a few steps as a small trace."""

from typing import TYPE_CHECKING

from tdbg.core.command_spec import Command, Option, Options
from tdbg.traces.trace_options import ARGUMENT, SELECTION, Selected

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tdbg.traces.parse.trace_files import TraceFile
    from tdbg.traces.summary import Summary

HELP = """Write a few steps of a few ranks as one small trace.

    The file opens in ui.perfetto.dev and chrome://tracing, and in tdbg itself, which tells of these steps
    what it tells of them in the whole trace. Names of processes and threads, arrows between launches and kernels, and
    what stands beside the events are kept. Several ranks come into one file, each with process ids of its own.
    It takes little more memory than `show`.

    Examples:
        tdbg trace slice --steps 100:102 -o small.json.gz
        tdbg trace slice tdbg_runs/20261121-031500-train --ranks 0,3 --steps 12 -o ranks.json.gz
    """
OPTIONS: Options = {
    "output": Option(("--output", "-o"), "FILE", "The file to write; packed if its name ends with .gz."),
    "steps": Option(("--steps", "--step"), "RANGE", "Only these steps, such as 3 or 100:102; all if left out."),
    "force": Option(("--force",), "", "Overwrite a file that is there."),
    **SELECTION,
    "windows": Option(("--windows",), "NAME", "Look in the last window of a rank, or in all; all if --steps is given."),
}


class SliceArgs(Selected):
    """What `slice` can be asked."""

    output: str = ""
    steps: str = ""
    force: bool = False
    windows: str = ""


def slice_traces(args: SliceArgs) -> int:
    """Write it; 1 if the traces hold no event."""
    from tdbg.core.errors import TdbgError
    from tdbg.traces.trace_options import check_output_path, is_empty, load_summaries, select_traces

    if not args.output:
        raise TdbgError("missing option: -o FILE", "name it: -o small.json.gz")
    args.windows = args.windows or ("all" if args.steps else "last")
    found = select_traces(args)
    path = check_output_path("--output", args.output, found, force=args.force)
    every = load_summaries(found)
    if is_empty(every):
        return 1
    write_steps(every, args.steps, path)
    return 0


def write_steps(every: "Sequence[tuple[TraceFile, Summary]]", steps: str, path: "Path") -> None:
    """Write the steps of these traces, and say what was written. Raises TdbgError where no trace holds them."""
    from tdbg.core.errors import TdbgError
    from tdbg.core.output import print_messages
    from tdbg.core.tables import format_count, format_size, safe
    from tdbg.traces.render.slice_file import write_slice
    from tdbg.traces.render.step_slice import StepSlice, select_steps
    from tdbg.traces.trace_options import format_label

    wanted, bounds = _parse_steps(steps)
    kept = [(one, read, select_steps(read, wanted)) for one, read in every]
    parts = [(one, StepSlice(read, found, one.part)) for one, read, found in kept if found or wanted is None]
    if not parts:
        held = sorted({step.number for _, read in every for step in read.steps if step.number is not None})
        there = f"{held[0]} to {held[-1]}" if held else "none"
        raise TdbgError(f"no trace holds the steps {steps}", f"the traces hold: {there}")
    every_number = {step.number for _, _, found in kept for step in found if step.number is not None}
    absent = [text for text, low, high in bounds if not any(low <= number <= high for number in every_number)]
    if absent:
        print_messages(safe(f"no trace holds the steps {', '.join(absent)}"))
    ranks = {one.rank for one, _ in parts}
    for one, read, found in kept:
        if wanted is not None and not found and one.rank not in ranks:
            print_messages(safe(f"{format_label(one, read)} does not hold these steps and is left out"))
    count = write_slice(parts, path)
    step_count = format_count(sum(len(keeping.steps) for _, keeping in parts), "step")
    traces = f" of {format_count(len(parts), 'trace')}" if len(parts) > 1 else ""
    print_messages(
        safe(
            f"{path}: {step_count}{traces}, {format_count(count, 'event')}, {format_size(path.stat().st_size)}; open it in ui.perfetto.dev"
        )
    )


def _parse_steps(text: str) -> "tuple[Callable[[int], bool] | None, list[tuple[str, float, float]]]":
    """Whether a step is meant (all where none is named), and each range as it was written with its bounds."""
    if not text:
        return None, []
    from tdbg.core.ranges import parse_ranges

    bounds = [(word.strip(), *found) for word in text.split(",") for found in parse_ranges("--steps", word, ":")]
    return lambda number: any(low <= number <= high for _, low, high in bounds), bounds


COMMAND = Command(slice_traces, SliceArgs, HELP, OPTIONS, ARGUMENT)
