"""A file that a command writes because the user named it: checked before the work begins, there when it is whole."""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tdbg.core.errors import TdbgError
from tdbg.core.guard import undo_on_error
from tdbg.core.tables import safe
from tdbg.core.urls import is_url


def check_output_file(option: str, name: str, read: Iterable[tuple[Path, str]], *, force: bool) -> Path:
    """The file that is to be written. TdbgError for one that is there, without force, and always for one that is read.

    read: each file that the command reads, with what it is called.
    """
    if name == "-":
        raise TdbgError(f"{option} writes a file, not to stdout", "name a file (./- for a file named -)")
    if not name.strip():
        raise TdbgError(f"{option} has an empty file name", "name a file that can be written")
    if is_url(name):
        raise TdbgError(f"{option} writes a file, and {safe(name[:200])} is a URL", "name a file on this machine")
    try:
        path = Path(name)
        why, hint = _find_obstacle(path, read, force=force)
    except OSError as error:  # a folder that is closed, a name that is too long
        raise TdbgError(f"cannot write {safe(name[:200])}: {error.strerror or error}", "name a writable file") from None
    if why:
        raise TdbgError(f"{safe(name)} {why}", f"name {hint.format(option=option)}")
    return path


def _find_obstacle(path: Path, read: Iterable[tuple[Path, str]], *, force: bool) -> tuple[str, str]:
    """Why the file may not be written, and what to name; empty where it may."""
    if path.exists():
        for one, what in read:
            if path.samefile(one):
                return f"is {what}", "another file with {option}"
        if path.is_dir():
            return "is a folder", "a file in it"
        if not path.is_file():
            return "is a device or a pipe", "another file with {option}"
    if os.path.lexists(path) and not force:
        return "already exists", "another file with {option}, or use --force"
    folder = os.path.join(path.parent, "")
    os.stat(folder)  # which says why it is not there
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return "", ""


@contextmanager
def replace_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name when it is whole, and leaves nothing where it fails. TdbgError for one that cannot be written."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "xb") as file, undo_on_error(lambda: part.unlink(missing_ok=True)):
            yield file
            file.flush()
            os.replace(part, path)
    except OSError as error:
        if error.filename not in (None, str(part)):  # what is read meanwhile
            raise
        raise TdbgError(f"cannot write {safe(str(path))}: {error.strerror or error}", "name a writable file") from None
