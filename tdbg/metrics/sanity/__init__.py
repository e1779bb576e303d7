"""What is wrong with the metrics of a run: one rule a file; its docstring is the page of `tdbg explain`.

A rule looks at what `tdbg.metrics.rows.run_summary` read, and says what it is sure of; without its signal it is silent.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tdbg.core.events import SEVERITIES, Finding
from tdbg.core.guard import guarded
from tdbg.core.registry import Registry

if TYPE_CHECKING:
    from tdbg.metrics.rows.run_summary import Seen
    from tdbg.metrics.rows.series import Series

MAX_EVIDENCE = 12


class Rule(ABC):
    """One thing that can be wrong."""

    code: ClassVar[str] = ""
    title: ClassVar[str] = ""
    severity: ClassVar[str] = "warning"
    name: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name = cls.code

    @abstractmethod
    def look(self, seen: "Seen") -> Iterable[Finding]:
        """What the rule says of a run."""

    def found(self, title: str, evidence: Sequence[str], **parts: Any) -> Finding:
        """A finding of its usual severity; of much evidence the first lines, and how many more there are."""
        lines = list(evidence[:MAX_EVIDENCE])
        if len(evidence) > MAX_EVIDENCE:
            lines[-1] = f"and {len(evidence) - MAX_EVIDENCE + 1} more"
        return Finding(code=self.code, severity=self.severity, title=title, evidence=lines, **parts)

    @classmethod
    def page(cls) -> str:
        """What `tdbg explain` prints."""
        return inspect.cleandoc(cls.__doc__ or "")


RULES: Registry[type[Rule]] = Registry("rule", package="tdbg.metrics.sanity")


def judge(seen: "Seen") -> tuple[list[Finding], list[str]]:
    """What all rules say, worst first, and which of them failed."""
    found: list[Finding] = []
    trouble: list[str] = []
    for rule in RULES:

        def report(error: BaseException, code: str = rule.code) -> None:
            trouble.append(f"rule {code} failed: {type(error).__name__}: {error}")

        with guarded("a rule must not take the others down", report):
            found += rule().look(seen)
    found.sort(key=lambda one: (-SEVERITIES.index(one.severity), one.code, one.first_step or 0))
    return found, trouble


def by_key(seen: "Seen") -> dict[tuple[str, str], list["Series"]]:
    """Series of the same key and source, of all ranks, in order."""
    found: dict[tuple[str, str], list[Series]] = {}
    for (key, source, _), one in sorted(seen.tally.series.items()):
        found.setdefault((key, source), []).append(one)
    return found


def said_by(source: str) -> str:
    """Who logged it, where that needs saying."""
    return "" if source in ("tracker", "") else f", logged with {source}" if source != "tdbg" else ", as tdbg saw it"


def words_of(key: str) -> list[str]:
    """The words of a metric's name, without its phase."""
    name = key.rpartition("/")[2].lower()
    return [word for part in name.replace("-", "_").replace(".", "_").split("_") for word in [part] if word]
