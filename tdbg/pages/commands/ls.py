"""`tdbg inspect-pages ls`: what was captured."""

from typing import TYPE_CHECKING, Any, NamedTuple

from tdbg.asked import Options
from tdbg.pages.places import SELECTION, Selected

if TYPE_CHECKING:
    from collections.abc import Collection

    from tdbg.pages.reader import Datapoint, PageSet

HELP = """List what was captured: layers, shapes, datapoints, bytes.

    Tensors are not read, only their records. What the writers left out, what is wrong with the files, and samples
    that several ranks captured (a sampler that pads) are told on stderr. Exits with 1 if nothing was captured.

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
LAYOUTS = 512  # counted before they are put together: of programs whose shapes change there are many
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


class Listing:
    """What there is, counted datapoint by datapoint; those of one layout at once."""

    def __init__(self) -> None:
        self.datapoints = 0
        self.ranks: set[int] = set()
        self.epochs: set[int] = set()
        self.steps: tuple[int, int] | None = None
        self._layouts: dict[int, list[Any]] = {}  # by their identity: how many datapoints have it
        self._rows: dict[str, list[Any]] = {}
        self._kept: dict[str, int] = {}

    def add(self, datapoint: "Datapoint") -> None:
        """Count one."""
        self.datapoints += 1
        self.ranks.add(datapoint.rank)
        if datapoint.epoch is not None:
            self.epochs.add(datapoint.epoch)
        step = datapoint.step
        if self.steps is None or not self.steps[0] <= step <= self.steps[1]:
            low, high = self.steps or (step, step)
            self.steps = min(low, step), max(high, step)
        layout = datapoint.layout
        if layout is None:
            self._add_figures(datapoint)
            return
        self._layouts.setdefault(id(layout), [layout, 0])[1] += 1
        if len(self._layouts) > LAYOUTS:
            self._fold()

    def rows(self) -> list[Row]:
        """Path by path, in the order of first appearance."""
        self._fold()
        layers = [Row(path, tuple(row[0]), tuple(row[1]), row[2], row[3]) for path, row in self._rows.items()]
        return layers + [Row(path, (), (), count, 0) for path, count in self._kept.items()]

    def _fold(self) -> None:
        for layout, count in self._layouts.values():
            for piece in layout.pieces:
                row = self._rows.setdefault(piece.path, [{}, {}, 0, 0])
                row[0][piece.dtype.name] = row[1][piece.shape] = None
                row[2] += count
                row[3] += count * piece.length
        self._layouts.clear()

    def _add_figures(self, datapoint: "Datapoint") -> None:
        """Layers of which figures alone were kept (`--capture-stats`)."""
        for name in datapoint.scalars:
            if name.endswith("/count"):
                path = name.removesuffix("/count")
                self._kept[path] = self._kept.get(path, 0) + 1


def answer(question: Question) -> int:
    """Print the list; 1 if there is nothing in it."""
    from tdbg.output import say
    from tdbg.pages.places import chosen, is_selected, opened
    from tdbg.pages.shared import Shared
    from tdbg.pages.tables import safe, tell

    with opened(question.paths) as pages:
        found, shared = Listing(), Shared()
        for datapoint in chosen(pages, question):
            found.add(datapoint)
            shared.add(datapoint)
        if question.json:
            _print_json(pages, found, question)
        elif found.datapoints:
            print(summary(found))
            _print(pages, found, question)
        tell(pages)
        if told := shared.told():
            say(safe(told))
    if not found.datapoints:
        say("no datapoint fits" if is_selected(question) else f"nothing was captured in {pages.path}")
    return 0 if found.datapoints else 1


def _print(pages: "PageSet", found: Listing, question: Question) -> None:
    from tdbg.pages.places import chosen
    from tdbg.pages.tables import print_rows, shape

    if question.datapoints:
        print_rows(DATAPOINT_COLUMNS, map(datapoint_row, chosen(pages, question)))
        return
    rows = []
    for row in found.rows():
        shapes = ", ".join(map(shape, row.shapes[:4])) + f" and {len(row.shapes) - 4} more" * (len(row.shapes) > 4)
        rows.append((row.path, ", ".join(row.dtypes) or "figures", shapes, row.datapoints, row.nbytes))
    if rows:
        print_rows(LAYER_COLUMNS, rows)


def datapoint_row(datapoint: "Datapoint") -> tuple[Any, ...]:
    """A line of the list of datapoints."""
    key: Any = datapoint.key
    if datapoint.keys is not None and datapoint.row is None:
        key = f"{datapoint.key} ({len(datapoint.keys)} rows)"
    tensors = len(datapoint.layout.pieces) if datapoint.layout else 0
    place = datapoint.rank, datapoint.step, datapoint.epoch, datapoint.phase or None, datapoint.page
    return (key, *place, tensors, datapoint.nbytes)


def summary(found: Listing) -> str:
    """One line: how much of what."""
    from tdbg.pages.tables import counted, size

    layers = found.rows()
    tensors, nbytes = sum(row.datapoints for row in layers if row.dtypes), sum(row.nbytes for row in layers)
    counts = ((found.datapoints, "datapoint"), (tensors, "tensor"), (len(layers), "layer"))
    parts = [counted(count, thing) for count, thing in counts]
    spans = (("rank", found.ranks), ("step", found.steps), ("epoch", found.epochs))
    return ", ".join([*parts, size(nbytes), *(_span(name, values) for name, values in spans if values)])


def _span(name: str, values: "Collection[int]") -> str:
    low, high = min(values), max(values)
    return f"{name} {low}" if low == high else f"{name}s {low} to {high}"


def _print_json(pages: "PageSet", found: Listing, question: Question) -> None:
    from tdbg.output import print_json
    from tdbg.pages.places import chosen
    from tdbg.pages.tables import finite

    layers = found.rows()
    data: dict[str, Any] = {
        "path": str(pages.path),
        "datapoints": found.datapoints,
        "tensors": sum(row.datapoints for row in layers if row.dtypes),
        "bytes": sum(row.nbytes for row in layers),
        "ranks": sorted(found.ranks),
        "epochs": sorted(found.epochs),
        "layers": [dict(zip(("path", "dtypes", "shapes", "datapoints", "bytes"), row, strict=True)) for row in layers],
        "drops": [drop._asdict() for drop in pages.drops],
        "problems": [{"path": str(one.path), "text": one.text, "grave": one.grave} for one in pages.problems],
    }
    if question.datapoints:
        data["list"] = [_as_dict(datapoint) for datapoint in chosen(pages, question)]
    print_json("pages-list", finite(data))


def _as_dict(datapoint: "Datapoint") -> dict[str, Any]:
    more = {"keys": datapoint.keys, "flags": datapoint.flags or None, "scalars": dict(datapoint.scalars) or None}
    named = dict(zip(DATAPOINT_COLUMNS, datapoint_row(datapoint), strict=True))
    return {**named, "key": datapoint.key, **{name: value for name, value in more.items() if value is not None}}
