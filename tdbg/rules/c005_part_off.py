"""TD-C005: a part of tdbg failed and switched itself off."""

from collections.abc import Iterable

from tdbg.core.events import Event, Finding, ProbeOff, Step
from tdbg.core.observations import Evidence
from tdbg.core.rule_base import Needs
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES, Rule
from tdbg.rules.silence import ERRORS_LOG, read_boot_error
from tdbg.rules.text import clip_text
from tdbg.rules.view import View

MAX_REPORTED = 20
# Of parts that run code of others or end the program, by the first word of their name.
CAUSES = {
    "debugger": "an error in a hook of this debugger, or in what the layer gave it; training went on",
    "preflight": "an error in tdbg, not in the program; the process was ended before its first update",
}
ADVICE = {"debugger": "if the debugger is your own, these lines name the place; else please report it with them"}


@RULES.add
class PartOff(Rule):
    """Says that a part of tdbg raised an exception, was switched off, and what is not seen because of it.

    What it does: tdbg never lets an exception of its own reach the program: the part is switched off, once, and
    this finding says which. Failures at its start are read from boot/errors.log of the run.

    Why it matters: From then on that part's silence means nothing.

    Example:
        TD-C005 warning: tdbg's gradient-norms switched itself off on rank 0: TypeError: ...

    What to do: Report it, with the lines `tdbg report RUN --json` shows. The run itself is not affected.

    Thresholds: None; at most 20 parts are told.
    """

    code = "TD-C005"
    title = "a part of tdbg switched itself off"
    severity = "warning"
    grade = Evidence.LOCAL.grade_word
    listens = (ProbeOff, Step)
    needs = Needs()  # where tdbg could not start, nobody writes an event

    def __init__(self) -> None:
        self._reported: set[str] = set()
        self._steps: dict[str, int] = {}  # the last one of each process

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        if isinstance(event, Step):
            self._steps[process.label] = event.step
        if not isinstance(event, ProbeOff) or event.probe in self._reported or len(self._reported) >= MAX_REPORTED:
            return ()
        self._reported.add(event.probe)
        kind = event.probe.partition(" ")[0]
        return (
            self.make_finding(
                f"tdbg's {event.probe} switched itself off on {process.display_name}: {clip_text(event.error, 120)}",
                first_step=self._steps.get(process.label),
                rank=process.rank,
                evidence=event.lines[-4:],
                cause=CAUSES.get(kind, "an error in tdbg, not in the program; training went on"),
                try_next=ADVICE.get(kind, "please report it with these lines"),
            ),
        )

    def finish(self, view: View) -> Iterable[Finding]:
        first = read_boot_error(view.run)
        if not first:
            return ()
        return (self.make_finding(f"tdbg could not start in a process: {first}", evidence=[ERRORS_LOG]),)
