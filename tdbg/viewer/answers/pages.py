"""Captured tensors: the list, one datapoint, statistics, parts of a tensor."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tdbg.core.errors import TdbgError
from tdbg.core.guard import undo_on_error
from tdbg.core.rundir import RunDir
from tdbg.core.tables import to_json_value
from tdbg.pages.read.datapoint import Datapoint, Tensor
from tdbg.pages.read.listing import Listing
from tdbg.pages.read.page_set import PageSet
from tdbg.pages.read.tensor_slices import count_slice_bytes, is_read_whole, iter_slice_bytes, parse_slice
from tdbg.pages.read.tensor_values import value_count
from tdbg.pages.render.preview import planes_of, wanted_bytes
from tdbg.pages.render.region import parse_region
from tdbg.pages.render.tensor_pair import describe_region_difference, describe_tensor_pair
from tdbg.pages.render.tensor_picture import describe_region, describe_tensor_picture
from tdbg.pages.selection.datapoint_data import describe_datapoint, describe_listing, describe_tensor
from tdbg.pages.selection.locations import Selected, is_selected, select_datapoints
from tdbg.pages.selection.token_lists import describe_token_values, describe_tokens
from tdbg.pages.stats.nonfinite_places import find_nonfinite_places
from tdbg.viewer.answers.batches import find_batch
from tdbg.viewer.routes import API, NotFoundError, RawValues, route
from tdbg.viewer.run_library import Served
from tdbg.viewer.tensor_answers import (
    DatapointDetails,
    PageListing,
    Picture,
    TensorDetails,
    TensorDifference,
    TokenLists,
)

PICTURE_BYTES = 1 << 20
SHOWN_PLACES = 20  # of elements that are not finite
MAX_READ_BYTES = 4 << 30  # of a tensor, some at a time: a file with a hole may claim any size
MAX_WHOLE_BYTES = 64 << 20  # at once
TOO_LARGE = "it takes too much room"
NO_PAGES: dict[str, Any] = {
    "path": "",
    "datapoints": 0,
    "tensors": 0,
    "bytes": 0,
    "ranks": [],
    "epochs": [],
    "layers": [],
    "refused": {},
    "drops": [],
    "problems": [],
    "list": [],
}


class PagesQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which datapoints: ranges such as 0,3-5 for ranks and 100:200 for steps."""

    ranks: str = ""
    steps: str = ""
    epochs: str = ""
    phase: str = ""
    datapoints: bool = False


class TensorQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which tensor of which datapoint. nth: of several with the key, from 0. slice: such as 0,:,3:5.

    batch: the file of a saved batch, instead of a key.
    """

    key: str = ""
    path: str = ""
    nth: int = 0
    slice: str = ""
    batch: str = ""


class TokensQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which datapoint. batch: the file of a saved batch, instead of a key."""

    key: str = ""
    nth: int = 0
    batch: str = ""


class PictureQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which tensor is drawn. batch: the file of a saved batch, instead of a key.

    planes, rows, columns: a part of it, as ranges such as 64:128 without the second. Leading dimensions are counted as
    planes, in row order. Then the answer is the picture alone.
    """

    path: str
    key: str = ""
    nth: int = 0
    batch: str = ""
    planes: str = ""
    rows: str = ""
    columns: str = ""


class RawQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which tensor of which datapoint. slice: such as 0,:,3:5; without it all of it. batch: a saved batch, instead of a key."""

    path: str
    key: str = ""
    nth: int = 0
    slice: str = ""
    batch: str = ""


class DifferenceQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which tensor of which two datapoints: that of another epoch or step.

    planes, rows, columns: a part, as for a picture. Then the answer is the difference alone.
    """

    key: str
    path: str
    nth: int = 0
    other_key: str
    other_nth: int = 0
    planes: str = ""
    rows: str = ""
    columns: str = ""


class NothingCapturedError(NotFoundError):
    """The run has no pages, or no such datapoint or tensor."""


@route("GET", f"{API}/runs/{{run}}/pages", answers=PageListing)
def list_pages(served: Served, run: str, query: PagesQuery) -> dict[str, Any]:
    """Layers, shapes and datapoints, as `tdbg inspect-pages ls --json`."""
    selected = Selected(ranks=query.ranks, steps=query.steps, epochs=query.epochs, phase=query.phase)
    place = served.runs.open_run(run).path
    if not has_pages(place):
        return NO_PAGES
    if not (query.datapoints or is_selected(selected)):
        return served.tables.get_table(place, lambda: open_run_pages(served, run)).about
    with open_run_pages(served, run) as pages:
        found = Listing()
        for datapoint in select_datapoints(pages, selected):
            found.add_datapoint(datapoint)
        return describe_listing(pages, found, selected, datapoints=query.datapoints)


@route("GET", f"{API}/runs/{{run}}/pages/datapoint", answers=(DatapointDetails, TensorDetails))
def show_datapoint(served: Served, run: str, query: TensorQuery) -> dict[str, Any]:
    """One datapoint with its tensors; of one that is named the figures, a histogram, and few values."""
    _check_slice(query.slice)
    with open_run_pages(served, run, query.batch) as pages:
        datapoint = _find_datapoint(pages, query.key, query.nth, query.batch)
        if not query.path:
            found = describe_datapoint(datapoint, list(datapoint.tensors.values()), whole=False)
            return found | {"tokens": describe_tokens(datapoint)}
        tensor = _find_tensor(datapoint, query.path)
        _check_size(tensor, query.slice)
        plain: dict[str, Any] = to_json_value(describe_tensor(tensor, query.slice))
        return plain


@route("GET", f"{API}/runs/{{run}}/pages/tokens", answers=TokenLists)
def show_tokens(served: Served, run: str, query: TokensQuery) -> dict[str, Any]:
    """The text of a datapoint as tokens, each list with the numbers that were captured of its tokens."""
    with open_run_pages(served, run, query.batch) as pages:
        found = describe_token_values(_find_datapoint(pages, query.key, query.nth, query.batch))
        plain: dict[str, Any] = to_json_value({"lists": found})
        return plain


@route("GET", f"{API}/runs/{{run}}/pages/picture", answers=Picture)
def draw_tensor(served: Served, run: str, query: PictureQuery) -> dict[str, Any]:
    """One tensor as the pages draw it: figures, histogram, a preview that is reduced where it is large, what is not finite."""
    with open_run_pages(served, run, query.batch) as pages:
        tensor = _find_tensor(_find_datapoint(pages, query.key, query.nth, query.batch), query.path)
        if query.planes or query.rows or query.columns:
            region = parse_region(planes_of(tensor), query.planes, query.rows, query.columns)
            part: dict[str, Any] = to_json_value(describe_region(tensor, PICTURE_BYTES, region))
            return part
        if _is_too_large(tensor):
            about = describe_tensor(tensor, whole=False)
            return {name: about[name] for name in ("path", "dtype", "shape")} | {"why": TOO_LARGE}
        picture = describe_tensor_picture(tensor, min(wanted_bytes(tensor), PICTURE_BYTES))
        figures = picture.get("figures", {})
        if figures.get("nan") or figures.get("inf"):
            picture["not_finite_at"] = find_nonfinite_places(tensor, SHOWN_PLACES)
        plain: dict[str, Any] = to_json_value(picture)
        return plain


@route("GET", f"{API}/runs/{{run}}/pages/difference", answers=TensorDifference)
def draw_difference(served: Served, run: str, query: DifferenceQuery) -> dict[str, Any]:
    """One tensor of two datapoints, and the second minus the first, reduced where they are large."""
    with open_run_pages(served, run) as pages:
        first = _find_tensor(_find_datapoint(pages, query.key, query.nth), query.path)
        second = _find_tensor(_find_datapoint(pages, query.other_key, query.other_nth), query.path)
        if query.planes or query.rows or query.columns:
            region = parse_region(planes_of(first), query.planes, query.rows, query.columns)
            part: dict[str, Any] = to_json_value(describe_region_difference(first, second, PICTURE_BYTES, region))
            return part
        for tensor in (first, second):
            _check_size(tensor)
        return describe_tensor_pair(first, second, min(wanted_bytes(first), PICTURE_BYTES))


@route("GET", f"{API}/runs/{{run}}/pages/raw")
def send_values(served: Served, run: str, query: RawQuery) -> RawValues:
    """The values of a tensor, or of a slice of it, as bytes in row order; type and shape are in the headers."""
    _check_slice(query.slice)
    pages = open_run_pages(served, run, query.batch)
    with undo_on_error(pages.close):
        tensor = _find_tensor(_find_datapoint(pages, query.key, query.nth, query.batch), query.path)
        shape, blocks = iter_slice_bytes(tensor, query.slice)
        nbytes = math.prod(shape) * tensor.dtype.size if query.slice else tensor.nbytes
        first = next(blocks, b"")  # what cannot be read is said before the answer begins
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", query.path)[-100:] + ".bin"
    return RawValues(_iter_and_close(first, blocks, pages), nbytes, name, tensor.dtype.name, shape)


def _check_slice(text: str) -> None:
    """Raises TdbgError for what is no slice of any tensor: the request's own fault is named before what is not there."""
    if text:
        parse_slice(text)


def _is_too_large(tensor: Tensor) -> bool:
    if is_read_whole(tensor):
        return value_count(tensor.dtype, tensor.shape) > MAX_WHOLE_BYTES
    return tensor.nbytes > MAX_READ_BYTES


def _check_size(tensor: Tensor, part: str = "") -> None:
    """Raises TdbgError for a tensor, or a part, of which too much would be read."""
    if part and count_slice_bytes(tensor, part) > MAX_WHOLE_BYTES:
        raise TdbgError(f"more than 64 MB of {tensor.path} would be read for this slice", "ask for fewer rows of it")
    if not part and _is_too_large(tensor):
        raise TdbgError(f"{tensor.path}: {TOO_LARGE}", "look at a slice of it")


def _iter_and_close(first: bytes, blocks: Iterator[bytes], pages: PageSet) -> Iterator[bytes]:
    with pages:
        yield first
        yield from blocks


def _find_datapoint(pages: PageSet, key: str, nth: int, batch: str = "") -> Datapoint:
    found = list(pages) if batch else pages.find(key)
    if not 0 <= nth < len(found):
        raise NothingCapturedError("no such datapoint has this key", "GET .../pages?datapoints=true lists them")
    return found[nth]


def _find_tensor(datapoint: Datapoint, path: str) -> Tensor:
    tensor = datapoint.tensors.get(path)
    if tensor is None:
        raise NothingCapturedError("this datapoint has no such tensor", "leave out path: all are listed")
    return tensor


def has_pages(run: Path) -> bool:
    """True if a run has captured tensors."""
    return any(run.glob("rank*/pages")) or any(run.glob("rank*/*/pages"))


def open_run_pages(served: Served, run: str, batch: str = "") -> PageSet:
    """The captured tensors of a run, or those of one saved batch. Raises NothingCapturedError where there are none."""
    place = _locate_batch(served.runs.open_run(run), batch) if batch else served.runs.locate_pages(run)
    try:
        return PageSet.open(place)
    except TdbgError as error:
        raise NothingCapturedError(str(error), error.hint) from None


def _locate_batch(run: RunDir, file: str) -> str:
    path = find_batch(run, file)
    if path is None:
        raise NothingCapturedError("there is no saved batch of this name", "GET .../batches lists them")
    return str(path)
