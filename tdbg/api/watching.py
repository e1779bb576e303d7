"""Start and end a watch over this process, outside of a run."""

import os
import time
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tdbg.api.flag_values import get_live_flags
from tdbg.api.session import LOG, Memory, Session, install_session, is_own
from tdbg.api.standalone_recording import start_recording
from tdbg.core.events import Cost, End, Start
from tdbg.core.guard import guarded

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from tdbg.runtime.monitor import Monitor

KEPT_STEPS = 64  # step records that `tdbg.history` gives back


def start_session(owner: str, level: str, *, run_dir: str = "", modules: "Iterable[nn.Module]" = ()) -> Session:
    """Start watching this process, outside of a run; the caller has seen that there is no watch yet.

    run_dir: record there, as `tdbg run` does; in memory if empty. modules: the models, where they are known;
    without them memory is searched once for models and optimizers that exist already (0.1 s in a large program).
    Raises TdbgError for a directory that is none of ours.
    """
    from tdbg.core.config import Settings

    settings = Settings(level=level, flags=get_live_flags(), keep_steps=KEPT_STEPS, run_dir=run_dir)
    session = None
    if run_dir:
        session = start_recording(owner, settings)
    if session is None:
        session = _start_in_memory(owner, settings)
    install_session(session)
    _register_existing(session, list(modules))
    return session


def stop_session(session: Session, code: int = 0) -> None:
    """End a watch that `start_session` made; nothing of it is left. code: what the training would exit with."""
    if is_own(session):
        install_session(None)
    with guarded("the program goes on", _warn_not_ended):
        session.end_session(code)


def _warn_not_ended(error: BaseException) -> None:
    LOG.warning("tdbg could not end its watch: %s: %s", type(error).__name__, error)


def _start_in_memory(owner: str, settings: Any) -> Session:
    """A watch that keeps its events in memory."""
    from tdbg.probes.catalog import CATALOG
    from tdbg.runtime.monitor import Monitor

    memory = Memory()
    monitor = Monitor(
        settings,
        catalog=CATALOG,
        emit=memory.emit,
        become_rank=lambda: memory.emit(_first_event(monitor)),
        save_batch=lambda step, parts: "",
        failed=memory.record_failure,
        note=memory.record_note,
        started=time.perf_counter(),
        log=lambda level, step, mark, text: LOG.debug("s%08d %s %s", step, mark, text),
    )
    session = Session(monitor, owner, memory=memory, end=lambda code: _end_memory(monitor, memory, code))
    monitor.attach(CATALOG.select_probes(settings.level, settings.flags))
    return session


def _first_event(monitor: "Monitor") -> Start:
    import torch

    from tdbg.inject.on.torch_ import describe_device, get_rank_and_world_size

    monitor.rank, monitor.world_size = get_rank_and_world_size()
    return Start(
        rank=monitor.rank,
        world_size=monitor.world_size,
        pid=os.getpid(),
        torch=torch.__version__,
        device=describe_device(),
    )


def _end_memory(monitor: "Monitor", memory: Memory, code: int) -> None:
    monitor.finish_run()
    cost: Cost = monitor.build_cost()
    memory.emit(cost)
    memory.emit(End(step=monitor.step, reason="exception" if code else "exit"))


def _register_existing(session: Session, modules: "list[nn.Module]") -> None:
    """Make models and optimizers known that were built before the watch began."""
    if not modules:
        modules, optimizers = _in_memory()
        for optimizer in optimizers:
            session.monitor.optimizers.add(optimizer)
    children = {id(child) for module in modules for child in module.children()}
    for module in modules:
        if id(module) not in children and next(module.parameters(), None) is not None:
            _hook_model(session, module)


def _hook_model(session: Session, module: "nn.Module") -> None:
    """Hook one model; a compiled one is stood around instead: a hook would have it compiled anew, and stay silent."""
    from tdbg.runtime.torch_compat import compiled_call_of

    roots, theirs = session.monitor.roots, compiled_call_of(module)
    roots.adopt_root(module)
    if theirs is not None:
        if roots.before_compile(module):
            roots.after_compile(module)
        session.compiled.append((weakref.ref(module), theirs, compiled_call_of(module)))


def _in_memory() -> "tuple[list[nn.Module], list[Optimizer]]":
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
