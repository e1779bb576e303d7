"""The functions of torch.distributed that move data between ranks, and the order in which a rank calls them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Any
from zlib import crc32

from torch import Tensor

from tdbg.core.observations.distributed import FunctionFigures, GroupOrder

WORLD = "world"
MAX_LIST = 256  # tensors of one call that are counted
MAX_OPS = 64  # different calls in a row that one chunk spells out
MAX_TEXTS = 64  # different chunks of one group that are spelt out
MAX_RANKS = 64  # of a smaller group that are named
FIRST_CUTS = 64  # up to here chunks end at powers of two, so that an early difference is seen early
LONG_CUTS = 4096  # from here on chunks are long: ranks that have agreed so far seldom part
LONG_CHUNK = 1024


@dataclass(frozen=True, slots=True)
class Kind:
    """One function: where its arguments are, and what has to agree over the ranks of its group."""

    name: str
    tensor: int = -1  # position of the tensor or tensors that this rank gives; -1: none that can be counted
    keyword: str = ""  # their name
    group: int = -1  # position of the group; -1: it takes none
    sized: bool = False  # every rank must give as many elements as the others
    ordered: bool = True  # every rank of the group calls it, in the same order


COLLECTIVES = (
    Kind("all_reduce", 0, "tensor", 2, sized=True),
    Kind("all_reduce_coalesced", 0, "tensors", 2, sized=True),
    Kind("broadcast", 0, "tensor", 2, sized=True),
    Kind("reduce", 0, "tensor", 3, sized=True),
    Kind("all_gather", 1, "tensor", 2),
    Kind("all_gather_into_tensor", 1, "input_tensor", 2),
    Kind("all_gather_single", 1, "input_tensor", 2),
    Kind("_all_gather_base", 1, "input_tensor", 2),
    Kind("all_gather_coalesced", 1, "input_tensor_list", 2),
    Kind("gather", 0, "tensor", 3),
    Kind("scatter", 0, "tensor", 3),
    Kind("reduce_scatter", 1, "input_list", 3),
    Kind("reduce_scatter_tensor", 1, "input", 3),
    Kind("reduce_scatter_single", 1, "input", 3),
    Kind("_reduce_scatter_base", 1, "input", 3),
    Kind("all_to_all_single", 1, "input", 4),
    Kind("all_to_all", 1, "input_tensor_list", 2),
    Kind("barrier", group=0),
    Kind("monitored_barrier", group=0),
    Kind("all_gather_object", group=2),
    Kind("gather_object", group=3),
    Kind("broadcast_object_list", group=2),
    Kind("scatter_object_list", group=3),
    Kind("_broadcast_coalesced", 1, "tensors", 0),  # DistributedDataParallel: weights at first, buffers later
    Kind("_verify_params_across_processes", group=0),  # the first thing DistributedDataParallel does
    Kind("send", 0, "tensor", 2, ordered=False),
    Kind("recv", 0, "tensor", 2, ordered=False),
    Kind("send_object_list", group=2, ordered=False),
    Kind("recv_object_list", group=2, ordered=False),
    Kind("batch_isend_irecv", ordered=False),
    Kind("new_group", ordered=False),
)

# The same for tensors (DTensor) and compiled programs; their groups are meshes, so no order is kept.
FUNCTIONAL = (
    Kind("all_reduce", 0, "self", ordered=False),
    Kind("broadcast", 0, "self", ordered=False),
    Kind("all_gather_tensor", 0, "self", ordered=False),
    Kind("all_gather_single", 0, "self", ordered=False),
    Kind("reduce_scatter_tensor", 0, "self", ordered=False),
    Kind("reduce_scatter_single", 0, "self", ordered=False),
    Kind("all_to_all_single", 0, "self", ordered=False),
)


def find_argument(args: tuple[object, ...], kwargs: Mapping[str, object], position: int, keyword: str) -> Any:
    """The argument at a position or of a name; None if it was left out."""
    if 0 <= position < len(args):
        return args[position]
    return kwargs.get(keyword)


_DTYPES: dict[object, str] = {}


def measure_payload(given: object) -> tuple[str, int, int]:
    """Dtype, elements and bytes of the tensor or tensors of one call. Cost: 1 us."""
    if isinstance(given, Tensor):
        dtype, elements = given.dtype, given.numel()
    elif isinstance(given, list | tuple) and given and isinstance(given[0], Tensor):
        dtype = given[0].dtype
        elements = sum(item.numel() for item in given[:MAX_LIST])
    else:
        return "", 0, 0
    name = _DTYPES.get(dtype)
    if name is None:
        name = _DTYPES[dtype] = str(dtype).removeprefix("torch.")
    return name, elements, elements * dtype.itemsize


def format_signature(kind: Kind, dtype: str, elements: int) -> str:
    """What has to be the same on every rank: ``all_reduce float32[1024]``, ``all_gather int64``, ``barrier``."""
    name = kind.name.lstrip("_")
    if not dtype:
        return name
    return f"{name} {dtype}[{elements}]" if kind.sized else f"{name} {dtype}"


class Order:
    """The calls on one group by number, cut into chunks that the ranks' records can be compared by.

    A chunk is its first and last call, the crc32 over all of them, and the steps of the first and the last. What it
    held is spelt out once for each crc. Another thread may ask for the tail while a call is added.
    """

    def __init__(self, since: int) -> None:
        self.since = since  # 0: from the group's beginning; else the step that the numbers count from
        self.number = 0
        self.marks: list[list[object]] = []
        self.texts: dict[str, list[list[object]]] = {}
        self._known: set[str] = set()
        self._cut = 1
        self._turn = RLock()
        self._begin_chunk()

    def _begin_chunk(self) -> None:
        self._first = self.number + 1
        self._crc = 0
        self._ops: list[list[Any]] = []  # [signature, times in a row]
        self._whole = True
        self._steps = [0, 0]  # of the first call and the last

    def add_call(self, text: str, raw: bytes, step: int) -> None:
        """One more call. Cost: 1 us."""
        with self._turn:
            self.number += 1
            self._crc = crc32(raw, self._crc)
            ops = self._ops
            if not ops:
                self._steps[0] = step
            self._steps[1] = step
            if ops and ops[-1][0] == text:
                ops[-1][1] += 1
            elif len(ops) < MAX_OPS:
                ops.append([text, 1])
            else:
                self._whole = False
            if self.number >= self._cut:
                self._mark_chunk()
                self._cut += self._next_length()
                self._begin_chunk()

    def _next_length(self) -> int:
        if self.number < FIRST_CUTS:
            return self.number
        return FIRST_CUTS if self.number < LONG_CUTS else LONG_CHUNK

    def _mark_chunk(self) -> None:
        name = f"{self._crc:08x}"
        self.marks.append([self._first, self.number, name, *self._steps])
        if self._whole and name not in self._known and len(self._known) < MAX_TEXTS:
            self._known.add(name)
            self.texts[name] = [list(op) for op in self._ops]

    def mark_tail(self) -> None:
        """Mark what was called since the last chunk; the chunk goes on."""
        with self._turn:
            if self._ops:
                self._mark_chunk()

    def drain_chunks(self, group: "Group") -> GroupOrder:
        """The chunks since the last time, as they are written."""
        with self._turn:
            marks, texts = self.marks, self.texts
            self.marks, self.texts = [], {}
        taken: GroupOrder = {
            "group": group.name,
            "size": group.size,
            "since": self.since,
            "marks": marks,
            "chunks": texts,
        }
        if group.ranks:
            taken["ranks"] = group.ranks
        return taken


@dataclass(slots=True)
class Group:
    """A process group this rank belongs to, and what it called on it."""

    name: str
    size: int
    ranks: list[int] = field(default_factory=list)  # of a group smaller than the world
    order: Order | None = None
    rank_ranges: str | None = None  # all of them, where they are more than are listed


@dataclass(slots=True)
class Entry:
    """One call that has begun."""

    op: str
    group: Group | None
    number: int  # among the calls of the group whose order is kept; 0 for others
    size_bytes: int
    began_at: float  # time.monotonic


@dataclass(slots=True)
class Tally:
    """What was called in one step."""

    step: int = 0
    rows: dict[str, list[float]] = field(default_factory=dict)  # op -> calls, bytes, seconds
    longest_s: float = 0.0
    longest: str = ""

    def add_call(self, entry: Entry, seconds: float) -> None:
        """One call has returned."""
        row = self.rows.setdefault(entry.op, [0, 0, 0.0])
        row[0] += 1
        row[1] += entry.size_bytes
        row[2] += seconds
        if seconds > self.longest_s:
            self.longest_s, self.longest = seconds, entry.op

    def sum_totals(self) -> tuple[int, int, float]:
        """Calls, bytes and seconds of all."""
        rows: Sequence[list[float]] = list(self.rows.values())
        return int(sum(row[0] for row in rows)), int(sum(row[1] for row in rows)), sum(row[2] for row in rows)

    def list_longest(self, limit: int) -> list[FunctionFigures]:
        """The functions that took longest, with their figures."""
        longest = sorted(self.rows.items(), key=lambda item: -item[1][2])[:limit]
        return [
            {"op": op, "calls": int(row[0]), "bytes": int(row[1]), "ms": round(row[2] * 1e3, 3)} for op, row in longest
        ]
