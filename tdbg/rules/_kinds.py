"""Rules that tell several kinds of faults under one code, each once a run."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, ClassVar

from tdbg.core.events import Event, Finding, Observation
from tdbg.core.observations import Observed
from tdbg.core.rundir import ProcessDir
from tdbg.rules import Rule, observed


class KindsRule(Rule, ABC):
    """A rule that reads what one probe tells of, and gives out one finding of each kind."""

    observes: ClassVar[tuple[type[Observed], ...]] = ()
    probe: ClassVar[str] = ""  # without ``observes``: the probe whose events `see` is called with
    listens: ClassVar[tuple[type[Event], ...]] = (Observation,)

    def __init__(self) -> None:
        self._given: defaultdict[str, list[Finding]] = defaultdict(list)
        self._said: set[tuple[str, str]] = set()  # process, kind

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        """Hand an observation of the probe to `see`."""
        if self.observes:
            seen = list[Any](observed(event, self.observes))
        else:
            seen = [event] if isinstance(event, Observation) and event.probe == self.probe else []
        found = (pair for one in seen for pair in self.see(process, one))
        return [given for kind, finding in found for given in self.once(self._given[kind], finding)]

    def is_news(self, process: ProcessDir, kind: str) -> bool:
        """True the first time that this is asked of a process and a kind: a fault that lasts is told of once."""
        news = (process.label, kind) not in self._said
        self._said.add((process.label, kind))
        return news

    @abstractmethod
    def see(self, process: ProcessDir, seen: Any) -> Iterable[tuple[str, Finding]]:
        """See one observation; return (kind, finding) of what is certain now."""
