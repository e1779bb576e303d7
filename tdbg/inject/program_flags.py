"""Debug flags that the program's own configuration has on, whether or not anybody asked tdbg for them.

A configuration is looked at once it is final: frozen, composed or parsed. A library without such a moment has its
last configuration looked at before the first step (of evaluation, too), or at exit. Each flag found is an Injection event (status
``own``), so `tdbg flags doctor` knows it was on; with ``--forbid-flags`` the first one ends the process.
"""

import atexit
import contextlib
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType

from tdbg.core.flags import FLAGS
from tdbg.core.guard import EndRun, Guard
from tdbg.core.output import print_messages
from tdbg.inject.take import Tree, get_injection_log, guard_of, iter_debug_config_entries, list_flag_paths

OFF_WORDS = ("", "0", "no", "off", "false", "none", "null")
ON_WORDS = ("1", "yes", "on", "true")
_unsettled: dict[str, tuple[Callable[[], object], Tree]] = {}  # library -> its last configuration


def report_flags_on(root: object, tree: Tree) -> None:
    """Report every flag that the final configuration ``root`` has on. Ends the process under ``--forbid-flags``."""
    _unsettled.pop(tree.name, None)
    report_values((path, value, f"{tree.name} {path}") for path, value in iter_debug_config_entries(root, tree))


def report_values(found: Iterator[tuple[str, object, str]]) -> None:
    """The same for ``(path, value, where)`` of each key below the program's debug keys."""
    book = get_injection_log()
    settings = book.agent.settings
    forbidden = []
    for path, value, where in found:
        flag, known = flag_at(path)
        top = path.lower().replace("-", "_")
        if not (top == "debug" or top.startswith(("debug.", "debug_"))):  # debugpy, debugger
            continue
        if not is_on(value, known) or settings.flags.get(flag):
            continue
        book.found_on(flag, where, value)
        forbidden.append((flag, where))
    if forbidden and settings.forbid_flags:
        flag, where = forbidden[0]
        more = f", and {len(forbidden) - 1} more" if len(forbidden) > 1 else ""
        print_messages(
            f"--forbid-flags: {flag} is on in the program's own configuration ({where}){more}",
            f"switch it off there, or for this run with --no-flag {flag}",
        )
        raise EndRun(2)


def look_later(root: object, tree: Tree) -> None:
    """The configuration may change yet: look at the last one of its library before the first step, or at exit."""
    last = _unsettled.get(tree.name)
    if last is not None and last[0]() is root:
        return
    if not _unsettled:
        atexit.register(_settle_at_exit, guard_of("program-flags"))
        if get_injection_log().agent.settings.forbid_flags and get_injection_log().agent.settings.level == "off":
            _before_first_step()
    try:
        held: Callable[[], object] = weakref.ref(root)
    except TypeError:
        held = lambda: root  # noqa: E731 - a type without weak references
    _unsettled[tree.name] = held, tree


def report_pending_flags() -> None:
    """Look at what is still unsettled."""
    for held, tree in list(_unsettled.values()):
        root = held()
        if root is not None:
            report_flags_on(root, tree)
    _unsettled.clear()


def flag_at(path: str) -> tuple[str, bool]:
    """The flag that a key such as ``DEBUG.LOSS.NULL_MASKING`` stands for, and whether the table has it."""
    words = tuple(path.lower().replace("-", "_").split("."))
    for flag in FLAGS:
        if words in list_flag_paths(flag.name):
            return flag.name, True
    name = path.upper().replace("-", "_")
    for prefix in ("DEBUG.", "DEBUG_"):
        name = name.removeprefix(prefix)
    return name, False


def is_on(value: object, known: bool) -> bool:
    """True if the value switches a flag on; of the table's flags any value counts that does not say no."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = value.strip().lower()
        return word not in OFF_WORDS if known else word in ON_WORDS
    return known and isinstance(value, int | float) and bool(value)


def _settle_at_exit(guard: Guard) -> None:
    with contextlib.suppress(SystemExit):  # too late to end the process with another code
        guard.call_guarded(report_pending_flags)


def _before_first_step() -> None:
    """At level off nobody watches for the first step: two hooks of torch's do.

    A call without gradients is a step of evaluation. The optimizers' hook stays and does nothing: torch goes through
    that table while it is called, and ends the program if one is taken out.
    """
    from tdbg.inject.imports import when_imported

    guard = guard_of("program-flags")

    def install_hooks(module: ModuleType) -> None:
        from tdbg.runtime.compiler import hide_from_compiler, trace_as_nothing
        from tdbg.runtime.torch_hooks import hook_all

        waiting = [True]

        def settle_once() -> None:
            if waiting:
                waiting.clear()
                calls.remove()
                report_pending_flags()

        def before_step(*_: object) -> None:
            if not module.compiler.is_compiling() and waiting:
                guard.call_guarded(settle_once)

        def before_call(*_: object) -> None:
            if not module.compiler.is_compiling() and not module.is_grad_enabled():
                guard.call_guarded(settle_once)

        hook_all("before-update", trace_as_nothing(before_step))
        calls = hook_all("before-call", hide_from_compiler(before_call))

    when_imported("torch", lambda module: guard.call_guarded(install_hooks, module))
