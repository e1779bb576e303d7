"""The user's cache folder: what is kept there is used only if no other user could have written it.

Standard library alone.
"""

import contextlib
import errno
import os
import stat
import time
from pathlib import Path

from tdbg.core.guard import undo_on_error
from tdbg.core.ownership import describe_risk

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import IO

IN_USE_S = 3600.0


def find_cache_home() -> Path:
    """The folder of all that tdbg keeps for this user; it need not be there."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # relative, it would be the current folder's
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "tdbg"


def make_own_folder(path: Path) -> bool:
    """Make a folder for this user alone, in one that is so too; False where it cannot be, or another user could write it."""
    try:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        return _make_one(path.parent) and _make_one(path) and os.access(path, os.W_OK | os.X_OK)
    except OSError:
        return False


def _make_one(path: Path) -> bool:
    with contextlib.suppress(FileExistsError):
        path.mkdir(0o700)
    about = path.lstat()
    return stat.S_ISDIR(about.st_mode) and not describe_risk(about)


def open_own(path: Path) -> "IO[bytes]":
    """A kept file, opened for reading; OSError for a link, for what is no file, and for what another user could write."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with undo_on_error(lambda: os.close(handle)):
        about = os.fstat(handle)
        risk = describe_risk(about) if stat.S_ISREG(about.st_mode) else "it is not a regular file"
        if risk:
            raise OSError(errno.EPERM, risk, os.fspath(path))
        return os.fdopen(handle, "rb")


def read_own(path: Path, limit: int) -> bytes:
    """All of a kept file; OSError as `open_own`, and for one of more than ``limit`` bytes."""
    with open_own(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, "it is too large", os.fspath(path))
    return data


def remove_old_files(paths: "Iterable[Path]", kept_s: float, most_bytes: int) -> None:
    """Remove what was not used for so long; of the others those used longest ago, until the rest has so many bytes.

    What was used in the last hour stays, however large it is: somebody looks at it, or waits for it.
    """
    now = time.time()
    used = []
    for path in paths:
        with contextlib.suppress(OSError):
            about = path.lstat()
            used.append((about.st_mtime, about.st_size, path))
    total = 0
    for when, size, path in sorted(used, reverse=True):
        total += size
        if when < now - kept_s or (total > most_bytes and when < now - IN_USE_S):
            with contextlib.suppress(OSError):
                path.unlink()
