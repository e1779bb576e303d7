"""Tensors written as files of other programs: which of them go where, and what was done. See `tdbg.pages.export.exporters`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from tdbg.core.errors import TdbgError
from tdbg.pages.export.exporters import (
    NotForThisFormat,
    ThereAlready,
    csv,
    is_full,
    new_file,
    npy,
    png,
    refuse,
    safetensors,
)
from tdbg.pages.export.file_names import Unique, file_path
from tdbg.pages.format.dtypes import DTYPES
from tdbg.pages.progress_bar import Progress
from tdbg.pages.read.datapoint import Datapoint, Tensor
from tdbg.pages.selection.tensor_selection import Pick, Picks

FORMATS = ("npz", "npy", "safetensors", "png", "csv")
ARCHIVES = ("npz", "safetensors")  # all tensors in one file
WIDENED = tuple(
    name for name, about in DTYPES.items() if about.kind == "float" and about.size < 4 and name != "float16"
)
FIGURES = "figures.csv"


class Written(NamedTuple):
    """A tensor that was written. name: in the archive, or the file's. low, high: what the ends of a map's colours mean."""

    file: str
    name: str
    datapoint: Datapoint
    tensor: Tensor
    low: float | None = None
    high: float | None = None


class Export:
    """What is written where. skipped: the tensors that were not, by reason. figures: scalars that were written."""

    def __init__(self, picks: Picks, kind: str, target: Path, force: bool) -> None:
        self.picks, self.kind, self.target, self.force = picks, kind, target, force
        self.written: list[Written] = []
        self.skipped: dict[str, int] = {}
        self.failed: dict[str, int] = {}
        self.figures = 0

    def run(self) -> "Export":
        """Write all. Raises TdbgError where nothing can be, OSError of the disk; an archive is there whole or not at all."""
        with Progress("exporting", sum(pick.size for pick in self.picks.all())) as progress:
            if self.kind in ARCHIVES:
                self._archive(progress)
            elif self.target.suffix == f".{self.kind}":
                self._one(progress)
            else:
                self._folder(progress)
        if not (self.written or self.figures or self.skipped or self.failed):
            raise self.picks.nothing()
        return self

    @property
    def widened(self) -> list[str]:
        """The types that became float32."""
        if self.kind not in ("npz", "npy"):
            return []
        return sorted({w.tensor.dtype.name for w in self.written if w.tensor.dtype.name in WIDENED})

    def _archive(self, progress: Progress) -> None:
        refuse(self.target, self.force)
        found = list(self._named())
        if not found:
            raise self.picks.nothing()
        write = npy.write_npz if self.kind == "npz" else safetensors.write
        write(self.target, ((name, pick.tensor) for name, pick in _counted(found, progress)), self.force)
        self.written = [Written(str(self.target), name, *pick) for name, pick in found]

    def _named(self) -> Iterator[tuple[str, Pick]]:
        """The name of each tensor in an archive: key and path, as a relative path that may be unpacked anywhere."""
        names = Unique()
        for pick in self.picks.all():
            prefix = self.picks.prefix(pick.datapoint)
            yield names.of(str(file_path(*prefix, pick.tensor.path))), pick

    def _folder(self, progress: Progress) -> None:
        if self.target.exists() and not self.target.is_dir():
            raise TdbgError(f"{self.target} is no folder", f"choose another, or a name that ends in .{self.kind}")
        for name, pick in self._named():
            for more, tensor in self._parts(pick.tensor):
                self._file(self.target / f"{name}{more}.{self.kind}", pick.datapoint, tensor)
            progress.add(pick.size)
        if self.kind == "csv":
            self._figures(self.target / FIGURES)

    def _parts(self, tensor: Tensor) -> list[tuple[str, Tensor]]:
        return png.pictures(tensor) if self.kind == "png" else [("", tensor)]

    def _one(self, progress: Progress) -> None:
        """The one tensor that was chosen, or the figures, in the file that was named."""
        found = []
        for pick in self.picks.all():
            pictures = self._parts(pick.tensor)
            if len(pictures) > 1:
                shape = ", ".join(map(str, pick.tensor.shape))
                raise TdbgError(
                    f"{self.target} takes one picture, and {pick.tensor.path} of shape ({shape}) makes {len(pictures)}",
                    "name a folder",
                )
            found += [(pick.datapoint, tensor) for _, tensor in pictures]
            if len(found) > 1:
                raise TdbgError(
                    f"{self.target} takes one tensor, and more were chosen",
                    "name a folder, or choose with --keys and --layer",
                )
        if not found and self.kind == "csv":
            self._figures(self.target)
        for datapoint, tensor in found:
            self._file(self.target, datapoint, tensor)
            progress.add(tensor.nbytes)

    def _file(self, path: Path, datapoint: Datapoint, tensor: Tensor) -> None:
        """One tensor; what cannot be written is counted, and the others still are."""
        try:
            with new_file(path, self.force) as file:
                scale = WRITERS[self.kind](file, tensor)
        except NotForThisFormat as error:
            self.skipped[str(error)] = self.skipped.get(str(error), 0) + 1
            return
        except ThereAlready:
            raise
        except TdbgError as error:
            self.failed[str(error)] = self.failed.get(str(error), 0) + 1
            return
        except OSError as error:
            if is_full(error) or not self.written:
                raise
            self.failed[str(error)] = self.failed.get(str(error), 0) + 1
            return
        low, high = scale if isinstance(scale, png.Scale) else (None, None)
        self.written.append(Written(str(path), path.name, datapoint, tensor, low, high))

    def _figures(self, path: Path) -> None:
        found = [
            (datapoint, paths)
            for datapoint in self.picks.datapoints()
            if (paths := [name for name in datapoint.scalars if self.picks.is_chosen(name)])
        ]
        if found:
            with new_file(path, self.force) as file:
                self.figures = csv.write_figures(file, found)


WRITERS: dict[str, Callable[[IO[bytes], Tensor], Any]] = {"npy": npy.write, "png": png.write, "csv": csv.write}


def _counted(found: list[tuple[str, Pick]], progress: Progress) -> Iterator[tuple[str, Pick]]:
    for name, pick in found:
        yield name, pick
        progress.add(pick.size)
