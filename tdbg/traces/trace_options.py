"""The options that all commands of traces share (path, ranks, windows), and how the traces they name are read."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tdbg.core.command_spec import Args, Argument, Option, Options
from tdbg.core.errors import TdbgError
from tdbg.core.output_file import check_output_file
from tdbg.core.tables import format_count
from tdbg.traces.parse.trace_files import TraceFile
from tdbg.traces.summary import Summary


class Selected(Args):
    """Which traces of a run or folder."""

    ranks: str = ""
    windows: str = "last"


SELECTION: Options = {
    "ranks": Option(("--ranks", "--rank"), "RANGE", "Only these ranks, such as 0,3-5."),
    "windows": Option(("--windows",), "NAME", "Which windows of a rank to read: last or all."),
}
ARGUMENT = Argument(
    "PATH", "A trace (.json or .json.gz), a folder of traces, or a run; the newest with traces if left out."
)


def select_traces(args: Selected) -> list[TraceFile]:
    """The traces that are meant. Raises TdbgError for none, for several paths, and for options that cannot be."""
    from tdbg.traces.parse.trace_files import find_traces, select_newest_windows

    if len(args.paths) > 1:
        raise TdbgError(f"{len(args.paths)} paths were given", "name one trace, folder or run")
    if args.windows not in ("last", "all"):
        raise TdbgError(f"--windows cannot be {args.windows!r}", "write last or all")
    found = find_traces(args.paths[0] if args.paths else "", _parse_rank_filter(args.ranks))
    return found if args.windows == "all" else select_newest_windows(found)


def sample_ranks(found: "list[TraceFile]", args: Selected) -> "tuple[list[TraceFile], list[int]]":
    """Of many ranks those that matter, where the command line names none; which are left out is said, and returned."""
    if args.ranks:
        return found, []
    from tdbg.core.output import print_messages
    from tdbg.core.tables import safe
    from tdbg.traces.analyze.rank_sampling import describe_unprofiled, select_ranks

    some = select_ranks(found)
    for line in (some.said, describe_unprofiled(found)):
        if line:
            print_messages(safe(line))
    return some.found, some.left


def _parse_rank_filter(text: str) -> "Callable[[int], bool] | None":
    if not text:
        return None
    from tdbg.core.ranges import parse_ranges

    bounds = parse_ranges("--ranks", text, "-")
    return lambda rank: any(low <= rank <= high for low, high in bounds)


def check_top(top: int) -> None:
    """TdbgError for a number of lines that is none."""
    if top < 0:
        raise TdbgError("--top cannot be negative", "write --top 0 or more")


def check_output_path(option: str, name: str, found: Sequence[TraceFile], *, force: bool) -> Path:
    """The file that is to be written. TdbgError for one that is there, without force, and always for a trace that is read."""
    return check_output_file(option, name, [(one.path, "the trace itself") for one in found], force=force)


def parse_share(option: str, text: str) -> float:
    """A share as people write it: ``0.1`` or ``10%``; 1 and more in percent alone. TdbgError for anything else."""
    try:
        found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf") or (found >= 1 and not text.endswith("%")):
        raise TdbgError(f"{option} cannot be {text!r}", "write a fraction or a percentage, such as 0.1 or 10%")
    return found


def load_summaries(
    found: Sequence[TraceFile], *, trees: bool = False, load: Callable[[TraceFile, bool], Summary] | None = None
) -> list[tuple[TraceFile, Summary]]:
    """Each with its summary; what cannot be read is told, and TdbgError if that is all of them.

    trees: also of which operator called which. load: in place of `load_summary`.
    """
    from tdbg.core.output import print_messages
    from tdbg.core.tables import safe

    good: list[tuple[TraceFile, Summary]] = []
    for one in found:
        try:
            read = (load or load_summary)(one, trees)
        except TdbgError as error:
            if len(found) == 1:
                raise
            print_messages(safe(f"{error}"))
            continue
        for problem in read.problems:
            print_messages(safe(f"{one.path.name}: {problem}"))
        good.append((one, read))
    if not good:
        raise TdbgError(f"none of {format_count(len(found), 'trace')} can be read", "the lines above say why")
    return good


def is_empty(every: Sequence[tuple[TraceFile, Summary]]) -> bool:
    """True if there is no event in any of them, which is said: every command then exits with 1."""
    from tdbg.core.output import print_messages

    if any(read.events for _, read in every):
        return False
    print_messages("the trace holds no event" if len(every) == 1 else "the traces hold no event")
    return True


def load_summary(one: TraceFile, trees: bool, *, keep: bool = True) -> Summary:
    """The summary of one trace. keep: with an index beside the file, so that the next look is fast."""
    if one.part is not None:  # of a slice: small, and an index is of a whole file
        from tdbg.traces.analyze.summary_builder import summarize_trace

        return summarize_trace(one.path, part=one.part, trees=trees)
    from tdbg.traces.analyze import summary_cache

    return summary_cache.load_summary(one.path, trees=trees, keep=keep)


def format_label(one: TraceFile, read: Summary) -> str:
    """What a trace is called: by the rank that its path or the trace itself tells."""
    if one.rank is None and read.rank is not None:
        return f"rank {read.rank}"
    return one.label
