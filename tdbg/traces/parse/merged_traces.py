"""Several ranks' traces in one file, as `tdbg trace slice` writes them, and how they are told apart.

Each part has a range of process ids of its own, and what stood beside its events is kept under ``tdbg``, ``slice``,
``heads``. The file begins with ``tdbgRanks``, the ranks of its parts.
"""

from typing import Any

RANKS = "tdbgRanks"
PARTS = 1_000  # of one file; each is read by a pass of its own
ROOM = 1_000_000  # process ids of one part; viewers take numbers up to 2^32


def first_pid(part: int) -> int:
    """The first process id of a part."""
    return (part + 1) * ROOM


def is_pid_of_rank_trace(part: int, pid: int | str) -> bool:
    """Whether a process id belongs to a part."""
    return isinstance(pid, int) and first_pid(part) <= pid < first_pid(part + 1)


def get_slice_info(head: dict[str, Any]) -> dict[str, Any]:
    """What a head tells of the slice; nothing where the trace is a whole one."""
    ours = head.get("tdbg")
    found = ours.get("slice") if isinstance(ours, dict) else None
    return found if isinstance(found, dict) else {}


def head_of(head: dict[str, Any], part: int | None) -> dict[str, Any]:
    """The head of one part; for a file that is one trace its own."""
    if part is None:
        return head
    heads = get_slice_info(head).get("heads")
    found = heads[part] if isinstance(heads, list) and part < len(heads) else None
    return found if isinstance(found, dict) else {}


def without_end(head: dict[str, Any]) -> bool:
    """True for a slice from which the end of the trace, and the profiler's own wait there, was cut off."""
    return get_slice_info(head).get("end") is False
