"""TD-C001: the program's config refused a debug flag."""

from collections.abc import Iterable

from tdbg.core.events import Event, Finding, Injection
from tdbg.core.observations import Evidence
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES, Rule


@RULES.add
class FlagRejected(Rule):
    """Says that the program's own configuration does not know a debug flag that was asked for.

    What it does: When tdbg sets a flag in the program's config (yacs, OmegaConf, argparse, jsonargparse) and
    the config has no such key, or refuses the value, the refusal is told with what the program knows instead.

    Why it matters: A flag that silently stays False costs a whole run in which the awaited log lines never
    come.

    Example:
        TD-C001 warning: the program's config refuses LOSS.NUL_MASKING (yacs, key DEBUG.LOSS.NUL_MASKING)

    What to do: Use the spelling the hint names. `tdbg run --strict-flags` ends such a rank before its first
    step.

    Thresholds: None.
    """

    code = "TD-C001"
    title = "debug flag rejected by the program"
    severity = "warning"
    grade = Evidence.LOCAL.grade_word
    listens = (Injection,)

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        if not isinstance(event, Injection) or event.status != "rejected" or event.flag in self._reported:
            return ()
        self._reported.add(event.flag)
        return (
            self.make_finding(
                f"the program's config refuses {event.flag} ({event.where})",
                rank=event.rank,
                evidence=[event.hint] if event.hint else [],
                try_next="use a name the program knows; --strict-flags ends such a run before its first step",
            ),
        )
