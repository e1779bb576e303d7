"""No silent nothing: when no process of the command reports, say so and name the likely cause."""

import threading

from tdbg.core.output import print_messages
from tdbg.core.rundir import RunDir
from tdbg.rules.silence import explain_silence

PATIENCE_S = 60.0
CODE = "TD-C003"  # the rule that says the same in a verdict


class Patience:
    """Says once, a minute after the start, that nobody has reported."""

    def __init__(self, run: RunDir, after_s: float = PATIENCE_S) -> None:
        self._run = run
        self._timer = threading.Timer(after_s, self._report_silence)
        self._timer.daemon = True
        self._timer.start()

    def _report_silence(self) -> None:
        found = explain_silence(self._run, over=False)
        if found:
            print_messages(f"after {PATIENCE_S:.0f} s {found[0]}", found[1])

    def cancel_timer(self) -> None:
        """The command has ended."""
        self._timer.cancel()
