"""Load the outputs of one datapoint as its debuggers returned them, from tdbg's own pages or another tool's."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdbg.core.errors import TdbgError
from tdbg.core.urls import is_url
from tdbg.pages.format.dtypes import DTYPES, Dtype
from tdbg.pages.read import tensor_values

if TYPE_CHECKING:
    from tdbg.pages.pickle_reader.pickle_pages import PickledDatapoint as LegacyDatapoint
    from tdbg.pages.read.datapoint import Datapoint


def load_debug_outputs(
    path: str | Path, idx: int | str, *, epoch: int | None = None, as_torch: bool = False
) -> dict[str, Any]:
    """``{debugger: outputs}`` of the datapoint ``idx``, nested as it was captured, its tensors as numpy arrays.

    path: a run, a folder of pages or a page, tdbg's own or ``page_N.pkl``; or a URL of tdbg's own pages. epoch: which one, where the datapoint was
    captured in several. as_torch: tensors of torch instead, in their own types; numpy has no bfloat16 and no float8, so
    such arrays are float32. A datapoint that was captured twice in one epoch gives the last. What a reader of
    ``page_N.pkl`` refuses to make is the text ``<refused NAME>``. Sparse tensors are dicts of the arrays they are kept as.
    Raises TdbgError where there is no such datapoint, or one in several epochs.
    """
    from tdbg.pages.read.page_set import NoPagesError, PageSet

    make = _build_tensor if as_torch else _build_array
    try:
        pages = PageSet.open(path)
    except NoPagesError:
        if is_url(str(path)):
            raise
        from tdbg.pages.pickle_reader.pickle_pages import LegacyPages

        legacy = LegacyPages.from_path(Path(path))
        found = _select_datapoint([(point, point.epoch) for point in legacy.find_datapoints(idx)], path, idx, epoch)
        return _rebuild_legacy_outputs(found, make)
    with pages:
        return _rebuild_outputs(
            _select_datapoint([(point, point.epoch) for point in pages.find(idx)], path, idx, epoch), make
        )


def _select_datapoint(
    found: list[tuple[object, int | None]], path: str | Path, idx: int | str, epoch: int | None
) -> Any:
    """The datapoint that is meant."""
    epochs = list(dict.fromkeys(one for _, one in found))
    fitting = [point for point, one in found if epoch is None or one == epoch]
    if not fitting:
        where = f" of epoch {epoch}" if epoch is not None and found else ""
        raise TdbgError(f"{path}: there is no datapoint {idx!r}{where}", "`tdbg inspect-pages ls` shows what there is")
    if epoch is None and len(epochs) > 1:
        raise TdbgError(
            f"{path}: datapoint {idx!r} was captured in the epochs {epochs}", f"say which: epoch={epochs[-1]}"
        )
    return fitting[-1]


def _rebuild_outputs(datapoint: "Datapoint", make: Callable[..., object]) -> dict[str, object]:
    from tdbg.pages.format.nested_outputs import rebuild_nested

    noted = datapoint.more.get("notes")
    notes: Mapping[str, object] = noted if isinstance(noted, dict) else {}
    leaves = [(path, make(t.read(), t.dtype, t.shape, t.note)) for path, t in datapoint.tensors.items()]
    return rebuild_nested(
        [*leaves, *datapoint.scalars.items()], {p: n for p, n in notes.items() if isinstance(n, dict)}
    )


def _rebuild_legacy_outputs(datapoint: "LegacyDatapoint", make: Callable[..., object]) -> dict[str, object]:
    found: dict[str, object] = _rebuild_legacy_value(datapoint.outputs, make)
    return found


def _rebuild_legacy_value(found: object, make: Callable[..., object]) -> Any:
    """A tree of a legacy page, with real arrays."""
    from tdbg.pages.pickle_reader.datapoint_tree import note_of
    from tdbg.pages.pickle_reader.parsed_values import Array, Refused, Sparse

    if isinstance(found, Array):
        return make(found.load_bytes(), DTYPES[found.dtype], found.shape, note_of(found))
    if isinstance(found, Refused):
        return str(found)
    if isinstance(found, Sparse):
        return {name: _rebuild_legacy_value(part, make) for name, part in found.parts.items()}
    if isinstance(found, dict):
        return {key: _rebuild_legacy_value(value, make) for key, value in found.items()}
    if isinstance(found, list):
        return [_rebuild_legacy_value(value, make) for value in found]
    if isinstance(found, tuple):
        return tuple(_rebuild_legacy_value(value, make) for value in found)
    return found


def _build_array(data: bytes, dtype: Dtype, shape: tuple[int, ...], note: Mapping[str, object]) -> Any:
    """A numpy array, or what the note says that these bytes are."""
    if "bytes" in note:
        return data
    if "text" in note:
        return data.decode("utf-8", "surrogatepass")
    return tensor_values.decode_array(data, dtype, shape, note)


def _build_tensor(data: bytes, dtype: Dtype, shape: tuple[int, ...], note: Mapping[str, object]) -> object:
    """The same as a tensor of torch; of quantised types its values, as float32."""
    import torch

    found = _build_array(data, dtype, shape, note)
    own = getattr(torch, dtype.name, None)
    if isinstance(found, bytes | str):
        return found
    if own is None or "scale" in note or "scales" in note or dtype.counts_values or dtype.name.startswith("q"):
        return torch.from_numpy(found.copy())
    if not data:
        return torch.empty(shape, dtype=own)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(own).reshape(shape)
