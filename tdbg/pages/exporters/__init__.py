"""Tensors as files of other programs, a format a file: see `tdbg.cli.inspect_pages.export`."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tdbg.core.errors import TdbgError
from tdbg.pages import disk, values
from tdbg.pages.datapoint import Tensor

if TYPE_CHECKING:
    import numpy


class NotForThisFormat(TdbgError):
    """The format has no way to hold this tensor; others are not affected."""


class ThereAlready(TdbgError):
    """A file of this name is there, and is not to be overwritten."""


@contextlib.contextmanager
def new_file(path: Path, force: bool = False) -> Iterator[BinaryIO]:
    """A file that appears under its name when all of it is written; nothing is left behind where that fails.

    Raises TdbgError if there is one already, unless ``force``; OSError.
    """
    refuse(path, force)
    path.parent.mkdir(parents=True, exist_ok=True)
    ready = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(ready, "xb") as file:
            yield file
        if force:
            os.replace(ready, path)
        else:
            disk.publish(ready, path)
    except FileExistsError:
        ready.unlink(missing_ok=True)
        raise _there(path) from None
    except BaseException:
        ready.unlink(missing_ok=True)
        raise


def refuse(path: Path, force: bool) -> None:
    """TdbgError for a file that is there already."""
    if os.path.lexists(path) and (not force or path.is_dir()):
        raise _there(path)


def _there(path: Path) -> ThereAlready:
    what = "is a folder" if path.is_dir() else "is there already"
    return ThereAlready(f"{path} {what}", "choose another name, or --force to overwrite files")


def numpy_dtype(tensor: Tensor) -> "numpy.dtype[Any]":
    """What numpy holds its values in."""
    import numpy

    if "scale" in tensor.note or "scales" in tensor.note:
        return numpy.dtype("<f4")
    found: numpy.dtype[Any] = values.array(b"", tensor.dtype).dtype
    return found


def is_full(error: OSError) -> bool:
    """True if there is no room for any other file either."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
