"""All datapoints of a page set as columns that can be sorted and filtered, a page of rows at a time."""

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tdbg.core.errors import TdbgError
from tdbg.core.ranges import parse_ranges
from tdbg.core.tables import format_short
from tdbg.pages.read.datapoint import Datapoint
from tdbg.pages.read.listing import Listing
from tdbg.pages.read.page_set import PageSet
from tdbg.pages.read.tensor_values import to_real
from tdbg.pages.selection.datapoint_data import describe_listing
from tdbg.pages.selection.datapoint_numbers import DatapointNumbers
from tdbg.pages.selection.locations import Selected
from tdbg.pages.selection.tensor_figures import parse_figure

MAX_ROWS = 400_000  # some 200 bytes each
MAX_NAMES = 2_000
EAGER_NAMES = 12  # numbers that are read in the pass that finds the rows
ALONE, BATCH, SAMPLE = range(3)  # kinds of rows
PLACES = ("key", "rank", "step", "epoch", "phase", "tensors", "bytes")
MODULE_ENDS = (":", ".", "/")  # of the name of a module in a path
RANGES = {"ranks": ("rank", "-"), "steps": ("step", ":"), "epochs": ("epoch", ":")}


class Wanted(NamedTuple):
    """Which rows in which order: ranges as the commands take them. sort: a column; empty keeps the order of capture.

    least, most: of that column. samples: each sample of a batch instead of the batch. module: those with a tensor of it, or of
    a module below it.
    """

    ranks: str = ""
    steps: str = ""
    epochs: str = ""
    phase: str = ""
    sort: str = ""
    is_descending: bool = False
    least: float | None = None
    most: float | None = None
    samples: bool = False
    module: str = ""


class NumberColumn:
    """A number of each row that has one. nan is a number of its own, the largest."""

    __slots__ = ("known", "values")

    def __init__(self) -> None:
        self.values, self.known = array("d"), bytearray()

    def set_value(self, at: int, value: float) -> None:
        """The number of one row; those before it that were not set have none."""
        missing = at + 1 - len(self.known)
        if missing > 0:
            self.values.extend([0.0] * missing)
            self.known.extend(bytes(missing))
        self.values[at], self.known[at] = value, 1

    def get_value(self, at: int) -> float | None:
        """The number of one row; None where it has none."""
        return self.values[at] if at < len(self.known) and self.known[at] else None


class DatapointTable:
    """Every datapoint, and each sample of a batch as another row, up to `MAX_ROWS` of them.

    about: layers, counts and problems, as plain data. names: numbers that some datapoint has, captured with it or
    recorded for its training step. left_out: datapoints beyond the limit.
    Cost: a pass over the journals; another for the first use of a number, if there are many.
    """

    def __init__(self, pages: PageSet) -> None:
        self.columns: dict[str, list[Any]] = {name: [] for name in (*PLACES, "nth", "samples")}
        self.kinds = bytearray()
        self._ids = array("q")  # of each datapoint
        self._paths: dict[tuple[str, ...], int] = {}  # the sets of tensors that datapoints have, by number
        self._path_sets = array("l")  # the number of each row
        self.names: dict[str, None] = {}
        self.left_out = 0
        self._appends = [column.append for column in self.columns.values()]
        self._numbers: dict[str, NumberColumn] = {}
        self._found: tuple[Wanted, list[int]] | None = None  # the last answer: pages of rows are asked for in turn
        self._seen: Counter[str] = Counter()
        self._read(pages)
        self._seen.clear()
        self._is_complete = len(self.names) <= EAGER_NAMES

    def __len__(self) -> int:
        return len(self.columns["key"])

    def has_numbers(self, name: str) -> bool:
        """True if sorting by it needs no pages: its values are here."""
        if name not in self.names and parse_figure(name):
            return name in self._numbers
        return self._is_complete or name in PLACES or name in self._numbers or name not in self.names

    def load_numbers(self, pages: PageSet, name: str) -> None:
        """Read one more number of each row; the one that was read longest ago is given up for it.

        A figure of a tensor is computed. Raises TdbgError where that takes too long, or a tensor cannot be read.
        """
        source, column = DatapointNumbers(pages), NumberColumn()
        figure = None if name in self.names else parse_figure(name)
        if figure is not None:
            figure.check_size(pages)
        for at, datapoint in self._find_places(pages):
            if figure is None:
                _fill_column(column, at, datapoint, source, name)
            elif (value := figure.compute(datapoint)) is not None:
                for row in range(1 + len(datapoint.keys or ())):
                    column.set_value(at + row, value)
        numbers = dict(self._numbers)  # another thread may read the one that was
        while len(numbers) >= 2 * EAGER_NAMES:
            del numbers[list(numbers)[EAGER_NAMES]]  # the first are those that are always shown
        self._numbers = {**numbers, name: column}

    def _find_places(self, pages: PageSet) -> Iterator[tuple[int, Datapoint]]:
        """Each datapoint that has a row, with its number; a run that goes on has more than there were."""
        places: dict[int, int] = {}
        same: defaultdict[int, list[int]] = defaultdict(list)  # of copies of a folder the later ones
        rows = (at for at, kind in enumerate(self.kinds) if kind != SAMPLE)
        for own, at in zip(self._ids, rows, strict=True):
            if places.setdefault(own, at) != at:
                same[own].append(at)
        for datapoint in pages:
            own = _identify(datapoint)
            place = places.pop(own, None)
            if place is not None:
                yield place, datapoint
                if same.get(own):
                    places[own] = same[own].pop(0)

    def find_rows(self, wanted: Wanted) -> list[int]:
        """The numbers of the rows in the order that is wanted. Raises TdbgError for a range or column that there is none of."""
        kept = self._found  # another thread may set it meanwhile
        if kept is None or kept[0] != wanted:
            kept = self._found = wanted, self._collect_rows(wanted)
        return kept[1]

    def _collect_rows(self, wanted: Wanted) -> list[int]:
        if wanted.sort and wanted.sort not in PLACES and wanted.sort not in self.names:
            self._check_figure(wanted.sort)
        if not wanted.sort and not (wanted.least is None and wanted.most is None):
            raise TdbgError("least and most are of the column that is sorted by", "give sort as well")
        rows: Sequence[int] = self.list_rows(samples=wanted.samples)
        for name, (column, sign) in RANGES.items():
            text = getattr(wanted, name)
            if text and text != "all":
                rows = self._keep_ranges(rows, column, parse_ranges(name, text, sign))
        if wanted.module:
            fitting = self._find_path_sets(wanted.module)
            rows = [at for at in rows if self._path_sets[at] in fitting]
        if wanted.phase:
            phases = self.columns["phase"]
            rows = [at for at in rows if phases[at] == wanted.phase]
        return self._sort_rows(rows, wanted) if wanted.sort else list(rows)

    def _check_figure(self, name: str) -> None:
        """TdbgError unless some datapoint has the tensor that the name is a figure of."""
        figure = parse_figure(name)
        if figure is None:
            raise TdbgError(
                f"no datapoint has a number {format_short(name)}",
                "sort by one of `columns` of the answer, or a figure of a tensor such as std(layers.0:output)",
            )
        if not any(figure.path in paths for paths in self._paths):
            raise TdbgError(f"no datapoint has a tensor {format_short(figure.path)}", "GET .../pages lists the layers")

    def _find_path_sets(self, module: str) -> set[int]:
        return {at for paths, at in self._paths.items() if any(belongs_to_module(path, module) for path in paths)}

    def list_rows(self, *, samples: bool = False) -> Sequence[int]:
        """All datapoints, or those of no batch and all samples."""
        other = BATCH if samples else SAMPLE
        return [at for at, kind in enumerate(self.kinds) if kind != other] if other in self.kinds else range(len(self))

    def describe_row(self, at: int, names: Sequence[str] = ()) -> dict[str, Any]:
        """One row as plain data: its key as text, and the numbers of these names."""
        found = {name: column[at] for name, column in self.columns.items()}
        known = self._numbers
        numbers = {name: known[name].get_value(at) for name in names if name in known}
        return {**found, "phase": found["phase"] or None, "numbers": numbers}

    def find_row(self, key: str, nth: int) -> int | None:
        """The number of the row of this key, of a batch that is named by a sample that of the sample; None if there is none."""
        keys, numbers = self.columns["key"], self.columns["nth"]
        found = [at for at in range(len(self)) if keys[at] == key and numbers[at] == nth]
        return found[-1] if found else None

    def find_series(self, at: int) -> list[int]:
        """The same key of its rank in other epochs; of a datapoint that was captured once, the steps of its rank and phase."""
        keys, ranks, phases = (self.columns[name] for name in ("key", "rank", "phase"))
        is_sample = self.kinds[at] == SAMPLE
        rows = self.list_rows(samples=is_sample)
        found = [row for row in rows if keys[row] == keys[at] and ranks[row] == ranks[at]]
        if len(found) < 2 and not is_sample:
            found = [row for row in rows if ranks[row] == ranks[at] and phases[row] == phases[at]]
        epochs, steps = self.columns["epoch"], self.columns["step"]
        return sorted(found, key=lambda row: (epochs[row] or 0, steps[row]))

    def _read(self, pages: PageSet) -> None:
        source, listing = DatapointNumbers(pages), Listing()
        for datapoint in pages:
            listing.add_datapoint(datapoint)
            if len(self) >= MAX_ROWS:
                self.left_out += 1
                continue
            at = len(self)
            self._add_rows(datapoint)
            self._add_numbers(datapoint, source, at)
        self.about = describe_listing(pages, listing, Selected(), datapoints=False)

    def _add_rows(self, datapoint: Datapoint) -> None:
        """One for the datapoint, and for a batch one for each of its samples."""
        own, keys = str(datapoint.key), datapoint.keys
        texts = [] if keys is None else [str(key) for key in keys]
        tensors = len(datapoint.layout.pieces) if datapoint.layout else 0
        place = (datapoint.rank, datapoint.step, datapoint.epoch, datapoint.phase, tensors, datapoint.nbytes)
        self._append(own, place, self._seen.get(own, 0), None if keys is None else len(keys))
        self.kinds.append(ALONE if keys is None else BATCH)
        self._ids.append(_identify(datapoint))
        if own not in texts:  # else its key is that of a sample
            self._count(own)
        for text in texts:
            self._append(text, place, self._count(text), None)
            self.kinds.append(SAMPLE)
        paths = tuple(piece.path for piece in datapoint.layout.pieces) if datapoint.layout else ()
        self._path_sets.extend([self._paths.setdefault(paths, len(self._paths))] * (1 + len(texts)))

    def _append(self, key: str, place: tuple[object, ...], nth: int, samples: int | None) -> None:
        for append, value in zip(self._appends, (key, *place, nth, samples), strict=True):
            append(value)

    def _count(self, key: str) -> int:
        """How many of this key there were before, as `PageSet.find` gives them."""
        count = self._seen.get(key, 0)
        self._seen[key] = count + 1
        return count

    def _add_numbers(self, datapoint: Datapoint, source: DatapointNumbers, at: int) -> None:
        """Names of its numbers, and the numbers of the first names there are."""
        split = datapoint.split
        named = [name for name, value in datapoint.scalars.items() if _is_number(value, name in split)]
        for name in (*named, *source.list_step_numbers(datapoint)):
            column = self._numbers.get(name) or self._add_name(name)
            if column is not None:
                _fill_column(column, at, datapoint, source, name)

    def _add_name(self, name: str) -> NumberColumn | None:
        """A column for a name that has none yet; None where there are too many."""
        if name in PLACES or (name not in self.names and len(self.names) >= MAX_NAMES):
            return None
        self.names[name] = None
        return self._numbers.setdefault(name, NumberColumn()) if len(self._numbers) < EAGER_NAMES else None

    def _keep_ranges(self, rows: Sequence[int], name: str, bounds: Sequence[tuple[float, float]]) -> list[int]:
        column = self.columns[name]
        kept = {
            value for value in set(column) if value is not None and any(low <= value <= high for low, high in bounds)
        }
        return [at for at in rows if column[at] in kept]

    def _sort_rows(self, rows: Sequence[int], wanted: Wanted) -> list[int]:
        """Those that have a value by it, then the others. Equal ones stay in the order of capture."""
        get_value = self._get_reader(wanted.sort)
        known = [(at, get_value(at)) for at in rows]
        is_bounded = wanted.least is not None or wanted.most is not None
        bounded = [row for row in known if row[1] is not None and (not is_bounded or _is_between(row[1], wanted))]
        order = _order_text if wanted.sort in ("key", "phase") else _order_number
        bounded.sort(key=lambda row: order(row[1]), reverse=wanted.is_descending)
        found = [at for at, _ in bounded]
        return found if is_bounded else found + [at for at, value in known if value is None]

    def _get_reader(self, name: str) -> Callable[[int], Any]:
        if name in PLACES:
            column = self.columns[name]
            return lambda at: column[at] if column[at] != "" else None
        return self._numbers.get(name, NumberColumn()).get_value


def belongs_to_module(path: str, module: str) -> bool:
    """True for a tensor of a module, such as ``layers.0:output``, or of one below it."""
    return path == module or path.startswith(tuple(f"{module}{sign}" for sign in MODULE_ENDS))


def _identify(datapoint: Datapoint) -> int:
    """What a datapoint keeps while others come: its place in the journal it was written to."""
    return hash((datapoint.rank, datapoint.writer, datapoint.seq, datapoint.epoch, datapoint.step, datapoint.key))


def _order_text(text: str) -> tuple[int, Any]:
    """Texts of digits as numbers, before the others."""
    digits = text.removeprefix("-")
    is_whole = digits.isascii() and digits.isdecimal() and len(digits) < 40
    return (0, int(text)) if is_whole else (1, text)


def _order_number(value: float) -> tuple[bool, float]:
    """nan behind all numbers."""
    return (True, 0.0) if value != value else (False, value)


def _is_between(value: Any, wanted: Wanted) -> bool:
    """nan counts as larger than every number; a text is never between two."""
    number = math.inf if value != value else to_real(value)
    if number is None:
        return False
    return (wanted.least is None or number >= wanted.least) and (
        wanted.most is None or (value == value and number <= wanted.most)
    )


def _is_number(value: Any, is_split: bool) -> bool:
    if is_split and isinstance(value, list):
        return any(isinstance(one, int | float) for one in value)
    return isinstance(value, int | float)


def _fill_column(column: NumberColumn, at: int, datapoint: Datapoint, source: DatapointNumbers, name: str) -> None:
    """Set the number of this name for a datapoint, and for each sample of a batch.

    Where each sample has one, that of the batch is the largest.
    """
    value, keys = source.resolve_value(datapoint, name), datapoint.keys or ()
    if isinstance(value, list) and name in datapoint.split:
        known = [number for number in map(to_real, value) if number is not None]
        whole = max(known, key=_order_number) if known else None
        values = [whole, *map(to_real, value[: len(keys)])]
    else:
        values = [to_real(value)] * (1 + len(keys))
    for row, number in enumerate(values):
        if number is not None:
            column.set_value(at + row, number)
