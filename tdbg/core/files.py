"""Reading files that somebody else may have made: regular ones alone, and no more of them at a time than has a limit.

A name in a run directory may be a device, a pipe that nobody writes into, a hole of ten gigabytes, a line without end or
brackets without end. What is wrong is raised as OSError or ValueError, whose text says it. Standard library alone.
"""

import errno
import json
import os
import stat

from tdbg.core.guard import undo_on_error
from tdbg.core.run_files import open_file

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any

    Path = str | os.PathLike[str]

MAX_JSON_BYTES = 16 << 20  # of a document that is read whole
MAX_LINE_BYTES = 16 << 20
_KINDS = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))


def open_regular(path: "Path") -> "IO[bytes]":
    """Open a regular file for reading; OSError for a device, a pipe or a folder, without waiting for its other end.

    Below a run directory no link is followed either.
    """
    fd = open_file(path, os.O_RDONLY | os.O_NONBLOCK)
    with undo_on_error(lambda: os.close(fd)):
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "a device")
            raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", os.fspath(path))
        return open(fd, "rb")


def why_unreadable(path: "Path") -> str:
    """Why a file cannot be read; empty for a regular one that can."""
    try:
        open_regular(path).close()
    except (OSError, ValueError) as error:
        return describe_failure(error)
    return ""


def describe_failure(error: OSError | ValueError) -> str:
    """What a failed read says of why, without the file's name."""
    return (error.strerror if isinstance(error, OSError) else "") or str(error)


def is_readable(path: "Path") -> bool:
    """True for a regular file, or a link to one, that this process may read."""
    return not why_unreadable(path)


def read_small_file(path: "Path", limit: int = MAX_JSON_BYTES) -> bytes:
    """All of a small regular file; OSError for one that is larger than ``limit`` bytes."""
    with open_regular(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit >> 20} MiB, the limit for such a file", os.fspath(path))
    return data


def parse_json(data: "bytes | str") -> "Any":
    """The value of a JSON document; ValueError for what is none, or is nested deeper than Python follows."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply (the limit is about 1,000 levels)") from None


def read_json(path: "Path") -> "Any":
    """The value that a small JSON file holds; OSError or ValueError for one that cannot be read."""
    return parse_json(read_small_file(path))


def read_lines(path: "Path") -> "Iterator[bytes]":
    """The complete lines of a regular file, streamed; one longer than `MAX_LINE_BYTES` is passed over."""
    with open_regular(path) as file:
        whole = True  # the next piece begins a line
        while line := file.readline(MAX_LINE_BYTES):
            ended = line.endswith(b"\n")
            if ended and whole:
                yield line
            whole = ended
            if not ended:
                skip_hole(file)


def iter_json_lines(path: "Path") -> "Iterator[dict[str, object]]":
    """The JSON objects of a file of one to a line, streamed; a line that holds something else is passed over."""
    for line in read_lines(path):
        try:
            found = parse_json(line)
        except ValueError:  # the last line of a process that was killed
            continue
        if isinstance(found, dict):
            yield found


def is_all_zeros(block: bytes) -> bool:
    """True for zeros alone, as a hole reads."""
    return not block.strip(b"\0")


def skip_hole(file: "IO[bytes]") -> None:
    """Go on behind a hole of a sparse file, if the file is at one: there is no line in it."""
    if not hasattr(os, "SEEK_DATA"):
        return
    fd, here = file.fileno(), file.tell()
    before = os.lseek(fd, 0, os.SEEK_CUR)
    try:
        there = os.lseek(fd, here, os.SEEK_DATA)
    except OSError as error:
        there = os.fstat(fd).st_size if error.errno == errno.ENXIO else here  # nothing but a hole is left
    os.lseek(fd, before, os.SEEK_SET)
    file.seek(max(there, here))
