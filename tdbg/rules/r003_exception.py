"""TD-R003: an exception ended a rank, or was logged and swallowed."""

import os
import re
from collections.abc import Iterable

from tdbg.core.events import Event, Finding, Note, Traceback
from tdbg.core.observations import Evidence
from tdbg.core.rule_base import Link
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, Rule
from tdbg.rules.known_errors import explain_error
from tdbg.rules.text import TRACEBACK, clip_text
from tdbg.rules.view import ProcessView, View

# How a program leaves on purpose is no failure.
ON_PURPOSE = ("KeyboardInterrupt", "SystemExit", "GeneratorExit")
MAX_SWALLOWED = 5
CAPPED = "tracebacks-capped"  # the note of a process in which the same came more often than it wrote down
SHOWN_LINES = 24
SHOWN_WITH = "`tdbg report --all` shows the traceback"
FULL_STOP = re.compile(r"(?<!\.)\.$")
NATIVE_PLACE = re.compile(
    r"^\[(enforce fail at )?[^\]\s]+\.(cc|cpp|cu|h):\d+\] "
)  # in torch's own sources, as built elsewhere
# What torch raises again of a loader's worker, its pinning thread or a replica: the text holds the whole traceback.
RAISED_AGAIN = re.compile(r"Caught \w+ (in [^\n]+?)\.?\nOriginal Traceback ")


class _Swallowed:
    """One kind of exception that was logged, and how often."""

    process: ProcessDir | None = None  # of the last one
    event: Traceback | None = None  # that the finding tells of
    logged: int = 0
    threads: int = 0  # that it ended
    last_step: int = 0
    last_t: float = 0.0

    def __init__(self, finding: Finding) -> None:
        self.finding = finding

    @property
    def count(self) -> int:
        """How often it came; what ended a thread may have been logged on its way."""
        return max(self.logged, self.threads)


# What torch's launchers raise because a rank has ended, or they were told to end: the rank's own end says more.
OF_LAUNCHERS = (
    *("ChildFailedError", "RendezvousGracefulExitError", "RendezvousClosedError"),
    *("ProcessRaisedException", "ProcessExitedException", "CalledProcessError"),
)
TOLD_TO_END = "SignalException"
# Agents of torch elastic wait for each other when all is done, and log it if one was quicker: nothing is wrong.
EXIT_BARRIER = 'distributed/elastic/utils/store.py", line'


@RULES.add
class ExceptionRule(Rule):
    """Reports exceptions with step and rank: those that ended a process, and those only logged.

    What it does: An uncaught exception is an error. Of several ranks the one that failed first is named; the
    others (which usually report a broken connection to the first) are evidence. An exception that the program
    logged or printed (`logger.exception`, `exc_info`, `traceback.print_exc`) and then swallowed is a warning,
    with how often it came and whether any step came after it; so is one that ended a thread of the program. It is
    an error where the process then ended without a single optimizer step. The place is the innermost line of the
    program's own, not a package's. Some twenty common errors of torch are told with their usual cause. Ctrl-C
    and `sys.exit` are no failures, nor is what a launcher raises because a rank ended.

    Why it matters: A `main` that catches everything ends with exit code 0 after a crash. A thread that died
    (prefetching, checkpoints, metrics) leaves a run that waits for it, or goes on without its work. With several
    ranks the last traceback on the screen is rarely the first that happened.

    Example:
        TD-R003 error: rank 1: ValueError: bad label 17, uncaught, after step 3 (data.py:88)

    What to do: `tdbg report RUN --all` shows the traceback. A swallowed exception in the loop: let it through, or
    count what it skips.

    Thresholds: None. At most 5 kinds of swallowed exceptions are told.
    """

    code = "TD-R003"
    title = "exception"
    severity = "error"
    grade = Evidence.LOCAL.grade_word
    leads_to = ("TD-R001", "TD-R004", Link("TD-R006", same=("rank",)))  # others that hang do so because it is gone
    listens = (Note, Traceback)

    def __init__(self) -> None:
        self._crash: tuple[float, Finding] | None = None
        self._crashed: list[tuple[float, str]] = []
        self._swallowed: dict[tuple[str, str], _Swallowed] = {}
        self._of_launcher: tuple[ProcessDir, Traceback] | None = None
        self._capped = False  # a process wrote no more of what came again and again

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        self._capped = self._capped or (isinstance(event, Note) and event.code == CAPPED)
        if not isinstance(event, Traceback) or event.exception.rpartition(".")[2] in ON_PURPOSE:
            return ()
        if event.how == "logged" and not process.is_rank and any(EXIT_BARRIER in line for line in event.lines):
            return ()
        name = event.exception.rpartition(".")[2]
        if not process.is_rank and name in (*OF_LAUNCHERS, TOLD_TO_END):
            if name != TOLD_TO_END and event.how == "uncaught":
                self._of_launcher = self._of_launcher or (process, event)
            return ()
        return (
            self._evaluate_uncaught(process, event)
            if event.how == "uncaught"
            else self._evaluate_logged(process, event)
        )

    def finish(self, view: View) -> Iterable[Finding]:
        found: Iterable[Finding] = ()
        if self._of_launcher is not None and self._crash is None and not view.child_exits:
            found = self._evaluate_uncaught(*self._of_launcher)  # nothing else is known of what it tells
        if self._crash is not None:
            finding = self._crash[1]
            later = [text for t, text in sorted(self._crashed) if t != self._crash[0]]
            finding.evidence += [f"later: {text}" for text in later[:3]]
            finding.evidence += [f"and {format_count(len(later) - 3, 'further process')}"] if len(later) > 3 else []
        for kept in self._swallowed.values():
            self._conclude_swallowed(kept, view)
            if kept.count > 1:
                times = f"{format_count(kept.count, 'time')}" + (" or more" if self._capped else "")
                kept.finding.evidence.insert(0, f"{times}, last after step {kept.last_step}")
        return found

    def _evaluate_uncaught(self, process: ProcessDir, event: Traceback) -> Iterable[Finding]:
        if len(self._crashed) < 1000:
            self._crashed.append(
                (event.t, clip_text(f"{_format_process(process, event)}: {_format_error(event, 140)}", 160))
            )
        if self._crash is None:
            logged = self._swallowed.pop((event.exception, event.where), None)
            finding = logged.finding if logged else self.make_finding("")
            self._fill_finding(finding, process, event, "uncaught")
            self._crash = event.t, finding
            return () if logged else (finding,)
        if event.t < self._crash[0]:
            self._fill_finding(self._crash[1], process, event, "uncaught")
            self._crash[1].attempt = self.find_attempt()
            self._crash = event.t, self._crash[1]
        return ()

    def _evaluate_logged(self, process: ProcessDir, event: Traceback) -> Iterable[Finding]:
        key = event.exception, event.where
        kept = self._swallowed.get(key)
        if kept is None and len(self._swallowed) >= MAX_SWALLOWED:
            return ()
        if kept is None:
            kept = self._swallowed[key] = _Swallowed(self.make_finding(""))
        new = kept.count == 0
        ends_thread = event.how == "thread"
        if new or (ends_thread and kept.threads == 0):  # the end of a thread says more than its log
            self._fill_warning(kept.finding, process, event)
            kept.event = event
        kept.logged += not ends_thread
        kept.threads += ends_thread
        kept.last_step, kept.last_t = max(kept.last_step, event.step), max(kept.last_t, event.t)
        kept.process = process
        return (kept.finding,) if new else ()

    def _fill_warning(self, finding: Finding, process: ProcessDir, event: Traceback) -> None:
        how = "ended a thread" if event.how == "thread" else f"{event.how} and swallowed"
        self._fill_finding(finding, process, event, how)
        finding.severity = "warning"

    def _conclude_swallowed(self, kept: _Swallowed, view: View) -> None:
        """Say what became of the program after it swallowed an exception."""
        finding, event, process = kept.finding, kept.event, kept.process
        if event is None or process is None:
            return
        found = view.find_process(process, event.pid)
        rank = process.rank if process.rank is not None else event.rank
        how = "ended a thread" if kept.threads else f"{event.how} and swallowed"
        if found is not None and _has_continued(found, kept):
            did = "ended a thread" if kept.threads else event.how
            self._fill_finding(finding, process, event, f"{did}, and the program went on")
        elif not view.over:
            return
        elif kept.threads or view.has_stepped(rank):
            self._fill_finding(finding, process, event, f"{how}, and no step came after it")
        else:
            code = view.find_process_exit(found) if found is not None else None
            code = view.exit_code if code is None else code
            ended = f" (exit {code})" if code is not None and code >= 0 else ""
            self._fill_finding(
                finding, process, event, f"{how}, and the program ended{ended} without one optimizer step"
            )
            finding.cause = "the program catches what its training raises, and ends as though all were well"
            finding.try_next = f"let the exception through, or end with sys.exit(1); {SHOWN_WITH}"
            return
        finding.severity = "warning"

    def _fill_finding(self, finding: Finding, process: ProcessDir, event: Traceback, how: str) -> None:
        at = f" ({os.path.basename(event.where)})" if event.where else ""  # the evidence has the whole path
        finding.title = f"{_format_process(process, event)}: {_format_error(event)}, {how}, after step {event.step}{at}"
        finding.severity = self.severity
        finding.first_step = event.step
        finding.rank = process.rank if process.rank is not None else event.rank
        lines = [_escape_line(line) for line in event.lines if set(line.strip()) - set("^~")]
        finding.evidence = [
            *_find_own_lines(lines, event),
            *([TRACEBACK, *lines[-SHOWN_LINES:]] if len(lines) > 3 else []),
        ]
        known = explain_error(event.message)
        finding.cause = known.cause if known is not None else ""
        finding.try_next = f"{known.try_next}; {SHOWN_WITH}" if known is not None else SHOWN_WITH


def _has_continued(found: ProcessView, kept: _Swallowed) -> bool:
    """True if a step or an evaluation call came after the exception."""
    evaluated = found.last_eval.t if found.last_eval is not None else 0.0
    return found.step > kept.last_step or evaluated > kept.last_t


def _format_error(event: Traceback, width: int = 100) -> str:
    """Class and text of an exception, at most ``width`` characters of text; a comma may follow."""
    again = RAISED_AGAIN.match(event.message)
    if again is None or not event.lines:
        text = clip_text(FULL_STOP.sub("", NATIVE_PLACE.sub("", event.message)), width)
        return f"{event.exception}: {text}" if text else event.exception
    lines = [line for line in event.lines if line.strip()]
    after = next((n for n in range(len(lines) - 1, 0, -1) if lines[n - 1].startswith("  ")), len(lines) - 1)
    return f"{clip_text(FULL_STOP.sub('', ' '.join(lines[after:])), width)}, {again[1]}"


def _find_own_lines(lines: list[str], event: Traceback) -> list[str]:
    """The frame of the program's own line, or the innermost one."""
    file, _, line = event.where.rpartition(":")
    frame = f'File "{file}", line {line},'
    at = next((n for n in range(len(lines) - 1, -1, -1) if frame in lines[n]), len(lines) - 3)
    return [text for text in lines[at : at + 2] if text is not lines[-1]] if at >= 0 else []


def _escape_line(line: str) -> str:
    """A line of somebody else's text that cannot colour or move the terminal it is shown on."""
    return "".join(letter if letter.isprintable() else "?" for letter in line.rstrip().expandtabs(4))


def _format_process(process: ProcessDir, event: Traceback) -> str:
    if process.is_rank:
        return process.display_name
    if process.rank is None and event.rank is not None:
        return f"rank {event.rank}"
    return process.label if process.rank is not None else f"process {event.pid or process.path.name}"
