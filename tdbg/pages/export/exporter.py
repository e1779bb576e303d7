"""The base classes of exporters, and what they have in common: new files that are whole or absent, and numpy types."""

import contextlib
import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, ClassVar

from tdbg.core.errors import TdbgError
from tdbg.core.guard import undo_on_error
from tdbg.pages.format import disk
from tdbg.pages.read import tensor_values
from tdbg.pages.read.datapoint import Datapoint, Tensor

if TYPE_CHECKING:
    import numpy


ColorRange = tuple[float, float]  # the values that the first and the last color of a picture stand for


class Exporter(ABC):
    """A format that tensors are written in: `ArchiveExporter` or `FileExporter`. An instance serves one export.

    name: the format, as the user names it, and the extension of its files.
    widens: whether floating-point types that numpy lacks become float32.
    """

    name: ClassVar[str]
    widens: ClassVar[bool] = False


class ArchiveExporter(Exporter):
    """Writes all tensors into one file."""

    @abstractmethod
    def write_archive(self, path: Path, tensors: Iterable[tuple[str, Tensor]], force: bool) -> None:
        """Write named tensors. Raises TdbgError, and OSError of the disk; the file is then whole or absent."""


class FileExporter(Exporter):
    """Writes each tensor into a file of its own.

    scalars_file: the name of the file that scalars are written to; empty if the format has none for them.
    """

    scalars_file: ClassVar[str] = ""

    @abstractmethod
    def write_tensor(self, file: IO[bytes], tensor: Tensor) -> ColorRange | None:
        """Write one tensor; returns the range of a picture's colors. Raises UnsupportedTensorError."""

    def split_tensor(self, tensor: Tensor) -> list[tuple[str, Tensor]]:
        """The tensors that go into a file each, with the suffix of each file's name."""
        return [("", tensor)]

    def write_scalars(self, file: IO[bytes], scalars: Iterable[tuple[Datapoint, Sequence[str]]]) -> int:
        """Write the scalars of these paths; returns how many."""
        raise NotImplementedError


class UnsupportedTensorError(TdbgError):
    """The format has no way to hold this tensor; others are not affected."""


class TargetExistsError(TdbgError):
    """A file of this name is there, and is not to be overwritten."""


@contextlib.contextmanager
def new_file(path: Path, force: bool = False) -> Iterator[BinaryIO]:
    """A file that appears under its name when all of it is written; nothing is left behind where that fails.

    Raises TdbgError if there is one already, unless ``force``; OSError.
    """
    refuse_existing(path, force)
    path.parent.mkdir(parents=True, exist_ok=True)
    ready = path.with_name(f".{path.name}.{os.getpid()}.part")
    with undo_on_error(lambda: ready.unlink(missing_ok=True)):
        try:
            with open(ready, "xb") as file:
                yield file
            if force:
                os.replace(ready, path)
            else:
                disk.publish_file(ready, path)
        except FileExistsError:
            raise _exists_error(path) from None


def refuse_existing(path: Path, force: bool) -> None:
    """TdbgError for a file that is there already."""
    if os.path.lexists(path) and (not force or path.is_dir()):
        raise _exists_error(path)


def _exists_error(path: Path) -> TargetExistsError:
    what = "is a folder" if path.is_dir() else "already exists"
    return TargetExistsError(f"{path} {what}", "choose another name, or --force to overwrite files")


def numpy_dtype(tensor: Tensor) -> "numpy.dtype[Any]":
    """What numpy holds its values in."""
    import numpy

    if "scale" in tensor.note or "scales" in tensor.note:
        return numpy.dtype("<f4")
    found: numpy.dtype[Any] = tensor_values.decode_array(b"", tensor.dtype).dtype
    return found


def is_disk_full(error: OSError) -> bool:
    """True if there is no room for any other file either."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
