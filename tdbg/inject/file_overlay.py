"""`--preflight`: files and folders that the program writes, moves or deletes are copies below a folder of the run directory.

Python's own functions (`open` and those of `os`) go through it, and so does all that rests on them: pathlib, shutil,
logging, numpy, pickle. What is there already is read where it stands until the program changes it; what it deletes is
gone for its Python processes alone (`deleted_paths`). They share the copies too. Temporary folders and caches are left
alone, as compilers read there.
"""

import contextlib
import errno
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tdbg.core import run_files
from tdbg.core.rundir import DELETED_SUFFIX, STARTED_SUFFIX
from tdbg.inject.deleted_paths import DeletedPaths
from tdbg.inject.started_commands import is_redirected

SYSTEM = ("/dev", "/proc", "/sys", "/run")
TEMPORARY = ("TMPDIR", "TEMP", "TMP")
CACHES = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "MPLCONFIGDIR")
OF_HOME = ("~/.cache", "~/.config", "~/.triton", "~/.nv")

Function = Callable[..., Any]


class FileOverlay:
    """Where each path is read and written.

    start: where the program was started, which is not left alone where it is below a temporary folder; the first process
    finds out, and its children are told.
    """

    def __init__(self, folder: str, run_dir: str, start: str = "") -> None:
        self.folder = os.path.realpath(folder)
        self.deleted = DeletedPaths(self.folder + DELETED_SUFFIX)
        self.is_reported = False  # a command was started after a file was written
        self.local = threading.local()
        self.boot = os.path.join(os.path.realpath(run_dir), "boot")
        self.kept = (*SYSTEM, os.path.realpath(run_dir))
        self.left_alone = tuple(map(os.path.realpath, _list_left_alone()))
        self.start = start or self.to_program_path(os.getcwd())

    @property
    def is_busy(self) -> bool:
        """True within one of its own calls."""
        return bool(getattr(self.local, "busy", False))

    @contextlib.contextmanager
    def bypass_patches(self) -> Iterator[None]:
        """Inside it every function works as ever."""
        self.local.busy = True
        try:
            yield
        finally:
            self.local.busy = False

    def copy_of(self, path: str) -> str | None:
        """Where the path stands once it is changed; None for one that is left alone."""
        if is_below(path, self.kept):
            return None
        is_started_there = self.start not in self.left_alone and is_below(path, (self.start,))
        if is_below(path, self.left_alone) and not is_started_there:
            return None
        with contextlib.suppress(OSError):
            mode = os.lstat(path).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                return None
        return self.folder + path

    def is_there(self, path: str) -> bool:
        """True if the path stands where it was."""
        return not self.deleted.is_gone(path) and os.path.lexists(path)

    def mark_gone(self, path: str) -> None:
        """What stands there is gone for the program."""
        if os.path.lexists(path):
            self.deleted.add(path, is_folder=os.path.isdir(path) and not os.path.islink(path))

    def find_folder(self, path: str) -> str:
        """Where to change to: the folder itself where there is one, as commands that are started there need it."""
        return path if self.is_there(path) and os.path.isdir(path) else self.resolve_read_path(path)

    def command_starts(self, event: str, arguments: tuple[Any, ...]) -> None:
        """A command begins: if it sees files as they were, the supervisor is told once."""
        if self.is_busy or self.is_reported:
            return
        with self.bypass_patches(), contextlib.suppress(OSError):
            if is_redirected(event, arguments, self.boot):
                return
            self.deleted.read_new_records()
            if self.deleted or os.path.isdir(self.folder):
                self.is_reported = True
                run_files.make_folder(os.path.dirname(self.folder))
                run_files.write_atomically(self.folder + STARTED_SUFFIX, b"")

    def is_elsewhere(self, absolute: str, found: str) -> bool:
        """True if the path as it was given would not lead there: it is another one, or the process stands in the copies."""
        return found != absolute or is_below(os.getcwd(), (self.folder,))

    def to_program_path(self, path: str) -> str:
        """The path as the program knows it."""
        return path[len(self.folder) :] or os.sep if is_below(path, (self.folder,)) else path

    def resolve_read_path(self, path: str) -> str:
        """Where the path is read."""
        copy = self.copy_of(path)
        return copy if copy is not None and (self.deleted.is_gone(path) or os.path.lexists(copy)) else path

    def prepare_write_path(self, path: str, *, with_content: bool) -> str:
        """Where the path is written. with_content: what it holds is needed there."""
        copy = self.copy_of(path)
        if copy is None:
            return path
        parent = os.path.dirname(path)
        if os.path.isdir(self.resolve_read_path(parent)) and not os.path.isdir(os.path.dirname(copy)):
            run_files.make_folder(self.folder)
            os.makedirs(os.path.dirname(copy), exist_ok=True)
        if with_content and not os.path.lexists(copy) and self.is_there(path):
            if os.path.isdir(path):
                os.mkdir(copy)
            else:
                shutil.copy2(path, copy)
        self.deleted.discard(path)
        return copy

    def find_path(self, path: object, *, writes: bool, with_content: bool = False) -> str | None:
        """Where compiled code is to read or write a path; None for what is none, and where it stands."""
        absolute = None if self.is_busy else absolute_path(self, path, None)
        if absolute is None:
            return None
        with self.bypass_patches():
            found = (
                self.prepare_write_path(absolute, with_content=with_content)
                if writes
                else self.resolve_read_path(absolute)
            )
            return found if self.is_elsewhere(absolute, found) else None

    def delete_path(self, path: str, native: Function) -> None:
        """Delete a path: for the program alone, if it stands outside."""
        copy = self.copy_of(path)
        if copy is None:
            native(path)
            return
        if os.path.lexists(copy):
            native(copy)
        elif not self.is_there(path):
            native(copy)  # it says what a path that is not there says
        self.mark_gone(path)

    def move_path(self, source: str, target: str) -> None:
        """Give a file or folder another name."""
        found, into = self.resolve_read_path(source), self.prepare_write_path(target, with_content=False)
        if found != source or self.copy_of(source) is None:
            try:
                os.replace(found, into)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                shutil.move(found, into)
        elif os.path.isdir(found):
            shutil.copytree(found, into, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy2(found, into)
        self.mark_gone(source)

    def list_names(self, path: str) -> list[str]:
        """What a folder holds, in both places."""
        copy = self.copy_of(path)
        found: list[str] = []
        if copy is None or self.is_there(path):
            found = [name for name in os.listdir(path) if not self.deleted.is_gone(os.path.join(path, name))]
        if copy is not None and os.path.isdir(copy):
            return list(dict.fromkeys([*found, *os.listdir(copy)]))
        if copy is not None and self.deleted.is_gone(path):
            return os.listdir(copy)  # which says that it is not there
        return found


def absolute_path(overlay: FileOverlay, path: Any, dir_fd: int | None) -> str | None:
    """The path from the root; None for a descriptor, and where a folder's descriptor does not say which it is."""
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    with overlay.bypass_patches():
        overlay.deleted.read_new_records()
        text = os.fsdecode(path)
        if dir_fd is not None and not os.path.isabs(text):
            try:
                text = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), text)
            except OSError:
                return None
        return follow_links(overlay, text)


def follow_links(overlay: FileOverlay, path: Any) -> str:
    """Absolute, with links on the way to it followed; its last part may be one itself."""
    absolute = overlay.to_program_path(os.path.abspath(os.fsdecode(path)))
    parent, name = os.path.split(absolute)
    return os.path.join(os.path.realpath(parent), name) if name else absolute


def is_below(path: str, folders: tuple[str, ...]) -> bool:
    """Whether the path is one of the folders, or stands below one."""
    return any(path == folder or path.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders)


def _list_left_alone() -> list[str]:
    named = [os.environ[name] for name in (*TEMPORARY, *CACHES) if os.environ.get(name)]
    return ["/tmp", "/var/tmp", *named, *map(os.path.expanduser, OF_HOME)]
