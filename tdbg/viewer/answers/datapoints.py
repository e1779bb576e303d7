"""The grid of datapoints: sorted, filtered, a page at a time; and the datapoints that belong to one."""

from typing import Annotated, Any

import msgspec

from tdbg.core.tables import to_json_value
from tdbg.pages.selection.datapoint_table import BATCH, EAGER_NAMES, PLACES, DatapointTable, Wanted
from tdbg.viewer.answers.pages import NothingCapturedError, has_pages, open_run_pages
from tdbg.viewer.routes import API, route
from tdbg.viewer.run_library import Served

MAX_SERIES = 1_000
MAX_COLUMNS = 500  # names that the answer tells

Limit = Annotated[int, msgspec.Meta(ge=1, le=500)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=10**9)]


class DatapointsQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which datapoints, in which order. sort: a column, or a figure of a tensor such as std(layers.0:output).
    least, most: of what is sorted by; nan counts as the largest.

    samples: each sample of a batch instead of the batch. module: those with a tensor of it, or of a module below it.
    """

    ranks: str = ""
    steps: str = ""
    epochs: str = ""
    phase: str = ""
    sort: str = ""
    descending: bool = False
    least: float | None = None
    most: float | None = None
    offset: Offset = 0
    limit: Limit = 100
    samples: bool = False
    module: str = ""


class SeriesQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which datapoint. nth: of several with the key, from 0."""

    key: str
    nth: int = 0


class DatapointRow(msgspec.Struct, kw_only=True):
    """One datapoint, or one sample of a batch. key: as text, since JavaScript rounds long numbers.

    samples: how many a batch has; null for what is none.
    """

    key: str
    nth: int
    rank: int
    step: int
    epoch: int | None
    phase: str | None
    tensors: int
    bytes: int
    samples: int | None
    numbers: dict[str, float | int | str | None]


class DatapointPage(msgspec.Struct, kw_only=True):
    """Some datapoints. total: of the run; matching: that the filters leave. columns: what can be sorted by.
    has_batches: some datapoint is a batch whose samples have keys.

    left_out: datapoints beyond what is sorted. phases: all that there are.
    """

    total: int
    matching: int
    offset: int
    left_out: int
    has_batches: bool
    columns: list[str]
    phases: list[str]
    rows: list[DatapointRow]


class DatapointSeries(msgspec.Struct, kw_only=True):
    """The datapoints that a slider goes through. at: the place of the one that was asked for. total: before it was cut."""

    at: int
    total: int
    rows: list[DatapointRow]


@route("GET", f"{API}/runs/{{run}}/pages/datapoints")
def list_datapoints(served: Served, run: str, query: DatapointsQuery) -> DatapointPage:
    """Datapoints, sorted by step, loss or any number captured with them, some at a time."""
    table = _get_table(served, run, query.sort)
    columns = [*PLACES, *table.names] if table else list(PLACES)
    if table is None:
        return DatapointPage(
            total=0, matching=0, offset=0, left_out=0, has_batches=False, columns=columns, phases=[], rows=[]
        )
    where = query.ranks, query.steps, query.epochs, query.phase
    order = query.sort, query.descending, query.least, query.most
    found = table.find_rows(Wanted(*where, *order, query.samples, query.module))
    names = list(table.names)[:EAGER_NAMES]
    shown = names if query.sort in PLACES or query.sort in names or not query.sort else [query.sort, *names]
    rows = [_build_row(table, at, shown) for at in found[query.offset : query.offset + query.limit]]
    return DatapointPage(
        total=len(table.list_rows(samples=query.samples)),
        matching=len(found),
        offset=query.offset,
        left_out=table.left_out,
        has_batches=BATCH in table.kinds,
        columns=columns[:MAX_COLUMNS],
        phases=sorted(set(table.columns["phase"]) - {""})[:MAX_COLUMNS],
        rows=rows,
    )


@route("GET", f"{API}/runs/{{run}}/pages/series")
def list_series(served: Served, run: str, query: SeriesQuery) -> DatapointSeries:
    """One datapoint among those of its key in other epochs, or of its rank in other steps."""
    table = _get_table(served, run)
    at = None if table is None else table.find_row(query.key, query.nth)
    if table is None or at is None:
        raise NothingCapturedError("no such datapoint has this key", "GET .../pages/datapoints lists them")
    series = table.find_series(at)
    place = series.index(at)
    first = max(min(place - MAX_SERIES // 2, len(series) - MAX_SERIES), 0)
    rows = [_build_row(table, one, ()) for one in series[first : first + MAX_SERIES]]
    return DatapointSeries(at=place - first, total=len(series), rows=rows)


def _get_table(served: Served, run: str, number: str = "") -> DatapointTable | None:
    place = served.runs.open_run(run).path
    if not has_pages(place):
        return None
    return served.tables.get_table(place, lambda: open_run_pages(served, run), number)


def _build_row(table: DatapointTable, at: int, names: Any) -> DatapointRow:
    return DatapointRow(**to_json_value(table.describe_row(at, names)))
