"""`debug_context`: another level for a part of the program."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tdbg.api.flag_values import get_live_flags
from tdbg.api.levels import DebugLevel
from tdbg.api.session import LOG, Session, current_session, run_agent
from tdbg.api.watching import start_session, stop_session

if TYPE_CHECKING:
    from tdbg.api.debugger import PyTorchDebugger


@contextlib.contextmanager
def debug_context(level: DebugLevel | str = DebugLevel.BASIC) -> "Iterator[PyTorchDebugger]":
    """Watch what happens inside the ``with`` at this level; gives a `PyTorchDebugger` of the same level.

    In a run the live level changes for the duration, on this rank (every rank that passes here changes at the same
    step), and goes back on exit unless somebody changed it meanwhile. Outside of one a watch over this process
    begins and ends here, its events in memory: ``debugger.findings()`` tells what the rules make of them.
    On exit level, flags, hooks, patches and torch's anomaly mode are as they were, also after an exception, which
    passes; at EXTREME its traceback and the last step records are in ``debugger.debug_history``.
    Raises TdbgError for an unknown level. Cost: that of the level; outside of a run once 0.1 s to find models.
    """
    import torch  # noqa: F401 - in a run this is what sets its watch to work

    from tdbg.api.debugger import PyTorchDebugger

    wanted = DebugLevel.of(level)
    debugger = PyTorchDebugger(wanted)
    with _at_level(wanted) as session, contextlib.ExitStack() as stack:
        debugger.session = session
        stack.push(lambda kind, error, trace: _record_error(debugger, error))
        yield debugger


def _record_error(debugger: "PyTorchDebugger", error: BaseException | None) -> None:
    if isinstance(error, Exception):
        debugger.remember_error(error)


@contextlib.contextmanager
def _at_level(wanted: DebugLevel) -> Iterator[Session | None]:
    session = current_session()
    if session is not None:
        with _override_level(session, wanted):
            yield session
    elif wanted is DebugLevel.OFF:
        yield None
    elif run_agent() is not None:
        LOG.warning("tdbg: this run was started with --level off: nothing is recorded")
        yield None
    else:
        with _watch_process(wanted) as own:
            yield own


@contextlib.contextmanager
def _override_level(session: Session, wanted: DebugLevel) -> Iterator[None]:
    """Another level of a live watch, for a while."""
    changes = session.monitor.level_overrides
    before = changes.level
    if before == wanted:
        yield
        return
    session.change_settings(level=wanted.value)
    try:
        yield
    finally:
        if changes.level == wanted:  # nobody else has changed it for good meanwhile
            session.change_settings(level=before)


@contextlib.contextmanager
def _watch_process(wanted: DebugLevel) -> Iterator[Session]:
    """A watch of its own, for a while."""
    from tdbg.api.switches import anomaly_back

    flags = dict(get_live_flags())
    session = start_session("context", wanted.value)
    try:
        yield session
    finally:
        stop_session(session)
        get_live_flags().clear()
        get_live_flags().update(flags)
        anomaly_back()
