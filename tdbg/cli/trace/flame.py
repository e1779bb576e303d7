"""`tdbg trace flame`: what called what, and for how long."""

from tdbg.core.command_spec import JSON, Command, Option, Options
from tdbg.core.output import print_json
from tdbg.traces.trace_options import ARGUMENT, SELECTION, Selected

HELP = """Show what called what, and for how long: a flame graph in text.

    By line of the program and module where Python's stack was recorded (`tdbg profile --kind stacks`), else by operator,
    nested within the spans around them. The callees of a bar lie side by side within its width, the longest first:
    a column of bars is a stack. Times are of the host, a mean of the steps. Of several ranks the slowest is shown.

    Examples:
        tdbg trace flame
        tdbg trace flame trace.json.gz --by module --top 60
        tdbg trace flame tdbg_runs/20261121-031500-train --folded > stacks.txt
    """
OPTIONS: Options = {
    **SELECTION,
    "by": Option(("--by",), "NAME", "By stack, module or operator; the first of them that the trace has if left out."),
    "top": Option(
        ("--top",),
        "N",
        "Print N rows, those with the most time; 40 if left out, all with --folded.",
        shows_default=False,
    ),
    "depth": Option(("--depth",), "N", "Print N levels; all if left out.", shows_default=False),
    "folded": Option(
        ("--folded",), "", "Print one line per stack with its self time in us, as flame graph tools read it."
    ),
    "json": JSON,
}


class FlameArgs(Selected):
    """What `flame` can be asked."""

    by: str = ""
    top: int = 0
    depth: int = 0
    folded: bool = False
    json: bool = False


def show_flame(args: FlameArgs) -> int:
    """Print it; 1 if nothing was called."""
    from tdbg.traces.trace_options import check_top

    check_top(args.top)
    from tdbg.core.errors import TdbgError
    from tdbg.core.output import print_messages
    from tdbg.traces.analyze.rank_comparison import slowest_first
    from tdbg.traces.render.flame_rows import build_tree, fold_stacks
    from tdbg.traces.render.flame_text import print_flame
    from tdbg.traces.trace_options import format_label, is_empty, load_summaries, select_traces

    if args.depth < 0:
        raise TdbgError("--depth cannot be negative", "write --depth 1 or more")
    if args.folded and args.json:
        raise TdbgError("--folded and --json exclude each other", "leave one of them out")
    every = load_summaries(select_traces(args), trees=True)
    trees = [(one, read, build_tree(read, args.by)) for one, read in every]
    if args.json:
        from tdbg.traces.render.summary_data import describe_flames

        print_json("trace-flame", describe_flames(every, args.by))
    elif args.folded:
        for one, read, root in trees:
            above = (format_label(one, read),) if len(trees) > 1 else ()
            for line in fold_stacks(root, above, top=args.top, depth=args.depth):
                print(line)
    else:
        one, read = slowest_first(every)[0]
        root = next(root for _, other, root in trees if other is read)
        print_flame(format_label(one, read), read, root, by=args.by, depth=args.depth, top=args.top)
    if is_empty(every):
        return 1
    if not any(root.below for _, _, root in trees):
        print_messages("nothing was called in it")
        return 1
    return 0


COMMAND = Command(show_flame, FlameArgs, HELP, OPTIONS, ARGUMENT)
