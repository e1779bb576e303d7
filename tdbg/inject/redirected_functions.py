"""Python's functions that open, make, list, move and delete files, in front of which `FileOverlay` stands."""

import builtins
import errno
import functools
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tdbg.inject import started_commands
from tdbg.inject.file_overlay import FileOverlay, absolute_path, follow_links, is_below
from tdbg.inject.foreign_patches import replace_function

READS = ("stat", "lstat", "access", "readlink", "getxattr", "listxattr", "statvfs")
CHANGES = ("chmod", "utime", "truncate", "setxattr", "removexattr", "chown", "lchown")
CREATES = ("mkdir", "mkfifo", "mknod")
DELETES = ("remove", "unlink", "rmdir")
MOVES = ("rename", "replace")
LINKS = ("link", "symlink")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
SUPPORTED = ("supports_dir_fd", "supports_fd", "supports_follow_symlinks", "supports_effective_ids")

Function = Callable[..., Any]


def install_overlay(overlay: FileOverlay) -> None:
    """Stand in front of Python's functions that open, make, move and delete. It lasts as long as the process."""
    redirected = RedirectedFunctions(overlay)
    for names, redirect in redirected.by_names():
        for name in names:
            _replace(overlay, os, name, redirect)
    _replace(overlay, builtins, "open", redirected.open_file)
    io.open = builtins.open
    sys.addaudithook(functools.partial(_audit, overlay))


def _replace(overlay: FileOverlay, owner: Any, name: str, redirect: Callable[[Function], Function]) -> None:
    """Put a redirected function in the place of one of Python's, where the platform has it."""
    native = getattr(owner, name, None)
    if native is None:
        return
    redirected = redirect(native)

    @functools.wraps(native)
    def function(*args: Any, **kwargs: Any) -> Any:
        if overlay.is_busy:
            return native(*args, **kwargs)
        return redirected(*args, **kwargs)

    replace_function("preflight-files", owner, name, function)
    for kind in SUPPORTED:
        if native in getattr(os, kind, ()):
            getattr(os, kind).add(function)


class RedirectedFunctions:
    """A method for each kind of function: it takes Python's own and returns one that goes through the overlay."""

    def __init__(self, overlay: FileOverlay) -> None:
        self.overlay = overlay

    def by_names(self) -> tuple[tuple[tuple[str, ...], Callable[[Function], Function]], ...]:
        """The names of functions of `os`, and what redirects them."""
        overlay = self.overlay
        return (
            (READS, functools.partial(self.use_path, overlay.resolve_read_path)),
            (("chdir",), functools.partial(self.use_path, overlay.find_folder)),
            (("getcwd",), lambda native: lambda: overlay.to_program_path(native())),
            (("getcwdb",), lambda native: lambda: os.fsencode(overlay.to_program_path(os.fsdecode(native())))),
            (
                CHANGES,
                functools.partial(self.use_path, lambda path: overlay.prepare_write_path(path, with_content=True)),
            ),
            (CREATES, functools.partial(self.use_path, self.locate_new)),
            (DELETES, self.delete),
            (MOVES, self.move_path),
            (LINKS, self.link),
            (("listdir",), self.list_folder),
            (("scandir",), self.scan_folder),
            (("open",), self.open_descriptor),
        )

    def locate_new(self, path: str) -> str:
        """Where something new is made; what is there already stays, for the function to say so."""
        return path if self.overlay.is_there(path) else self.overlay.prepare_write_path(path, with_content=False)

    def use_path(self, locate: Callable[[str], str], native: Function) -> Function:
        """A function whose first argument is a path: give it the one that ``locate`` returns."""
        overlay = self.overlay

        def function(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            absolute = absolute_path(overlay, path, kwargs.get("dir_fd"))
            if absolute is None:
                return native(path, *args, **kwargs)
            with overlay.bypass_patches():
                found = locate(absolute)
                if overlay.is_elsewhere(absolute, found):
                    path = found
                    kwargs.pop("dir_fd", None)
            return native(path, *args, **kwargs)

        return function

    def delete(self, native: Function) -> Function:
        """`os.remove` and its like."""
        overlay = self.overlay

        def function(path: Any, *, dir_fd: int | None = None) -> None:
            absolute = absolute_path(overlay, path, dir_fd)
            if absolute is None:
                native(path, dir_fd=dir_fd)
                return
            with overlay.bypass_patches():
                overlay.delete_path(absolute, native)

        return function

    def move_path(self, native: Function) -> Function:
        """`os.rename` and its like."""
        overlay = self.overlay

        def function(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
            source, target = absolute_path(overlay, src, src_dir_fd), absolute_path(overlay, dst, dst_dir_fd)
            if source is None or target is None:
                native(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
                return
            with overlay.bypass_patches():
                if overlay.copy_of(source) is None and overlay.copy_of(target) is None:
                    native(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
                else:
                    overlay.move_path(source, target)

        return function

    def link(self, native: Function) -> Function:
        """`os.link`, `os.symlink`."""
        overlay = self.overlay

        def function(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
            target = absolute_path(overlay, dst, kwargs.get("dst_dir_fd", kwargs.get("dir_fd")))
            source = absolute_path(overlay, src, kwargs.get("src_dir_fd")) if native.__name__ == "link" else None
            with overlay.bypass_patches():
                into = target if target is None else self.locate_new(target)
                found = source if source is None else overlay.resolve_read_path(source)
            native(src if found == source else found, dst if into == target else into, *args, **kwargs)

        return function

    def list_folder(self, native: Function) -> Function:
        """`os.listdir`."""
        overlay = self.overlay

        def function(path: Any = None) -> list[Any]:
            absolute = absolute_path(overlay, "." if path is None else path, None)
            if absolute is None or isinstance(path, bytes):
                return native(path)  # type: ignore[no-any-return]
            with overlay.bypass_patches():
                return overlay.list_names(absolute)

        return function

    def scan_folder(self, native: Function) -> Function:
        """`os.scandir`."""
        overlay = self.overlay

        def function(path: Any = None) -> Any:
            absolute = absolute_path(overlay, "." if path is None else path, None)
            if absolute is None or isinstance(path, bytes):
                return native(path)
            with overlay.bypass_patches():
                copy = overlay.copy_of(absolute)
                if copy is None or not (os.path.isdir(copy) or overlay.deleted):
                    return native(absolute if overlay.is_elsewhere(absolute, absolute) else path)
                names = set(overlay.list_names(absolute))
                places = [absolute if overlay.is_elsewhere(absolute, absolute) else path]
                places = places if overlay.is_there(absolute) else []
                places += [copy] if os.path.isdir(copy) else []
                entries = {entry.name: entry for place in places for entry in native(place) if entry.name in names}
            return _Entries(list(entries.values()))

        return function

    def open_file(self, native: Function) -> Function:
        """`open`."""
        overlay = self.overlay

        def function(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            absolute = absolute_path(overlay, file, None)
            if absolute is not None:
                with overlay.bypass_patches():
                    writes = isinstance(mode, str) and bool(set(mode) & set("wax+"))
                    if not writes:
                        found = overlay.resolve_read_path(absolute)
                    elif "x" in mode and overlay.is_there(absolute):
                        found = absolute
                    else:
                        found = overlay.prepare_write_path(absolute, with_content="w" not in mode)
                    file = found if overlay.is_elsewhere(absolute, found) else file
            return native(file, mode, *args, **kwargs)

        return function

    def open_descriptor(self, native: Function) -> Function:
        """`os.open`."""
        overlay = self.overlay

        def function(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            absolute = absolute_path(overlay, path, dir_fd)
            if absolute is not None:
                with overlay.bypass_patches():
                    if not flags & WRITES:
                        found = overlay.resolve_read_path(absolute)
                    elif flags & os.O_EXCL and overlay.is_there(absolute):
                        found = absolute
                    else:
                        found = overlay.prepare_write_path(absolute, with_content=not flags & os.O_TRUNC)
                    if overlay.is_elsewhere(absolute, found):
                        path, dir_fd = found, None
            with overlay.bypass_patches():  # the audit hook is not told of dir_fd
                return native(path, flags, mode, dir_fd=dir_fd)  # type: ignore[no-any-return]

        return function


def _audit(overlay: FileOverlay, event: str, args: tuple[Any, ...]) -> None:
    """Note started commands; refuse writes that bypass the functions above (`io.FileIO`)."""
    if started_commands.is_start(event):
        overlay.command_starts(event, args)
    if event != "open" or overlay.is_busy or not isinstance(args[0], str | bytes):
        return
    path, mode, flags = args[0], args[1], args[2]
    if not (flags & WRITES if isinstance(flags, int) else mode and set(mode) & set("wax+")):
        return
    with overlay.bypass_patches():
        if is_below(os.path.abspath(os.fsdecode(path)), (overlay.folder,)):
            return
        is_outside = overlay.copy_of(follow_links(overlay, path)) is not None
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
