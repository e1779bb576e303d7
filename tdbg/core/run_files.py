"""Files of a run directory: opened below its folder, without following a link, and written only by its owner.

Whoever may put a link into a run directory would otherwise choose which file tdbg writes, or reads aloud. A folder is
named once, with `protect_folder`; from then on each component of a path below it is opened relative to the one above it, and
a link, a pipe, a device or a file that has a second name is refused. Elsewhere these functions do what `os` does.

New files and folders have the permissions that the run directory has: 0600 and 0700, more only if it was shared.
Standard library alone, and little of it: a rank writes with it, once for each file.
"""

import contextlib
import errno
import os
import stat

from tdbg.core.guard import undo_on_error
from tdbg.core.ownership import describe_writers, is_below, is_exempt, user_name

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any

    AnyPath = str | os.PathLike[str]

PRIVATE_FOLDER, SHARED_FOLDER = 0o700, 0o755
STATE_FILE = "run.json"
PIECES_MARKER = "pieces.json"  # of a run on a store, or a copy of that: its files are in pieces
_DEEP = 5  # RUN/rank0000/attempt1/pages/epoch_3
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LINK = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)  # what systems say of a link that is not to be followed
_roots: list[str] = []
_writable: dict[tuple[int, int], bool] = {}  # device and inode of a run directory -> whether this user may write it


def protect_folder(folder: "AnyPath") -> None:
    """From now on nothing below this folder is opened through a link."""
    path = os.path.abspath(folder)
    for name in {path, os.path.realpath(path)}:
        if name not in _roots:
            _roots.append(name)
            _roots.sort(key=len)  # of two that hold one another, the outer one is asked


def protect_run_of(path: "AnyPath") -> str:
    """Protect the run directory that a path is, or is in, at most four folders down; returns it, "" for none."""
    where, found = os.path.abspath(path), ""
    for _ in range(_DEEP):
        if os.path.isfile(os.path.join(where, STATE_FILE)):
            found = where
        where = os.path.dirname(where)
    if found:
        protect_folder(found)
    return found


def _split_protected(path: "AnyPath") -> tuple[str, list[str]] | None:
    """The protected folder that a path is below, and the names from there on."""
    whole = os.path.abspath(path)
    for root in _roots:
        if is_below(whole, root) and whole != root:
            return root, whole[len(root) :].strip(os.sep).split(os.sep)
    return None


def _make_refusal(path: "AnyPath", what: str, number: int = errno.ELOOP) -> OSError:
    return OSError(number, what, os.fspath(path))


@contextlib.contextmanager
def _open_parent(path: "AnyPath", *, writes: bool, makes: bool = False) -> "Iterator[tuple[int | None, str, int]]":
    """The folder that holds ``path`` as an open descriptor, the name in it, and what its root allows to whom.

    makes: folders that are missing are made. A path that is not protected comes back as it is, with no descriptor.
    """
    found = _split_protected(path)
    if found is None:
        if makes:
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        yield None, os.fspath(path), SHARED_FOLDER
        return
    root, names = found
    folder = os.open(root, _FOLDER)
    try:
        about = os.fstat(folder)
        if writes and not may_write(root, folder, about):
            raise _make_refusal(root, f"this run directory belongs to {user_name(about.st_uid)}", errno.EPERM)
        mode = about.st_mode & SHARED_FOLDER | PRIVATE_FOLDER
        for name in names[:-1]:
            below = _open_subfolder(folder, name, path, mode if makes else 0)
            os.close(folder)
            folder = below
        yield folder, names[-1], mode
    finally:
        os.close(folder)


def _open_subfolder(folder: int, name: str, path: "AnyPath", mode: int) -> int:
    """Open a folder in a folder; mode: made if it is missing."""
    if mode:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, mode, dir_fd=folder)
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except OSError as error:
        if error.errno in _LINK:
            raise _make_refusal(
                path, f"{name} is a symbolic link or not a folder; tdbg follows no links in a run directory"
            ) from None
        raise


def may_write(root: str, folder: int, about: os.stat_result) -> bool:
    """True if a run directory belongs to this user. Asked once for each directory.

    Where ids are mapped (NFS, network and user-space file systems) a folder of ours may bear another number: it is
    ours if a file that we make there bears that number too.
    """
    if about.st_uid == os.geteuid():
        return True
    key = about.st_dev, about.st_ino
    if key not in _writable:
        _writable[key] = is_exempt(root) or _new_file_owner(folder) == about.st_uid
    return _writable[key]


def _new_file_owner(folder: int) -> int:
    """Who owns a file that this process makes in a folder; -1 where it can make none."""
    name = f".owner-{os.urandom(8).hex()}"
    try:
        handle = os.open(
            name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder
        )
    except OSError:
        return -1
    try:
        return os.fstat(handle).st_uid
    finally:
        os.close(handle)
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)


def describe_write_obstacle(folder: "AnyPath") -> str:
    """Why this user may not write into a run directory or start from it, in words; "" if nothing is against it."""
    handle = os.open(folder, _FOLDER)
    try:
        about = os.fstat(handle)
        if is_exempt(folder):
            return ""
        if not may_write(os.fspath(folder), handle, about):
            return f"it belongs to {user_name(about.st_uid)}"
        return describe_writers(about)
    finally:
        os.close(handle)


def folder_mode(shared: bool) -> int:
    """The permissions of a new run directory."""
    return SHARED_FOLDER if shared else PRIVATE_FOLDER


def set_private(folder: "AnyPath", *, shared: bool = False) -> None:
    """Have a new run directory open to this user alone; shared: others may go on reading it, and never write."""
    with contextlib.suppress(OSError):  # a file system without permissions
        os.chmod(folder, stat.S_IMODE(os.stat(folder).st_mode) & SHARED_FOLDER if shared else PRIVATE_FOLDER)


# opening


def open_file(path: "AnyPath", flags: int, *, makes: bool = False) -> int:
    """``os.open`` for a file that tdbg writes or reads; the file is a regular one, with one name if it is written.

    makes: folders that are missing are made.
    """
    writes = flags & os.O_ACCMODE != os.O_RDONLY
    with _open_parent(path, writes=writes, makes=makes) as (folder, name, mode):
        if folder is None:
            return os.open(path, flags | os.O_CLOEXEC, 0o644)
        try:  # a pipe of that name must not hold us up
            handle = os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode & 0o666, dir_fd=folder)
        except OSError as error:
            if error.errno in _LINK:
                raise _make_refusal(path, "it is a symbolic link; tdbg follows no links in a run directory") from None
            if error.errno == errno.ENXIO:
                raise _make_refusal(path, "it is not a regular file", errno.EINVAL) from None
            raise
        about = os.fstat(handle)
        trouble = ""
        if not stat.S_ISREG(about.st_mode):
            trouble = "it is not a regular file"
        elif writes and about.st_nlink > 1:
            trouble = "it has another hard link, so tdbg does not write to it"
        if trouble:
            os.close(handle)
            raise _make_refusal(path, trouble, errno.EINVAL)
        return handle


def open_read(path: "AnyPath", *, buffering: int = -1) -> "IO[bytes]":
    """A file opened for reading its bytes."""
    return os.fdopen(open_file(path, os.O_RDONLY), "rb", buffering)


def open_append(path: "AnyPath", *, makes: bool = False) -> int:
    """A descriptor of a file that grows at its end; it is made if it is missing."""
    return open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, makes=makes)


def open_new(path: "AnyPath", mode: str = "wb", *, makes: bool = False, **options: "Any") -> "IO[Any]":
    """A new file opened for writing. What a killed process left under a draft's name is replaced, never written."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    try:
        handle = open_file(path, flags, makes=makes)
    except FileExistsError:
        remove_file(path)
        handle = open_file(path, flags)
    return os.fdopen(handle, mode, **options)


def read_bytes(path: "AnyPath", limit: int = -1) -> bytes:
    """What a file holds, or so many bytes of it."""
    with open_read(path) as file:
        return file.read(limit)


def read_text(path: "AnyPath", errors: str = "strict") -> str:
    """What a file of UTF-8 holds."""
    return read_bytes(path).decode("utf-8", errors)


def write_atomically(path: "AnyPath", data: bytes, *, makes: bool = False, permissions: int | None = None) -> None:
    """Replace a file in one step, so that a reader never sees half of it."""
    draft = f"{os.path.dirname(os.path.abspath(path))}/.{os.path.basename(path)}.{os.getpid()}.{os.urandom(4).hex()}"
    with undo_on_error(lambda: _remove_if_possible(draft)):
        with open_new(draft, makes=makes) as file:
            if permissions is not None:
                os.fchmod(file.fileno(), permissions)
            file.write(data)
        rename_file(draft, path)


def _remove_if_possible(path: str) -> None:
    with contextlib.suppress(OSError):
        remove_file(path)


# folders and names


def make_folder(path: "AnyPath", *, exist_ok: bool = True) -> None:
    """Make a folder and those above it that are missing, up to the run directory."""
    with _open_parent(path, writes=True, makes=True) as (folder, name, mode):
        if folder is None:
            os.makedirs(path, exist_ok=exist_ok)
            return
        try:
            os.mkdir(name, mode, dir_fd=folder)
        except FileExistsError:
            if not exist_ok:
                raise
            os.close(_open_subfolder(folder, name, path, 0))


def rename_file(before: "AnyPath", after: "AnyPath") -> None:
    """Rename a file, over another if there is one; a link of that name is replaced itself."""
    with _open_parent(before, writes=True) as (source, old, _), _open_parent(after, writes=True) as (target, new, _):
        os.replace(old, new, src_dir_fd=source, dst_dir_fd=target)


def link_file(ready: "AnyPath", path: "AnyPath") -> None:
    """Give a file a second name; FileExistsError if it is taken."""
    with _open_parent(ready, writes=True) as (source, old, _), _open_parent(path, writes=True) as (target, new, _):
        os.link(old, new, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)


def remove_file(path: "AnyPath") -> None:
    """Remove a file, or a link itself."""
    with _open_parent(path, writes=True) as (folder, name, _):
        os.unlink(name, dir_fd=folder)


def is_regular_file(path: "AnyPath") -> bool:
    """True if a file is there that can be read: a regular one, with no link on the way to it."""
    try:
        with _open_parent(path, writes=False) as (folder, name, _):
            return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=folder is None).st_mode)
    except OSError:
        return False
