"""Loaded by `program` before anything else: lists from outside where tdbg stands, or makes tdbg's code raise there.

Nothing of tdbg is imported. An entry is a function or object of tdbg's that something outside of tdbg calls. It is found
in three ways: an attribute of a module or class differs from the same program without tdbg; a table of hooks holds a
callable of tdbg's; a function that registers callbacks (recorded here before torch is imported) was given one.

ENTRIES_MODE: ``list`` writes all attributes, tables and registrations; ``trace`` writes which functions of tdbg an entry
calls first (its bodies); ``inject`` raises in the bodies of ENTRIES_PLAN. ENTRIES_OUT: the folder for what is written.
"""

import atexit
import functools
import gc
import inspect
import json
import math
import os
import signal
import sys
import threading
import warnings
from collections import Counter, OrderedDict
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

MODE = os.environ.get("ENTRIES_MODE", "")
OUT = Path(os.environ.get("ENTRIES_OUT") or ".")
PLAN: dict[str, dict[str, str]] = json.loads(os.environ.get("ENTRIES_PLAN") or "{}")
HERE = str(Path(__file__).parent)
SHELL = ("core/guard.py", "core/frames.py", "runtime/compiler.py")  # between an entry and its body: the guard itself,
TIMERS = (  # and what stands between in more than one of them
    "probes/__init__.py:Probe._run_timed",
    "runtime/training_hooks.py:TrainingHooks._step_hook.<locals>.call_guarded",
    "runtime/training_hooks.py:TrainingHooks._around_backward.<locals>.look_and_go",  # calls the function itself, as does:
    "runtime/training_hooks.py:TrainingHooks._around_clip.<locals>.clip",
    "inject/metrics/taps/__init__.py:Tap._call_listener",
    "inject/metrics/taps/torchmetrics_.py:_tap_collections.<locals>.build_wrapper.<locals>.compute_muted",  # calls the function itself
)
KINDS = {kind.__name__: kind for kind in (RuntimeError, SystemExit, KeyboardInterrupt, GeneratorExit, RecursionError)}


def find_tdbg() -> str:
    """The package's folder, without importing it."""
    spec = __import__("importlib.util").util.find_spec("tdbg")
    return os.path.join(os.path.dirname(spec.origin), "") if spec is not None and spec.origin else "/no such folder/"


TDBG = find_tdbg()
PASSED_OVER = "importlib._bootstrap/"  # in the file's name of what stands in front of a function of the program's
BOOT = os.path.join(os.environ.get("TDBG_RUN_DIR") or "/no such folder", "boot", "")


def is_tdbg(file: str) -> bool:
    """True for a file of the package, or the boot file of the run."""
    return file.startswith((TDBG, BOOT))


def find_code(value: Any) -> Any:
    """The code that runs when ``value`` is called; None for what is not written in Python."""
    for _ in range(20):
        if isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, property):
            value = value.fget
        elif isinstance(value, staticmethod | classmethod) or type(value).__name__ == "method":
            value = value.__func__
        elif isinstance(value, FunctionType):
            if value.__code__.co_qualname != "without_own_frames.<locals>.call_function":
                return value.__code__
            value = inspect.getclosurevars(value).nonlocals["function"]  # what stands behind tdbg's own wrapper
        elif isinstance(value, type) or value is None:
            return None
        else:
            value = vars(type(value)).get("__call__")
    return None


def name_code(code: Any) -> str:
    """``runtime/training_hooks.py:TrainingHooks._around_backward.<locals>.backward``; a file of Python's by its last two parts."""
    file = code.co_filename.replace(f"{TDBG}{PASSED_OVER}", TDBG)
    if file.startswith(TDBG):
        return f"{file.removeprefix(TDBG)}:{code.co_qualname}"
    if file.startswith(BOOT):
        return f"boot:{code.co_qualname}"
    return f"{'/'.join(file.rsplit('/', 2)[-2:])}:{code.co_qualname}"


# what differs


def list_fingerprints() -> dict[str, list[str]]:
    """Every function below every loaded module: its path -> what it is, and its name as an entry."""
    found: dict[str, list[str]] = {}
    for name, module in list(sys.modules.items()):
        if type(module) is not ModuleType or name.split(".")[0] in ("tdbg", "__main__", "observer", "sitecustomize"):
            continue
        for key, value in list(vars(module).items()):
            _add_fingerprint(found, f"{name}.{key}", value)
            if isinstance(value, type) and value.__module__ == name:
                for attribute, member in list(vars(value).items()):
                    _add_fingerprint(found, f"{name}.{value.__qualname__}.{attribute}", member)
    for name in ("stdout", "stderr"):
        for key, value in vars(getattr(sys, name)).items():
            _add_fingerprint(found, f"sys.{name}.{key}", value)
    return found


def _add_fingerprint(found: dict[str, list[str]], path: str, value: Any) -> None:
    if isinstance(value, type | ModuleType | str | int | float | tuple | list | dict | None):
        return
    code = find_code(value)
    below = getattr(value, "__wrapped__", None) if isinstance(value, FunctionType) else None
    while isinstance(below, FunctionType):
        record_registration(path, below)
        below = getattr(below, "__wrapped__", None)
    if code is not None:
        text = f"{code.co_filename}:{code.co_firstlineno}:{code.co_qualname}:{len(code.co_code)}"
        found[path] = [text, name_code(code)]


REGISTERED: dict[str, str] = {}  # entry -> where it was found


def record_registration(where: str, value: Any) -> None:
    """A callable that was registered, or stands in a table; kept if it is tdbg's."""
    code = find_code(value)
    if code is not None and is_tdbg(code.co_filename):
        REGISTERED.setdefault(name_code(code), where)


def look_into_tables() -> None:
    """Tables of hooks and single hooks, of Python and of torch, as they are now."""
    for hook in (*sys.meta_path, *sys.path_hooks):
        record_registration("sys.meta_path", getattr(hook, "find_spec", hook))
        for name, value in getattr(hook, "__dict__", {}).items():
            for item in value.values() if isinstance(value, dict) else ():
                for callback in item if isinstance(item, list) else ():
                    record_registration(f"import hook {name}", callback)
    for owner, name in ((sys, "excepthook"), (sys, "unraisablehook"), (sys, "displayhook"), (threading, "excepthook")):
        record_registration(f"{owner.__name__}.{name}", getattr(owner, name))
    for number in signal.valid_signals():
        record_registration(f"signal {number}", signal.getsignal(number))
    for callback in gc.callbacks:
        record_registration("gc.callbacks", callback)
    record_registration("sys.settrace", sys.gettrace())
    record_registration("sys.setprofile", sys.getprofile())
    logging, torch = sys.modules.get("logging"), sys.modules.get("torch")
    if logging is not None:
        record_registration("logging.setLogRecordFactory", logging.getLogRecordFactory())
        for logger in [logging.root, *logging.root.manager.loggerDict.values()]:
            for part in (*getattr(logger, "handlers", ()), *getattr(logger, "filters", ())):
                record_registration("logging handler or filter", getattr(part, "emit", None) or part)
                for inner in getattr(part, "filters", ()):
                    record_registration("logging filter", getattr(inner, "filter", None) or inner)
    if torch is not None:
        _look_into_torch(torch)


def _look_into_torch(torch: Any) -> None:
    module = torch.nn.modules.module
    for owner in (module, sys.modules["torch.optim.optimizer"]):
        for name, table in vars(owner).items():
            if name.startswith("_global") and isinstance(table, dict):
                for callback in table.values():
                    record_registration(f"{owner.__name__}.{name}", callback)
    for table in [held for held in gc.get_objects() if type(held) is OrderedDict]:  # hooks of tensors among them
        for callback in list(table.values()):
            if callable(callback) and not isinstance(callback, type):
                record_registration("an OrderedDict, as torch keeps hooks in", callback)
    for mode in (*_list_modes(torch.overrides), *_list_modes(sys.modules.get("torch.utils._python_dispatch"))):
        record_registration("torch mode", getattr(mode, "__torch_function__", None) or mode.__torch_dispatch__)
    for value in list(OBJECTS):
        for part in value.modules() if isinstance(value, torch.nn.Module) else [value]:
            _look_into_object(part)


def _look_into_object(value: Any) -> None:
    """What an object of the program's holds that is tdbg's: a method, a hook."""
    for name, held in list(vars(value).items()):
        if callable(held):
            record_registration(f"{name} of a {type(value).__name__}", held)
        for item in list(held.values()) if isinstance(held, dict) else held if type(held) in (list, tuple) else ():
            if callable(item):
                record_registration(f"{name} of a {type(value).__name__}", item)


OBJECTS: list[Any] = []  # of the program's


def _list_modes(module: Any) -> list[Any]:
    names = ("_get_current_function_mode_stack", "_get_current_dispatch_mode_stack")
    return [mode for name in names if hasattr(module, name) for mode in getattr(module, name)()]


def record_registrations() -> None:
    """Have every function that takes a callback tell here what it was given."""
    for owner, name in (
        (atexit, "register"),
        (signal, "signal"),
        (os, "register_at_fork"),
        (sys, "settrace"),
        (sys, "setprofile"),
        (sys, "addaudithook"),
        (threading, "settrace"),
        (threading, "setprofile"),
    ):
        _record_calls(owner, name)
    start = threading.Thread.start

    @functools.wraps(start)
    def start_noted(thread: threading.Thread) -> None:
        record_registration("thread", getattr(thread, "_target", None))
        start(thread)

    if MODE == "list":
        threading.Thread.start = start_noted  # type: ignore[method-assign]


def record_torch_registrations(torch: Any) -> None:
    """The same of torch's, once it is imported."""
    for owner, name in (
        (torch.Tensor, "register_hook"),
        (torch.Tensor, "register_post_accumulate_grad_hook"),
        (torch.autograd.graph, "register_multi_grad_hook"),
        (torch.autograd.graph, "saved_tensors_hooks"),
        (torch.nn.Module, "register_forward_hook"),
        (torch.nn.Module, "register_forward_pre_hook"),
        (torch.nn.Module, "register_full_backward_hook"),
        (torch.nn.Module, "register_state_dict_post_hook"),
    ):
        if not isinstance(getattr(owner, name), type):
            _record_calls(owner, name)


def _record_calls(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def record_and_call(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            if callable(value) and not isinstance(value, type):
                record_registration(f"{getattr(owner, '__name__', owner)}.{name}", value)
        return original(*args, **kwargs)

    setattr(owner, name, record_and_call)


# what is called, and what is made to fail

FOUND: dict[str, str] = {}  # "entry | body" -> ""
FIRED: list[str] = []
ENTRIES: frozenset[str] = frozenset(json.loads(os.environ.get("ENTRIES_NAMES") or "[]"))
_names: dict[Any, str] = {}


def _get_entry_name(code: Any) -> str:
    known = _names.get(code)
    if known is None:
        known = _names[code] = name_code(code)
    return known


def trace_calls(frame: FrameType, event: str, argument: Any) -> None:
    """Called by Python at each call of a function."""
    code = frame.f_code
    if not code.co_filename.startswith(TDBG) or _is_shell(code) or _get_entry_name(code) in ENTRIES:
        return  # an entry that another one calls is the function that it stands in front of
    above = frame.f_back
    while above is not None and _is_shell(above.f_code):
        above = above.f_back
    if above is None or _get_entry_name(above.f_code) not in ENTRIES:
        return
    pair = f"{_get_entry_name(above.f_code)} | {_get_entry_name(code)}"
    if MODE == "trace":
        if pair not in FOUND:
            FOUND[pair] = ""
            _append_line("trace.txt", pair)
        return
    wanted = PLAN.get(pair)
    if wanted is not None and wanted["id"] not in FIRED:
        FIRED.append(wanted["id"])
        _append_line("fired.txt", wanted["id"])
        request_rearm()
        raise KINDS[wanted["raises"]](wanted["id"])


def _is_shell(code: Any) -> bool:
    name = _get_entry_name(code)
    return name.partition(":")[0] in SHELL or name in TIMERS


def _append_line(name: str, line: str) -> None:
    """At once: a child writes nothing at its end."""
    with open(OUT / name, "a") as file:
        file.write(f"{line}\n")


def request_rearm() -> None:
    """Python takes a trace function away that raises: put it back as soon as the exception has left it."""
    _again.append(True)


_again: list[bool] = []


def leave_root_modules_alone() -> None:
    """Have stretches in which calls are hardly watched come whatever the machine's load is: they hang on measured times."""
    duty_cycle = sys.modules.get("tdbg.runtime.duty_cycle")
    if duty_cycle is not None:
        vars(duty_cycle).update(KEEPING_SHARE=math.inf, IDLE_STEPS=1, SHORTEST_S=1.0)


def run_tick() -> None:
    """The program calls this between its statements."""
    if _again:
        _again.clear()
        sys.settrace(trace_calls)
        threading.settrace(trace_calls)
    if MODE == "list":
        line = sys._getframe(1).f_lineno
        _looks[line] += 1
        if _looks[line] in LOOKS:
            look_into_tables()


LOOKS = (1, 2, 6, 13)  # passes of a statement before which the tables are looked at: each look takes a while
_looks: Counter[int] = Counter()


def write_found() -> None:
    """What was found, into ENTRIES_OUT. Children of the program write nothing."""
    if os.getpid() != PID:
        return
    if MODE == "list":
        warnings.simplefilter("ignore")
        look_into_tables()
        attributes = list_fingerprints()
        facts: dict[str, Any] = {"attributes": attributes, "registered": REGISTERED}
        (OUT / "list.json").write_text(json.dumps(facts))


PID = os.getpid()
atexit.register(write_found)  # the first: it runs after those of tdbg
if MODE == "list":
    record_registrations()
elif MODE:
    sys.settrace(trace_calls)
    threading.settrace(trace_calls)
