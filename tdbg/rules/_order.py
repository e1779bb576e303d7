"""The order of findings in a verdict: the worst first, then by step, and a cause before what follows from it."""

from collections.abc import Sequence

from tdbg.core.events import SEVERITIES, Finding
from tdbg.rules import RULES, at_least

Weight = tuple[int, float, str, int]


def sort_findings(findings: Sequence[Finding]) -> list[Finding]:
    """The order in which people read them; the first is the one to mend.

    A cause stands before the consequences that its rule names (`Rule.leads_to`), however severe those are: it takes
    the place of the first of them. A finding below the usual severity of its rule, such as an exception that the
    program lived on with, is no cause.
    """
    usual = {rule.code: rule.severity for rule in RULES}
    places = {code: _first_place(code, findings) for code in {finding.code for finding in findings}}

    def place(finding: Finding) -> tuple[Weight, int, Weight]:
        causes = at_least(finding.severity, usual.get(finding.code, finding.severity))
        own = _weight(finding)
        return (min(own, places[finding.code]) if causes else own, *_own_place(finding))

    return sorted(findings, key=place)


def _first_place(code: str, findings: Sequence[Finding]) -> Weight:
    """The place of the first finding that follows from this code; behind all others if there is none."""
    following = _all_that_follows(code)
    return min((_weight(finding) for finding in findings if finding.code in following), default=(1, 0.0, "", 0))


def _own_place(finding: Finding) -> tuple[int, Weight]:
    """Causes of many first, so that the cause of a cause comes before it."""
    return -len(_all_that_follows(finding.code)), _weight(finding)


def _all_that_follows(code: str) -> set[str]:
    """The codes that follow from this one, directly or through others."""
    direct = {rule.code: set(getattr(rule, "leads_to", ())) for rule in RULES}
    found: set[str] = set()
    waiting = [code]
    while waiting:
        new = direct.get(waiting.pop(), set()) - found - {code}
        found |= new
        waiting += new
    return found


def _weight(finding: Finding) -> Weight:
    step = finding.first_step if finding.first_step is not None else float("inf")
    rank = finding.rank if finding.rank is not None else 1 << 30
    return -SEVERITIES.index(finding.severity), step, finding.code, rank
