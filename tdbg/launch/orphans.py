"""No orphan is left when tdbg itself is killed: the command ends, and what it started ends.

Two nets. On Linux the kernel sends the command SIGTERM the moment tdbg dies. And a guard, a small
process of its own session on Linux and macOS alike, waits at a pipe that only tdbg holds open: when
the pipe breaks it ends whatever the run has left, so that ``sh -c "python train.py"`` leaves no
``python`` behind and a command deaf to SIGTERM is killed in the end.
"""

import os
import signal
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

PR_SET_PDEATHSIG = 1
ALONE_S = 3.0  # a launcher that got SIGTERM ends its own ranks meanwhile
TERM_S = 10.0  # what is left then gets SIGTERM, and this long to end
GOOD_NIGHT = b"x"
KEPT = 3  # the first descriptor behind the standard streams


def occupy_standard_streams() -> None:
    """Open ``/dev/null`` for each standard stream that tdbg was started without.

    A file or pipe of tdbg's would get that number, and whatever a library prints would go there. The command does not
    inherit it: it finds the stream closed, as without tdbg.
    """
    for number in range(KEPT):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def die_with(parent: int) -> None:
    """In a new child, before exec: have the kernel send SIGTERM when ``parent`` dies (Linux; else nothing)."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it died before it could be asked for
        os.kill(os.getpid(), signal.SIGKILL)


class Guard:
    """Ends what is left of a run if this process dies without a word.

    Start it while this process has one thread: it forks.
    """

    def __init__(self, child: int, mark: Mapping[str, str]) -> None:
        """mark: variables that tell this command's processes from all others."""
        watched, self._mine = os.pipe()
        try:
            self._pid = os.fork()
        except OSError:  # no room for another process: the command is already running, and goes on unguarded
            self._pid = -1
        if self._pid == 0:
            _stand_guard(watched, child, mark)
        os.close(watched)

    def dismiss(self) -> None:
        """The run ended in good order: the guard goes home."""
        try:
            os.write(self._mine, GOOD_NIGHT)
        except OSError:  # somebody killed the guard
            pass
        os.close(self._mine)
        try:
            if self._pid > 0:
                os.waitpid(self._pid, 0)
        except ChildProcessError:
            pass


def _stand_guard(watched: int, child: int, mark: Mapping[str, str]) -> None:
    """The whole life of the guard; never returns."""
    code = 1
    try:
        os.setsid()  # out of reach of Ctrl-C, and of a kill of the whole process group
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        os.dup2(watched, KEPT)
        os.set_inheritable(KEPT, False)
        let_go_of_files(KEPT + 1)
        if os.read(KEPT, 1) != GOOD_NIGHT:
            end_processes(child, mark)
        code = 0
    finally:
        os._exit(code)


def let_go_of_files(first: int) -> None:
    """Hold nothing open from this descriptor on, and no stream, lest a reader of tdbg's output waits for this process."""
    os.closerange(first, max(os.sysconf("SC_OPEN_MAX"), 4096))
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)


def end_processes(child: int, mark: Mapping[str, str]) -> None:
    """End the processes of a run: first the command alone, then all by SIGTERM, at last by SIGKILL."""
    import psutil

    left = _find_processes(mark)
    _signal_processes((process for process in left if process.pid == child), signal.SIGTERM)
    _, left = psutil.wait_procs(left, timeout=ALONE_S)
    _signal_processes(left, signal.SIGTERM)
    _, left = psutil.wait_procs(left, timeout=TERM_S)
    _signal_processes({*left, *_find_processes(mark)}, signal.SIGKILL)


def _find_processes(mark: Mapping[str, str]) -> "list[psutil.Process]":
    """Every process that carries the mark in its environment, and those below them."""
    import psutil

    found = set()
    for process in psutil.process_iter():
        try:
            if mark.items() <= process.environ().items():
                found.add(process)
                found.update(process.children(recursive=True))
        except (psutil.Error, OSError):  # gone already, or another user's
            continue
    return sorted(found, key=lambda process: process.pid)


def _signal_processes(processes: "Iterable[psutil.Process]", number: int) -> None:
    import psutil

    for process in processes:
        try:
            process.send_signal(number)
        except (psutil.Error, OSError):
            continue
