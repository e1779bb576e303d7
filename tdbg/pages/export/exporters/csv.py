"""Tables of numbers, for spreadsheets: a tensor of one or two dimensions, or the figures of datapoints."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import IO, Any

from tdbg.pages.export.exporters import NotForThisFormat
from tdbg.pages.read.datapoint import Datapoint, Tensor
from tdbg.pages.read.tensor_slices import CHUNK_BYTES, flat_parts
from tdbg.pages.read.tensor_values import value_shape

FIGURES = ("key", "rank", "step", "epoch", "phase", "path", "value")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet may take for a formula


def write(file: IO[bytes], tensor: Tensor) -> None:
    """One tensor: a row of the file for each of its rows, or a value a line. Raises NotForThisFormat for other shapes."""
    shape = value_shape(tensor.dtype, tensor.shape)
    while len(shape) > 2 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) > 2:
        raise NotForThisFormat(f"{len(shape)} dimensions are too many for csv", "export it as npy")
    width = shape[1] if len(shape) == 2 else 1
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    table = csv.writer(text)
    if width:
        row_bytes = max(width * tensor.dtype.size // max(tensor.dtype.packed, 1), 1)
        size = max(CHUNK_BYTES // 8 // row_bytes, 1) * row_bytes
        for part in flat_parts(tensor, size):
            table.writerows(part.reshape(-1, width).tolist())
    text.detach()


def write_figures(file: IO[bytes], found: Iterable[tuple[Datapoint, Sequence[str]]]) -> int:
    """The scalars of these paths, a line each; returns how many. Text that looks like a formula gets a ``'`` in front."""
    text = io.TextIOWrapper(file, "utf-8", "surrogateescape", newline="", write_through=True)
    table = csv.writer(text)
    table.writerow(FIGURES)
    count = 0
    for datapoint, paths in found:
        about = (datapoint.key, datapoint.rank, datapoint.step, datapoint.epoch, datapoint.phase)
        scalars = datapoint.scalars  # of a row it is put together each time
        for path in paths:
            table.writerow([_cell(value) for value in (*about, path, scalars[path])])
            count += 1
    text.detach()
    return count


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        value = value.encode("utf-8", "backslashreplace").decode()
        return f"'{value}" if value.startswith(FORMULA) else value
    return value
