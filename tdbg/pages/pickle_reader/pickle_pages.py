"""Pages of other tools: ``page_N.pkl``, a dict of datapoints that joblib or pickle wrote. Read, and never run.

A page is gone through once, opcode by opcode, and its big blocks of data are stepped over: what stays in memory says
where they lie. A datapoint is then read by itself. Nothing is written, but for a temporary file where a page is packed.
"""

import contextlib
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tdbg.core.errors import TdbgError
from tdbg.core.tables import format_short
from tdbg.pages.pickle_reader import decompression, torch_save_format
from tdbg.pages.pickle_reader.allowed_globals import RULES
from tdbg.pages.pickle_reader.byte_source import ByteReader, ByteSource, FileSource, TruncatedError
from tdbg.pages.pickle_reader.datapoint_tree import Bytes, FlatTree, Leaf, TreeBuilder, flatten_outputs
from tdbg.pages.pickle_reader.parsed_values import Array, Named, Refused, Sparse
from tdbg.pages.pickle_reader.pickle_machine import PickleMachine, Unbuilt
from tdbg.pages.pickle_reader.read_budget import ReadBudget
from tdbg.pages.pickle_reader.unpickle import follow_pickle
from tdbg.pages.read.page_folder import EPOCH, epoch_of

__all__ = [
    "Array",
    "Bytes",
    "FlatTree",
    "Leaf",
    "LegacyPages",
    "Named",
    "PickledDatapoint",
    "Refused",
    "Sparse",
    "find_pickled_pages",
    "flatten_outputs",
]

PAGE = re.compile(r"page_(\d{1,12})\.pkl(\.(gz|gzip|z|zlib|bz2|xz|lzma|lz4|zst))?")
FOLDER = "debugger"
BATCH = 1000  # how many items a pickler gives to a dict at once
KEPT_BYTES = 128 << 20  # how much of the indexes of pages stays in memory; that of 300 MB of tensors counts 9 MB
PROBLEMS = 20  # that are told of one page


class PickledDatapoint:
    """What was captured of one datapoint. key: its idx. epoch: that of its folder, if it lies in one."""

    def __init__(self, key: object, page: Path, place: int, found: object, owner: "LegacyPages") -> None:
        self.key, self.page, self.epoch = key, page, epoch_of(page)
        self._place, self._found, self._owner = place, found, owner

    def __repr__(self) -> str:
        return f"Datapoint({self.key!r}, {self.page})"

    @cached_property
    def outputs(self) -> dict[object, object]:
        """Debugger's name -> what it gave: nested dicts, lists and tuples; an Array is read when it is asked to."""
        ledger = ReadBudget()
        tree = TreeBuilder(ledger.record_refused).build_tree(self._found)
        self._owner._count_refused((self.page, self._place), ledger)
        return tree if isinstance(tree, dict) else {"": tree}

    def build_flat_tree(self) -> FlatTree:
        """The same by path."""
        return flatten_outputs(self.outputs)


class LegacyPages:
    """The pages below a path, in the order of their epochs and numbers.

    problems, refused: what was wrong and what was refused in the pages that were read so far. Those who read should tell.
    """

    def __init__(self, found: Iterable[Path]) -> None:
        self.pages = sorted(found, key=_page_sort_key)
        self.problems: list[str] = []
        self.refused: dict[str, int] = {}
        self._read: dict[Path, list[PickledDatapoint]] = {}  # the newest last
        self._costs: dict[Path, int] = {}
        self._keys: dict[Path, frozenset[str]] = {}
        self._counted: set[tuple[Path, int | None]] = set()

    @classmethod
    def from_path(cls, path: Path) -> "LegacyPages":
        """A page, a folder of pages, or the folder above ``debugger`` or ``epoch_N/debugger``. TdbgError if none is there."""
        found = find_pickled_pages(path)
        if not found:
            raise TdbgError(
                f"{path}: contains no page_N.pkl", f"name a page, or a folder that holds {FOLDER} or epoch_N/{FOLDER}"
            )
        return cls(found)

    def __iter__(self) -> Iterator[PickledDatapoint]:
        for page in self.pages:
            yield from self._load_datapoints(page)

    def find_datapoints(self, idx: int | str) -> list[PickledDatapoint]:
        """All datapoints of that idx, in order; several pages may have one."""
        wanted = str(idx)
        found: list[PickledDatapoint] = []
        for page in self.pages:
            if wanted in self._keys.get(page, (wanted,)):
                found += [point for point in self._load_datapoints(page) if str(point.key) == wanted]
        return found

    def _load_datapoints(self, page: Path) -> list[PickledDatapoint]:
        if page not in self._read:
            problems: list[str] = []
            ledger = ReadBudget()
            found = enumerate(_load_entries(page, ledger, problems))
            self._read[page] = [PickledDatapoint(key, page, place, value, self) for place, (key, value) in found]
            if page not in self._keys:
                self._keys[page] = frozenset(str(point.key) for point in self._read[page])
                self.problems += [f"{page}: {problem}" for problem in problems]
                self.problems += [f"{page}: {reason}" for reason in list(ledger.reasons)[:PROBLEMS]]
                self._count_refused((page, None), ledger)
            self._costs[page] = ledger.spent
            while len(self._read) > 1 and sum(map(self._costs.__getitem__, self._read)) > KEPT_BYTES:
                del self._read[next(iter(self._read))]
        return self._read[page]

    def _count_refused(self, what: tuple[Path, int | None], ledger: ReadBudget) -> None:
        """Add what was refused in a page, or in the tree of a datapoint of it; once, however often it is read."""
        if what in self._counted or not ledger.refused:
            return
        self._counted.add(what)
        for name, count in ledger.refused.items():
            self.refused[name] = self.refused.get(name, 0) + count


def find_pickled_pages(path: Path) -> list[Path]:
    """The legacy pages that a path means: itself, or those in it, in its ``debugger`` and ``epoch_N/debugger``."""
    try:
        if not stat.S_ISDIR(path.stat().st_mode):
            return [path]
        folders = [path, path / FOLDER]
        folders += [epoch / FOLDER for epoch in path.iterdir() if EPOCH.fullmatch(epoch.name)]
        found = [
            page for folder in folders if folder.is_dir() for page in folder.iterdir() if PAGE.fullmatch(page.name)
        ]
    except OSError as error:
        raise TdbgError(f"{path}: {error.strerror}", "check its path and permissions") from None
    return sorted(found, key=_page_sort_key)


def is_place_of_page(parts: Sequence[str]) -> bool:
    """True if `find_pickled_pages` looks for a page at this path below the one it is given."""
    *folders, name = parts
    fits = not folders or (folders[-1] == FOLDER and all(map(EPOCH.fullmatch, folders[:-1])) and len(folders) < 3)
    return fits and PAGE.fullmatch(name) is not None


def _page_sort_key(page: Path) -> tuple[int, str, int, str]:
    epoch, number = epoch_of(page), PAGE.fullmatch(page.name)
    return -1 if epoch is None else epoch, str(page.parent), int(number[1]) if number else -1, page.name


def _load_entries(page: Path, ledger: ReadBudget, problems: list[str]) -> list[tuple[Any, Any]]:
    """The datapoints of a page; what is wrong with it is added to ``problems``."""
    try:
        file = FileSource(page)
        with file.keep_open():
            return _parse_entries(decompression.decompress_page(file, problems), ledger, problems)
    except TdbgError as error:
        problems.append(str(error).removeprefix(f"{page}: "))
        return []


def _parse_entries(source: ByteSource, ledger: ReadBudget, problems: list[str]) -> list[tuple[Any, Any]]:
    if not source.size:
        problems.append("it is empty")
        return []
    reader = ByteReader(source)
    machine = PickleMachine(reader, RULES, ledger)
    try:
        if torch_save_format.is_torch_save(source.read_range(0, 16)):
            found = torch_save_format.read_torch_save(machine, source)
        else:
            found = follow_pickle(machine)
            if reader.bytes_left:
                problems.append(f"{reader.bytes_left} bytes follow the end of its data; they are not read")
    except (TruncatedError, ValueError, TdbgError) as torn:
        return _salvage_entries(machine, str(torn), reader, problems)
    if not isinstance(found, dict):
        problems.append(f"it holds {_describe_value(found)}, not a dict of datapoints")
        return []
    return [(_normalize_idx(key), value) for key, value in found.items()]


def _describe_value(found: object) -> str:
    return str(found) if isinstance(found, Refused) else f"a {type(found).__name__}"


def _salvage_entries(
    machine: PickleMachine, why: str, reader: ByteReader, problems: list[str]
) -> list[tuple[Any, Any]]:
    """The datapoints that were complete where a page is torn."""
    levels = [*machine.below, machine.stack]
    found = levels[0][0] if levels[0] else None
    if not isinstance(found, dict):
        problems.append(f"torn at byte {reader.position} of {reader.source.size}: {why}; nothing before it is complete")
        return []
    whole = dict(found)
    batch = levels[1] if len(levels) > 1 and len(levels[0]) == 1 else levels[0][1:]
    count = _count_complete(batch) if len(levels) > 1 and len(levels[0]) == 1 else 0
    whole.update(zip(batch[: 2 * count : 2], batch[1 : 2 * count : 2], strict=True))
    lost = f"datapoint {format_short(_normalize_idx(batch[2 * count]))}" if len(batch) > 2 * count else "the next one"
    problems.append(
        f"torn at byte {reader.position} of {reader.source.size}: {why}; {lost} and everything after it are lost, "
        f"{len(whole)} before it are complete"
    )
    return [(_normalize_idx(key), value) for key, value in whole.items()]


def _count_complete(batch: list[Any]) -> int:
    """How many keys and values at the front of a batch belong together and are filled.

    A pickler puts a dict on the stack when it is empty, fills it, then puts the next key there. What follows an empty dict
    may be the next datapoint, or the first thing that is going into it: it does not count, nor does the last one.
    """
    kind = type(batch[0]) if batch else int
    count = 0
    for key, value in zip(batch[::2], batch[1::2], strict=False):
        if type(key) is not kind or kind not in (int, str) or not isinstance(value, dict):
            break
        count += 1
    if 2 * count == len(batch):
        count -= 1  # its value may be half filled
    while count > 0 and _is_maybe_unfinished(batch[2 * count - 1], batch[2 * count], kind):
        count -= 1
    return max(count, 0)


def _is_maybe_unfinished(value: dict[object, object], following: object, kind: type) -> bool:
    """Whether ``following`` may be meant for this dict; a dict is filled 1000 items at a time."""
    if len(value) % BATCH:
        return False
    return not value or type(following) is not kind or type(next(iter(value))) is kind


def _normalize_idx(key: object) -> object:
    """An idx as users write it: a tensor of one whole number is that number."""
    while isinstance(key, Unbuilt):
        key = key.value
    if isinstance(key, Array) and key.value_count == 1 and key.dtype in ("int64", "int32"):
        with contextlib.suppress(TdbgError):
            return int.from_bytes(key.load_bytes(), "little", signed=True)
    return key
