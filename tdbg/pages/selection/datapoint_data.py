"""What was captured as plain data: what `tdbg inspect-pages --json` prints and the viewer serves."""

from collections.abc import Sequence
from typing import Any

from tdbg.core.errors import TdbgError
from tdbg.core.tables import format_count, to_json_value
from tdbg.pages.read.datapoint import Datapoint, Tensor
from tdbg.pages.read.listing import Listing
from tdbg.pages.read.page_set import PageSet
from tdbg.pages.selection.locations import Selected, select_datapoints
from tdbg.pages.stats.stored_tensor import measure_tensor

DATAPOINT_COLUMNS = ("key", "rank", "step", "epoch", "phase", "page", "tensors", "bytes")
FEW, SLICED_FEW = 64, 1024  # values of a tensor, of a slice, that are part of it
BARS = 40  # of a histogram


def build_datapoint_row(datapoint: Datapoint) -> tuple[object, ...]:
    """A line of the list of datapoints."""
    key: Any = datapoint.key
    if datapoint.keys is not None and datapoint.row is None:
        key = f"{datapoint.key} ({format_count(len(datapoint.keys), 'row')})"
    tensors = len(datapoint.layout.pieces) if datapoint.layout else 0
    place = datapoint.rank, datapoint.step, datapoint.epoch, datapoint.phase or None, datapoint.page
    return (key, *place, tensors, datapoint.nbytes)


def describe_listing(pages: PageSet, found: Listing, selected: Selected, *, datapoints: bool) -> dict[str, Any]:
    """Layers, counts and problems. datapoints: each of them as well."""
    layers = found.list_layers()
    data: dict[str, Any] = {
        "path": str(pages.path),
        "datapoints": found.datapoints,
        "tensors": sum(row.datapoints for row in layers if row.dtypes),
        "bytes": sum(row.nbytes for row in layers),
        "ranks": sorted(found.ranks),
        "epochs": sorted(found.epochs),
        "layers": [dict(zip(("path", "dtypes", "shapes", "datapoints", "bytes"), row, strict=True)) for row in layers],
        "refused": dict(found.refused),
        "drops": [drop._asdict() for drop in pages.drops],
        "problems": [{"path": str(one.path), "text": one.text, "grave": one.grave} for one in pages.problems],
    }
    if datapoints:
        data["list"] = [_describe_entry(datapoint) for datapoint in select_datapoints(pages, selected)]
    plain: dict[str, Any] = to_json_value(data)
    return plain


def _describe_entry(datapoint: Datapoint) -> dict[str, object]:
    more = {"keys": datapoint.keys, "flags": datapoint.flags or None, "scalars": dict(datapoint.scalars) or None}
    named = dict(zip(DATAPOINT_COLUMNS, build_datapoint_row(datapoint), strict=True))
    return {**named, "key": datapoint.key, **{name: value for name, value in more.items() if value is not None}}


def describe_datapoint(
    datapoint: Datapoint, tensors: Sequence[Tensor], part: str = "", *, whole: bool
) -> dict[str, Any]:
    """A datapoint with its scalars and tensors. whole: with figures, a histogram and few values of each."""
    one: dict[str, Any] = dict(zip(DATAPOINT_COLUMNS, build_datapoint_row(datapoint), strict=True))
    one |= {"key": datapoint.key, "flags": datapoint.flags, "scalars": dict(datapoint.scalars)}
    one["tensors"] = [describe_tensor(tensor, part, whole=whole) for tensor in tensors]
    plain: dict[str, Any] = to_json_value(one)
    return plain


def describe_tensor(tensor: Tensor, part: str = "", *, whole: bool = True) -> dict[str, Any]:
    """A tensor, or the part that a slice names. Raises TdbgError for a part that there is none of."""
    about: dict[str, object] = {"path": tensor.path, "dtype": tensor.dtype.name, "shape": tensor.shape}
    about |= {"bytes": tensor.nbytes, "note": dict(tensor.note)}
    if not whole:
        return about
    try:
        figures, bars, values = measure_tensor(tensor, part, BARS)
    except TdbgError as error:
        if part:
            raise
        return {**about, "error": str(error)}
    about |= {"figures": figures.as_dict(), "histogram": bars}
    if part and values is not None:
        about |= {"slice": part, "slice_shape": values.shape}
    if values is not None and values.count <= (SLICED_FEW if part else FEW):
        about["values"] = values.to_numbers()
    return about
