"""Count layers, ranks, epochs and steps without reading a tensor. Standard library alone."""

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from tdbg.core.tables import format_count

if TYPE_CHECKING:
    from tdbg.pages.read.datapoint import Datapoint

MOST_SAMPLES = 1_000_000  # keys that are remembered; of a set with more nothing is said
LAYOUTS = 512  # counted before they are put together: of programs whose shapes change there are many


class Layer(NamedTuple):
    """What was captured under one path. dtypes, shapes: all that occur; none if its figures alone were kept.

    datapoints: how many have it. nbytes: of all of them.
    """

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
        self.refused: Counter[str] = Counter()  # what could not be stored, as ``path: why``
        self._layouts: dict[int, list[Any]] = {}  # by their identity: how many datapoints have it
        self._rows: dict[str, list[Any]] = {}
        self._kept: dict[str, int] = {}

    def add_datapoint(self, datapoint: "Datapoint") -> None:
        """Count one."""
        self.datapoints += 1
        self.ranks.add(datapoint.rank)
        if datapoint.epoch is not None:
            self.epochs.add(datapoint.epoch)
        if datapoint.refused:
            self.refused.update(datapoint.refused)
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
            self._fold_layouts()

    def list_layers(self) -> list[Layer]:
        """Path by path, in the order of first appearance."""
        self._fold_layouts()
        layers = [Layer(path, tuple(row[0]), tuple(row[1]), row[2], row[3]) for path, row in self._rows.items()]
        return layers + [Layer(path, (), (), count, 0) for path, count in self._kept.items()]

    def _fold_layouts(self) -> None:
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


class SharedSamples:
    """Counts the samples that several ranks captured in the same phase and epoch: padding samplers repeat some.

    A key that is only the step (``step17``) names no sample, and does not count. Memory: some 150 bytes a key.
    """

    def __init__(self) -> None:
        self._rank: dict[tuple[Any, ...], int] = {}  # where a key was met first
        self._shared: set[tuple[Any, ...]] = set()

    def add_datapoint(self, datapoint: "Datapoint") -> None:
        """See one, or each row of one."""
        keys = datapoint.keys
        if keys is None and datapoint.step and datapoint.key in (datapoint.step, f"step{datapoint.step}"):
            return
        where = datapoint.phase, datapoint.epoch
        for key in [datapoint.key] if keys is None else keys:
            if (
                len(self._rank) < MOST_SAMPLES
                and self._rank.setdefault((*where, key), datapoint.rank) != datapoint.rank
            ):
                self._shared.add((*where, key))

    def describe(self) -> str:
        """In words; empty where there are none, or too many to know."""
        if not self._shared or len(self._rank) >= MOST_SAMPLES:
            return ""
        named = ", ".join(str(name[-1])[:40] for name in list(self._shared)[:3])
        return (
            f"{len(self._shared):,} of {format_count(len(self._rank), 'sample', 'was')} captured on several ranks ({named}"
            f"{', ...' if len(self._shared) > 3 else ''}): a sampler pads, or ranks see the same data"
        )
