"""What every rule is, whether it reads the events of a run, the metrics of a run or a trace.

A rule has a code, a title, a severity and a page (its docstring); it declares what it needs and says why it is not armed.
Rules are evaluated under one guard, and what they conclude is sorted by one order: a cause before what follows from it.
"""

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Generic, NamedTuple, Protocol, TypedDict, TypeVar

from tdbg.core.deprecation import adopt_old_names
from tdbg.core.errors import TdbgError, suggest_name
from tdbg.core.events import SEVERITIES, Event
from tdbg.core.observations import Observed
from tdbg.core.registry import Registry

LISTED = "`tdbg explain` lists all codes, `tdbg explain WORD` those whose title or page has the word"
MAX_TITLES = 8


class Needs(NamedTuple):
    """What must be there before a rule can conclude anything. Of observations one is enough, of the rest all count."""

    observations: tuple[type[Observed], ...] = ()
    events: tuple[type[Event], ...] = ()
    flags: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()  # of the summary of a trace; of metrics the keys
    ranks: int = 1  # so many ranks


class FindingParts(TypedDict, total=False):
    """What a rule says in a finding beside its code and title."""

    severity: str
    first_step: int | None
    rank: int | None
    phase: str
    module: str
    cause: str
    try_next: str
    grade: str
    attempt: int | None


class EvidencedParts(FindingParts, total=False):
    """The same, with the evidence."""

    evidence: list[str]


class Link(NamedTuple):
    """How a finding can follow from another; named in `RuleInfo.leads_to` or `causes`. A bare code sets no condition.

    least, most: how many steps after the cause the consequence is first seen. An exception carries the last step done:
        one that a step raises is first seen one step before it (-1).
    same: fields that must agree wherever both findings fill them in. A module agrees with those inside it.
    other: fields that both findings fill in, and that must differ: what a rank that died does to another one.
    """

    code: str
    least: int | None = None
    most: int | None = None
    same: tuple[str, ...] = ()
    other: tuple[str, ...] = ()


class RuleInfo:
    """What is known of a rule without evaluating it. The docstring of a rule is its page."""

    code: ClassVar[str] = ""
    title: ClassVar[str] = ""
    severity: ClassVar[str] = "warning"
    severities: ClassVar[tuple[str, ...]] = SEVERITIES  # the words of its family, from the least to the gravest
    leads_to: ClassVar[tuple[str | Link, ...]] = ()  # codes that follow from this one: they come after it
    causes: ClassVar[tuple[str | Link, ...]] = ()  # the other way round: codes that this one follows from
    thresholds: ClassVar[dict[str, float]] = {}  # name -> value
    needs: ClassVar[Needs] = Needs()
    name: ClassVar[str] = ""  # what the registry knows it by: its code
    _renamed: ClassVar[Mapping[str, str]] = {}  # old names of methods, which other packages may override

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls.name = cls.code
        adopt_old_names(cls, cls._renamed)

    @classmethod
    def page(cls) -> str:
        """What `tdbg explain` prints."""
        return inspect.cleandoc(cls.__doc__ or "")


class Unarmed(NamedTuple):
    """Why a rule cannot see what it is there for. flag, level: what would arm it, where that is known."""

    reason: str
    flag: str = ""
    level: str = ""


Given = TypeVar("Given", contravariant=True)


class RuleBase(RuleInfo, Generic[Given]):
    """One thing that can be wrong. ``Given`` is what shows whether the rule is armed."""

    def check_armed(self, given: Given) -> Unarmed | None:
        """Why the rule cannot see what it is there for; None if it can."""
        return None

    def is_armed(self, given: Given) -> bool:
        """True if the rule can see what it is there for."""
        return self.check_armed(given) is None

    def unarmed_reason(self, given: Given) -> str:
        """Why it is not armed, in words; empty if it is."""
        unarmed = self.check_armed(given)
        return unarmed.reason if unarmed is not None else ""


AnyRule = type[RuleInfo]
R = TypeVar("R")
T = TypeVar("T")


def evaluate_rules(
    rules: Iterable[tuple[R, Callable[..., Iterable[T]]]], report: Callable[[R, Exception], None], *given: object
) -> list[T]:
    """What all rules conclude from what is given, in their order. One that raises is reported; the others go on.

    rules: each with the method that evaluates it: bound once, as this is called for every event of a run.
    """
    found: list[T] = []
    for rule, evaluate in rules:
        try:
            new = evaluate(*given)
            if new:
                found += new
        except Exception as error:  # guard: a rule, of another package too, must not take the others down
            report(rule, error)
    return found


class Related(Protocol):
    """What places a rule among others."""

    @property
    def code(self) -> str: ...
    @property
    def leads_to(self) -> Sequence[str | Link]: ...
    @property
    def causes(self) -> Sequence[str | Link]: ...


def following_codes(rules: Iterable[AnyRule | Related]) -> dict[str, set[str]]:
    """For each code that leads to others: the codes that follow from it, directly or through others."""
    links = following_links(rules)
    return {code: _find_reachable(code, links) for code in links}


def following_links(rules: Iterable[AnyRule | Related]) -> dict[str, dict[str, Link]]:
    """For each code that leads to others: the codes that follow from it directly, and on what condition."""
    found: dict[str, dict[str, Link]] = {}
    for rule in rules:
        for link in map(as_link, rule.leads_to):
            found.setdefault(rule.code, {})[link.code] = link
        for link in map(as_link, rule.causes):
            found.setdefault(link.code, {})[rule.code] = link._replace(code=rule.code)
    return found


def as_link(entry: str | Link) -> Link:
    """An entry of `leads_to` or `causes` with its condition."""
    return entry if isinstance(entry, Link) else Link(entry)


def _find_reachable(code: str, links: Mapping[str, Mapping[str, Link]]) -> set[str]:
    found: set[str] = set()
    waiting = [code]
    while waiting:
        new = links.get(waiting.pop(), {}).keys() - found - {code}
        found |= new
        waiting += new
    return found


Weight = tuple[float | str | bool, ...]  # what sorts first weighs least


def sort_causes_first(
    items: Sequence[T],
    code_of: Callable[[T], str],
    weigh: Callable[[T], Weight],
    following: Mapping[str, set[str]],
    *,
    is_cause: Callable[[T], bool] = lambda _: True,
    follows: Callable[[T, T], bool] = lambda cause, item: True,
) -> list[T]:
    """Sort by weight, with a cause in the place of the first of its consequences, however grave these are.

    following: as `following_codes` gives it. is_cause: false for an item that is too slight to be the cause of others.
    follows: false for a cause and an item that have nothing to do with each other, whatever their codes.
    """
    weighed = [(item, code_of(item), weigh(item)) for item in items]

    def compute_sort_key(one: tuple[T, str, Weight]) -> tuple[Weight, int, Weight]:
        item, code, own = one
        codes = following.get(code, ())
        after = [weight for other, code, weight in weighed if code in codes and follows(item, other)] if codes else []
        first = min([own, *after]) if after and is_cause(item) else own
        return first, -len(after), own  # the cause of a cause comes before it: more findings follow from that

    return [item for item, _, _ in sorted(weighed, key=compute_sort_key)]


class RuleCatalog:
    """The rules of all families in one: what `tdbg explain` and the docs read. Families are loaded when asked for."""

    def __init__(self, *packages: str) -> None:
        self._packages = packages  # each with its registry, RULES

    def iter_registries(self) -> Iterator[Registry[AnyRule]]:
        """The registry of each family, with what other packages add to it."""
        for package in self._packages:
            registry: Registry[AnyRule] = importlib.import_module(package).RULES
            yield registry

    def __iter__(self) -> Iterator[AnyRule]:
        for registry in self.iter_registries():
            registry.load_third_party()
            yield from registry

    def find(self, code: str) -> AnyRule:
        """The rule whose code this is, in any spelling; TdbgError with the nearest one, or with those of that title."""
        name = normalize_code(code)
        for registry in self.iter_registries():
            if name in registry:
                return registry[name]
        rules = {rule.code: rule for rule in self}  # those of other packages too, whose codes may begin otherwise
        for word in (name, code.strip()):
            if word in rules:
                return rules[word]
        word = code.strip().lower()
        titled = [f"{rule.code} ({rule.title})" for rule in rules.values() if word in rule.title.lower()]
        if titled:
            more = f" and {len(titled) - MAX_TITLES} more" if len(titled) > MAX_TITLES else ""
            raise TdbgError(f"no finding has the code {code!r}", f"try one of: {', '.join(titled[:MAX_TITLES])}{more}")
        raise TdbgError(f"no finding has the code {code!r}", suggest_name(name, rules, LISTED))


def normalize_code(code: str) -> str:
    """``n001`` and ``TDN001`` as the table spells them: ``TD-N001``."""
    word = code.strip().upper().removeprefix("TD").lstrip("-")
    if not word:
        raise TdbgError(f"not a code: {code!r}", "`tdbg explain` shows every code")
    return f"TD-{word}"


RULE_CATALOG = RuleCatalog("tdbg.rules", "tdbg.metrics.sanity", "tdbg.traces.rules")
