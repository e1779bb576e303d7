"""Switching debug flags on and off from within the program, and what the watch has seen so far."""

import sys
from collections.abc import Iterable
from typing import Any

from tdbg.api.flag_values import get_live_flags
from tdbg.api.session import LOG, Session, current_session, run_agent
from tdbg.api.watching import start_session, stop_session
from tdbg.core.errors import TdbgError
from tdbg.core.flags import FLAGS, Value, expand, parse_flag

ANOMALY = "AUTOGRAD_ANOMALY"
_anomaly: Any = None  # torch's own mode, as `enable_debugging` left it


def enable_debugging(names: "str | Iterable[str] | None" = None) -> None:
    """Switch debug flags on: all of the table, or those named.

    names: as in the flag table, or their aliases, in any case (``memory_usage``, ``debug_gradient_norms``,
        ``LOSS``, ``FLAG=VALUE``); None for all.
    In a run the live watch takes them up at once and notes the change (event `switch`). Outside of one a watch
    over this process is started at level basic if there is none, its events kept in memory (the last 2,000); there
    AUTOGRAD_ANOMALY switches torch's anomaly mode on for every step (1.3-1.5x). `disable_debugging` takes all of it
    back. Raises TdbgError for a name that no flag has.
    Cost: that of the probes, held within the budget of the level; once 0.1 s to find models built before.
    """
    wanted = _parse_flags(names, on=True)
    session = _ensure_session(wanted)
    if session is None:
        get_live_flags().update(wanted)
        return
    session.change_settings(flags=dict(wanted))
    if session.owner != "run" and wanted.get(ANOMALY):
        _anomaly_on()


def disable_debugging(names: "str | Iterable[str] | None" = None) -> None:
    """Switch debug flags off: all that are on, or those named.

    Outside of a run the watch that `enable_debugging` started ends with its last flag: every hook and patch is
    taken away, and torch's anomaly mode is what it was. In a run its level stays. Raises TdbgError for a name that
    no flag has.
    """
    wanted = _parse_flags(names, on=False)
    session = current_session()
    if session is None:
        get_live_flags().update(wanted)
    elif any(get_live_flags().get(name) for name in wanted):
        session.change_settings(flags=dict(wanted))
    if ANOMALY in wanted:
        anomaly_back()
    if session is not None and session.owner == "enable" and not any(get_live_flags().values()):
        stop_session(session)


def get_debugging_status() -> dict[str, Any]:
    """What is on in this process, as plain data.

    ``active`` (somebody watches), ``inside_run``, ``run_dir``, ``level``, ``flags`` (every flag of the table, and
    others that are on: False, True or text), ``step`` (done so far), ``autograd_anomaly`` (torch's own mode), ``cost``
    (own_ms, wall_ms, budget_pct) and ``notes`` (what could not be looked at, and why; of a watch in memory).
    """
    session, flags = current_session(), get_live_flags()
    torch = sys.modules.get("torch")
    status: dict[str, object] = {
        "active": session is not None and session.monitor.active,
        "inside_run": run_agent() is not None,
        "run_dir": session.run_dir if session is not None else "",
        "level": session.monitor.settings.level if session is not None else "off",
        "flags": {**{item.name: False for item in FLAGS}, **flags},
        "step": session.monitor.step if session is not None else 0,
        "autograd_anomaly": torch is not None and torch.is_anomaly_enabled(),
        "cost": {},
        "notes": [],
    }
    if session is not None:
        cost = session.monitor.build_cost()
        status["cost"] = {"own_ms": cost.own_ms, "wall_ms": cost.wall_ms, "budget_pct": cost.budget_pct}
        if session.memory is not None:
            status["notes"] = session.memory.list_notes()
    return status


def history() -> list[dict[str, Any]]:
    """The last step records as plain data, oldest first; empty where nobody watches.

    In a run as many as ``keep_steps`` (16), else 64: step, loss, lr, grad_norm, times in ms, memory in MB, as
    docs/events.md lists them; fields without a value are left out, and the norms of single parameters.
    """
    session = current_session()
    return session.monitor.recorder.list_rows() if session is not None else []


def clear_history() -> None:
    """Forget the last step records, and what the probes keep of earlier steps; files stay as they are."""
    session = current_session()
    if session is not None:
        session.monitor.clear_history()


def _parse_flags(names: "str | Iterable[str] | None", *, on: bool) -> dict[str, Value]:
    """The flags that are meant, each with its new value."""
    if names is None:
        known = (
            [flag.name for flag in FLAGS]
            if on
            else [name for name, value in get_live_flags().items() if value is not False]
        )
        return dict.fromkeys(known, on)
    found: dict[str, Value] = {}
    for name in [names] if isinstance(names, str) else names:
        try:
            held = [*get_live_flags()]  # names of the program's own that are on already
            found.update(parse_flag(str(name), held) if on else dict.fromkeys(expand(str(name), held), False))
        except TdbgError as error:
            raise TdbgError(f"{error}; {error.hint}", error.hint) from None
    return found


def _ensure_session(wanted: dict[str, Value]) -> Session | None:
    """The watch that is to take the flags up; None in a run that was told to look at nothing."""
    if not any(wanted.values()):
        return current_session()
    import torch  # noqa: F401 - in a run this is what sets its watch to work

    session = current_session()
    if session is not None:
        return session
    if run_agent() is not None:
        LOG.warning("tdbg: this run was started with --level off: flags are set, but nothing is recorded")
        return None
    return start_session("enable", "basic")


def _anomaly_on() -> None:
    """torch's own anomaly mode, for every step."""
    global _anomaly
    if _anomaly is None:
        from tdbg.api.anomaly_mode import AnomalyMode

        _anomaly = AnomalyMode()
    _anomaly.enable()


def anomaly_back() -> None:
    """Put torch's anomaly mode back, if it was switched on here."""
    if _anomaly is not None:
        _anomaly.restore()
