"""The rules: what the facts of a run mean. One rule a file; its docstring is the page of `tdbg explain`.

A rule sees the events of every process, live and offline alike, and says what it is sure of. It may see
the ranks one after the other (offline) or mixed (live), so what it concludes must not hang on the order
between ranks: a finding already given out may be amended in place when another rank knows better.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, Unpack

from tdbg.core.deprecation import renamed_method
from tdbg.core.errors import TdbgError, suggest_name
from tdbg.core.events import SEVERITIES, Event, Finding, Observation, Step
from tdbg.core.observations import Observed
from tdbg.core.registry import Registry
from tdbg.core.rule_base import EvidencedParts, Needs, RuleBase, Unarmed
from tdbg.core.rundir import ProcessDir
from tdbg.rules._signals import Signals

if TYPE_CHECKING:
    from tdbg.rules.view import View

MAX_EVIDENCE = 12
MAX_REPETITIONS = 8  # steps listed at which a process shows the same again


class Additions:
    """What was added to a finding after it was given out, as data beside its lines.

    others: the lines that name other processes. again: the line that lists ``steps``, at which its own process shows it again.
    """

    __slots__ = ("again", "others", "steps")

    def __init__(self) -> None:
        self.others: list[str] = []
        self.steps: list[int] = []
        self.again = ""


class Rule(RuleBase[Signals]):
    """One thing that can be wrong with a run; an instance watches one run.

    A rule without its signal abstains. It keeps a bounded amount per process, never a list of all steps.
    """

    listens: ClassVar[tuple[type[Event], ...]] = ()  # the events `feed` is called for
    grade: ClassVar[str] = ""  # how sure its findings are, if neither they nor what was observed say
    observes: ClassVar[tuple[type[Observed], ...]] = ()  # of observations those of these classes; none given: all
    # Findings that were given out, and that what was read later does not bear out: the verdict leaves them out.
    withdrawn: Sequence[Finding] = ()
    # Of the process whose event it sees, in a job that is restarted; None where that is not known, and in `finish`.
    find_attempt: Callable[[], int | None] = staticmethod(lambda: None)
    _renamed = {"found": "make_finding", "once": "report_once"}

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if "needs" not in vars(cls):
            cls.needs = Needs(cls.observes, tuple(event for event in cls.listens if event is not Observation))

    def check_armed(self, given: Signals) -> Unarmed | None:
        """Why the rule has no signal in this run: level, flag, probe, phase or ranks."""
        probes = list(dict.fromkeys(kind.PROBE for kind in self.needs.observations))
        return given.find_unarmed(probes, self.needs.ranks, needs_training=self.needs.events[:1] == (Step,))

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        """See one event; return what is certain now, at once."""
        return ()

    def finish(self, view: "View") -> Iterable[Finding]:
        """See the whole run after its last event; return what only the whole shows."""
        return ()

    def make_finding(self, title: str, **parts: Unpack[EvidencedParts]) -> Finding:
        """A finding of this rule, of its usual severity and grade unless ``parts`` says otherwise."""
        parts.setdefault("severity", self.severity)
        parts.setdefault("grade", self.grade)
        parts.setdefault("attempt", self.find_attempt())
        return Finding(code=self.code, title=title, **parts)

    def report_once(self, given: list[Finding], new: Finding) -> list[Finding]:
        """Give out the first finding of a kind in a run; later ranks are only added to its evidence, the gravest counts.

        given: what this rule gave out already, kept by the rule (empty or one). Ranks may be read in any
            order: a finding of an earlier step takes the place of the one given, in place.
        """
        return self._report(given, new, None)

    def report_from(self, process: ProcessDir, given: list[Finding], new: Finding) -> list[Finding]:
        """`report_once` of what this process shows, which is not told as another process when it shows it again."""
        return self._report(given, new, process)

    def _report(self, given: list[Finding], new: Finding, process: ProcessDir | None) -> list[Finding]:
        label = process.label if process is not None else ""
        origins: dict[int, str] = vars(self).setdefault("_origins", {})  # finding given out -> label of its process
        if not given:
            given.append(new)
            origins[id(new)] = label
            return [new]
        first = given[0]
        severity = find_gravest(first.severity, new.severity)
        is_same_process = process is not None and self._is_origin(first, process)
        if _get_order_key(new) < _get_order_key(first):
            old = Finding(**first.as_dict())
            overwrite_finding(first, new)
            self._all_additions().pop(id(first), None)
            origins[id(first)] = label
            new = old
        first.severity = severity
        additions = self._all_additions().setdefault(id(first), Additions())
        if is_same_process:
            _add_repetition(first, new, additions)
            return []
        line = f"also {_describe_other(first, new)}" + (
            f" at step {new.first_step}" if new.first_step is not None else ""
        )
        if line not in first.evidence and len(first.evidence) < MAX_EVIDENCE:
            first.evidence.append(line)
            additions.others.append(line)
        return []

    def _all_additions(self) -> dict[int, Additions]:
        """By finding given out, as `_origins` of `_report`: rules of other packages may not call our `__init__`."""
        found: dict[int, Additions] = vars(self).setdefault("_additions", {})
        return found

    def _replace_given(self, first: Finding, new: Finding, *, with_repetitions: bool) -> None:
        """Amend a finding given out; the lines on other processes stay below it. with_repetitions: those on its own too."""
        additions = self._all_additions().setdefault(id(first), Additions())
        if not with_repetitions:
            additions.again, additions.steps = "", []
        new.evidence += [line for line in first.evidence if line in additions.others or line == additions.again]
        overwrite_finding(first, new)

    def _is_origin(self, finding: Finding, process: ProcessDir) -> bool:
        """True if the process made a finding that `report_once` gave out."""
        origins: dict[int, str] = vars(self).get("_origins", {})
        return origins.get(id(finding)) == process.label

    found = renamed_method("found", make_finding)
    once = renamed_method("once", report_once)


class Reported:
    """What is kept of a process by a rule that speaks of it once."""

    is_reported: bool = False


S = TypeVar("S")


class PerProcessRule(Rule, ABC, Generic[S]):
    """A rule that follows the training steps of each process by itself, and tells the run of it once."""

    kept: ClassVar[type[Any]] = type(None)  # what is kept of one process: a class S, made without arguments
    listens: ClassVar[tuple[type[Event], ...]] = (Step,)
    _renamed = {**Rule._renamed, "see": "evaluate"}

    def __init__(self) -> None:
        self._states: defaultdict[str, S] = defaultdict(self.kept)
        self._given: list[Finding] = []

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        """Hand what the rule follows to `evaluate`."""
        if not self.should_evaluate(event):
            return ()
        new = self.evaluate(process, self._states[process.label], event)
        return self.report_from(process, self._given, new) if new is not None else ()

    def should_evaluate(self, event: Event) -> bool:
        """True for an event that `evaluate` is to be called with."""
        return isinstance(event, Step) and event.phase == "train"

    @abstractmethod
    def evaluate(self, process: ProcessDir, state: S, event: Any) -> Finding | None:
        """Evaluate one event of a process, given what is kept of it; return what is certain now."""

    see = renamed_method("see", evaluate)


class ObservingRule(PerProcessRule[S]):
    """The same for what probes see: `evaluate` is called with each observation of a class in ``observes``."""

    probe: ClassVar[str] = ""  # without ``observes``: the probe whose events `evaluate` is called with
    listens: ClassVar[tuple[type[Event], ...]] = (Observation,)

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        """Hand what was observed to `evaluate`."""
        if not self.observes:
            return super().feed(process, event)
        for seen in read_observations(event, self.observes):
            new = self.evaluate(process, self._states[process.label], seen)
            return self.report_from(process, self._given, add_grade(new, seen)) if new is not None else ()
        return ()

    def should_evaluate(self, event: Event) -> bool:
        """True for an observation of the probe."""
        return isinstance(event, Observation) and event.probe == self.probe


def read_observations(event: Event, kinds: Iterable[type[Observed]]) -> Iterator[Observed]:
    """What an event says, if it is one of these observations."""
    for kind in kinds:
        seen = kind.from_event(event)
        if seen is not None:
            yield seen


def overwrite_finding(given: Finding, new: Finding) -> None:
    """Amend a finding that was given out already."""
    for name, value in new.as_dict().items():
        setattr(given, name, value)


def find_gravest(*severities: str) -> str:
    """The gravest of some severities; a word that is none counts least."""
    return max(severities, key=lambda one: SEVERITIES.index(one) if one in SEVERITIES else -1)


def add_grade(finding: Finding, seen: Observed) -> Finding:
    """The finding, as sure as the observation behind it unless its rule says otherwise."""
    finding.grade = finding.grade or seen.EVIDENCE.grade_word
    return finding


def _describe_other(first: Finding, new: Finding) -> str:
    """Where a finding was made again, as seen from where it was made first."""
    if new.rank is None:
        return "in another process"
    return f"on rank {new.rank}" if new.rank != first.rank else "in another process of that rank"


def _add_repetition(first: Finding, new: Finding, additions: Additions) -> None:
    """Add a later finding of the process to the line that lists their steps: ``again at steps 101 and 202``."""
    if new.first_step is None or new.first_step == first.first_step:
        return
    place = first.evidence.index(additions.again) if additions.again in first.evidence else len(first.evidence)
    if place >= MAX_EVIDENCE or new.first_step in additions.steps or len(additions.steps) >= MAX_REPETITIONS:
        return
    additions.steps = sorted([*additions.steps, new.first_step])
    *others, last = additions.steps
    listed = f"s {', '.join(map(str, others))} and {last}" if others else f" {last}"
    additions.again = f"again at step{listed}"
    first.evidence[place : place + 1] = [additions.again]


def _get_order_key(finding: Finding) -> tuple[int, int]:
    return finding.first_step or 0, finding.rank or 0


RULES: Registry[type[Rule]] = Registry("rule", package="tdbg.rules", group="tdbg.rules", is_numbered=True)


def is_at_least(severity: str, floor: str) -> bool:
    """True if ``severity`` is ``floor`` or worse; ``never`` is reached by nothing."""
    return floor in SEVERITIES and SEVERITIES.index(severity) >= SEVERITIES.index(floor)


def matches_words(finding: Finding, words: Iterable[str]) -> bool:
    """True if one of ``words`` asks for this finding: its code, the beginning of it, or a severity it reaches."""
    return any(
        is_at_least(finding.severity, word) if word in SEVERITIES else finding.code.startswith(word.upper())
        for word in words
    )


def check_words(words: Sequence[str]) -> None:
    """TdbgError for a word that could never ask for a finding, as `--stop-on` takes them."""
    codes = RULES.names() if words else []
    for word in words:
        if word in SEVERITIES or (len(word) > 3 and any(code.startswith(word.upper()) for code in codes)):
            continue
        listed = f"name a code such as {codes[0]}, or: {', '.join(SEVERITIES)}"
        hint = suggest_name(word, codes, "") or suggest_name(word, SEVERITIES, listed)
        raise TdbgError(f"no finding has the code or severity {word!r}", hint)
