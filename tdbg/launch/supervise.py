"""One child process, run as though tdbg were not there: same process group, same terminal, same signals."""

import errno
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tdbg.core.errors import CommandNotFoundError, LaunchError, NotExecutableError
from tdbg.core.guard import guarded, undo_on_error
from tdbg.core.output import print_messages
from tdbg.launch import orphans

# Sent on to the child. One that tdbg inherited as ignored stays ignored here and there. Where the sender reaches the
# child too (`timeout` signals its group) it comes twice, as it does to a command of `timeout` without tdbg; to hold it
# back would lose it under SLURM's cgroup tracking, which signals only what slurmstepd itself started.
FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)
# What a terminal sends to the whole foreground group, so that the child has it already. (A terminal that is
# closed sends SIGHUP to the leader of its session alone.)
BY_KEYBOARD = (signal.SIGINT, signal.SIGQUIT)
STOP_GRACE_S = 10.0
# How long the end of the child may go unseen. SIGCHLD goes to any one thread that does not block it, so in a process
# with threads of others it may be spent elsewhere between a look at the child and the wait for a signal.
LOOK_AGAIN_S = 1.0
ENDS_RUNS = (signal.SIGINT, signal.SIGTERM)
STOPS = (*ENDS_RUNS, signal.SIGHUP, signal.SIGQUIT)  # by which a person or a scheduler stops a run
SLOW_END_S = 3.0  # after one of these a command that is still there looks as if nobody had heard
HUNG_END_S = 8.0  # so long after Ctrl-C ranks that hang are ended: in native code they never hear it


class Output(Protocol):
    """Where the child's stdout and stderr go instead of straight to tdbg's own (see `tdbg.launch.tee`)."""

    stdout: int | None
    stderr: int | None

    def handle_child_start(self) -> None:
        """The child holds its ends now."""

    def handle_resize(self) -> None:
        """The terminal changed its size."""


class Child:
    """The command's process. Start it, and wait for it, from the main thread."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], output: Output | None = None) -> None:
        self._output = output
        self._lock = threading.Lock()  # poll() says None while another thread asks; what that one learned stays unseen
        self._watched = {number for number in FORWARDED if signal.getsignal(number) != signal.SIG_IGN}
        self._resize = {signal.SIGWINCH} if output else set()
        self._ending_since = 0.0  # when the command was first told to end
        self._is_slow_reported = False
        self.end_hung_ranks: Callable[[], None] | None = None  # called once, after Ctrl-C
        self.note_stop: Callable[[float], None] | None = None  # called with each time at which it is told to end
        self._sigchld = signal.getsignal(signal.SIGCHLD)
        # From here on these signals wait in line until `wait_for_exit` takes them; threads started later inherit that.
        waiting = {*self._watched, *self._resize, signal.SIGCHLD}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, waiting)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # ignored, it would never come (macOS)
        with undo_on_error(self._restore_signals):
            self._process = _start_process(command, env, output, self._build_preexec(os.getpid()))
        if output:
            output.handle_child_start()
        self.pid = self._process.pid

    def _build_preexec(self, parent: int) -> Callable[[], None]:
        """What the new process does before it becomes the command."""

        def become_command() -> None:
            for number in self._watched:
                signal.signal(number, signal.SIG_DFL)
            ignored = self._sigchld == signal.SIG_IGN
            signal.signal(signal.SIGCHLD, signal.SIG_IGN if ignored else signal.SIG_DFL)
            orphans.die_with(parent)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

        return become_command

    @property
    def interrupted_at(self) -> float:
        """When Ctrl-C came, if ranks that hang are still to be ended; else 0."""
        return self._ending_since if self.end_hung_ranks is not None else 0.0

    def wait_for_exit(self) -> int:
        """Pass signals on until the command has ended; returns its code, or minus the signal's number."""
        try:
            while not self._has_ended():
                found = _next_signal({*self._watched, *self._resize, signal.SIGCHLD})
                if found is not None:
                    self._handle_signal(*found)
                self._hasten_end()
            return int(self._process.returncode)
        finally:
            self._restore_signals()

    def _has_ended(self) -> bool:
        with self._lock:
            return self._process.poll() is not None

    def _send_signal(self, number: int) -> None:
        with self._lock:
            self._process.send_signal(number)

    def _handle_signal(self, number: int, by_keyboard: bool) -> None:
        if number in self._resize and self._output:
            self._output.handle_resize()
            self._send_signal(number)
        elif number in self._watched and not by_keyboard:
            self._send_signal(number)

        if number in STOPS:
            self._note_stop()
        if number in ENDS_RUNS and not self._ending_since:
            self._ending_since = time.monotonic()
            if number != signal.SIGINT:
                self.end_hung_ranks = None  # a scheduler has a patience of its own

    def _note_stop(self) -> None:
        if self.note_stop is not None:
            self.note_stop(time.time())

    def _hasten_end(self) -> None:
        """Say once that the command takes its time to end; after Ctrl-C end what does not hear it."""
        waited_s = time.monotonic() - self._ending_since if self._ending_since else 0.0
        if waited_s > SLOW_END_S and not self._is_slow_reported:
            self._is_slow_reported = True
            print_messages("waiting for the command to end; it has the signal (torchrun gives its ranks up to 30 s)")
        if waited_s > HUNG_END_S and self.end_hung_ranks is not None:
            end_hung_ranks, self.end_hung_ranks = self.end_hung_ranks, None
            with guarded("a command that ends must not hang on tdbg", lambda error: None):
                end_hung_ranks()

    def _restore_signals(self) -> None:
        """Signals act on tdbg itself again; those meant for the command are no longer of interest."""
        late = signal.sigpending() & {*self._watched, *self._resize, signal.SIGCHLD}
        for number in late:
            signal.sigwait({number})
        signal.signal(signal.SIGCHLD, self._sigchld)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def stop_gracefully(self) -> None:
        """Ask the command to end, and make it end 10 seconds later. From any thread."""
        self._note_stop()
        self._send_signal(signal.SIGTERM)
        last = threading.Timer(STOP_GRACE_S, self._send_signal, [signal.SIGKILL])
        last.daemon = True
        last.start()


def _next_signal(wanted: set[signal.Signals]) -> tuple[int, bool] | None:
    """The next signal, and whether the command has it too (a key at the terminal sent it); None after a second."""
    if hasattr(signal, "sigtimedwait"):
        info = signal.sigtimedwait(wanted, LOOK_AGAIN_S)
        if info is None:
            return None
        return info.si_signo, info.si_signo in BY_KEYBOARD and info.si_code > 0  # the kernel, not some process
    number = signal.sigwait(wanted)  # macOS
    return number, number in BY_KEYBOARD and _in_foreground()


def _in_foreground() -> bool:
    """True if a terminal's Ctrl-C reaches this process group."""
    try:
        with open("/dev/tty", "rb", buffering=0) as tty:
            return os.tcgetpgrp(tty.fileno()) == os.getpgrp()
    except OSError:
        return False


def _start_process(
    command: Sequence[str], env: Mapping[str, str], output: Output | None, prepare: Callable[[], None]
) -> subprocess.Popen[bytes]:
    """Start it as a shell would; a script without a ``#!`` line goes to sh."""

    def open_process(words: Sequence[str]) -> subprocess.Popen[bytes]:
        # preexec_fn is safe here: there is one thread. Files that tdbg inherited are the command's to use.
        return subprocess.Popen(
            words,
            env=env,
            stdout=output.stdout if output else None,
            stderr=output.stderr if output else None,
            close_fds=False,
            preexec_fn=prepare,
        )

    try:
        try:
            return open_process(command)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            return open_process(["/bin/sh", *command])
    except (OSError, subprocess.SubprocessError) as error:
        raise start_error(command[0], error) from None


def start_error(name: str, error: Exception) -> LaunchError | NotExecutableError | CommandNotFoundError:
    """What a shell would say, and its exit code: 127 not found, 126 not executable, else 125."""
    if isinstance(error, FileNotFoundError) and not os.path.exists(name):
        return CommandNotFoundError(f"command not found: {name}", "check its spelling and PATH")
    if isinstance(error, FileNotFoundError):
        return CommandNotFoundError(f"cannot execute {name}: its interpreter is missing", "look at its first line (#!)")
    if isinstance(error, PermissionError | IsADirectoryError | NotADirectoryError):
        return NotExecutableError(f"cannot execute {name}: {error.strerror}", "look at its permissions")
    what = getattr(error, "strerror", None) or str(error)
    return LaunchError(f"cannot start {name}: {what}", "does it start without `tdbg run --`?")
