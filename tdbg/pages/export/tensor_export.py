"""Export of selected tensors: what goes into which file, and what was written, skipped or failed."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tdbg.core.errors import TdbgError
from tdbg.pages.export.exporter import (
    ArchiveExporter,
    FileExporter,
    TargetExistsError,
    UnsupportedTensorError,
    is_disk_full,
    new_file,
    refuse_existing,
)
from tdbg.pages.export.exporters import EXPORTERS
from tdbg.pages.export.file_names import UniqueNames, file_path
from tdbg.pages.format.dtypes import DTYPES
from tdbg.pages.progress_bar import Progress
from tdbg.pages.read.datapoint import Datapoint, Tensor
from tdbg.pages.selection.tensor_selection import SelectedTensor, TensorSelection

FORMATS = tuple(EXPORTERS.names())
WIDENED = tuple(
    name for name, about in DTYPES.items() if about.kind == "float" and about.size < 4 and name != "float16"
)


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

    def __init__(self, picks: TensorSelection, kind: str, target: Path, force: bool) -> None:
        self.picks, self.target, self.force = picks, target, force
        self.exporter = EXPORTERS[kind]()
        self.written: list[Written] = []
        self.skipped: dict[str, int] = {}
        self.failed: dict[str, int] = {}
        self.figures = 0

    def write_selection(self) -> "Export":
        """Write all. Raises TdbgError where nothing can be, OSError of the disk; an archive is there whole or not at all."""
        exporter = self.exporter
        with Progress("exporting", sum(pick.nbytes for pick in self.picks.iter_all_tensors())) as progress:
            if isinstance(exporter, ArchiveExporter):
                self._write_archive(exporter, progress)
            elif isinstance(exporter, FileExporter):
                write = self._write_file if self.target.suffix == f".{exporter.name}" else self._write_folder
                write(exporter, progress)
        if not (self.written or self.figures or self.skipped or self.failed):
            raise self.picks.build_empty_error()
        return self

    @property
    def widened(self) -> list[str]:
        """The types that became float32."""
        if not self.exporter.widens:
            return []
        return sorted({w.tensor.dtype.name for w in self.written if w.tensor.dtype.name in WIDENED})

    def _write_archive(self, exporter: ArchiveExporter, progress: Progress) -> None:
        refuse_existing(self.target, self.force)
        found = list(self._iter_named_tensors())
        if not found:
            raise self.picks.build_empty_error()
        tensors = ((name, pick.tensor) for name, pick in _iter_with_progress(found, progress))
        exporter.write_archive(self.target, tensors, self.force)
        self.written = [Written(str(self.target), name, *pick) for name, pick in found]

    def _iter_named_tensors(self) -> Iterator[tuple[str, SelectedTensor]]:
        """The name of each tensor in an archive: key and path, as a relative path that may be unpacked anywhere."""
        names = UniqueNames()
        for pick in self.picks.iter_all_tensors():
            prefix = self.picks.build_prefix(pick.datapoint)
            yield names.make_unique(str(file_path(*prefix, pick.tensor.path))), pick

    def _write_folder(self, exporter: FileExporter, progress: Progress) -> None:
        """Every chosen tensor, and the scalars, in files below the folder that was named."""
        if self.target.exists() and not self.target.is_dir():
            raise TdbgError(f"{self.target} is not a folder", f"choose another, or a name ending in .{exporter.name}")
        for name, pick in self._iter_named_tensors():
            for suffix, tensor in exporter.split_tensor(pick.tensor):
                path = self.target / f"{name}{suffix}.{exporter.name}"
                self._write_tensor(exporter, path, pick.datapoint, tensor)
            progress.advance(pick.nbytes)
        if exporter.scalars_file:
            self._write_scalars(exporter, self.target / exporter.scalars_file)

    def _write_file(self, exporter: FileExporter, progress: Progress) -> None:
        """The one tensor that was chosen, or the scalars, in the file that was named."""
        found = []
        for pick in self.picks.iter_all_tensors():
            parts = exporter.split_tensor(pick.tensor)
            if len(parts) > 1:
                shape = ", ".join(map(str, pick.tensor.shape))
                raise TdbgError(
                    f"{self.target} takes one picture, and {pick.tensor.path} of shape ({shape}) makes {len(parts)}",
                    "name a folder",
                )
            found += [(pick.datapoint, tensor) for _, tensor in parts]
            if len(found) > 1:
                raise TdbgError(
                    f"{self.target} takes one tensor, and more were chosen",
                    "name a folder, or choose with --keys and --layer",
                )
        if not found and exporter.scalars_file:
            self._write_scalars(exporter, self.target)
        for datapoint, tensor in found:
            self._write_tensor(exporter, self.target, datapoint, tensor)
            progress.advance(tensor.nbytes)

    def _write_tensor(self, exporter: FileExporter, path: Path, datapoint: Datapoint, tensor: Tensor) -> None:
        """One tensor; what cannot be written is counted, and the others still are."""
        try:
            with new_file(path, self.force) as file:
                colors = exporter.write_tensor(file, tensor)
        except UnsupportedTensorError as error:
            self.skipped[str(error)] = self.skipped.get(str(error), 0) + 1
            return
        except TargetExistsError:
            raise
        except TdbgError as error:
            self.failed[str(error)] = self.failed.get(str(error), 0) + 1
            return
        except OSError as error:
            if is_disk_full(error) or not self.written:
                raise
            self.failed[str(error)] = self.failed.get(str(error), 0) + 1
            return
        low, high = colors or (None, None)
        self.written.append(Written(str(path), path.name, datapoint, tensor, low, high))

    def _write_scalars(self, exporter: FileExporter, path: Path) -> None:
        found = [
            (datapoint, paths)
            for datapoint in self.picks.iter_datapoints()
            if (paths := [name for name in datapoint.scalars if self.picks.is_chosen(name)])
        ]
        if found:
            with new_file(path, self.force) as file:
                self.figures = exporter.write_scalars(file, found)


def _iter_with_progress(
    found: list[tuple[str, SelectedTensor]], progress: Progress
) -> Iterator[tuple[str, SelectedTensor]]:
    for name, pick in found:
        yield name, pick
        progress.advance(pick.nbytes)
