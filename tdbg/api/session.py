"""Who watches this process: the run it belongs to, or a watch that the program started itself."""

import logging
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tdbg.core.events import Cost, End, Event, Note, ProbeOff, Start, Step
from tdbg.core.guard import Guard, describe_error

if TYPE_CHECKING:
    from torch import nn

    from tdbg.inject.agent import Agent
    from tdbg.probes.monitor import Monitor

LOG = logging.getLogger("tdbg")
KEPT_EVENTS = 2000
KEPT_VECTORS = 200  # of the last so many events the long vectors are kept too
KEPT_STEPS = 64  # step records that `tdbg.history` gives back


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

    def note(self, code: str, text: str) -> None:
        """Something a reader should know, once per code."""
        if code not in self._noted:
            self._noted.add(code)
            self.emit(Note(code=code, text=text))

    def notes(self) -> list[str]:
        """What was noted so far."""
        return [event.text for event in tuple(self.events) if isinstance(event, Note)]

    def failed(self, name: str, error: BaseException) -> None:
        """A part of tdbg raised and was switched off."""
        self.emit(ProbeOff(probe=name, error=describe_error(error)))
        LOG.warning("tdbg switched its part %s off: %s", name, describe_error(error))


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
        self.compiled: list[tuple[weakref.ref[nn.Module], Any, Any]] = []  # a module, its compiled call, ours around it
        self._end = end

    @property
    def run_dir(self) -> str:
        """Where it records; empty for one in memory."""
        return str(self.agent.run_dir) if self.agent is not None else ""

    def change(self, level: str = "", flags: "dict[str, Any] | None" = None) -> None:
        """Change level (empty: as it is) and flags of the live watch, from the next call of a hook on."""
        self.monitor.changes.make(level, flags or {}, why="api")

    def end(self, code: int) -> None:
        """Write what is pending, then take every hook and patch away. code: what the training would exit with."""
        try:
            self._end(code)
        finally:
            self.monitor.detach()
            for ref, theirs, ours in self.compiled:
                module = ref()
                if module is not None and module._compiled_call_impl is ours:
                    module._compiled_call_impl = theirs

    def events(self) -> list[Event]:
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


def current() -> Session | None:
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
        from tdbg.inject.agent import agent

        try:
            return agent()
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


def start(owner: str, level: str, *, run_dir: str = "", modules: "Iterable[nn.Module]" = ()) -> Session:
    """Start watching this process, outside of a run; the caller has seen that there is no watch yet.

    run_dir: record there, as `tdbg run` does; in memory if empty. modules: the models, where they are known;
    without them memory is searched once for models and optimizers that exist already (0.1 s in a large program).
    Raises TdbgError for a directory that is none of ours.
    """
    global _own
    from tdbg.api.flags import live
    from tdbg.core.config import Settings

    settings = Settings(level=level, flags=live(), keep_steps=KEPT_STEPS, run_dir=run_dir)
    session = None
    if run_dir:
        from tdbg.api.recording import record

        session = record(owner, settings)
    if session is None:
        session = _remember(owner, settings)
    _own = session
    _introduce(session, list(modules))
    return session


def stop(session: Session, code: int = 0) -> None:
    """End a watch that `start` made; nothing of it is left. code: what the training would exit with."""
    global _own
    if _own is session:
        _own = None
    try:
        session.end(code)
    except Exception as error:  # guard: the program goes on
        LOG.warning("tdbg could not end its watch: %s: %s", type(error).__name__, error)


def _remember(owner: str, settings: Any) -> Session:
    """A watch that keeps its events in memory."""
    from tdbg.probes.monitor import Monitor
    from tdbg.probes.roster import probes_for

    memory = Memory()
    monitor = Monitor(
        settings,
        emit=memory.emit,
        become_rank=lambda: memory.emit(_first_event(monitor)),
        save_batch=lambda step, parts: "",
        failed=memory.failed,
        note=memory.note,
        started=time.perf_counter(),
        log=lambda level, step, mark, text: LOG.debug("s%08d %s %s", step, mark, text),
    )
    session = Session(monitor, owner, memory=memory, end=lambda code: _end_memory(monitor, memory, code))
    monitor.attach(probes_for(settings.level, settings.flags))
    return session


def _first_event(monitor: "Monitor") -> Start:
    import torch

    from tdbg.inject.on.torch_ import describe_device, identity

    monitor.rank, monitor.world_size = identity()
    return Start(
        rank=monitor.rank,
        world_size=monitor.world_size,
        pid=os.getpid(),
        torch=torch.__version__,
        device=describe_device(),
    )


def _end_memory(monitor: "Monitor", memory: Memory, code: int) -> None:
    monitor.finish()
    cost: Cost = monitor.cost()
    memory.emit(cost)
    memory.emit(End(step=monitor.step, reason="exception" if code else "exit"))


def _introduce(session: Session, modules: "list[nn.Module]") -> None:
    """Make models and optimizers known that were built before the watch began."""
    if not modules:
        modules, optimizers = _in_memory()
        for optimizer in optimizers:
            session.monitor.optimizers.add(optimizer)
    children = {id(child) for module in modules for child in module.children()}
    for module in modules:
        if id(module) not in children and next(module.parameters(), None) is not None:
            _adopt(session, module)


def _adopt(session: Session, module: "nn.Module") -> None:
    """Hook one model; a compiled one is stood around instead: a hook would have it compiled anew, and stay silent."""
    roots, theirs = session.monitor.roots, module._compiled_call_impl
    roots.adopt(module)
    if theirs is not None:
        if roots.before_compile(module):
            roots.after_compile(module)
        session.compiled.append((weakref.ref(module), theirs, module._compiled_call_impl))


def _in_memory() -> tuple[list[Any], list[Any]]:
    """Every model and every optimizer that is alive."""
    import gc

    from torch import nn
    from torch.optim import Optimizer

    modules, optimizers = [], []
    for item in gc.get_objects():  # type(), not isinstance(): the latter asks every object for its __class__
        kind = type(item)
        if issubclass(kind, nn.Module) and "_modules" in item.__dict__:
            modules.append(item)
        elif issubclass(kind, Optimizer) and "param_groups" in item.__dict__:
            optimizers.append(item)
    return modules, optimizers


def _forked() -> None:
    """In a forked child: a process of its own, which has seen nothing yet."""
    if _own is not None and _own.memory is not None:  # one with a directory has an agent that sees to it
        _own.memory.events.clear()
        _own.monitor.forked()
    regions = sys.modules.get("tdbg.probes.regions")
    if regions is not None:
        regions.TOTALS.clear()


os.register_at_fork(after_in_child=lambda: Guard("session").call(_forked))
