"""The one agent of a process: what was asked, where its events go, and the guard around tdbg's own code."""

import contextlib
import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdbg.core import events, run_files
from tdbg.core.config import Settings, restore_masked_flags
from tdbg.core.escapes import escape_controls, escape_line
from tdbg.core.guard import Guard, describe_error, ignore_failure, set_process_report
from tdbg.core.redaction import redact_argv, remember_secrets
from tdbg.core.rundir import (
    STATE_FILE,
    EventWriter,
    RunDir,
    allowed_env,
    claim_rank_folder,
    env_rank,
    mark_unwritten,
    restart_count,
)
from tdbg.logs.textlog import RankLogs

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor

HEADER_BYTES = 60  # about that much stands before the text of a line in tdbg's own logs
INSPECTION_BYTES = 1_000_000  # a smaller disk budget has no room for what the opening inspection writes


class Agent:
    """Writes the events of this process: under ``other/`` until it steps, then as its rank.

    Nothing here raises into the program, and nothing is written before there is something to say.
    """

    def __init__(
        self, run_dir: Path, settings: Settings, *, speaks: bool, third_party: Mapping[str, str] | None = None
    ) -> None:
        self.run_dir = run_dir
        run_files.protect_folder(run_dir)
        self.settings = settings
        remember_secrets(os.environ, settings.flags)
        self.third_party = third_party or {}  # probes of other packages: name -> module:attribute
        self.third_party_debuggers: Mapping[str, str] = {}
        self.speaks = speaks  # --exec: there is no supervisor to speak for the rank
        self.host = socket.gethostname()
        self.woke_at = time.perf_counter()
        self.rank: int | None = None
        self.errors = 0
        self.is_launcher_child = False
        self.monitor: Monitor | None = None  # set once torch is imported, unless the level is off
        self.feed: Any = None  # where metrics go, once there is a monitor
        self._noted: set[str] = set()
        self._guards: dict[str, Guard] = {}
        self._fork_guard = self.get_guard("fork")
        self._writer = self._other = self._new_writer()
        self._turn = threading.RLock()  # of what waits for the rank
        self._held: list[events.Event] = []
        self._logs = RankLogs(lambda: self.folder if self.rank is not None else None, lambda: self.rank or 0)
        self._at_fork: list[Callable[[], None]] = []
        self._at_rank: list[Callable[[], None]] = []
        os.register_at_fork(after_in_child=self._handle_fork)
        set_process_report(self.record_failure)

    def _new_writer(self) -> EventWriter:
        return EventWriter(self._other_folder, self.settings.disk_budget_bytes, self._say_trouble)

    def _other_folder(self) -> Path:
        return self.run_dir / "other" / f"{self.host}-{os.getpid()}"

    @property
    def step(self) -> int:
        """Steps done so far."""
        return self.monitor.step if self.monitor is not None else 0

    def emit(self, event: events.Event) -> None:
        """Write one event with the time of now, as the rank if this process is one."""
        if not event.t:
            event.t = time.time()
        self._writer.emit(event)

    def emit_aside(self, event: events.Event) -> None:
        """Write an event about the process, not the rank: injections, children's exits."""
        if not event.t:
            event.t = time.time()
        self._other.emit(event)

    def log(self, level: str, step: int, mark: str, text: str) -> None:
        """A line in tdbg's own logs of this rank, within its disk budget; before it is one there is no log."""
        size = len(text) + HEADER_BYTES
        if self.rank is not None and self._writer.written_bytes + size <= self.settings.disk_budget_bytes:
            self._logs.write_record(time.time(), level, step, mark, text)
            self.charge_disk(size)

    def emit_as_rank(self, event: events.Event) -> None:
        """Write an event into the rank's file, as soon as this process is one; never if it does not step."""
        event.t = event.t or time.time()
        with self._turn:
            if self.rank is None:
                self._held.append(event)
                return
        self._writer.emit(event)

    def become_rank(self, rank: int, describe: Callable[[int], events.Start]) -> None:
        """Claim the folder of ``rank`` (or one aside, if a living process holds it) and write its Start.

        Other threads go on to write: none of them comes before the Start, or into a folder that is not the rank's.
        """
        folder, attempt = claim_rank_folder(self.run_dir, rank, restart_count(os.environ))
        writer = EventWriter(lambda: folder, self.settings.disk_budget_bytes, self._say_trouble)
        try:
            start = describe(attempt)
            start.t = start.t or time.time()
            writer.emit(start)
        finally:  # what follows is the rank's, though its device could not be described
            with self._turn:
                self._writer, self.rank = writer, rank
                held, self._held = self._held, []
        for event in held:
            self.emit(event)
        for callback in self._at_rank:
            callback()

    @property
    def folder(self) -> Path | None:
        """Where the rank's files are, once it has one."""
        return self._writer.path.parent if self._writer.path else None

    @property
    def folder_aside(self) -> Path:
        """Where what a process says is kept that is no rank, or none yet."""
        return self._other_folder()

    @property
    def dropped(self) -> int:
        """Events that could not be written."""
        return sum(writer.dropped for writer in {self._writer, self._other})

    def note_once(self, code: str, text: str) -> None:
        """A Note event, at most one per code."""
        if code not in self._noted:
            self._noted.add(code)
            self.emit(events.Note(code=code, text=text, step=self.step))

    def get_guard(self, name: str) -> Guard:
        """The guard around the part of tdbg with this name: one for all that asks for it."""
        found = self._guards.get(name)
        if found is None:
            found = self._guards[name] = Guard(name, self.record_failure)
        return found

    def record_failure(self, name: str, error: BaseException) -> None:
        """Count an exception of tdbg's own and record it, without ever raising another."""
        self.errors += 1
        if f"off:{name}" in self._noted:
            return
        self._noted.add(f"off:{name}")
        with Guard("report", ignore_failure):  # nothing is left to try: stay silent rather than disturb the program
            text = "".join(traceback.format_exception(error)).splitlines()[-20:]
            self.emit(events.ProbeOff(probe=name, error=describe_error(error), lines=text))

    def at_fork(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` run in every forked child, before anything else of tdbg."""
        self._at_fork.append(callback)

    def at_rank(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` run when this process has become a rank."""
        self._at_rank.append(callback)

    def charge_disk(self, size: int) -> None:
        """Count bytes of another file of the rank's against its disk budget."""
        self._writer.written_bytes += size

    def _handle_fork(self) -> None:
        self._fork_guard.call_guarded(self._begin_process)

    def _begin_process(self) -> None:
        """In a forked child: nothing is said yet, and the files are the parent's."""
        self._writer.reset_after_fork()
        self._other.reset_after_fork()
        self._logs.forget()
        self._writer = self._other = self._new_writer()
        self._turn = threading.RLock()  # a new one: the parent may have held it at the fork
        self.rank = None
        self._noted.clear()
        self._held.clear()
        for callback in self._at_fork:
            self._fork_guard.call_guarded(callback)

    def close_files(self) -> None:
        """Close the files; for a watch that ends before its process does."""
        self._writer.close()
        self._other.close()
        self._logs.close()

    def print_to_stderr(self, text: str) -> None:
        """Speak on stderr, where the rank is the one to speak (--exec)."""
        if self.speaks:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write("".join(f"tdbg: {line}\n" for line in escape_controls(text).split("\n")))
                sys.stderr.flush()

    def _say_trouble(self, text: str) -> None:
        """Trouble with the disk is said by the rank itself: the supervisor could not read of it."""
        with contextlib.suppress(OSError, ValueError):
            where = f"rank {self.rank}" if self.rank is not None else f"pid {os.getpid()}"
            sys.stderr.write(f"tdbg: {where}: {escape_line(text)}\n")
            sys.stderr.flush()
        with contextlib.suppress(OSError):
            mark_unwritten(self.run_dir)

    def write_hello(self) -> None:
        """Report in the run directory that this process uses torch."""
        folder = self.run_dir / "hello"
        record: dict[str, object] = {
            "pid": os.getpid(),
            "host": self.host,
            "argv": redact_argv(sys.orig_argv[:50]),
            "python": sys.version.split()[0],
            "executable": sys.executable,
            "rank": env_rank(os.environ),
            "env": allowed_env(os.environ),
            "t": time.time(),
        }
        path = folder / f"{self.host}-{os.getpid()}.json"
        run_files.write_atomically(path, json.dumps(record).encode(), makes=True)


_agent: Agent | None = None


def get_agent(run_dir: str | None = None) -> Agent:
    """The agent of this process; the first call names the run directory (the boot file does)."""
    global _agent
    if _agent is None:
        path = Path(run_dir or os.environ["TDBG_RUN_DIR"])
        run_files.protect_folder(path)
        RunDir(path).check_ownership()  # its run.json names what is loaded
        state = json.loads(run_files.read_bytes(path / STATE_FILE))
        settings = Settings.from_dict(state["settings"])
        settings.flags = restore_masked_flags(settings.flags, os.environ)
        third_party = state.get("third_party_probes", {})
        _agent = Agent(path, settings, speaks=state.get("speaks") == "rank", third_party=third_party)
        _agent.third_party_debuggers = state.get("third_party_debuggers", {})
    return _agent
