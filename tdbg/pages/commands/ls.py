"""`tdbg inspect-pages ls`: what was captured."""

from typing import TYPE_CHECKING, Any, NamedTuple

from tdbg.asked import Options
from tdbg.pages.places import SELECTION, Selected

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tdbg.pages.reader import Datapoint, PageSet

HELP = """List what was captured: layers, shapes, datapoints, bytes.

    Tensors are not read, only their records. What the writers left out and what is wrong with the files is told on
    stderr. Exits with 1 if nothing was captured.

    Examples:
        tdbg inspect-pages tdbg_runs/20261121-031500-train
        tdbg inspect-pages ls --datapoints --ranks 0 --steps 100:200
    """
ARGUMENTS = ("PATH", "A run, a rank's folder, a folder of pages, or one page; the newest run if left out.")
OPTIONS: Options = {
    "datapoints": (("--datapoints",), "", "A line a datapoint instead of a line a layer."),
    **SELECTION,
    "json": (("--json",), "", "Print one JSON document."),
}
LAYER_COLUMNS = ("path", "dtype", "shape", "datapoints", "bytes")
DATAPOINT_COLUMNS = ("key", "rank", "step", "epoch", "phase", "page", "tensors", "bytes")


class Question(Selected):
    """What `ls` can be asked."""

    datapoints: bool = False
    json: bool = False


class Row(NamedTuple):
    """One path. Its figures alone were kept if it has no dtypes."""

    path: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    datapoints: int
    nbytes: int


def answer(question: Question) -> int:
    """Print the list; 1 if there is nothing in it."""
    from tdbg.output import say
    from tdbg.pages.places import chosen, is_selected, opened
    from tdbg.pages.tables import tell

    with opened(question.paths) as pages:
        found = list(chosen(pages, question))
        layers = rows_of(found)
        if question.json:
            _print_json(pages, found, layers, question)
        else:
            _print(found, layers, question)
        tell(pages)
    if not found:
        say("no datapoint fits" if is_selected(question) else f"nothing was captured in {pages.path}")
    return 0 if found else 1


def rows_of(found: "Iterable[Datapoint]") -> list[Row]:
    """What was captured, path by path, in the order of first appearance. Datapoints of one layout are counted at once."""
    layouts: dict[int, list[Any]] = {}
    kept: dict[str, int] = {}
    for datapoint in found:
        if datapoint.layout is not None:
            layouts.setdefault(id(datapoint.layout), [datapoint.layout, 0])[1] += 1
        else:
            _count_figures(datapoint, kept)
    rows: dict[str, list[Any]] = {}
    for layout, count in layouts.values():
        for piece in layout.pieces:
            row = rows.setdefault(piece.path, [{}, {}, 0, 0])
            row[0][piece.dtype.name] = row[1][piece.shape] = None
            row[2] += count
            row[3] += count * piece.length
    layers = [Row(path, tuple(row[0]), tuple(row[1]), row[2], row[3]) for path, row in rows.items()]
    return layers + [Row(path, (), (), count, 0) for path, count in kept.items()]


def _count_figures(datapoint: "Datapoint", kept: dict[str, int]) -> None:
    """Layers of which figures alone were kept (`--capture-stats`)."""
    for name in datapoint.scalars:
        if name.endswith("/count"):
            path = name.removesuffix("/count")
            kept[path] = kept.get(path, 0) + 1


def _print(found: "Sequence[Datapoint]", layers: list[Row], question: Question) -> None:
    from tdbg.pages.tables import print_rows, shape

    if found:
        print(summary(found, layers))
    if question.datapoints and found:
        print_rows(DATAPOINT_COLUMNS, map(datapoint_row, found))
    elif layers:
        print_rows(
            LAYER_COLUMNS,
            (
                (
                    row.path,
                    ", ".join(row.dtypes) or "figures",
                    ", ".join(map(shape, row.shapes[:4]))
                    + (f" and {len(row.shapes) - 4} more" * (len(row.shapes) > 4)),
                    row.datapoints,
                    row.nbytes,
                )
                for row in layers
            ),
        )


def datapoint_row(datapoint: "Datapoint") -> tuple[Any, ...]:
    """A line of the list of datapoints."""
    key: Any = datapoint.key
    if datapoint.keys is not None and datapoint.row is None:
        key = f"{datapoint.key} ({len(datapoint.keys)} rows)"
    tensors = len(datapoint.layout.pieces) if datapoint.layout else 0
    place = datapoint.rank, datapoint.step, datapoint.epoch, datapoint.phase or None, datapoint.page
    return (key, *place, tensors, datapoint.nbytes)


def summary(found: "Sequence[Datapoint]", layers: "Sequence[Row]") -> str:
    """One line: how much of what."""
    from tdbg.pages.tables import counted, size

    tensors = sum(row.datapoints for row in layers if row.dtypes)
    nbytes = sum(row.nbytes for row in layers)
    parts = [counted(len(found), "datapoint"), counted(tensors, "tensor"), size(nbytes), counted(len(layers), "layer")]
    parts.append(_span("rank", {datapoint.rank for datapoint in found}))
    parts.append(_span("step", {datapoint.step for datapoint in found}))
    parts.append(_span("epoch", {datapoint.epoch for datapoint in found} - {None}))
    return ", ".join(part for part in parts if part)


def _span(name: str, values: "Iterable[int | None]") -> str:
    found = sorted(value for value in values if value is not None)
    if not found:
        return ""
    return f"{name} {found[0]}" if found[0] == found[-1] else f"{name}s {found[0]} to {found[-1]}"


def _print_json(pages: "PageSet", found: "Sequence[Datapoint]", layers: list[Row], question: Question) -> None:
    from tdbg.output import print_json
    from tdbg.pages.tables import finite

    data: dict[str, Any] = {
        "path": str(pages.path),
        "datapoints": len(found),
        "tensors": sum(row.datapoints for row in layers if row.dtypes),
        "bytes": sum(row.nbytes for row in layers),
        "ranks": sorted({datapoint.rank for datapoint in found}),
        "epochs": sorted({datapoint.epoch for datapoint in found if datapoint.epoch is not None}),
        "layers": [{**row._asdict(), "bytes": row.nbytes} for row in layers],
        "drops": [drop._asdict() for drop in pages.drops],
        "problems": [{"path": str(one.path), "text": one.text, "grave": one.grave} for one in pages.problems],
    }
    for row in data["layers"]:
        del row["nbytes"]
    if question.datapoints:
        data["list"] = [_as_dict(datapoint) for datapoint in found]
    print_json("pages-list", finite(data))


def _as_dict(datapoint: "Datapoint") -> dict[str, Any]:
    more = {"keys": datapoint.keys, "flags": datapoint.flags or None, "scalars": dict(datapoint.scalars) or None}
    named = dict(zip(DATAPOINT_COLUMNS, datapoint_row(datapoint), strict=True))
    return {**named, "key": datapoint.key, **{name: value for name, value in more.items() if value is not None}}
