"""CSV tables for spreadsheets: a tensor of one or two dimensions, or the scalars of datapoints."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import IO

from tdbg.pages.export.exporter import FileExporter, UnsupportedTensorError
from tdbg.pages.export.exporters import EXPORTERS
from tdbg.pages.read.datapoint import Datapoint, Tensor
from tdbg.pages.read.tensor_slices import CHUNK_BYTES, flat_parts
from tdbg.pages.read.tensor_values import value_shape

COLUMNS = ("key", "rank", "step", "epoch", "phase", "path", "value")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet may take for a formula


@EXPORTERS.add
class CsvExporter(FileExporter):
    """Tables of numbers."""

    name = "csv"
    scalars_file = "figures.csv"

    def write_tensor(self, file: IO[bytes], tensor: Tensor) -> None:
        """Write a row of the file for each row of the tensor, or a value a line."""
        shape = value_shape(tensor.dtype, tensor.shape)
        while len(shape) > 2 and shape[0] == 1:
            shape = shape[1:]
        if len(shape) > 2:
            raise UnsupportedTensorError(f"{len(shape)} dimensions are too many for csv", "export it as npy")
        width = shape[1] if len(shape) == 2 else 1
        text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
        table = csv.writer(text)
        if width:
            row_bytes = max(width * tensor.dtype.size // max(tensor.dtype.packed, 1), 1)
            size = max(CHUNK_BYTES // 8 // row_bytes, 1) * row_bytes
            for part in flat_parts(tensor, size):
                table.writerows(part.reshape(-1, width).tolist())
        text.detach()

    def write_scalars(self, file: IO[bytes], scalars: Iterable[tuple[Datapoint, Sequence[str]]]) -> int:
        """Write a line for each scalar. Text that looks like a formula gets a ``'`` in front."""
        text = io.TextIOWrapper(file, "utf-8", "surrogateescape", newline="", write_through=True)
        table = csv.writer(text)
        table.writerow(COLUMNS)
        count = 0
        for datapoint, paths in scalars:
            about = (datapoint.key, datapoint.rank, datapoint.step, datapoint.epoch, datapoint.phase)
            values = datapoint.scalars  # built anew for each row of a batch
            for path in paths:
                table.writerow([_escape_cell(value) for value in (*about, path, values[path])])
                count += 1
        text.detach()
        return count


def _escape_cell(value: object) -> object:
    if isinstance(value, str):
        value = value.encode("utf-8", "backslashreplace").decode()
        return f"'{value}" if value.startswith(FORMULA) else value
    return value
