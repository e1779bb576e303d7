"""`tdbg trace advise`: what would make a step shorter."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tdbg.core.asked import Options
from tdbg.traces.trace_options import ARGUMENTS, SELECTION, Selected

if TYPE_CHECKING:
    from tdbg.traces.rules import Abstain, Advice

__all__ = ["ARGUMENTS", "HELP", "OPTIONS", "Question", "answer"]
HELP = """Say what would make a step shorter, with the evidence for it.

    Every rule has a signal, a threshold and a source, and tells what could be gained at most. A rule whose signal is
    not in the trace says nothing, and on stderr stands why; the profiler's own synchronisation never counts. Traces
    without an accelerator get the rules for the CPU. Of more than 8 ranks those are read that look slowest, and it is
    said which; --ranks names others.

    Examples:
        tdbg trace advise
        tdbg trace advise trace.json.gz --threshold input_warning=0.2
        tdbg trace advise tdbg_runs/20261121-031500-train --fail-on warning
    """
OPTIONS: Options = {
    **SELECTION,
    "threshold": (("--threshold",), "TEXT", "NAME=VALUE: another threshold of a rule; repeatable."),
    "fail_on": (("--fail-on",), "NAME", "Exit 1 on advice of this severity or worse: notice, warning, critical."),
    "json": (("--json",), "", "Print one JSON document."),
}


class Question(Selected):
    """What `advise` can be asked."""

    threshold: Sequence[str] = ()
    fail_on: str = ""
    json: bool = False


def answer(question: Question) -> int:
    """Print it; 1 if `--fail-on` is reached, or the traces hold no event."""
    from tdbg.core.errors import TdbgError
    from tdbg.core.output import say
    from tdbg.traces.analyze.rank_comparison import beside
    from tdbg.traces.rules import RULES, SEVERITIES, evaluate_traces, parse_thresholds
    from tdbg.traces.trace_options import chosen, is_empty, label, summaries, worth_reading

    if question.fail_on and question.fail_on not in SEVERITIES:
        raise TdbgError(f"--fail-on cannot be {question.fail_on!r}", f"write one of: {', '.join(SEVERITIES)}")
    for trouble in RULES.load_third_party():
        say(trouble)
    thresholds = parse_thresholds(list(question.threshold))
    kept, left = worth_reading(chosen(question), question)
    found = summaries(kept)
    every = [(label(one, read), read) for one, read in found]
    advice, silent = evaluate_traces(every, thresholds, beside(found))
    if question.json:
        _print_json(advice, silent, left)
    elif any(read.events for _, read in found):
        _print(advice, silent, several=len(every) > 1)
    if is_empty(found):
        return 1
    if not question.fail_on:
        return 0
    floor = SEVERITIES.index(question.fail_on)
    return int(any(SEVERITIES.index(one.severity) >= floor for one in advice))


def _print(advice: "Sequence[Advice]", silent: "Sequence[Abstain]", *, several: bool) -> None:
    from tdbg.core.output import say
    from tdbg.core.tables import safe

    for one in advice:
        where = f", {one.trace}" if several and one.trace else ""
        gain = f" (at most {one.gain:.0%} of it can be gained)" if one.gain else ""
        print(safe(f"{one.code} {one.severity}: {one.title}{where}{gain}"))
        for line in one.evidence:
            print(safe(f"    {line}"))
        print(safe(f"    try: {one.try_next}"))
        print(safe(f"    thresholds: {one.threshold}; source: {one.source}"))
    if not advice:
        print("nothing to advise")
    reasons: dict[str, list[str]] = {}
    for other in silent:
        reasons.setdefault(other.reason, []).append(other.code)
    for reason, codes in reasons.items():
        say(safe(f"{', '.join(codes)}: {reason}"))


def _print_json(advice: "Sequence[Advice]", silent: "Sequence[Abstain]", left: "Sequence[int]") -> None:
    from dataclasses import asdict

    from tdbg.core.output import print_json
    from tdbg.core.tables import finite

    data = {"advice": [asdict(one) for one in advice], "abstained": [asdict(one) for one in silent]}
    print_json("trace-advise", finite({**data, "ranks_left_out": left}))
