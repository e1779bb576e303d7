"""What `tdbg hook install` copies into an environment as ``tdbg_startup``: starts a run's boot file, once it is checked.

The environment may lack tdbg, so this module needs nothing but ``os``, ``stat`` and ``sys``. What TDBG_RUN_DIR names is
code only if this user alone can have written it: each part of the path is opened without following a link, and owner
and permissions are asked of what is open.
"""

import os
import stat
import sys

_started: "list[str]" = []  # Python may come by the same startup file twice
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def start() -> None:
    """Start the run that this process belongs to, where PYTHONPATH could not. Outside `tdbg run`: one look-up."""
    run = os.environ.get("TDBG_RUN_DIR")
    if not run or _started or os.path.join(run, "boot") in sys.path:
        return
    _started.append(run)
    path = os.path.join(run, "boot", "sitecustomize.py")
    try:
        code = compile(_read_boot_file(run), path, "exec")
    except PermissionError as error:
        sys.stderr.write("tdbg: this process is not recorded: run directory " + run + ": " + str(error.strerror) + "\n")
        return
    except (OSError, SyntaxError, ValueError):  # no run, or half of one: the program starts as it always did
        return
    exec(code, {"__name__": "tdbg_boot", "__file__": path})


def _read_boot_file(run: str) -> bytes:
    """The boot file of a run; PermissionError if anybody else could have written it."""
    if not os.path.isabs(run):
        raise PermissionError(1, "its path is not absolute")
    opened = []
    try:
        opened.append(os.open(run, FOLDER))
        _check_ownership(run, opened[-1])
        opened.append(_open_below("boot", FOLDER, opened[-1]))
        _check_ownership(run, opened[-1])
        opened.append(_open_below("sitecustomize.py", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, opened[-1]))
        _check_ownership(run, opened[-1])
        if not stat.S_ISREG(os.fstat(opened[-1]).st_mode):
            raise PermissionError(1, "its boot file is not a regular file")
        with os.fdopen(opened.pop(), "rb") as file:
            return file.read()
    finally:
        for handle in opened:
            os.close(handle)


def _open_below(name: str, flags: int, folder: int) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError:
        raise PermissionError(1, name + " in it is a symbolic link or is not readable") from None


def _check_ownership(run: str, handle: int) -> None:
    found = os.fstat(handle)
    if _is_trusted(run):
        return
    if found.st_uid != os.geteuid():
        raise PermissionError(1, "it belongs to uid " + str(found.st_uid) + ", not to you")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(1, "other users can write to it")


def _is_trusted(run: str) -> bool:
    """True if TDBG_TRUST names it or a folder above it: containers map user ids."""
    real = os.path.realpath(run) + os.sep
    named = [part for part in os.environ.get("TDBG_TRUST", "").split(os.pathsep) if part]
    return any(real.startswith(os.path.realpath(part).rstrip(os.sep) + os.sep) for part in named)
