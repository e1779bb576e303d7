"""Captured tensors: the list, one datapoint, statistics, parts of a tensor."""

from typing import Any

import msgspec

from tdbg.core.errors import TdbgError
from tdbg.pages.read.listing import Listing
from tdbg.pages.read.page_set import PageSet
from tdbg.pages.selection.datapoint_data import describe_datapoint, describe_listing, describe_tensor
from tdbg.pages.selection.locations import Selected, select_datapoints
from tdbg.viewer.routes import API, route
from tdbg.viewer.run_library import RunLibrary, UnknownRunError

MAX_DATAPOINTS = 500


class PagesQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which datapoints: ranges such as 0,3-5 for ranks and 100:200 for steps."""

    ranks: str = ""
    steps: str = ""
    epochs: str = ""
    phase: str = ""
    datapoints: bool = False


class TensorQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which tensor of which datapoint. nth: of several with the key, from 0. slice: such as 0,:,3:5."""

    key: str
    path: str = ""
    nth: int = 0
    slice: str = ""


class NothingCapturedError(UnknownRunError):
    """The run has no pages, or no such datapoint or tensor."""


@route("GET", f"{API}/runs/{{run}}/pages")
def list_pages(library: RunLibrary, run: str, query: PagesQuery) -> dict[str, Any]:
    """Layers, shapes and datapoints, as `tdbg inspect-pages ls --json`."""
    selected = Selected(ranks=query.ranks, steps=query.steps, epochs=query.epochs, phase=query.phase)
    with _open_pages(library, run) as pages:
        found = Listing()
        for datapoint in select_datapoints(pages, selected):
            found.add_datapoint(datapoint)
        return describe_listing(pages, found, selected, datapoints=query.datapoints)


@route("GET", f"{API}/runs/{{run}}/pages/datapoint")
def show_datapoint(library: RunLibrary, run: str, query: TensorQuery) -> dict[str, Any]:
    """One datapoint with its tensors; of one that is named the figures, a histogram, and few values."""
    with _open_pages(library, run) as pages:
        found = pages.find(query.key)
        if not 0 <= query.nth < len(found):
            raise NothingCapturedError(
                f"{len(found)} datapoints have this key", "GET .../pages?datapoints=true lists them"
            )
        datapoint = found[query.nth]
        if not query.path:
            return describe_datapoint(datapoint, list(datapoint.tensors.values()), whole=False)
        tensor = datapoint.tensors.get(query.path)
        if tensor is None:
            raise NothingCapturedError("this datapoint has no such tensor", "leave out path: all are listed")
        return describe_tensor(tensor, query.slice)


def _open_pages(library: RunLibrary, run: str) -> PageSet:
    path = library.open_run(run).path
    try:
        return PageSet.open(str(path))
    except TdbgError as error:
        raise NothingCapturedError(str(error), error.hint) from None
