"""`--preflight`: files and folders that the program writes, moves or deletes are copies below a folder of the run directory.

Python's own functions (`open` and those of `os`) go through it, and so does all that rests on them: pathlib, shutil,
logging, numpy, pickle. What is there already is read where it stands until the program changes it; what it deletes is
gone for this process alone. Temporary folders and caches are left alone, as compilers read there.
"""

import builtins
import contextlib
import errno
import functools
import io
import os
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tdbg.core import run_files
from tdbg.core.rundir import STARTED_SUFFIX

READS = ("stat", "lstat", "access", "readlink", "getxattr", "listxattr", "statvfs")
CHANGES = ("chmod", "utime", "truncate", "setxattr", "removexattr", "chown", "lchown")
CREATES = ("mkdir", "mkfifo", "mknod")
DELETES = ("remove", "unlink", "rmdir")
MOVES = ("rename", "replace")
LINKS = ("link", "symlink")
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn")  # audit events of commands
SYSTEM = ("/dev", "/proc", "/sys", "/run")
TEMPORARY = ("TMPDIR", "TEMP", "TMP")
CACHES = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "MPLCONFIGDIR")
OF_HOME = ("~/.cache", "~/.config", "~/.triton", "~/.nv")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
SUPPORTED = ("supports_dir_fd", "supports_fd", "supports_follow_symlinks", "supports_effective_ids")

Function = Callable[..., Any]


class FileOverlay:
    """Where each path is read and written."""

    def __init__(self, folder: str, run_dir: str) -> None:
        self.folder = os.path.realpath(folder)
        self.gone: set[str] = set()  # what the program has deleted, and stands where it was
        self.gone_folders: set[str] = set()  # nothing that stood below them is there, also where they are made again
        self.is_told = False  # a command was started after a file was written
        self.local = threading.local()
        self.kept = (*SYSTEM, os.path.realpath(run_dir))
        self.left_alone = tuple(map(os.path.realpath, _list_left_alone()))
        start = os.getcwd()
        self.start = "" if start in self.left_alone else start

    @property
    def is_busy(self) -> bool:
        """True within one of its own calls."""
        return bool(getattr(self.local, "busy", False))

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Inside it every function works as ever."""
        self.local.busy = True
        try:
            yield
        finally:
            self.local.busy = False

    def copy_of(self, path: str) -> str | None:
        """Where the path stands once it is changed; None for one that is left alone."""
        if _is_below(path, self.kept):
            return None
        if _is_below(path, self.left_alone) and not (self.start and _is_below(path, (self.start,))):
            return None
        with contextlib.suppress(OSError):
            mode = os.lstat(path).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                return None
        return self.folder + path

    def is_there(self, path: str) -> bool:
        """True if the path stands where it was."""
        return not self.is_gone(path) and os.path.lexists(path)

    def is_gone(self, path: str) -> bool:
        """True if the program has deleted or moved the path, or a folder that it was in."""
        return path in self.gone or any(_is_below(path, (folder,)) and path != folder for folder in self.gone_folders)

    def forget(self, path: str) -> None:
        """What stands there is gone for this process."""
        if os.path.lexists(path):
            self.gone.add(path)
            if os.path.isdir(path) and not os.path.islink(path):
                self.gone_folders.add(path)

    def find_folder(self, path: str) -> str:
        """Where to change to: the folder itself where there is one, as commands that are started there need it."""
        return path if self.is_there(path) and os.path.isdir(path) else self.find(path)

    def command_starts(self) -> None:
        """A command begins: it sees files as they were, of which the supervisor is told once."""
        if self.is_busy or self.is_told:
            return
        with self.busy(), contextlib.suppress(OSError):
            if self.gone or os.path.isdir(self.folder):
                self.is_told = True
                run_files.make_folder(os.path.dirname(self.folder))
                run_files.write_whole(self.folder + STARTED_SUFFIX, b"")

    def is_elsewhere(self, absolute: str, found: str) -> bool:
        """True if the path as it was given would not lead there: it is another one, or the process stands in the copies."""
        return found != absolute or _is_below(os.getcwd(), (self.folder,))

    def shown(self, path: str) -> str:
        """The path as the program knows it."""
        return path[len(self.folder) :] or os.sep if _is_below(path, (self.folder,)) else path

    def find(self, path: str) -> str:
        """Where the path is read."""
        copy = self.copy_of(path)
        return copy if copy is not None and (self.is_gone(path) or os.path.lexists(copy)) else path

    def prepare(self, path: str, *, with_content: bool) -> str:
        """Where the path is written. with_content: what it holds is needed there."""
        copy = self.copy_of(path)
        if copy is None:
            return path
        parent = os.path.dirname(path)
        if os.path.isdir(self.find(parent)) and not os.path.isdir(os.path.dirname(copy)):
            run_files.make_folder(self.folder)
            os.makedirs(os.path.dirname(copy), exist_ok=True)
        if with_content and not os.path.lexists(copy) and self.is_there(path):
            if os.path.isdir(path):
                os.mkdir(copy)
            else:
                shutil.copy2(path, copy)
        self.gone.discard(path)
        return copy

    def find_path(self, path: object, *, writes: bool, with_content: bool = False) -> str | None:
        """Where compiled code is to read or write a path; None for what is none, and where it stands."""
        absolute = None if self.is_busy else _absolute(self, path, None)
        if absolute is None:
            return None
        with self.busy():
            found = self.prepare(absolute, with_content=with_content) if writes else self.find(absolute)
            return found if self.is_elsewhere(absolute, found) else None

    def delete(self, path: str, native: Function) -> None:
        """Delete a path: for this process alone, if it stands outside."""
        copy = self.copy_of(path)
        if copy is None:
            native(path)
            return
        if os.path.lexists(copy):
            native(copy)
        elif not self.is_there(path):
            native(copy)  # it says what a path that is not there says
        self.forget(path)

    def move(self, source: str, target: str) -> None:
        """Give a file or folder another name."""
        found, into = self.find(source), self.prepare(target, with_content=False)
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
        self.forget(source)

    def names(self, path: str) -> list[str]:
        """What a folder holds, in both places."""
        copy = self.copy_of(path)
        found: list[str] = []
        if copy is None or self.is_there(path):
            found = [name for name in os.listdir(path) if not self.is_gone(os.path.join(path, name))]
        if copy is not None and os.path.isdir(copy):
            return list(dict.fromkeys([*found, *os.listdir(copy)]))
        if copy is not None and self.is_gone(path):
            return os.listdir(copy)  # which says that it is not there
        return found


def install_overlay(overlay: FileOverlay) -> None:
    """Stand in front of Python's functions that open, make, move and delete. It lasts as long as the process."""

    def stand(owner: Any, name: str, make: Callable[[Function], Function]) -> None:
        native = getattr(owner, name, None)
        if native is None:
            return
        made = make(native)

        @functools.wraps(native)
        def function(*args: Any, **kwargs: Any) -> Any:
            if overlay.is_busy:
                return native(*args, **kwargs)
            return made(*args, **kwargs)

        setattr(owner, name, function)
        for kind in SUPPORTED:
            if native in getattr(os, kind, ()):
                getattr(os, kind).add(function)

    def at_path(locate: Callable[[str], str]) -> Callable[[Function], Function]:
        """A function whose first argument is a path, with another one in its place."""

        def make(native: Function) -> Function:
            def function(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
                absolute = _absolute(overlay, path, kwargs.get("dir_fd"))
                if absolute is None:
                    return native(path, *args, **kwargs)
                with overlay.busy():
                    found = locate(absolute)
                    if overlay.is_elsewhere(absolute, found):
                        path = found
                        kwargs.pop("dir_fd", None)
                return native(path, *args, **kwargs)

            return function

        return make

    def create(path: str) -> str:
        return path if overlay.is_there(path) else overlay.prepare(path, with_content=False)

    def deleting(native: Function) -> Function:
        def function(path: Any, *, dir_fd: int | None = None) -> None:
            absolute = _absolute(overlay, path, dir_fd)
            if absolute is None:
                native(path, dir_fd=dir_fd)
                return
            with overlay.busy():
                overlay.delete(absolute, native)

        return function

    def moving(native: Function) -> Function:
        def function(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
            source, target = _absolute(overlay, src, src_dir_fd), _absolute(overlay, dst, dst_dir_fd)
            if source is None or target is None:
                native(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
                return
            with overlay.busy():
                if overlay.copy_of(source) is None and overlay.copy_of(target) is None:
                    native(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
                else:
                    overlay.move(source, target)

        return function

    def linking(native: Function) -> Function:
        def function(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
            target = _absolute(overlay, dst, kwargs.get("dst_dir_fd", kwargs.get("dir_fd")))
            source = _absolute(overlay, src, kwargs.get("src_dir_fd")) if native.__name__ == "link" else None
            with overlay.busy():
                into = target if target is None else create(target)
                found = source if source is None else overlay.find(source)
            native(src if found == source else found, dst if into == target else into, *args, **kwargs)

        return function

    def listing(native: Function) -> Function:
        def function(path: Any = None) -> list[Any]:
            absolute = _absolute(overlay, "." if path is None else path, None)
            if absolute is None or isinstance(path, bytes):
                return native(path)  # type: ignore[no-any-return]
            with overlay.busy():
                return overlay.names(absolute)

        return function

    def scanning(native: Function) -> Function:
        def function(path: Any = None) -> Any:
            absolute = _absolute(overlay, "." if path is None else path, None)
            if absolute is None or isinstance(path, bytes):
                return native(path)
            with overlay.busy():
                copy = overlay.copy_of(absolute)
                if copy is None or not (os.path.isdir(copy) or overlay.gone):
                    return native(absolute if overlay.is_elsewhere(absolute, absolute) else path)
                names = set(overlay.names(absolute))
                places = [absolute if overlay.is_elsewhere(absolute, absolute) else path]
                places = places if overlay.is_there(absolute) else []
                places += [copy] if os.path.isdir(copy) else []
                entries = {entry.name: entry for place in places for entry in native(place) if entry.name in names}
            return _Entries(list(entries.values()))

        return function

    def opening(native: Function) -> Function:
        def function(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            absolute = _absolute(overlay, file, None)
            if absolute is not None:
                with overlay.busy():
                    writes = isinstance(mode, str) and bool(set(mode) & set("wax+"))
                    if not writes:
                        found = overlay.find(absolute)
                    elif "x" in mode and overlay.is_there(absolute):
                        found = absolute
                    else:
                        found = overlay.prepare(absolute, with_content="w" not in mode)
                    file = found if overlay.is_elsewhere(absolute, found) else file
            return native(file, mode, *args, **kwargs)

        return function

    def opening_low(native: Function) -> Function:
        def function(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            absolute = _absolute(overlay, path, dir_fd)
            if absolute is not None:
                with overlay.busy():
                    if not flags & WRITES:
                        found = overlay.find(absolute)
                    elif flags & os.O_EXCL and overlay.is_there(absolute):
                        found = absolute
                    else:
                        found = overlay.prepare(absolute, with_content=not flags & os.O_TRUNC)
                    if overlay.is_elsewhere(absolute, found):
                        path, dir_fd = found, None
            with overlay.busy():  # the audit hook is not told of dir_fd
                return native(path, flags, mode, dir_fd=dir_fd)  # type: ignore[no-any-return]

        return function

    for names, make in (
        (READS, at_path(overlay.find)),
        (("chdir",), at_path(overlay.find_folder)),
        (("getcwd",), lambda native: lambda: overlay.shown(native())),
        (("getcwdb",), lambda native: lambda: os.fsencode(overlay.shown(os.fsdecode(native())))),
        (CHANGES, at_path(lambda path: overlay.prepare(path, with_content=True))),
        (CREATES, at_path(create)),
        (DELETES, deleting),
        (MOVES, moving),
        (LINKS, linking),
        (("listdir",), listing),
        (("scandir",), scanning),
        (("open",), opening_low),
    ):
        for name in names:
            stand(os, name, make)
    stand(builtins, "open", opening)
    io.open = builtins.open
    sys.addaudithook(functools.partial(_refuse, overlay))


def _refuse(overlay: FileOverlay, event: str, args: tuple[Any, ...]) -> None:
    """What opens a file without the functions above (`io.FileIO`) may not write it."""
    if event in STARTS:
        overlay.command_starts()
    if event != "open" or overlay.is_busy or not isinstance(args[0], str | bytes):
        return
    path, mode, flags = args[0], args[1], args[2]
    if not (flags & WRITES if isinstance(flags, int) else mode and set(mode) & set("wax+")):
        return
    with overlay.busy():
        if _is_below(os.path.abspath(os.fsdecode(path)), (overlay.folder,)):
            return
        is_outside = overlay.copy_of(_resolve(overlay, path)) is not None
    if is_outside:
        raise PermissionError(
            errno.EACCES, "tdbg run --preflight blocks this write: it bypasses Python's open()", os.fsdecode(path)
        )


class _Entries:
    """What `os.scandir` returns, of two folders."""

    def __init__(self, entries: list["os.DirEntry[str]"]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator["os.DirEntry[str]"]:
        return self._entries

    def __next__(self) -> "os.DirEntry[str]":
        return next(self._entries)

    def __enter__(self) -> "_Entries":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is left open."""
        self._entries = iter(())


def _absolute(overlay: FileOverlay, path: Any, dir_fd: int | None) -> str | None:
    """The path from the root; None for a descriptor, and where a folder's descriptor does not say which it is."""
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    with overlay.busy():
        text = os.fsdecode(path)
        if dir_fd is not None and not os.path.isabs(text):
            try:
                text = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), text)
            except OSError:
                return None
        return _resolve(overlay, text)


def _resolve(overlay: FileOverlay, path: Any) -> str:
    """Absolute, with links on the way to it followed; its last part may be one itself."""
    absolute = overlay.shown(os.path.abspath(os.fsdecode(path)))
    parent, name = os.path.split(absolute)
    return os.path.join(os.path.realpath(parent), name) if name else absolute


def _is_below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders)


def _list_left_alone() -> list[str]:
    named = [os.environ[name] for name in (*TEMPORARY, *CACHES) if os.environ.get(name)]
    return ["/tmp", "/var/tmp", *named, *map(os.path.expanduser, OF_HOME)]
