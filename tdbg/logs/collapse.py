"""What ranks say alike, once; and what only some of them say.

Two records are alike if they are equal after what differs from rank to rank by nature is set aside: times, ranks,
hosts, process ids, addresses. The n-th such record of one rank belongs to the n-th of another.
"""

import re
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator

from tdbg.logs.records import Record

WINDOW = 4096  # groups that wait for the other ranks; the oldest leaves first
WINDOW_BYTES = 32 << 20
WARNING = 30
SEARCHED_BYTES = 1 << 16  # of a record, for what differs by nature; what is behind has to be equal
MAX_KINDS = 20_000  # sorts of records whose ranks are remembered

_TIMES = (
    rb"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?|\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b"
    rb'|"(?:t|ts|time|timestamp)": ?[\d.]+'
)
_ADDRESSES = (
    rb"0x[0-9a-fA-F]{4,}|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b|\[[0-9a-f:]{4,}\]:\d+|\b(?:cuda|gpu|npu|xpu):?\d+\b"
)
_NCCL = rb"^[\w.-]+:\d+:\d+ \[\d+\]"  # host:pid:tid [gpu]
_IS = rb"['\"]?(?: ?[=:#] ?| )?['\"]?"
_NUMBERED = rb"(?<![a-z])(?:(?:global|local)[ _-]?)?(?:rank|pid|process|node|worker|port|tid|thread)" + _IS
_NATURE = re.compile(
    b"(?:" + _NCCL + b"|" + _TIMES + b"|" + _ADDRESSES + b")"
    b"|(?P<name>" + _NUMBERED + rb"(?=\d+\b)|\b(?:host|hostname|node)['\"]?[=:] ?['\"]?)[\w.-]+",
    re.MULTILINE | re.IGNORECASE,
)
_NUMBER = re.compile(rb"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|\b(?:nan|inf)\b", re.IGNORECASE)


def normalize_record(record: Record) -> bytes:
    """The record without what differs by nature: equal for two ranks that say the same."""
    text = record.text.rstrip()
    text = _NATURE.sub(_mask_match, text[:SEARCHED_BYTES]) + text[SEARCHED_BYTES:]
    return b"%d %s %s" % (record.level, str(record.step).encode(), text)


def _mask_match(found: "re.Match[bytes]") -> bytes:
    return found["name"] + b"#" if found["name"] else b"#"


def kind_of(text: bytes) -> bytes:
    """A record without its numbers: the same line of the program."""
    return _NUMBER.sub(b"#", text.partition(b"\n")[0])[:400]


class Group:
    """Records that are alike, of some ranks."""

    __slots__ = ("first", "ranks", "text")

    def __init__(self, first: Record, text: bytes) -> None:
        self.first, self.text, self.ranks = first, text, {_resolve_rank(first)}

    def format_with_ranks(self, text: bytes) -> bytes:
        """The first of them, as it is shown, with the ranks that said it in front."""
        return b"[%s] %s" % (format_ranks(self.ranks).encode(), text if text.endswith(b"\n") else text + b"\n")


def _resolve_rank(record: Record) -> int:
    return -1 if record.rank is None else record.rank


def format_ranks(ranks: Iterable[int]) -> str:
    """``r0-3,7``: ranks as ranges; one that is not known is ``r?``."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank >= 0 and parts[-1][1] == rank - 1 and parts[-1][0] >= 0:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    words = ["?" if low < 0 else str(low) if low == high else f"{low}-{high}" for low, high in parts]
    return f"r{','.join(words)}"


def iter_groups(records: Iterable[Record], ranks: set[int]) -> Iterator[Group]:
    """The records of all ranks as groups, in the order of their first ones.

    A group leaves when every rank has said it, or when `WINDOW` later ones wait behind it. Memory: bounded by that.
    """
    waiting: OrderedDict[int, Group] = OrderedDict()
    by_text: defaultdict[bytes, list[Group]] = defaultdict(list)
    size = 0
    for number, record in enumerate(records):
        text, rank = normalize_record(record), _resolve_rank(record)
        joined = next((group for group in by_text[text] if rank not in group.ranks), None)
        if joined is None:
            waiting[number] = group = Group(record, text)
            by_text[text].append(group)
            size += len(record.data)
        else:
            joined.ranks.add(rank)
        while waiting:
            number, oldest = next(iter(waiting.items()))
            if not (oldest.ranks >= ranks or len(waiting) > WINDOW or size > WINDOW_BYTES):
                break
            del waiting[number]
            by_text[oldest.text].remove(oldest)
            if not by_text[oldest.text]:
                del by_text[oldest.text]
            size -= len(oldest.first.data)
            yield oldest
    yield from waiting.values()


def collect_ranks_by_kind(found: Iterable[Group]) -> tuple[dict[bytes, set[int]], set[int]]:
    """Which ranks ever say a sort of record, and all ranks that say anything."""
    seen: dict[bytes, set[int]] = {}
    ranks: set[int] = set()
    for group in found:
        ranks |= group.ranks
        kind = kind_of(group.text)
        if kind in seen or len(seen) < MAX_KINDS:
            seen.setdefault(kind, set()).update(group.ranks)
    return seen, ranks


def iter_diverging_groups(found: Iterable[Group], seen: dict[bytes, set[int]], ranks: set[int]) -> Iterator[Group]:
    """The groups that some rank lacks.

    What one rank alone ever says is its task (checkpoints, evaluation), unless it is a warning or worse.
    """
    for group in found:
        its_task = len(seen.get(kind_of(group.text), ())) == 1 and group.first.level < WARNING
        if group.ranks < ranks and not its_task:
            yield group
