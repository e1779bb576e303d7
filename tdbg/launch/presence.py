"""No silent nothing: when no process of the command reports, say so and name the likely cause."""

import threading

from tdbg.output import say
from tdbg.rundir import RunDir

PATIENCE_S = 60.0
CODE = "TD-C003"  # the rule that says the same in a verdict


def silence(run: RunDir) -> tuple[str, str] | None:
    """What is wrong and what to do, if no process has reported; None if one has."""
    if run.hellos() or run.processes():
        return None
    boot = run.path / "boot"
    if (boot / "errors.log").exists():
        return (
            "no process reported: tdbg failed to wake up in it",
            f"{boot / 'errors.log'} says why",
        )
    if run.woke():
        return (
            "no process reported: Python started, but nothing imported torch",
            "is it the command that trains? (a child with an empty environment is not seen)",
        )
    if (boot / "old-python").exists():
        return "no process reported: its Python is older than 3.11", "run the program with Python 3.11 or newer"
    return (
        "no process reported: no Python started with tdbg's boot folder",
        "not a Python command? PYTHONPATH overwritten, or python -I/-E: `tdbg hook install`; python -S: cannot be seen",
    )


class Patience:
    """Says once, a minute after the start, that nobody has reported."""

    def __init__(self, run: RunDir, after_s: float = PATIENCE_S) -> None:
        self._run = run
        self._timer = threading.Timer(after_s, self._look)
        self._timer.daemon = True
        self._timer.start()

    def _look(self) -> None:
        found = silence(self._run)
        if found:
            say(f"after {PATIENCE_S:.0f} s {found[0]}\n{found[1]}")

    def end(self) -> None:
        """The command has ended."""
        self._timer.cancel()
