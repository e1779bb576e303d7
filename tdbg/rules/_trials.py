"""Rules that read the trials of `tdbg run --preflight`: one finding of a trial that shows a fault."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from tdbg.core.events import Finding
from tdbg.core.rundir import ProcessDir
from tdbg.rules._kinds import KindsRule


class TrialRule(KindsRule, ABC):
    """A rule that finds something in a trial of the forward pass."""

    @abstractmethod
    def find_fault(self, seen: Any) -> dict[str, Any] | None:
        """What `make_finding` takes for a trial that was made and shows the fault, ``title`` included; else None."""

    def evaluate(self, process: ProcessDir, seen: Any) -> Iterable[tuple[str, Finding]]:
        """Make one finding of the first such trial of a process."""
        fault = self.find_fault(seen) if seen.was_tried else None
        if fault is None or not self.is_news(process, self.code):
            return ()
        title = f"{fault.pop('title')}, {process.display_name}"
        found = self.make_finding(title, first_step=seen.step, rank=process.rank, phase="forward", **fault)
        return [(self.code, found)]


def describe_layer(seen: Any) -> str:
    """The first layer that shows the change, as a title names it; empty if none is known."""
    return f', in "{seen.module}" ({seen.module_class})' if seen.module else ""
