"""The order of findings in a verdict, and their stories: the worst first, and a cause before what follows from it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tdbg.core.events import SEVERITIES, Finding
from tdbg.core.observations import Evidence
from tdbg.core.rule_base import AnyRule, Link, Weight, following_links, sort_causes_first
from tdbg.rules import at_least
from tdbg.rules._rule_cards import RuleCard, list_rule_cards

GRADES = tuple(kind.word for kind in Evidence)  # the surest first


class OrderedFindings(NamedTuple):
    """Findings in the order in which people read them; the first is the one to mend."""

    findings: list[Finding]
    causes: list[int | None]  # for each finding: where the finding stands that it follows from; None: it stands alone


def order_findings(findings: Sequence[Finding], others: Iterable[AnyRule] = ()) -> OrderedFindings:
    """Order the findings, and say which of them follow from which.

    A cause stands before the consequences that its rule names (`Rule.leads_to`), or that name it (`Rule.causes`),
    however severe those are: it takes the place of the first of them. A finding below the usual severity of its rule,
    such as an exception that the program lived on with, is no cause. Of findings of one severity and step the surer
    comes first.

    others: rules of another family whose findings are among these.
    """
    if len(findings) < 2:
        return OrderedFindings(list(findings), [None] * len(findings))
    rules: list[AnyRule | RuleCard] = [*list_rule_cards(), *others]
    usual = {rule.code: rule.severity for rule in rules}
    links = following_links(rules)

    def is_cause(finding: Finding) -> bool:
        return at_least(finding.severity, usual.get(finding.code, finding.severity))

    def follows(cause: Finding, finding: Finding) -> bool:
        link = links.get(cause.code, _NO_LINKS).get(finding.code)
        return link is not None and is_cause(cause) and meets_condition(link, cause, finding)

    found = sort_causes_first(
        findings,
        lambda finding: finding.code,
        _weigh,
        {code: set(after) for code, after in links.items()},
        is_cause=is_cause,
        follows=follows,
    )
    causes = [
        next((at for at, cause in enumerate(found[:place]) if follows(cause, finding)), None)
        for place, finding in enumerate(found)
    ]
    return OrderedFindings(found, causes)


_NO_LINKS: Mapping[str, Link] = {}


def meets_condition(link: Link, cause: Finding, finding: Finding) -> bool:
    """True if a finding can follow from a cause. What one of them does not say speaks neither for it nor against it."""
    if cause.first_step is not None and finding.first_step is not None:
        later = finding.first_step - cause.first_step
        if (link.after and later < 0) or (link.within is not None and later > link.within):
            return False
    return all(_agree(name, getattr(cause, name), getattr(finding, name)) for name in link.same)


def _agree(name: str, cause: object, finding: object) -> bool:
    if cause in (None, "") or finding in (None, "") or cause == finding:
        return True
    if name != "module":
        return False
    return f"{finding}.".startswith(f"{cause}.") or f"{cause}.".startswith(f"{finding}.")


def _weigh(finding: Finding) -> Weight:
    step = finding.first_step if finding.first_step is not None else float("inf")
    rank = finding.rank if finding.rank is not None else 1 << 30
    grade = GRADES.index(finding.grade) if finding.grade in GRADES else GRADES.index(Evidence.LOCAL.word)
    return -SEVERITIES.index(finding.severity), step, grade, finding.code, rank
