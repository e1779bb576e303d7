"""The first error of each rank, put together by what they are, causes before what they caused.

One rank fails, and the others tell of it: of a connection closed, of a collective that took too long, of a signal
from the launcher. Which is which is known by the words that PyTorch, NCCL and CUDA use.
"""

import re
from collections.abc import Iterable

from tdbg.logs.formats import ERROR, TRACEBACK
from tdbg.logs.records import Record

LAST_LINE = re.compile(rb"^(?:\S*: )?([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning)\b[^\n]*)", re.MULTILINE)


class Signature:
    """A known sort of failure. consequence: it follows from another rank's failure, as a rule."""

    __slots__ = ("consequence", "name", "pattern")

    def __init__(self, name: str, pattern: bytes, *, consequence: bool = False) -> None:
        self.name, self.pattern, self.consequence = name, re.compile(pattern), consequence


SIGNATURES = (  # the first that fits
    Signature("out of device memory", rb"OutOfMemoryError|(?:CUDA|HIP) out of memory|CUBLAS_STATUS_ALLOC_FAILED"),
    Signature("out of host memory", rb"MemoryError\b|Cannot allocate memory|oom-kill|Out of memory: Killed"),
    Signature("device hardware (ECC, Xid, fallen off the bus)", rb"uncorrectable ECC|NVRM: Xid|fallen off the bus"),
    Signature("device-side assert or illegal access", rb"device-side assert|illegal memory access|illegal instruction"),
    Signature(
        "a loader worker died (killed: host memory; bus error: shared memory)",
        rb"DataLoader worker .*(?:killed|exited)|unable to (?:open|mmap) shared|insufficient shared memory",
    ),
    Signature("no space left", rb"No space left on device|Disk quota exceeded"),
    Signature(
        "a collective timed out",
        rb"collective operation timeout|Timed out waiting \d+ms|Watchdog caught|wait timeout after|DistBackendError.*timeout"
        rb"|Timeout at NCCL|barrier.*timed? ?out",
        consequence=True,
    ),
    Signature(
        "the connection to another rank broke",
        rb"Connection (?:closed by peer|reset by peer|refused)|ncclRemoteError|remote process exited|Socket Timeout"
        rb"|Broken pipe|store.*(?:closed|unreachable)",
        consequence=True,
    ),
    Signature(
        "the launcher ended it",
        rb"ChildFailedError|Sending process \d+ closing signal|SignalException|failed \(exitcode",
        consequence=True,
    ),
    Signature("NCCL", rb"NCCL (?:error|failure)|ncclSystemError|ncclInternalError|ncclUnhandledCudaError"),
)


class Cluster:
    """The first errors of ranks that are of one sort."""

    __slots__ = ("consequence", "name", "records")

    def __init__(self, name: str, consequence: bool) -> None:
        self.name, self.consequence = name, consequence
        self.records: list[Record] = []


def is_error(record: Record) -> bool:
    """True for a record of level ERROR and above, a traceback, or a known failure in what has no level."""
    if record.level:
        return record.level >= ERROR or TRACEBACK in record.data
    return TRACEBACK in record.data or _find_signature(record) is not None


def _find_signature(record: Record) -> Signature | None:
    return next((found for found in SIGNATURES if found.pattern.search(record.data)), None)


def cluster_first_errors(records: Iterable[Record]) -> list[Cluster]:
    """The first error of each rank, by sort; causes first, then in the order of time."""
    first: dict[int | None, Record] = {}
    for record in records:
        before = first.get(record.rank)
        if before is None:
            if is_error(record):
                first[record.rank] = record
        elif TRACEBACK not in before.data and TRACEBACK in record.data and _tells_of(before, record):
            first[record.rank] = record
    found: dict[str, Cluster] = {}
    for record in first.values():
        name, consequence = _sort_of(record)
        found.setdefault(name, Cluster(name, consequence)).records.append(record)
    return sorted(found.values(), key=lambda cluster: (cluster.consequence, min(r.time for r in cluster.records)))


def _tells_of(line: Record, traceback: Record) -> bool:
    """True if a line without a traceback is about the exception of one that has it."""
    lines = LAST_LINE.findall(traceback.text)
    return bool(lines) and lines[-1].strip() in line.data


def _sort_of(record: Record) -> tuple[str, bool]:
    """What it is, and whether it follows from something else."""
    signature = _find_signature(record)
    if signature is not None:
        return signature.name, signature.consequence
    lines = LAST_LINE.findall(record.text)
    text = lines[-1].decode("utf-8", "replace") if lines else record.title
    return re.sub(r"\d+", "#", text)[:120].strip(), False
