"""Advice on a trace: one rule a file; its docstring is its page.

A rule without its signal abstains and says what would supply it. Shares are unions of wall-clock time within steps,
and a gain is what the step could lose at most, never a promise.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

from tdbg.core.deprecation import renamed_method
from tdbg.core.errors import TdbgError, suggest_name
from tdbg.core.registry import Registry
from tdbg.core.rule_base import RuleBase, Unarmed, Weight, evaluate_rules, following_codes, sort_causes_first
from tdbg.core.tables import join_limited
from tdbg.traces.analyze import summary_figures
from tdbg.traces.summary import Step, Summary
from tdbg.traces.trace_options import parse_share

SEVERITIES = ("notice", "warning", "critical")
AMOUNTS = ("_ms", "_us", "_times", "_steps", "_calls")  # names of thresholds that are no shares end so
NAMED = 8  # traces that say the same, by name
WARN_STEPS, CRITICAL_STEPS = 2, 20  # steps that must have been seen
EACH_STEPS = 3  # as a window has where nobody says how many: critical if each of them is so by itself


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to mend. ``gain``: the share of a step that it could save at most, where that can be told."""

    code: str
    severity: str
    title: str
    evidence: tuple[str, ...]
    try_next: str
    threshold: str
    source: str
    trace: str = ""
    gain: float | None = None


FAILED = "the rule failed: "  # how the reason of a rule begins that raised


@dataclass(frozen=True, slots=True)
class Abstain:
    """Why a rule says nothing: its signal is not in the trace, or it is about something that is not there."""

    code: str
    reason: str


@dataclass(slots=True)
class View:
    """What a rule looks at: one trace, and where each is of another rank, all of them."""

    summary: Summary
    label: str = ""
    ranks: Mapping[str, Summary] = field(default_factory=dict)  # by label, this one with them; empty for one
    thresholds: Mapping[str, float] = field(default_factory=dict)
    alone: bool = False  # one step is looked at, to know what it would be by itself

    @property
    def steps(self) -> list[Step]:
        """The steps without those that stand out."""
        return summary_figures.select_steady_steps(self.summary)

    def step(self, number: int | None) -> "View | None":
        """The same with one step, on all ranks; None if one of them has it not."""
        of = {label: _of_step(read, number) for label, read in {**self.ranks, "": self.summary}.items()}
        summary = of.pop("")
        if not summary.steps or not all(read.steps for read in of.values()):
            return None
        return replace(self, summary=summary, ranks=of, alone=True)

    def part(self, name: str) -> float:
        """The share that a part of the bar has in the time of these steps; 0 where there is none of it."""
        return summary_figures.compute_part_shares(self.steps).get(name, 0.0)

    def share(self, *names: str) -> float | None:
        """The share of these steps spent on a thing; None if the trace does not tell."""
        return summary_figures.compute_time_share(self.steps, *names)


def _of_step(read: Summary, number: int | None) -> Summary:
    return replace(read, steps=[step for step in read.steps if step.number == number])


LACKING = {"device": "a rule for accelerators: the trace has none"}  # field of a summary -> what its absence means


class Rule(RuleBase[View], ABC):
    """One thing that can make a step longer than it must be."""

    severity: ClassVar[str] = "advice"  # how grave it is depends on its figures
    severities: ClassVar[tuple[str, ...]] = SEVERITIES
    source: ClassVar[str] = ""
    per_run: ClassVar[bool] = False  # it looks at all ranks at once
    _renamed = {"look": "evaluate", "graded": "find_severity"}

    def check_armed(self, given: View) -> Unarmed | None:
        """Which of ``needs.fields`` the summary lacks."""
        missing = next((name for name in self.needs.fields if getattr(given.summary, name) is None), None)
        return Unarmed(LACKING.get(missing, f"the trace has no information on {missing}")) if missing else None

    @abstractmethod
    def evaluate(self, view: View) -> Advice | Abstain | None:
        """What the rule concludes from a trace; None if all is well."""

    def limit(self, view: View, name: str) -> float:
        """A threshold: the one that was asked for, or the rule's own."""
        return view.thresholds.get(name, self.thresholds[name])

    def abstain(self, reason: str) -> Abstain:
        """Say nothing, and why."""
        return Abstain(self.code, reason)

    def advise(
        self, view: View, severity: str, title: str, evidence: list[str], try_next: str, gain: float | None = None
    ) -> Advice:
        """Say something, no more gravely than the number of steps allows."""
        severity = SEVERITIES[min(SEVERITIES.index(severity), self._gravest_allowed(view, severity))]
        limits = ", ".join(f"{name} {self.limit(view, name):g}" for name in self.thresholds)
        return Advice(self.code, severity, title, tuple(evidence), try_next, limits, self.source, view.label, gain)

    def _gravest_allowed(self, view: View, severity: str) -> int:
        """The gravest that the steps allow: critical where there are many, or each of a few is so by itself."""
        seen = len(view.summary.steps)
        if view.alone or seen >= CRITICAL_STEPS:
            return 2
        if severity == SEVERITIES[2] and len(view.steps) >= EACH_STEPS:
            views = [view.step(step.number) for step in view.steps]
            said = [self.evaluate(one) if one is not None and self.is_armed(one) else None for one in views]
            if all(isinstance(one, Advice) and one.severity == SEVERITIES[2] for one in said):
                return 2
        return 1 if seen >= WARN_STEPS else 0

    def find_severity(self, view: View, value: float) -> str | None:
        """The severity of a share by the thresholds NAME_notice, NAME_warning, NAME_critical; None below all."""
        found = None
        for name in self.thresholds:
            severity = name.rpartition("_")[2]
            if severity in SEVERITIES and value > self.limit(view, name):
                found = severity
        return found

    look = renamed_method("look", evaluate)
    graded = renamed_method("graded", find_severity)


RULES: Registry[type[Rule]] = Registry(
    "trace rule", package="tdbg.traces.rules", group="tdbg.trace_rules", is_numbered=True
)


def parse_thresholds(words: list[str]) -> dict[str, float]:
    """``NAME=VALUE`` of ``--threshold``. TdbgError for a name that no rule has, and for what is no number."""
    known = {name for rule in RULES for name in rule.thresholds}
    found = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in known:
            hint = suggest_name(name, sorted(known), f"known: {', '.join(sorted(known))}")
            raise TdbgError(f"no threshold is called {name!r}", hint)
        found[name] = (
            _parse_amount(name, value) if name.endswith(AMOUNTS) else parse_share(f"--threshold {name}", value)
        )
    return found


def _parse_amount(name: str, text: str) -> float:
    """A threshold that is no share."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise TdbgError(f"--threshold {name} cannot be {text!r}", f"write a number: {name}=20")
    return found


def evaluate_traces(
    every: list[tuple[str, Summary]], thresholds: Mapping[str, float], ranks: Mapping[str, Summary] | None = None
) -> tuple[list[Advice], list[Abstain]]:
    """What all rules say of these traces, gravest and largest gain first; and why others abstain, each once.

    What tells the cause of another comes before it, however grave that one is.
    ranks: those that may be held against each other, as `tdbg.traces.analyze.rank_comparison.compare_loaded` gives them.
    """
    failed: list[Abstain] = []

    def record_failure(made: tuple[type[Rule], View], error: Exception) -> None:
        failed.append(Abstain(made[0].code, f"{FAILED}{type(error).__name__}: {error}"[:200]))

    pairs = [
        (rule, View(summary, "" if rule.per_run else label, ranks or {}, thresholds))
        for rule in RULES
        for label, summary in (every[:1] if rule.per_run else every)
    ]
    said = evaluate_rules([(pair, partial(_evaluate_rule, pair)) for pair in pairs], record_failure)
    advice = [one for one in said if isinstance(one, Advice)]
    order = [rule.code for rule in RULES]
    silent = dict.fromkeys([*(one for one in said if isinstance(one, Abstain)), *failed])
    advice = sort_causes_first(advice, lambda one: one.code, _build_sort_key, following_codes(RULES))
    return _merge_codes(advice), sorted(silent, key=lambda one: order.index(one.code))


def _evaluate_rule(made: tuple[type[Rule], View]) -> Iterable[Advice | Abstain]:
    """What one rule says of one trace: why it is not armed, or what it concludes."""
    rule, view = made[0](), made[1]
    unarmed = rule.check_armed(view)
    said = rule.abstain(unarmed.reason) if unarmed is not None else rule.evaluate(view)
    return () if said is None else (said,)


def _build_sort_key(one: Advice) -> Weight:
    return -SEVERITIES.index(one.severity), -(one.gain or 0.0), one.code, one.trace


def _merge_codes(advice: list[Advice]) -> list[Advice]:
    """The worst of each code; where else it was found is told with it."""
    found: dict[str, list[Advice]] = {}
    for one in advice:
        found.setdefault(one.code, []).append(one)
    return [_name_others(first, [one.trace for one in more]) for first, *more in found.values()]


def _name_others(first: Advice, also: list[str]) -> Advice:
    if not also:
        return first
    return replace(first, evidence=(*first.evidence, f"also in {join_limited(also, NAMED)}"))
