"""`tdbg.flag`: the value of a debug flag, in a run and outside of one."""

import os
from functools import lru_cache
from typing import TYPE_CHECKING

from tdbg.api.session import current_session, run_agent
from tdbg.core.flag_variable import read_flag_variable
from tdbg.core.flags import DIAGNOSTICS, Value, canonical, covers
from tdbg.core.guard import guarded
from tdbg.runtime.run_context import RunContext, install_context

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor

_reported: set[str] = set()
_live: dict[str, Value] | None = None


def flag(name: str, default: Value = False) -> Value:
    """The value of a debug flag of this run: False or ``default`` while it is off, True or its text while it is on.

    A family is on while one of its members is: ``flag("LOSS")``. Outside `tdbg run` the variable
    TDBG_FLAGS and `enable_debugging` count, so the call may stay in the program for good.
    Raises nothing. Cost: below 1 us.
    """
    try:
        found = value_of(name, _open_flags())
    except Exception:  # as `guarded`, which costs too much here: a bad variable must not stop the program
        return default
    if found is None:
        return default
    if found is not False:
        report_use(name, found)
    return found


def get_live_flags() -> dict[str, Value]:
    """The flags in force in this process, the very dict: those of the run, or of the variable and the API."""
    global _live
    if _live is None:
        agent = run_agent()
        _live = agent.settings.flags if agent is not None else read_flag_variable(os.environ)
        install_context(RunContext(_live, _find_monitor, _record_use, _is_logged))
    return _live


def _record_use(name: str, value: Value) -> None:
    """The program calls a diagnostic whose flag is on."""
    if run_agent() is not None:
        from tdbg.inject.take import get_injection_log

        get_injection_log().record_accepted(name, DIAGNOSTICS, default_of(name), value)


def _find_monitor() -> "Monitor | None":
    """The watch that diagnostics of `tdbg.probes.loss` tell."""
    session = current_session()
    return session.monitor if session is not None else None


def _is_logged() -> bool:
    """A watch in memory has no log."""
    session = current_session()
    return session is not None and session.agent is not None


def value_of(name: str, flags: dict[str, Value]) -> Value | None:
    """What ``name`` stands for among flags: the flag itself, a member by its last word, or a family; else None."""
    if not flags:
        return None
    wanted = _resolve_name(name)
    value = flags.get(wanted)
    if value is None:
        value = next((held for key, held in flags.items() if key.endswith(f".{wanted}") and held is not False), None)
    if value is None and any(covers(wanted, key) and held is not False for key, held in flags.items()):
        value = True
    return value


def is_on(name: str) -> bool:
    """True while the flag, its family or a member of it is on, whatever door ``--inject`` leaves open."""
    flags = get_live_flags() if _live is None else _live
    return any(value is not False and _matches_flag(name, key) for key, value in flags.items()) if flags else False


def report_use(name: str, value: Value) -> None:
    """One Injection event for the first use of a flag that is on."""
    wanted = _resolve_name(name)
    if wanted in _reported:
        return
    _reported.add(wanted)
    if run_agent() is None:
        return
    with guarded("reporting is tdbg's affair, not the program's"):
        from tdbg.inject.take import get_injection_log

        get_injection_log().record_accepted(wanted, "env tdbg.flag()", default_of(wanted), value)


def default_of(name: str) -> Value:
    """What the flag would be without the run."""
    from tdbg.core.flags import FLAGS

    return next((item.default for item in FLAGS if item.name == name), False)


def _open_flags() -> dict[str, Value]:
    """The flags that `flag` may tell: `--inject yacs` and the like leave this door shut."""
    agent = run_agent()
    if agent is not None and agent.settings.inject not in ("auto", "env"):
        return {}
    return get_live_flags()


@lru_cache(maxsize=4096)
def _matches_flag(name: str, key: str) -> bool:
    """True if ``name`` stands for the flag ``key``: itself, its last word, or its family."""
    wanted = _resolve_name(name)
    return covers(wanted, key) or key.endswith(f".{wanted}")


@lru_cache(maxsize=1024)
def _resolve_name(name: str) -> str:
    return canonical(name)
