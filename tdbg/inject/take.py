"""Taking debug flags into the program's own config: which keys may hold a flag, and what is said about it.

A taker (`tdbg.inject.on.*`) knows one library's config; what all of them share is here. It is loaded
when a config turns up, not before: the handlers themselves stay light.
"""

import atexit
import contextlib
import os
import sys
from ast import literal_eval
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from tdbg.core import flags as flag_table
from tdbg.core.events import Injection
from tdbg.core.flags import Value
from tdbg.core.frames import without_own_frames
from tdbg.core.guard import EndRun, Guard
from tdbg.core.output import print_messages
from tdbg.core.rundir import env_rank
from tdbg.inject.agent import Agent, get_agent
from tdbg.inject.foreign_patches import replace_function

MAX_DEPTH = 8
PREFIXES = ("debug", "enable_")  # how a config's debug keys begin


class Tree(Protocol):
    """How a library's config is read and written, one node at a time."""

    name: str
    mode: str  # what ``--inject`` calls it

    def list_keys(self, node: Any) -> list[str] | None:
        """The keys below ``node``, or None if it is a value."""

    def get_child(self, node: Any, key: str) -> object:
        """The child of ``node``; for a value that cannot be read, None."""

    def set_value(self, node: object, key: str, value: object) -> None:
        """Set it, frozen or not."""

    def build_section(self, node: object) -> object:
        """An empty section to add below ``node``, or None if the library lets nobody add keys there."""


class MisfitError(Exception):
    """A flag's value does not suit the value the program has there; the text is the hint."""


class Ledger:
    """What became of each flag in this process; every outcome is an Injection event, once."""

    def __init__(self, owner: Agent) -> None:
        self.agent = owner
        self.taken: set[str] = set()
        self._reported: set[tuple[str, str, str]] = set()
        self._pending: dict[str, tuple[str, str]] = {}

    def record_accepted(self, flag: str, where: str, old: object, new: object) -> None:
        """The flag stands in the program's config now, or stood there before."""
        same = type(old) is type(new) and bool(old == new)
        again = flag in self.taken and same  # our own value, met again by a later merge
        self.taken.add(flag)
        self._pending.pop(flag, None)
        if not again:
            self._emit_injection(flag, "already" if same else "set", where, old, new, "")

    def found_on(self, flag: str, where: str, value: object) -> None:
        """The program's own config has the flag on, and nobody asked tdbg for it."""
        self._emit_injection(flag, "own", where, value, value, "")

    def record_rejected(self, flag: str, where: str, hint: str) -> None:
        """The program's config has no place for the flag, and none can come; may end the rank (--strict-flags)."""
        self._pending.pop(flag, None)
        if flag in self.taken or self._family_served(flag):
            return
        self._emit_injection(flag, "rejected", where, None, self.agent.settings.flags.get(flag), hint)
        if self.agent.settings.strict_flags:
            print_messages(
                f"the program's config rejects the flag {flag} ({where})",
                f"{hint}; without --strict-flags the run goes on",
            )
            raise EndRun(2)

    def record_pending(self, flag: str, where: str, hint: str) -> None:
        """No place for the flag so far: a rejection if that is still so at the first step, or at exit."""
        if flag not in self.taken:
            if not self._pending:
                self._exit_guard = guard_of("inject")
                atexit.register(self._settle_at_exit)
            self._pending.setdefault(flag, (where, hint))

    def reject_pending(self) -> None:
        """Turn what is still in doubt into rejections."""
        for flag, (where, hint) in list(self._pending.items()):
            self.record_rejected(flag, where, hint)

    def _family_served(self, flag: str) -> bool:
        """True if the flag came with its whole family (``-f LOSS``) and the program took another member."""
        family = flag.rpartition(".")[0]
        if not family:
            return False
        members = {item.name for item in flag_table.FLAGS if flag_table.covers(family, item.name)}
        return members <= set(self.agent.settings.flags) and bool(members & self.taken)

    def _settle_at_exit(self) -> None:
        with contextlib.suppress(SystemExit):  # too late to end the rank with another code
            self._exit_guard.call_guarded(self.reject_pending)

    def _emit_injection(self, flag: str, status: str, where: str, old: object, new: object, hint: str) -> None:
        if (flag, status, where) in self._reported:
            return
        self._reported.add((flag, status, where))
        rank = env_rank(os.environ)
        event = Injection(
            flag=flag, status=status, where=where, old=old, new=new, hint=hint, rank=rank, pid=os.getpid()
        )
        self.agent.emit_aside(event)


_ledger: Ledger | None = None


def get_injection_log() -> Ledger:
    """The one ledger of this process."""
    global _ledger
    if _ledger is None:
        _ledger = Ledger(get_agent())
    return _ledger


def finalize_injection() -> None:
    """Report flags that no config took although one has debug keys, and those a config has on by itself.

    Call it before the first step.
    """
    if _ledger is not None:
        _ledger.reject_pending()
    own = sys.modules.get("tdbg.inject.program_flags")
    if own is not None:
        own.report_pending_flags()


def guard_of(part: str) -> Guard:
    """The guard around the part with this name, also where there is no agent yet to record what it raises."""
    return Guard(part, lambda part, error: get_agent().record_failure(part, error))


def list_flag_paths(flag: str, typed: str = "") -> list[tuple[str, ...]]:
    """The paths, in lower case, under which a config may keep a flag.

    First the name as the user typed it, then the flag's own (the fullest first), then its aliases.
    """
    parts = flag.lower().split(".")
    names = [(*parts,), ("_".join(parts),), (parts[-1],)]
    paths = [("debug", *name) for name in names] + [(f"debug_{'_'.join(name)}",) for name in names]
    if typed:
        word = typed.lower().replace("-", "_")
        bare = word.removeprefix("debug.").removeprefix("debug_").removeprefix("enable_")
        exact = [tuple(word.split("."))] if word.startswith(("debug.", "debug_", "enable_")) else []
        paths = [*exact, ("debug", *bare.split(".")), (f"debug_{bare.replace('.', '_')}",), *paths]
    for item in flag_table.FLAGS:
        if item.name == flag:
            for alias in item.aliases:
                paths += [("debug", alias), (f"debug_{alias}",), (f"enable_{alias}",), ("debug", f"enable_{alias}")]
    return list(dict.fromkeys(paths))


def may_set(mode: str) -> bool:
    """True if ``--inject`` lets flags be set in this kind of config; looking at it is always allowed."""
    chosen = get_agent().settings.inject
    return chosen in ("auto", mode)


def wants_config(flag: str) -> bool:
    """False for flags that wake something of tdbg's own: they work without the program's help."""
    return not any(item.name == flag and (item.works_alone or item.group == "torch") for item in flag_table.FLAGS)


def coerce_value(value: Value, old: object) -> object:
    """``value`` as the type of the value it replaces; MisfitError if that cannot be."""
    if old is None or isinstance(old, bool):
        return _parse_literal(value) if old is None else _parse_bool(value)
    if isinstance(value, bool):
        if isinstance(old, int) and old in (0, 1):
            return int(value)
        raise MisfitError(f"the program's value there is {old!r}, not true or false: write --flag NAME=VALUE")
    if isinstance(old, str):
        return value
    found = _parse_literal(value)
    if isinstance(old, float) and isinstance(found, int):
        return float(found)
    if isinstance(old, list | tuple) and isinstance(found, list | tuple):
        return type(old)(found)
    if type(found) is type(old):
        return found
    raise MisfitError(f"{value!r} is not of type {type(old).__name__}; the program's value there is {old!r}")


def _parse_bool(value: Value) -> bool:
    if isinstance(value, bool):
        return value
    word = value.lower()
    if word in ("1", "yes", "on", "true", "0", "no", "off", "false"):
        return word in ("1", "yes", "on", "true")
    raise MisfitError(f"{value!r} is not true or false, but the program's value there is a bool")


def _parse_literal(value: Value) -> object:
    if isinstance(value, bool):
        return value
    try:
        return literal_eval(value)
    except (ValueError, SyntaxError):
        return value


def iter_debug_config_entries(
    node: object, tree: Tree, prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, object]]:
    """Each value under the config's debug keys, with its dotted path."""
    for key in tree.list_keys(node) or []:
        path = f"{prefix}{key}"
        if not prefix and not key.lower().startswith("debug"):
            continue
        child = tree.get_child(node, key)
        if tree.list_keys(child) is None:
            yield path, child
        elif depth < MAX_DEPTH:
            yield from iter_debug_config_entries(child, tree, f"{path}.", depth + 1)


def install_after_hook(cls: object, name: str, then: Callable[[object, object], None], patch: str) -> None:
    """Have ``then(self, result)`` run after each call of the method ``cls.name``; the call itself is unchanged."""
    import functools

    real, guard = getattr(cls, name), guard_of(f"inject-{patch}")

    @functools.wraps(real)
    @without_own_frames
    def call_with_hook(self: object, *args: object, **kwargs: object) -> object:
        result = real(self, *args, **kwargs)
        guard.call_guarded(then, self, result)
        return result

    replace_function(patch, cls, name, call_with_hook)
