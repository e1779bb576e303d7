"""The order of findings in a verdict, and their stories: the worst first, and a cause before what follows from it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from tdbg.core.events import SEVERITIES, Finding
from tdbg.core.observations import Evidence
from tdbg.core.rule_base import AnyRule, Link, Weight, following_codes, following_links, sort_causes_first
from tdbg.rules import is_at_least
from tdbg.rules._rule_cards import RuleCard, list_rule_cards

GRADES = tuple(kind.grade_word for kind in Evidence)  # the surest first


class OrderedFindings(NamedTuple):
    """Findings in the order of reports, and for each the place of the finding that it follows from; None: it stands alone."""

    findings: list[Finding]
    causes: list[int | None]


def order_findings(findings: Sequence[Finding], others: Iterable[AnyRule] = ()) -> OrderedFindings:
    """Order the findings, and say which of them follow from which.

    A cause stands before the consequences that its rule names (`Rule.leads_to`), or that name it (`Rule.causes`),
    however severe those are: it takes the place of the first of them. Only what is critical stays first in the list;
    a story, which is for people, puts its cause above it. A finding below the usual severity of its rule, such as an
    exception that the program lived on with, is no cause. Of findings of one severity and step the surer comes first.

    others: rules of another family whose findings are among these.
    """
    if len(findings) < 2:
        return OrderedFindings(list(findings), [None] * len(findings))
    rules: list[AnyRule | RuleCard] = [*list_rule_cards(), *others]
    direct = _link_findings(findings, rules)
    reached = {place: _find_reached(place, direct) for place in direct}
    codes = following_codes(rules)

    def sort_places(follows: Callable[[int, int], bool]) -> list[int]:
        places = range(len(findings))
        weights = [_compute_weight(finding) for finding in findings]
        return sort_causes_first(places, lambda at: findings[at].code, weights.__getitem__, codes, follows=follows)

    def may_pass(cause: int, place: int) -> bool:
        return findings[place].severity != SEVERITIES[-1] or findings[cause].severity == SEVERITIES[-1]

    listed = sort_places(lambda cause, place: place in reached.get(cause, ()) and may_pass(cause, place))
    by_cause = sort_places(lambda cause, place: place in reached.get(cause, ()))
    causes = {
        place: next((cause for cause in by_cause[:at] if place in direct.get(cause, ())), None)
        for at, place in enumerate(by_cause)
    }
    return OrderedFindings(
        [findings[place] for place in listed],
        [None if (cause := causes[place]) is None else listed.index(cause) for place in listed],
    )


def _link_findings(findings: Sequence[Finding], rules: Sequence[AnyRule | RuleCard]) -> dict[int, set[int]]:
    """For each finding that others follow from directly: where those stand."""
    usual = {rule.code: rule.severity for rule in rules}
    links = following_links(rules)
    found: dict[int, set[int]] = {}
    for at, cause in enumerate(findings):
        after = links.get(cause.code)
        if after and is_at_least(cause.severity, usual.get(cause.code, cause.severity)):
            found[at] = {
                place
                for place, finding in enumerate(findings)
                if finding.code in after and meets_condition(after[finding.code], cause, finding)
            }
    return found


def _find_reached(place: int, direct: Mapping[int, set[int]]) -> set[int]:
    """The findings that follow from one, directly or through others."""
    found: set[int] = set()
    waiting = [place]
    while waiting:
        new = direct.get(waiting.pop(), set()) - found - {place}
        found |= new
        waiting += new
    return found


def meets_condition(link: Link, cause: Finding, finding: Finding) -> bool:
    """True if a finding can follow from a cause. What one of them does not say speaks neither for it nor against it."""
    if cause.attempt is not None and finding.attempt is not None and finding.attempt < cause.attempt:
        return False  # the job was restarted in between
    if cause.first_step is not None and finding.first_step is not None:
        later = finding.first_step - cause.first_step
        if (link.least is not None and later < link.least) or (link.most is not None and later > link.most):
            return False
    if any(not _differ(getattr(cause, name), getattr(finding, name)) for name in link.other):
        return False
    return all(_is_compatible(name, getattr(cause, name), getattr(finding, name)) for name in link.same)


def _differ(cause: object, finding: object) -> bool:
    return cause not in (None, "") and finding not in (None, "") and cause != finding


def _is_compatible(name: str, cause: object, finding: object) -> bool:
    if cause in (None, "") or finding in (None, "") or cause == finding:
        return True
    if name != "module":
        return False
    return f"{finding}.".startswith(f"{cause}.") or f"{cause}.".startswith(f"{finding}.")


def _compute_weight(finding: Finding) -> Weight:
    step = finding.first_step if finding.first_step is not None else float("inf")
    rank = finding.rank if finding.rank is not None else 1 << 30
    grade = GRADES.index(finding.grade) if finding.grade in GRADES else GRADES.index(Evidence.LOCAL.grade_word)
    return -SEVERITIES.index(finding.severity), step, grade, finding.code, rank
