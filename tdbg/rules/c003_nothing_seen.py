"""TD-C003: no process was instrumented, or none took a step."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.observations import Evidence
from tdbg.core.observations.capture import CaptureDone
from tdbg.core.tables import format_count
from tdbg.rules import RULES, Rule
from tdbg.rules.silence import explain_silence
from tdbg.rules.view import ProcessView, View


@RULES.add
class NothingSeen(Rule):
    """Says that tdbg saw nothing of the command, and names the likely cause.

    What it does: At the end looks at who reported: no Python process that started with tdbg's boot folder, one
    in which tdbg could not start, none that imported torch, or torch processes that never took a step. The
    last is `info`, the others are warnings.

    Why it matters: No finding must mean "nothing was wrong", never "nothing was looked at".

    Example:
        TD-C003 warning: no process reported: PYTHONPATH overwritten, or python -I, -E or -S?

    What to do: A script that sets PYTHONPATH itself should append to it. For `python -I` or `-E`, install the
    start-up hook: `tdbg hook install`. A command that is no Python program has nothing to look at.

    Thresholds: None.
    """

    code = "TD-C003"
    title = "nothing was instrumented"
    severity = "warning"
    grade = Evidence.LOCAL.grade_word

    def finish(self, view: View) -> Iterable[Finding]:
        seen = any(_was_seen(found) for found in view.processes.values())
        if seen or not view.over or view.settings.level == "off" or _never_started(view):
            return ()
        found = explain_silence(view.run)
        if found is not None:
            return (self.make_finding(found[0], try_next=found[1]),)
        if any(found.crash or found.swallowed for found in view.processes.values()):
            return ()  # it ended before its first step, and TD-R003 says how
        notes = (found.notes.get("step-optimizer") for found in view.processes.values())
        missed = next(filter(None, notes), None)
        if missed:
            profiled = "; nothing was profiled" if view.settings.flags.get("PROFILER") else ""
            return (
                self.make_finding(
                    missed + profiled, severity="info", try_next="correct --step-optimizer, or leave it out"
                ),
            )
        hellos = len(view.run.read_hellos())
        who = format_count(hellos, "torch process") if hellos else "no torch process"
        return (
            self.make_finding(
                f"{who} reported, and no optimizer step was seen",
                severity="info",
                try_next="check that this is the training command: tdbg sees steps of torch.optim optimizers and calls of nn.Module",
            ),
        )


def _was_seen(found: ProcessView) -> bool:
    """True if a process stepped, evaluated or reported something; pages of `--capture` alone are no sign of either."""
    if found.records or found.step or found.evals:
        return True
    has_only_captured = found.end is not None and CaptureDone.PROBE in found.probes
    return found.start is not None and not has_only_captured


def _never_started(view: View) -> bool:
    """True if the command itself could not be run: that is said already."""
    return view.exit_code in (125, 126, 127)
