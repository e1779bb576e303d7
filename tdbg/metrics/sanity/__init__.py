"""What is wrong with the metrics of a run: one rule a file; its docstring is the page of `tdbg explain`.

A rule looks at what `tdbg.metrics.rows.run_summary` read, and says what it is sure of; without its signal it is silent.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Unpack

from tdbg.core.events import SEVERITIES, Finding
from tdbg.core.observations import Evidence
from tdbg.core.registry import Registry
from tdbg.core.rule_base import FindingParts, RuleBase, Unarmed, evaluate_rules, following_codes, sort_causes_first

if TYPE_CHECKING:
    from tdbg.metrics.rows.run_summary import RunSummary
    from tdbg.metrics.rows.series import Series

MAX_EVIDENCE = 12


class Rule(RuleBase["RunSummary"], ABC):
    """One thing that can be wrong with the metrics of a run. It is armed where the keys in ``needs.fields`` have values.

    lacks: what is not there where `has_signal` is false. grade: how sure its findings are.
    """

    lacks: ClassVar[str] = ""
    grade: ClassVar[str] = Evidence.LOCAL.grade_word

    @abstractmethod
    def evaluate(self, seen: "RunSummary") -> Iterable[Finding]:
        """What the rule concludes from the metrics of a run."""

    def check_armed(self, given: "RunSummary") -> Unarmed | None:
        """Which keys or values the rule lacks."""
        keys = {key for key, _, _ in given.tally.series}
        missing = [key for key in self.needs.fields if key not in keys]
        if missing:
            return Unarmed(f"no values of {', '.join(missing)}")
        return None if self.has_signal(given) else Unarmed(self.lacks)

    def has_signal(self, seen: "RunSummary") -> bool:
        """True if the metrics hold what the rule judges: without it, its silence says nothing."""
        return True

    def make_finding(self, title: str, evidence: Sequence[str], **parts: Unpack[FindingParts]) -> Finding:
        """A finding of its usual severity and grade; of much evidence the first lines, and how many more there are."""
        lines = list(evidence[:MAX_EVIDENCE])
        if len(evidence) > MAX_EVIDENCE:
            lines[-1] = f"and {len(evidence) - MAX_EVIDENCE + 1} more"
        parts.setdefault("severity", self.severity)
        parts.setdefault("grade", self.grade)
        return Finding(code=self.code, title=title, evidence=lines, **parts)


RULES: Registry[type[Rule]] = Registry("rule", package="tdbg.metrics.sanity", is_numbered=True)


def evaluate_metrics(seen: "RunSummary") -> tuple[list[Finding], list[str]]:
    """What all armed rules conclude, worst first, and which of them failed."""
    trouble: list[str] = []

    def evaluate_rule(rule: type[Rule]) -> Iterable[Finding]:
        made = rule()
        return made.evaluate(seen) if made.is_armed(seen) else ()

    def record_failure(rule: type[Rule], error: Exception) -> None:
        trouble.append(f"rule {rule.code} failed: {type(error).__name__}: {error}")

    found = evaluate_rules([(rule, partial(evaluate_rule, rule)) for rule in RULES], record_failure)
    return sort_causes_first(found, lambda one: one.code, _build_sort_key, following_codes(RULES)), trouble


def list_unarmed(seen: "RunSummary") -> list[tuple[type[Rule], Unarmed]]:
    """The rules that could not conclude anything from the metrics of a run, and why. One that fails is told by `evaluate_metrics`."""

    def check_rule(rule: type[Rule]) -> Iterable[tuple[type[Rule], Unarmed]]:
        unarmed = rule().check_armed(seen)
        return [(rule, unarmed)] if unarmed is not None else []

    return evaluate_rules([(rule, partial(check_rule, rule)) for rule in RULES], lambda rule, error: None)


def _build_sort_key(finding: Finding) -> tuple[int, str, int]:
    return -SEVERITIES.index(finding.severity), finding.code, finding.first_step or 0


def group_by_key(seen: "RunSummary") -> dict[tuple[str, str], list["Series"]]:
    """Series of the same key and source, of all ranks, in order."""
    found: dict[tuple[str, str], list[Series]] = {}
    for (key, source, _), one in sorted(seen.tally.series.items()):
        found.setdefault((key, source), []).append(one)
    return found


def source_text(source: str) -> str:
    """Who logged it, where that needs saying."""
    return "" if source in ("tracker", "") else f", logged with {source}" if source != "tdbg" else ", as tdbg saw it"


def split_words(key: str) -> list[str]:
    """The words of a metric's name, without its phase."""
    name = key.rpartition("/")[2].lower()
    return [word for part in name.replace("-", "_").replace(".", "_").split("_") for word in [part] if word]
