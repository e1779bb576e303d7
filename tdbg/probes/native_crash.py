"""Crashes in native code, at every level: the Python stack of a rank that a fatal signal ends."""

import contextlib
import faulthandler

from tdbg.core import run_files
from tdbg.core.native_stack import NATIVE_STACK
from tdbg.probes import PROBES, Probe


@PROBES.add
class NativeCrash(Probe):
    """The Python stack of each thread when SIGSEGV, SIGABRT, SIGBUS, SIGFPE or SIGILL ends a rank.

    Reads:  nothing while the program runs: Python's own ``faulthandler`` writes the stacks from the signal's handler.
    Emits:  no event, since the process is gone: a file in the rank's folder, which TD-R002 reads.
    Cost:   none in a step; one open file in each rank, removed at the end of a run in which nothing crashed.
    Limits: from the moment that a process becomes a rank. Where the program has ``faulthandler`` at work itself
            (PYTHONFAULTHANDLER, pytest) it is left alone, and the stacks are in the output of that rank.
    """

    name = "native-crash"
    levels = ("basic", "advanced", "extreme")

    _file: int | None = None

    def attach(self) -> None:
        self.monitor.when_rank(self._enable)

    def run_ends(self) -> None:
        folder = self.monitor.folder()
        if self._file is None or folder is None:
            return
        with contextlib.suppress(OSError):
            if not run_files.read_bytes(folder / NATIVE_STACK, 1):
                run_files.remove_file(folder / NATIVE_STACK)

    def _enable(self) -> None:
        folder = self.monitor.folder()
        if self._file is not None or folder is None or faulthandler.is_enabled():
            return
        # It stays enabled, also when the level is off: whether a later handler is the program's cannot be told.
        self._file = run_files.open_append(folder / NATIVE_STACK)
        faulthandler.enable(self._file)
