"""`tdbg trace show`: where the time and the memory of a step went."""

from typing import TYPE_CHECKING, Any

from tdbg.core.asked import Options
from tdbg.traces.trace_options import ARGUMENTS, SELECTION, Selected

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tdbg.traces.parse.trace_files import Found
    from tdbg.traces.summary import Summary

__all__ = ["ARGUMENTS", "HELP", "OPTIONS", "Question", "answer"]
HELP = """Show where the time and memory of a step went.

    A bar for each rank parts the wall-clock time of its steps: input, copies to the device, forward, backward,
    optimizer, communication, idle, other. Below it the operators with the most time of their own, memory with its peak
    and what held it, and on accelerators kernels, copies and waits. Of several ranks the slowest is shown whole; of
    more than 8 those are read that look slowest, and it is said which. Works on traces of CPU and GPU, without torch.
    The summary is kept beside a large trace, so that a second look is quick.

    Examples:
        tdbg trace show
        tdbg trace show trace.json.gz --top 30 --shapes
        tdbg trace show tdbg_runs/20261121-031500-train --ranks 0,3
        tdbg trace show --html trace.html
    """
OPTIONS: Options = {
    **SELECTION,
    "top": (("--top",), "N", "Lines of each table."),
    "shapes": (("--shapes",), "", "Tell calls of an operator with other input shapes apart."),
    "html": (("--html",), "FILE", "Write it as one HTML file, with graphs, that opens without a network."),
    "force": (("--force",), "", "Overwrite a file that is there."),
    "perfetto": (("--perfetto",), "FILE", "Write the steps shown to a small trace too, for ui.perfetto.dev."),
    "json": (("--json",), "", "Print one JSON document."),
}


class Question(Selected):
    """What `show` can be asked."""

    top: int = 10
    shapes: bool = False
    html: str = ""
    force: bool = False
    perfetto: str = ""
    json: bool = False


def answer(question: Question) -> int:
    """Print it; 1 if the traces hold no event."""
    from tdbg.traces.trace_options import check_top

    check_top(question.top)
    from tdbg.traces.trace_options import chosen, is_empty, summaries, target, worth_reading

    found, left = worth_reading(chosen(question), question)
    html = target("--html", question.html, found, force=question.force) if question.html else None
    small = target("--perfetto", question.perfetto, found, force=question.force) if question.perfetto else None
    every = summaries(found, trees=html is not None)
    if html is not None:
        _write_html(every, html)
    if question.json:
        _print_json(every, left)
    elif html is None:
        from tdbg.traces.render.summary_text import show

        show(every, question.top, question.shapes)
    if small is not None and any(read.events for _, read in every):
        from tdbg.traces.commands.slice import cut

        cut(every, "", small)
    return int(is_empty(every))


def _write_html(every: "Sequence[tuple[Found, Summary]]", target: "Path") -> None:
    import os

    from tdbg.core.errors import TdbgError
    from tdbg.core.guard import undo_on_error
    from tdbg.core.output import say
    from tdbg.core.tables import safe, size
    from tdbg.traces.render.trace_page import write

    ready = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with undo_on_error(lambda: ready.unlink(missing_ok=True)):
            with open(ready, "xb") as file:
                write(file, every, f"{every[0][0].path.name if len(every) == 1 else f'{len(every)} traces'} - tdbg")
            os.replace(ready, target)
    except OSError as error:
        raise TdbgError(f"{safe(str(target))}: {error.strerror or error}", "name a file that can be written") from None
    say(safe(f"wrote {size(target.stat().st_size)} to {target}: open it in a browser"))


def _print_json(every: "Sequence[tuple[Found, Summary]]", left: "Sequence[int]") -> None:
    from dataclasses import asdict

    from tdbg.core.output import print_json
    from tdbg.core.tables import finite
    from tdbg.traces.analyze import summary_figures as figures
    from tdbg.traces.analyze.rank_comparison import beside, ranks

    data: list[dict[str, Any]] = []
    for one, read in every:
        kept = figures.steady(read)
        told = {
            "verdict": figures.verdict(read),
            "median_step_ms": figures.typical_length(read) / 1e6,
            "parts": figures.parts(kept),
            "flops_per_step": figures.work(read),
            "border_steps": [step.number for step in figures.border(read)],
        }
        whole = asdict(read)
        del whole["flames"]  # `tdbg trace flame --json` has them
        data.append({**whole, "attempt": one.attempt, "window": one.window, **told})
        data[-1]["rank"] = read.rank if read.rank is not None else one.rank
    apart = ranks(beside(every))
    told_of = {"ranks": asdict(apart) if apart else None, "ranks_left_out": left}
    print_json("trace-show", finite({"times": "ns", "traces": data, **told_of}))
