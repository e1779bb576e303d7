"""Who watches this process: the run it belongs to, or a watch that the program started itself."""

import logging
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tdbg.core.events import Event, Note, ProbeOff, Step
from tdbg.core.guard import Guard, describe_error

if TYPE_CHECKING:
    from torch import nn

    from tdbg.inject.agent import Agent
    from tdbg.runtime.monitor import Monitor

LOG = logging.getLogger("tdbg")
KEPT_EVENTS = 2000
KEPT_VECTORS = 200  # of the last so many events the long vectors are kept too


class Memory:
    """The events of a watch that has no run directory: the last ones, in memory."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._noted: set[str] = set()

    def emit(self, event: Event) -> None:
        """Keep one event; the vectors of older step records are let go."""
        event.t = event.t or time.time()
        self.events.append(event)
        if len(self.events) > KEPT_VECTORS:
            old = self.events[-KEPT_VECTORS]
            if isinstance(old, Step):
                old.grad_norms = None

    def record_note(self, code: str, text: str) -> None:
        """Something a reader should know, once per code."""
        if code not in self._noted:
            self._noted.add(code)
            self.emit(Note(code=code, text=text))

    def list_notes(self) -> list[str]:
        """What was noted so far."""
        return [event.text for event in tuple(self.events) if isinstance(event, Note)]

    def record_failure(self, name: str, error: BaseException) -> None:
        """A part of tdbg raised and was switched off."""
        self.emit(ProbeOff(probe=name, error=describe_error(error)))
        LOG.warning("tdbg switched off its %s after an error: %s", name, describe_error(error))


class Session:
    """One watch over this process: its monitor, and where its events go.

    owner: who started it: ``run``, ``enable``, ``context`` or ``callback``; whoever did ends it.
    """

    def __init__(
        self,
        monitor: "Monitor",
        owner: str,
        *,
        agent: "Agent | None" = None,
        memory: Memory | None = None,
        end: Callable[[int], None] = lambda code: None,
    ) -> None:
        self.monitor = monitor
        self.owner = owner
        self.agent = agent
        self.memory = memory
        self.late_values = 0  # of `metric`, on their way from a device
        # a module, its compiled call, ours around it
        self.compiled: list[tuple[weakref.ref[nn.Module], Callable[..., object], object]] = []
        self._end = end

    @property
    def run_dir(self) -> str:
        """Where it records; empty for one in memory."""
        return str(self.agent.run_dir) if self.agent is not None else ""

    def change_settings(self, level: str = "", flags: "dict[str, Any] | None" = None) -> None:
        """Change level (empty: as it is) and flags of the live watch, from the next call of a hook on."""
        self.monitor.level_overrides.change_now(level, flags or {}, why="api")

    def end_session(self, code: int) -> None:
        """Write what is pending, then take every hook and patch away. code: what the training would exit with."""
        try:
            self._end(code)
        finally:
            self.monitor.detach()
            if self.compiled:
                self._give_back_calls()

    def _give_back_calls(self) -> None:
        """Take what stands around the calls of compiled models away, where nobody has put something else there since."""
        from tdbg.runtime.torch_compat import compiled_call_of, set_compiled_call

        for ref, theirs, ours in self.compiled:
            module = ref()
            if module is not None and compiled_call_of(module) is ours:
                set_compiled_call(module, theirs)

    def collect_events(self) -> list[Event]:
        """The events so far, oldest first: the last ones kept in memory, or all on disk. Needs msgspec."""
        if self.memory is not None:
            from tdbg.core.events import decode, encode

            return [event for event in map(decode, map(encode, tuple(self.memory.events))) if event is not None]
        from tdbg.core.rundir import EVENTS, read_events

        folder = self.agent.folder if self.agent is not None else None
        return list(read_events(folder / EVENTS)) if folder is not None and (folder / EVENTS).exists() else []


_own: Session | None = None
_run: Session | None = None
_outside = False  # this process is known to belong to no run


def current_session() -> Session | None:
    """The watch over this process, if there is one. Cost: about 0.2 us."""
    if _own is not None:
        return _own
    return _run or of_run()


def run_agent() -> "Agent | None":
    """The agent of the run this process belongs to; None outside of one, or where its directory is gone."""
    global _outside
    if _outside:
        return None
    if os.environ.get("TDBG_RUN_DIR"):
        from tdbg.core.errors import TdbgError
        from tdbg.inject.agent import get_agent

        try:
            return get_agent()
        except (
            OSError,
            ValueError,
            KeyError,
            TdbgError,
        ):  # a vanished or foreign directory: as though there were no run
            pass
    _outside = True
    return None


def of_run() -> Session | None:
    """The run's own watch: there once torch is imported, unless the run was started with level off."""
    global _run
    if _run is None:
        agent = run_agent()
        if agent is not None and agent.monitor is not None:
            _run = Session(agent.monitor, "run", agent=agent)
    return _run


def install_session(session: Session | None) -> None:
    """Make this the watch that the program started itself; None: there is none any longer."""
    global _own
    _own = session


def is_own(session: Session) -> bool:
    """True for the watch that the program started itself."""
    return _own is session


def _reset_after_fork() -> None:
    """In a forked child: a process of its own, which has seen nothing yet."""
    if _own is not None and _own.memory is not None:  # one with a directory has an agent that sees to it
        _own.memory.events.clear()
        _own.monitor.forked()
    regions = sys.modules.get("tdbg.probes.regions")
    if regions is not None:
        regions.TOTALS.clear()


os.register_at_fork(after_in_child=lambda: Guard("session").call_guarded(_reset_after_fork))
