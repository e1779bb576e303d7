"""`tdbg metrics sanity`: what is wrong with the metrics of a run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tdbg.cli.on_stores import read_from_stores
from tdbg.core.command_spec import JSON, Command, Option, Options
from tdbg.core.output import print_json, print_lines, print_messages
from tdbg.metrics.metrics_options import ARGUMENT, SELECTION, Selected

if TYPE_CHECKING:
    from tdbg.core.events import Finding
    from tdbg.core.rule_base import Unarmed
    from tdbg.metrics.sanity import Rule

HELP = """Say what is wrong with the metrics of a run.

    Each finding has a code that `tdbg explain` tells more about: a metric that never changes, a best that is never
    updated, a phase finalised with count 0, one phase under two names, mixed units, a stale epoch, steps that go
    backwards, keys outside the grammar, more epochs than planned, a metric that is NaN or infinite. What is found is also
    in `tdbg report`.

    Examples:
        tdbg metrics sanity
        tdbg metrics sanity tdbg_runs/20261121-031500-train --fail-on warning
        tdbg metrics sanity other/metrics.jsonl --json
    """
OPTIONS: Options = {
    "ranks": SELECTION["ranks"],
    "fail_on": Option(("--fail-on",), "SEVERITY", "Exit with 1 if there is a finding of this severity or worse."),
    "json": JSON,
}


class SanityArgs(Selected):
    """What `sanity` can be asked."""

    fail_on: str = ""
    json: bool = False


def check_metrics(args: SanityArgs) -> int:
    """Print it; 1 if `--fail-on` is reached, or if there is no row to look at."""
    from tdbg.core.errors import TdbgError
    from tdbg.core.events import SEVERITIES
    from tdbg.core.tables import safe
    from tdbg.metrics.metrics_options import NO_ROWS, find_place, report_skipped_rows
    from tdbg.metrics.rows.run_summary import summarize_run
    from tdbg.metrics.sanity import evaluate_metrics, list_unarmed

    if args.fail_on and args.fail_on not in SEVERITIES:
        raise TdbgError(f"--fail-on cannot be {args.fail_on!r}", f"write one of: {', '.join(SEVERITIES)}")
    place = find_place(args)
    seen, counts = summarize_run(place)
    report_skipped_rows(place.name, counts)
    found, trouble = evaluate_metrics(seen)
    for line in trouble:
        print_messages(line)
    unarmed = list_unarmed(seen)
    if args.json:
        _print_json(place.name, found, counts.rows, unarmed)
    elif counts.rows or found:
        _print_findings(found, counts.rows)
        _print_unarmed(unarmed)
    if not counts.rows:
        print_messages(safe(f"{place.name}: {NO_ROWS}"))
        return 1
    if not args.fail_on:
        return 0
    floor = SEVERITIES.index(args.fail_on)
    return int(any(SEVERITIES.index(one.severity) >= floor for one in found))


def _print_findings(found: "Sequence[Finding]", rows: int) -> None:
    from tdbg.core.tables import format_count, safe

    for one in found:
        who = f", rank {one.rank}" if one.rank is not None else ""
        print_lines([safe(f"{one.code} {one.severity}: {one.title}{who}")])
        for line in one.evidence:
            print_lines([safe(f"    {line}")])
        print_lines([safe(f"    cause: {one.cause}")])
        print_lines([safe(f"    try: {one.try_next}")])
    if not found:
        print_lines([f"no problem found in {format_count(rows, 'row')}"])


def _print_unarmed(unarmed: "Sequence[tuple[type[Rule], Unarmed]]") -> None:
    """Name the rules whose silence says nothing."""
    if unarmed:
        print_lines(["not checked, because these rows are missing:"])
        print_lines([f"    {rule.code} {rule.title}: {why.reason}" for rule, why in unarmed])


def _print_json(
    name: str, found: "Sequence[Finding]", rows: int, unarmed: "Sequence[tuple[type[Rule], Unarmed]]"
) -> None:
    from tdbg.core.tables import to_json_value

    missing = [
        {"codes": [rule.code], "reason": why.reason, "flag": why.flag, "level": why.level} for rule, why in unarmed
    ]
    content = {"run": name, "rows": rows, "findings": [one.as_dict() for one in found], "not_watched": missing}
    print_json("metrics-sanity", to_json_value(content))


COMMAND = Command(read_from_stores(check_metrics, "metrics"), SanityArgs, HELP, OPTIONS, ARGUMENT)
