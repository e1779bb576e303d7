"""`--on-finding`: the user's command, run once for each finding, which it reads as one JSON document from stdin."""

import json
import os
import selectors
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tdbg.core.output import print_messages
from tdbg.core.redaction import redact_text
from tdbg.core.tables import format_count
from tdbg.rules.text import clip_text

LIMIT_S = 30.0
TERM_S = 1.0  # of the limit: what is left of it when the process group gets SIGTERM, before SIGKILL
LOOK_S = 0.05  # between two looks whether the command has ended
MAX_OUTPUT_BYTES = 64 << 10  # kept of what it prints; the rest is read and dropped
CHUNK_BYTES = 64 << 10
SHOWN_LINES = 20
SHOWN_CHARACTERS = 200


@dataclass(slots=True)
class CommandChannel:
    """Runs the command in a session of its own: Ctrl-C at the terminal is the program's.

    shows_output: print what a command that succeeded printed, on stderr, each line marked.
    """

    argv: Sequence[str]
    environ: Mapping[str, str]
    shows_output: bool = True
    cancelled: threading.Event = field(default_factory=threading.Event)  # set: end what is running
    option = "--on-finding"
    takes_verdict = False
    limit_s = LIMIT_S

    def send_message(self, document: Mapping[str, Any], lines: Sequence[str], until: float) -> str:
        """Run the command with one finding; returns why it failed, or nothing. It has ended by ``until``."""
        data = json.dumps(document, default=str).encode() + b"\n"
        try:
            running = RunningCommand(self.argv, self.environ, data)
        except OSError as error:
            return f"cannot start {self.argv[0]}: {error.strerror or error}"
        allowed_s = min(LIMIT_S, until - time.monotonic())
        ended = running.communicate_until(time.monotonic() + allowed_s, self.cancelled)
        output = bytes(running.output).decode("utf-8", "replace").splitlines()
        if ended and not running.status and self.shows_output:
            self._print_output(output)
        if not ended:
            is_cancelled = self.cancelled.is_set()
            return f"{self.argv[0]} {'was interrupted' if is_cancelled else f'did not end within {allowed_s:.0f} s'}"
        last = next((line.strip() for line in reversed(output) if line.strip()), "")
        said = f": {clip_text(redact_text(last), SHOWN_CHARACTERS)}" if last else ""
        return f"{self.argv[0]} {_describe_status(running.status)}{said}" if running.status else ""

    def _print_output(self, output: Sequence[str]) -> None:
        lines = [f"on-finding: {clip_text(line, SHOWN_CHARACTERS)}" for line in output[:SHOWN_LINES]]
        if len(output) > SHOWN_LINES:
            lines.append(f"on-finding: ... and {format_count(len(output) - SHOWN_LINES, 'more line')}")
        print_messages(*lines)


class RunningCommand:
    """One process with its input and output. Made and waited for in one thread, which need not be the main one.

    It is spawned, not forked: this process has threads, and the signals that wait in its mask for the program's
    process must not wait in the mask of this one.
    """

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], data: bytes) -> None:
        self.output = bytearray()
        self.status = 0  # as `os.waitstatus_to_exitcode` has it
        self._data = memoryview(data)
        its_stdin, self._stdin = os.pipe()
        self._stdout, its_stdout = os.pipe()
        actions = [(os.POSIX_SPAWN_DUP2, its_stdin, 0), *((os.POSIX_SPAWN_DUP2, its_stdout, to) for to in (1, 2))]
        try:
            self._pid = _spawn_process(argv, environ, actions)
        except (OSError, ValueError):
            os.close(self._stdin)
            os.close(self._stdout)
            raise
        finally:
            os.close(its_stdin)
            os.close(its_stdout)

    def communicate_until(self, until: float, cancelled: threading.Event) -> bool:
        """Feed it and read it until it has ended by itself; False if its process group had to be ended."""
        with selectors.DefaultSelector() as selector:
            for pipe, event in ((self._stdin, selectors.EVENT_WRITE), (self._stdout, selectors.EVENT_READ)):
                os.set_blocking(pipe, False)
                selector.register(pipe, event)
            try:
                while not self._has_ended():
                    if cancelled.is_set() or time.monotonic() > until - TERM_S:
                        self._end_group(until)
                        return False
                    self._transfer_ready(selector, LOOK_S)
                for _ in range(MAX_OUTPUT_BYTES // CHUNK_BYTES + 1):  # what it left in the pipe
                    self._transfer_ready(selector, 0)
                return True
            finally:
                for key in selector.get_map().values():
                    os.close(key.fd)

    def _has_ended(self) -> bool:
        try:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:  # where SIGCHLD is ignored the system takes it, and tells nobody how it ended
            return True
        if pid:
            self.status = os.waitstatus_to_exitcode(status)
        return bool(pid)

    def _transfer_ready(self, selector: selectors.BaseSelector, timeout_s: float) -> None:
        for key, _ in selector.select(timeout_s):
            is_done = self._write_stdin() if key.fd == self._stdin else self._read_stdout()
            if is_done:
                selector.unregister(key.fd)
                os.close(key.fd)

    def _write_stdin(self) -> bool:
        """Write what fits; True when all is written, or nobody reads."""
        try:
            self._data = self._data[os.write(self._stdin, self._data) :]
        except BlockingIOError:
            return False
        except OSError:
            return True
        return not self._data

    def _read_stdout(self) -> bool:
        """Read what is there; True at its end."""
        try:
            found = os.read(self._stdout, CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            return True
        self.output += found[: MAX_OUTPUT_BYTES - len(self.output)]
        return not found

    def _end_group(self, until: float) -> None:
        """End the command and what it started: by SIGTERM, then by SIGKILL."""
        _signal_group(self._pid, signal.SIGTERM)
        until = min(time.monotonic() + TERM_S, max(until, time.monotonic()))
        has_ended = False
        while time.monotonic() < until and not (has_ended := has_ended or self._has_ended()):
            time.sleep(LOOK_S)
        _signal_group(self._pid, signal.SIGKILL)
        if not has_ended:
            try:
                os.waitpid(self._pid, 0)
            except ChildProcessError:
                pass


def _spawn_process(argv: Sequence[str], environ: Mapping[str, str], actions: Sequence[tuple[Any, ...]]) -> int:
    """Start a process that leads a session of its own, with no signal blocked or ignored on account of tdbg."""
    default = [number for name in ("SIGPIPE", "SIGXFSZ") if (number := getattr(signal, name, None)) is not None]
    common: dict[str, Any] = {"file_actions": actions, "setsigmask": [], "setsigdef": default}
    try:
        return os.posix_spawnp(argv[0], list(argv), environ, setsid=True, **common)
    except NotImplementedError:  # an old C library: a group of its own will do
        return os.posix_spawnp(argv[0], list(argv), environ, setpgroup=0, **common)


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # it has ended
        pass


def _describe_status(status: int) -> str:
    return f"was killed by signal {-status}" if status < 0 else f"ended with exit code {status}"
