"""Which collective a rank waits in, by torch's flight recorder; how many it has begun on each process group."""

from dataclasses import dataclass
from typing import Any

from tdbg.core.ranges import pack_numbers
from tdbg.runtime.flight_recorder import read_flight_record
from tdbg.runtime.torch_compat import group_members

WORLD = "world"  # as the probe `distributed` calls it
WORLD_NAMES = ("0", "default_pg", "")
MAX_GROUPS = 8
MAX_RANKS = 64  # that are listed; of more the ranges are kept
MAX_TEXT = 4096
MAX_TENSORS = 8  # of one call, whose sizes are told


@dataclass(slots=True, frozen=True)
class RunningCall:
    """A collective that has begun and not ended.

    number: of the call on its group, from 1; 0 if that is not known. alike: earlier calls of the same function with
    tensors of the same sizes, among the last ones that the recorder keeps; None if that is not known.
    rank_ranges: all ranks, where they are more than are listed. shapes: of the tensors it was called with.
    """

    op: str
    group: str = ""
    number: int = 0
    size: int | None = None
    ranks: list[int] | None = None  # None: all
    alike: int | None = None
    rank_ranges: str | None = None
    shapes: list[str] | None = None


@dataclass(slots=True, frozen=True)
class CollectiveStatus:
    """The last call of each group, by the recorder's number of the group. ended: -1 where it does not say."""

    begun: dict[str, int]
    ended: dict[str, int]

    @property
    def progress(self) -> tuple[object, ...]:
        """Changes with each collective that begins or ends."""
        return tuple(self.begun.items()), tuple(self.ended.items())

    @property
    def waiting(self) -> list[str]:
        """Groups with a call that has not ended."""
        return [group for group, number in self.begun.items() if -1 < self.ended.get(group, -1) < number]


def read_status() -> CollectiveStatus:
    """The status now; empty where torch keeps no record. Cost: 10 us."""
    rows = read_flight_record(calls=False).get("pg_status")
    begun, ended = {}, {}
    for group, row in rows.items() if isinstance(rows, dict) else ():
        begun[group] = _read_number(row, "last_enqueued_collective")
        ended[group] = max(_read_number(row, "last_completed_collective"), 0)
    return CollectiveStatus({group: number for group, number in begun.items() if number > 0}, ended)


def _read_number(row: Any, name: str) -> int:
    try:
        return int(row[name])
    except (KeyError, TypeError, ValueError):
        return -1


class GroupNames:
    """The names of process groups, which are the same on all ranks; the recorder's numbers are not."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._entries: list[Any] = []

    def read_entries(self) -> None:
        """Read the single calls. Cost: up to 10 ms."""
        self._entries = read_flight_record(calls=True).get("entries", [])
        for entry in self._entries:
            names = entry.get("process_group") or [""]
            self._names[str(entry.get("pg_id"))] = WORLD if names[0] in WORLD_NAMES else str(names[0])

    def count_calls(self, status: CollectiveStatus) -> dict[str, int]:
        """Calls begun on each group, the world first; of a group whose name is not known, none."""
        named = {self._names[group]: number for group, number in status.begun.items() if group in self._names}
        return dict(sorted(named.items(), key=lambda row: row[0] != WORLD)[:MAX_GROUPS])

    def find_running(self, status: CollectiveStatus, function: str = "") -> RunningCall | None:
        """The oldest call that has not ended.

        function: the one that the thread blocks in, if that is known. With gloo a call may still count as running after
        it has returned: then the newest of this function is meant.
        """
        found = [(entry, group) for group in status.waiting if (entry := self._find_newest(group, status, function))]
        if not found:
            found = [(entry, group) for group in status.waiting if (entry := self._find_first(group, status))]
        if not found:
            return None
        entry, group = min(found, key=lambda row: row[0].get("time_created_ns", 0))
        name = self._names[group]
        members = group_members("0" if name == WORLD else name)
        op = str(entry.get("profiling_name", "")).rpartition(":")[2]
        return RunningCall(
            op=op or "a collective",
            group=name,
            number=entry.get("collective_seq_id", 0),
            size=len(members) or None,
            ranks=None if name == WORLD or not members else members[:MAX_RANKS],
            alike=sum(_get_signature(other) == _get_signature(entry) for other in self._entries if other is not entry),
            rank_ranges=None if name == WORLD else pack_members(members),
            shapes=_read_shapes(entry),
        )

    def _find_newest(self, group: str, status: CollectiveStatus, function: str) -> Any:
        for entry in self._entries if function else ():
            is_last = str(entry.get("pg_id")) == group and entry.get("collective_seq_id") == status.begun[group]
            if is_last and not entry.get("is_p2p") and str(entry.get("profiling_name", "")).endswith(f":{function}"):
                return entry
        return None

    def _find_first(self, group: str, status: CollectiveStatus) -> Any:
        number = status.ended[group] + 1
        for entry in self._entries:
            if str(entry.get("pg_id")) == group and entry.get("collective_seq_id") == number:
                return None if entry.get("is_p2p") else entry
        return None


def _get_signature(entry: Any) -> tuple[object, ...]:
    return entry.get("pg_id"), entry.get("profiling_name"), str(entry.get("input_sizes"))


def pack_members(members: list[int]) -> str | None:
    """The ranks of a group as ranges, where they are more than are listed; None where that is too long as well."""
    text = pack_numbers(members) if len(members) > MAX_RANKS else ""
    return text if 0 < len(text) <= MAX_TEXT else None


def _read_shapes(entry: Any) -> list[str] | None:
    """``8x4 Float`` for each tensor of a call; None where the recorder does not say, or they are many."""
    sizes, types = entry.get("input_sizes"), entry.get("input_dtypes")
    if not isinstance(sizes, list) or not isinstance(types, list) or not 0 < len(sizes) == len(types) <= MAX_TENSORS:
        return None
    return [f"{'x'.join(map(str, size)) or 1} {kind}" for size, kind in zip(sizes, types, strict=True)]
