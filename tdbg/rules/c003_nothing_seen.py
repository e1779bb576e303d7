"""TD-C003: no process was instrumented, or none took a step."""

from collections.abc import Iterable

from tdbg.events import Finding
from tdbg.rules import RULES, Rule
from tdbg.rules.text import counted
from tdbg.rules.view import View


@RULES.add
class NothingSeen(Rule):
    """Says that tdbg saw nothing of the command, and names the likely cause.

    What it does: At the end looks at who reported: no Python process that started with tdbg's boot folder, none
    that imported torch, or torch processes that never took a step. The first two are warnings, the third is
    `info`.

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

    def finish(self, view: View) -> Iterable[Finding]:
        seen = any(found.start or found.records for found in view.processes.values())
        if seen or not view.over or view.settings.level == "off" or _never_started(view):
            return ()
        hellos = len(view.run.hellos())
        boot = view.run.path / "boot"
        if hellos or view.processes:
            return (
                self.found(
                    f"{counted(hellos, 'torch process')} reported, and none took an optimizer step or a model call",
                    severity="info",
                    try_next="is it the training command? Steps are seen at torch.optim optimizers and nn.Module calls",
                ),
            )
        if view.run.woke():
            return (self.found("no process reported: Python ran, but none of it imported torch"),)
        if (boot / "old-python").exists():
            return (self.found("no process reported: the program's Python is older than 3.11"),)
        return (
            self.found(
                "no process reported: not a Python program, PYTHONPATH overwritten, or python -I, -E or -S?",
                try_next="append to PYTHONPATH instead of setting it; for -I and -E: `tdbg hook install`",
            ),
        )


def _never_started(view: View) -> bool:
    """True if the command itself could not be run: that is said already."""
    return view.exit_code in (125, 126, 127)
