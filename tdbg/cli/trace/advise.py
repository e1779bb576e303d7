"""`tdbg trace advise`: what would make a step shorter."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tdbg.core.command_spec import JSON, Command, Option, Options
from tdbg.core.output import print_json, print_lines, print_messages
from tdbg.traces.trace_options import ARGUMENT, SELECTION, Selected

if TYPE_CHECKING:
    from tdbg.traces.rules import Abstain, Advice

HELP = """Advise how to make a step shorter, with the evidence.

    Every rule has a signal, a threshold and a source, and tells what could be gained at most. Rules whose signal is
    not in the trace are skipped; one line on stderr says why. The profiler's own synchronisation never counts. Traces
    without an accelerator get the rules for the CPU. With more than 8 ranks, only those that look slowest are read
    and named; --ranks chooses others.

    Examples:
        tdbg trace advise
        tdbg trace advise trace.json.gz --threshold input_warning=0.2
        tdbg trace advise tdbg_runs/20261121-031500-train --fail-on warning
    """
OPTIONS: Options = {
    **SELECTION,
    "threshold": Option(("--threshold",), "BOUND", "A bound of a rule, as NAME=VALUE; repeatable."),
    "fail_on": Option(("--fail-on",), "NAME", "Exit 1 on advice of this severity or worse: notice, warning, critical."),
    "json": JSON,
}


class AdviseArgs(Selected):
    """What `advise` can be asked."""

    threshold: Sequence[str] = ()
    fail_on: str = ""
    json: bool = False


def advise_traces(args: AdviseArgs) -> int:
    """Print it; 1 if `--fail-on` is reached, or the traces hold no event."""
    from tdbg.core.errors import TdbgError
    from tdbg.traces.analyze.rank_comparison import compare_loaded
    from tdbg.traces.rules import RULES, SEVERITIES, evaluate_traces, parse_thresholds
    from tdbg.traces.trace_options import format_label, is_empty, load_summaries, sample_ranks, select_traces

    if args.fail_on and args.fail_on not in SEVERITIES:
        raise TdbgError(f"--fail-on cannot be {args.fail_on!r}", f"write one of: {', '.join(SEVERITIES)}")
    for trouble in RULES.load_third_party():
        print_messages(trouble)
    thresholds = parse_thresholds(list(args.threshold))
    kept, left = sample_ranks(select_traces(args), args)
    found = load_summaries(kept)
    every = [(format_label(one, read), read) for one, read in found]
    advice, silent = evaluate_traces(every, thresholds, compare_loaded(found))
    if args.json:
        _print_json(advice, silent, left)
    elif any(read.events for _, read in found):
        _print_advice(advice, silent, several=len(every) > 1)
    if is_empty(found):
        return 1
    if not args.fail_on:
        return 0
    floor = SEVERITIES.index(args.fail_on)
    return int(any(SEVERITIES.index(one.severity) >= floor for one in advice))


def _print_advice(advice: "Sequence[Advice]", silent: "Sequence[Abstain]", *, several: bool) -> None:
    from tdbg.core.tables import safe
    from tdbg.traces.rules import FAILED

    for one in advice:
        where = f", {one.trace}" if several and one.trace else ""
        gain = f" (at most {one.gain:.0%} of it can be gained)" if one.gain else ""
        print_lines([safe(f"{one.code} {one.severity}: {one.title}{where}{gain}")])
        for line in one.evidence:
            print_lines([safe(f"    {line}")])
        print_lines([safe(f"    try: {one.try_next}")])
        print_lines([safe(f"    thresholds: {one.threshold}; source: {one.source}")])
    if not advice:
        print_lines(["nothing to advise"])
    skipped = [one for one in silent if not one.reason.startswith(FAILED)]
    if skipped:
        print_messages(safe(_format_skipped(skipped)))
    for failed in silent:
        if failed not in skipped:
            print_messages(safe(f"{failed.code}: {failed.reason}"))


def _format_skipped(silent: "Sequence[Abstain]") -> str:
    """One line for all rules that had no signal: how many, and why."""
    from tdbg.core.tables import format_count

    reasons: dict[str, list[str]] = {}
    for one in silent:
        reasons.setdefault(one.reason, []).append(one.code)
    described = []
    for reason, codes in reasons.items():
        first, *others = dict.fromkeys(codes)
        described.append(f"{reason} ({first}{f' and {len(others)} more' if others else ''})")
    count = len({one.code for one in silent})
    return f"{format_count(count, 'rule')} skipped, --json names them: {'; '.join(described)}"


def _print_json(advice: "Sequence[Advice]", silent: "Sequence[Abstain]", left: "Sequence[int]") -> None:
    from dataclasses import asdict

    from tdbg.core.tables import to_json_value

    data = {"advice": [asdict(one) for one in advice], "abstained": [asdict(one) for one in silent]}
    print_json("trace-advise", to_json_value({**data, "ranks_left_out": left}))


COMMAND = Command(advise_traces, AdviseArgs, HELP, OPTIONS, ARGUMENT)
