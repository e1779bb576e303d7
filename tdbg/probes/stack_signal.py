"""Python stacks on request, at every level: a signal that nobody uses makes Python write them."""

import contextlib
import faulthandler
import signal

from tdbg.core import run_files
from tdbg.core.host import find_signal_number, is_signal_caught
from tdbg.core.native_stack import STACKS_NOW
from tdbg.probes import PROBES, Probe


@PROBES.add
class StackSignal(Probe):
    """The Python stacks of all threads whenever `tdbg stacks` asks for them, also while native code blocks.

    Reads:  nothing by itself: Python's own ``faulthandler`` writes the stacks from the signal's handler.
    Emits:  no event: a file in the rank's folder, which `tdbg stacks` reads.
    Cost:   none in a step; one open file in each rank, removed at the end of a run in which nobody asked.
    Limits: from the moment that a process becomes a rank, and for loader workers that are forked after it. Where the
            program uses the signal itself it is left alone: `--stack-signal` chooses another.
    """

    name = "stack-signal"
    levels = ("basic", "advanced", "extreme")

    _file: int | None = None

    def attach(self) -> None:
        self.monitor.when_rank(self._register)

    def run_ends(self) -> None:
        folder = self.monitor.folder()
        if self._file is None or folder is None:
            return
        with contextlib.suppress(OSError):
            if not run_files.read_bytes(folder / STACKS_NOW, 1):
                run_files.remove_file(folder / STACKS_NOW)

    def _register(self) -> None:
        number, folder = find_signal_number(self.monitor.settings.stack_signal), self.monitor.folder()
        if not number or self._file is not None or folder is None:
            return
        if signal.getsignal(number) is not signal.SIG_DFL or is_signal_caught(number):  # the program's, or a library's
            return
        self._file = run_files.open_append(folder / STACKS_NOW)
        faulthandler.register(number, self._file, all_threads=True)
