"""Step records of a range of steps: of a long file some of them, found without reading what lies between."""

import os
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import IO, Any, Literal, NamedTuple

from tdbg.core import events
from tdbg.core.events import MAX_STEP, Number, Step
from tdbg.core.files import open_regular
from tdbg.core.rundir import EVENTS, ProcessDir
from tdbg.rules.view import is_non_finite, to_finite
from tdbg.viewer.sampled_events import READ_BYTES, find_line_end, find_step_record

WHOLE_BYTES = 2 << 20  # of all processes together: so much is read whole, some 50 ms
MAX_PROBES = 16  # reads in search of a step record: between two of them other events may lie
WHOLE_RECORDS = 20_000  # of all processes together: so many are decoded where their range is read whole
SCANNED = 32  # times as much as is read whole is looked through for records of a phase
STEP = re.compile(rb'"step":(\d{1,19})')
EVAL = b'"phase":"eval"'
FIELDS = (
    *("t", "step", "phase", "epoch", "batch", "call", "loss", "micro", "other_losses", "lr", "grad_norm", "finite"),
    *("checked", "scale", "skipped", "loader_ms", "forward_ms", "backward_ms", "optimizer_ms", "step_ms"),
    *("host_mb", "device_mb", "device_peak_mb", "samples"),
)  # what an answer has of a record: all but the norms of single parameters, which are many


class Wanted(NamedTuple):
    """Which records of a process. first, last: inclusive. points: at most so many, and two at least. phase: empty for both."""

    first: int
    last: int
    points: int
    phase: Literal["", "train", "eval"]

    def has(self, step: Step) -> bool:
        """True if the record is one of them."""
        return self.first <= step.step <= self.last and self.phase in ("", step.phase)

    def accepts(self, line: bytes) -> bool:
        """False if the line is not the record of one of them. Cost: about 0.5 us, a fiftieth of decoding it."""
        if self.phase and (EVAL in line) != (self.phase == "eval"):
            return False
        found = STEP.search(line)
        return found is None or self.first <= int(found[1]) <= self.last


class Share(NamedTuple):
    """How much of a process is read: a range of so many bytes whole, and so many records of it decoded."""

    nbytes: int = WHOLE_BYTES
    records: int = WHOLE_RECORDS


class FoundRecords(NamedTuple):
    """The records of a process. recorded: how many there are; None where not all were read."""

    records: list[Step]
    recorded: int | None


def read_step_records(process: ProcessDir, wanted: Wanted, share: Share) -> FoundRecords:
    """The step records of a range, in order; of more than the share some at equal distances.

    Cost: 25 us a record where all are read, 60 us a point else. Raises OSError.
    """
    with open_regular(process.path / EVENTS) as file:
        size = os.fstat(file.fileno()).st_size
        begin = _find_begin(file, wanted.first, size) if wanted.first > 0 else 0
        end = _find_end(file, wanted.last, begin, size) if wanted.last < MAX_STEP else size
        if end - begin > share.nbytes:
            return FoundRecords(list(_iter_samples(file, wanted, range(begin, end), share.nbytes)), None)
        lines = _read_lines(file, begin, end, wanted)
    if len(lines) > max(share.records, wanted.points):
        few = [lines[at * (len(lines) - 1) // (wanted.points - 1)] for at in range(wanted.points)]
        return FoundRecords(_decode_steps(few, wanted), None)
    found = _decode_steps(lines, wanted)
    return FoundRecords(thin_records(found, wanted.points), len(found))


def thin_records(records: Sequence[Step], points: int) -> list[Step]:
    """At most so many: of each stretch those with the least and the largest loss; what is not finite counts as larger."""
    if len(records) <= points:
        return list(records)
    stretches = max(points // 2, 1)
    found: list[int] = []
    for number in range(stretches):
        places = range(number * len(records) // stretches, (number + 1) * len(records) // stretches)
        extremes = {min(places, key=lambda at: _order(records[at])), max(places, key=lambda at: _order(records[at]))}
        found += sorted(extremes if len(extremes) > 1 else {*extremes, places[-1]})  # all losses are the same
    return [records[at] for at in found[:points]]


def describe_step(step: Step) -> dict[str, Any]:
    """A record as plain data."""
    return {name: getattr(step, name) for name in FIELDS}


def _order(step: Step) -> float:
    loss: Number | None = step.loss
    return float("inf") if is_non_finite(loss) else to_finite(loss) or 0.0


def _find_begin(file: IO[bytes], step: int, size: int) -> int:
    """An offset before which no record of this step or a later one begins, and as far as it is cheap to tell."""
    low, high = 0, size
    while high - low > READ_BYTES:
        middle = (low + high) // 2
        found = _find_next(file, middle)
        if found is not None and found < step:
            low = middle
        else:
            high = middle
    return low


def _find_end(file: IO[bytes], step: int, begin: int, size: int) -> int:
    """An offset behind which no record of this step or an earlier one begins."""
    low, high = begin, size
    while high - low > READ_BYTES:
        middle = (low + high) // 2
        found = _find_next(file, middle)
        if found is not None and found > step:
            high = middle
        else:
            low = middle
    return min(find_line_end(file, high + READ_BYTES) + 1, size)  # the last record may be longer than what was read


def _find_next(file: IO[bytes], at: int) -> int | None:
    """The step of the first record behind an offset; None where none is near."""
    for _ in range(MAX_PROBES):
        step, at = find_step_record(file, at)
        if step is not None:
            return step.step
    return None


def _iter_samples(file: IO[bytes], wanted: Wanted, places: range, whole_bytes: int) -> Iterator[Step]:
    """Records at equal distances, each once; where one is not wanted, the next that is."""
    found_at, most = places.start, SCANNED * whole_bytes // wanted.points
    edges = [places.start + number * len(places) // wanted.points for number in range(wanted.points + 1)]
    for at, following in pairwise(edges):
        if at < found_at:
            continue  # the record that was found last goes beyond
        step, found_at = _find_wanted(file, wanted, at, min(following, at + max(most, 1)))
        if step is not None:
            yield step


def _find_wanted(file: IO[bytes], wanted: Wanted, at: int, until: int) -> tuple[Step | None, int]:
    """The first record that is wanted, and where it begins, if it is near or begins between two offsets."""
    step = None
    while step is None and at < until:
        step, at = find_step_record(file, at, wanted.accepts)
    return (step if step is not None and wanted.has(step) else None), at


def _read_lines(file: IO[bytes], begin: int, end: int, wanted: Wanted) -> list[bytes]:
    """The whole lines of records between two offsets; the first line may be torn, unless it is that of the file."""
    file.seek(begin)
    lines = file.read(end - begin).split(b"\n")[:-1]
    return [line for line in lines if line.startswith(b'{"type":"step"') and wanted.accepts(line)]


def _decode_steps(lines: Sequence[bytes], wanted: Wanted) -> list[Step]:
    steps = map(events.decode, lines)
    return [step for step in steps if isinstance(step, Step) and wanted.has(step)]
