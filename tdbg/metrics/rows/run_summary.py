"""The summary of a run that the rules of `tdbg metrics sanity` read: series, order of rows, plans, dumps; all bounded."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdbg.core.files import read_json
from tdbg.metrics.rows.row import COUNT_0, READ_FROM_TEXT
from tdbg.metrics.rows.series import Tally

if TYPE_CHECKING:
    from tdbg.metrics.rows.row_files import Place
    from tdbg.metrics.rows.row_reader import Batch, Line

OWN = ("tracker", "", "tdbg")  # sources that keep to tdbg's grammar; "" is a file that tdbg did not write
DUMPS = "metrics_state"  # the folder of dumps of the state, in a rank's
MAX_DUMPS = 2000
MAX_DUMP_BYTES = 50_000_000
MAX_SETS = 1000  # different units, epochs or texts that are kept of one thing


class RowOrder:
    """How the rows of one source and rank follow each other.

    back: the first time that a step was lower than the one before, as (before, step). clock: the epochs that tdbg itself
    counted, at the first and at the last row that names an epoch.
    """

    rows: int = 0
    last_step: int = -1
    last_epoch: float | None = None
    back: tuple[int, int] | None = None
    backs: int = 0
    epoch_back: tuple[float, float, int] | None = None  # before, after, step
    first_clock: float | None = None
    last_clock: float | None = None

    def __init__(self, first_step: int) -> None:
        self.first_step = first_step
        self.epochs: set[float] = set()


class RunSummary:
    """What was read of a run."""

    def __init__(self, name: str = "") -> None:
        self.name, self.tally = name, Tally()
        self.printed = Tally()  # read from text: apart, because no rule may be certain of it
        self.orders: dict[tuple[str, int], RowOrder] = {}  # by source and rank
        self.units: dict[str, set[str]] = {}  # key -> what it was said to be measured in
        self.empty_metrics: list[tuple[int, int, str, str]] = []  # rank, step, key, and metrics without a sample
        self.dumps: list[tuple[int, dict[str, object]]] = []  # rank and dump, in order
        self._clock: dict[int, float] = {}

    def add_batch(self, batch: "Batch") -> None:
        """Take rows of one rank. Cost: about 1 us a row more than a tally."""
        lines = [line for line in batch.lines if line.source != READ_FROM_TEXT]
        if len(lines) < len(batch.lines):
            printed = [line for line in batch.lines if line.source == READ_FROM_TEXT]
            self.printed.add_batch(batch._replace(lines=printed))
            batch = batch._replace(lines=lines)
        if not lines:
            return
        self.tally.add_batch(batch)
        for line in lines:
            self._record_line(batch.rank, line)

    def _record_line(self, rank: int, line: "Line") -> None:
        if line.units:
            for key, unit in line.units.items():
                found = self.units.setdefault(key, set())
                if len(found) < MAX_SETS:
                    found.add(unit)
        if line.text and line.source in OWN and len(self.empty_metrics) < MAX_SETS:
            self.empty_metrics += [
                (rank, line.step, key, text) for key, text in line.text.items() if key.endswith(COUNT_0)
            ]
        if line.source == "tdbg" and line.epoch is not None and line.phase == "train":
            self._clock[rank] = line.epoch
        order = self.orders.get((line.source, rank))
        if order is None:
            order = self.orders[line.source, rank] = RowOrder(first_step=line.step)
        order.rows += 1
        if line.step < order.last_step:
            order.backs += 1
            order.back = order.back or (order.last_step, line.step)
        order.last_step = line.step
        if line.epoch is not None:
            self._record_epoch(order, rank, line.epoch, line.step)

    def _record_epoch(self, order: RowOrder, rank: int, epoch: float, step: int) -> None:
        if order.last_epoch is not None and epoch < order.last_epoch:
            order.epoch_back = order.epoch_back or (order.last_epoch, epoch, step)
        order.last_epoch = epoch
        if len(order.epochs) < MAX_SETS:
            order.epochs.add(epoch)
        clock = self._clock.get(rank)
        if clock is not None:
            order.first_clock = clock if order.first_clock is None else order.first_clock
            order.last_clock = clock

    @property
    def rank(self) -> int:
        """The first rank that has rows."""
        return min(self.tally.last, default=0)


def summarize_run(place: "Place") -> tuple[RunSummary, Any]:
    """All that is there, and the counts of the reading. Cost: about 3 us a row."""
    from tdbg.metrics.rows.row_reader import Reading

    seen = RunSummary(place.name)
    reading = Reading(place.files)
    for batch in reading.iter_batches():
        seen.add_batch(batch)
    for file in place.files:
        seen.dumps += [(file.rank or 0, dump) for dump in read_dumps(file.path.parent)]
    return seen, reading.counts


def read_dumps(folder: Path) -> Iterator[dict[str, Any]]:
    """The dumps of the state that lie in a rank's folder, oldest first; what cannot be read is passed over."""
    for path in sorted((folder / DUMPS).glob("*.json"))[:MAX_DUMPS]:
        try:
            if path.stat().st_size > MAX_DUMP_BYTES:
                continue
            found = read_json(path)
        except (OSError, ValueError):
            continue
        if isinstance(found, dict):
            yield found
