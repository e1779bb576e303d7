"""Numbers of a datapoint: captured with it, or recorded for its training step."""

import contextlib
import json
from pathlib import Path
from typing import Any

from tdbg.core.files import read_lines
from tdbg.pages.read.datapoint import Datapoint
from tdbg.pages.read.page_set import PageSet

RECORDS = "events.jsonl"
UP = 3  # folders from the pages of an epoch to those of the rank
PLACES = frozenset(("v", "t", "step", "epoch", "batch", "batches"))  # of the record itself
SHOWN = 20  # names that a message tells

Numbers = dict[str, float | bool]


class DatapointNumbers:
    """What is known of datapoints by name, and the names that were asked for in vain.

    A pass of training has the numbers of its step (loss, grad_norm, ...), where the run wrote a record of that step.
    Cost: the records of a rank are read when a name is asked for that was not captured.
    """

    def __init__(self, pages: PageSet) -> None:
        self._beside = {
            str(folder.path): _records_of(folder.path) for folder in pages.folders if isinstance(folder.path, Path)
        }
        self._by_rank: dict[int, set[Path | None]] = {}
        for source in pages.sources:
            self._by_rank.setdefault(source.rank, set()).add(self._beside.get(str(source.folder.path)))
        self._read: dict[Path, dict[int, Numbers]] = {}
        self.names: dict[str, None] = {}  # that some datapoint has
        self.asked: dict[str, bool] = {}  # name -> whether any datapoint had it

    def resolve_value(self, datapoint: Datapoint, name: str) -> object:
        """What was captured under this name, else what the record of its step says; None if nobody knows."""
        found = datapoint.scalars.get(name)
        if found is None and datapoint.phase == "train":
            found = self._of_step(datapoint).get(name)
        self.asked[name] = self.asked.get(name, False) or found is not None
        if found is None and len(self.names) < SHOWN:
            self.names.update(dict.fromkeys((*datapoint.scalars, *self._of_step(datapoint))))
        return found

    def list_step_numbers(self, datapoint: Datapoint) -> list[str]:
        """Names of the numbers that the record of its training step has."""
        return list(self._of_step(datapoint))

    def in_vain(self) -> list[str]:
        """Names that no datapoint has."""
        return [name for name, found in self.asked.items() if not found]

    def _of_step(self, datapoint: Datapoint) -> Numbers:
        if datapoint.phase != "train":
            return {}
        if datapoint.file is not None:
            path = self._beside.get(str(datapoint.file.folder))
        else:  # attempts of a rank count their steps anew: only where there is one is it clear whose this is
            paths = self._by_rank.get(datapoint.rank, set())
            path = next(iter(paths)) if len(paths) == 1 else None
        if path is None:
            return {}
        if path not in self._read:
            self._read[path] = _load_step_numbers(path)
        return self._read[path].get(datapoint.step, {})


def _records_of(folder: Path) -> Path | None:
    """The records beside the folder of pages; None where there are none."""
    for parent in folder.absolute().parents[:UP]:
        if (parent / RECORDS).is_file():
            return parent / RECORDS
    return None


def _load_step_numbers(path: Path) -> dict[int, Numbers]:
    """Step -> the numbers of its record. A line that is none is passed over; of a step that comes twice the last counts."""
    found: dict[int, Numbers] = {}
    with contextlib.suppress(OSError):
        for line in read_lines(path):
            if not line.startswith(b'{"type":"step",'):
                continue
            try:
                record = json.loads(line)
                step = record["step"]
            except (ValueError, LookupError, RecursionError):
                continue
            if isinstance(step, int) and record.get("phase", "train") == "train":  # not a pass of validation after it
                found[step] = {name: _to_number(value) for name, value in record.items() if _is_number(name, value)}
    return found


def _is_number(name: str, value: object) -> bool:
    return name not in PLACES and (isinstance(value, int | float) or value in ("nan", "inf", "-inf"))


def _to_number(value: Any) -> float | bool:
    return value if isinstance(value, bool) else float(value)
