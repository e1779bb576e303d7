"""The Python API: what a program may ask tdbg itself, inside a run and outside of one."""

import os

from tdbg.flags import Value, canonical, covers

_reported: set[str] = set()


def flag(name: str, default: Value = False) -> Value:
    """The value of a debug flag of this run: False or ``default`` while it is off, True or its text while it is on.

    A family is on while one of its members is: ``flag("LOSS")``. Outside `tdbg run` the variable
    TDBG_FLAGS alone counts, so the call may stay in the program for good. Cost: about 10 us.
    """
    wanted = canonical(name)
    flags = _flags()
    value = flags.get(wanted)
    if value is None:
        value = next((held for key, held in flags.items() if key.endswith(f".{wanted}") and held is not False), None)
    if value is None and any(covers(wanted, key) and held is not False for key, held in flags.items()):
        value = True
    if value is None:
        return default
    if value is not False:
        _report(wanted, value)
    return value


def _flags() -> dict[str, Value]:
    """The flags of this run, or of the variable; nothing that is wrong with them reaches the program."""
    try:
        run = _run_flags()
        text = os.environ.get("TDBG_FLAGS", "")
        if run is None and text:
            from tdbg.config import flags_from_env

            return flags_from_env(text)
        return run or {}
    except Exception:  # a guard: a bad variable or a vanished run directory must not stop the program
        return {}


def _run_flags() -> dict[str, Value] | None:
    """What `tdbg run` was asked for; None outside of it. `--inject yacs` and the like leave this door shut."""
    if not os.environ.get("TDBG_RUN_DIR"):
        return None
    from tdbg.inject.agent import agent

    settings = agent().settings
    return settings.flags if settings.inject in ("auto", "env") else {}


def _report(name: str, value: Value) -> None:
    """One Injection event for the first read of a flag that is on."""
    if name in _reported or not os.environ.get("TDBG_RUN_DIR"):
        return
    _reported.add(name)
    try:
        from tdbg.inject.take import ledger

        ledger().took(name, "env tdbg.flag()", default_of(name), value)
    except Exception:  # a guard: reporting is tdbg's affair, not the program's
        pass


def default_of(name: str) -> Value:
    """What the flag would be without the run."""
    from tdbg.flags import FLAGS

    return next((item.default for item in FLAGS if item.name == name), False)
