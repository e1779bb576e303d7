"""`--preflight`: which commands that the program starts have their files redirected, and which write for real."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from tdbg.core.lazy_pattern import lazy_pattern

# Audit events of commands -> where executable, arguments and environment stand in the arguments of the event.
EVENTS = {"subprocess.Popen": (0, 1, 3), "os.exec": (0, 1, 2), "os.posix_spawn": (0, 1, 2), "os.spawn": (1, 2, 3)}
SHELL = "os.system"
PYTHON = lazy_pattern(r"python(3(\.\d+)?)?")
NO_START_UP_FILE = frozenset("EIS")  # these options make Python ignore PYTHONPATH, or import no sitecustomize
FLAGS = frozenset("bBdiOPqRsuvx")  # its options of one letter that take no value and leave the start-up file alone
WITH_VALUE = ("-X", "-W")


def is_start(event: str) -> bool:
    """True for the audit event of a command that begins."""
    return event in EVENTS or event == SHELL


def is_redirected(event: str, arguments: Sequence[Any], boot: str) -> bool:
    """True if the command is surely a Python that loads the start-up file in the folder ``boot``, and so shares the copies."""
    if event not in EVENTS:
        return False
    executable, args, env = (arguments[at] for at in EVENTS[event])
    if not isinstance(executable, str | bytes | os.PathLike) or not isinstance(args, list | tuple):
        return False
    name = os.path.basename(os.fsdecode(executable))
    words = [os.fsdecode(word) for word in args[1:] if isinstance(word, str | bytes | os.PathLike)]
    return PYTHON.fullmatch(name) is not None and _keeps_start_up_file(words) and _has_boot_folder(env, boot)


def _keeps_start_up_file(words: Sequence[str]) -> bool:
    """False if an option before the program's name prevents it, or is not known."""
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word == "-":
            return True
        if word in WITH_VALUE:
            next(rest, None)
        elif word.startswith(WITH_VALUE):
            continue
        else:
            letters, found, _ = word[1:].partition("c") if "c" in word else word[1:].partition("m")
            if set(letters) & NO_START_UP_FILE or not set(letters) <= FLAGS:
                return False
            if found:
                return True
    return True


def _has_boot_folder(env: object, boot: str) -> bool:
    variables = os.environ if env is None else env
    if not isinstance(variables, Mapping):
        return False
    path = variables.get("PYTHONPATH") or variables.get(b"PYTHONPATH") or ""
    return any(os.path.realpath(part) == boot for part in os.fsdecode(path).split(os.pathsep) if part)
