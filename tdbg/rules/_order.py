"""The order of findings in a verdict: the worst first, then by step, and a cause before what follows from it."""

from collections.abc import Sequence

from tdbg.core.events import SEVERITIES, Finding
from tdbg.core.observations import Evidence
from tdbg.core.rule_base import Weight, following_codes, sort_causes_first
from tdbg.rules import at_least
from tdbg.rules._rule_cards import list_rule_cards

GRADES = tuple(kind.word for kind in Evidence)  # the surest first


def sort_findings(findings: Sequence[Finding]) -> list[Finding]:
    """The order in which people read them; the first is the one to mend.

    A cause stands before the consequences that its rule names (`Rule.leads_to`), however severe those are: it takes
    the place of the first of them. A finding below the usual severity of its rule, such as an exception that the
    program lived on with, is no cause. Of findings of one severity and step the surer comes first.
    """
    if len(findings) < 2:
        return list(findings)
    cards = list_rule_cards()
    usual = {card.code: card.severity for card in cards}
    return sort_causes_first(
        findings,
        lambda finding: finding.code,
        _weigh,
        following_codes(cards),
        is_cause=lambda finding: at_least(finding.severity, usual.get(finding.code, finding.severity)),
    )


def _weigh(finding: Finding) -> Weight:
    step = finding.first_step if finding.first_step is not None else float("inf")
    rank = finding.rank if finding.rank is not None else 1 << 30
    grade = GRADES.index(finding.grade) if finding.grade in GRADES else GRADES.index(Evidence.LOCAL.word)
    return -SEVERITIES.index(finding.severity), step, grade, finding.code, rank
