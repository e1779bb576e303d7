"""Logs of many ranks as one stream, by time."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence

from tdbg.logs.records import Record, in_time


def by_time(logs: Sequence[Iterable[Record]], key: Callable[[Record], bytes] = in_time) -> Iterator[Record]:
    """The records of all logs, the earliest first, of equal times by the place of their log.

    Memory: one block a log. A log that is not in order by itself stays in its own order.
    """
    if len(logs) == 1:
        return iter(logs[0])

    def iter_keyed(place: int, log: Iterable[Record]) -> Iterator[tuple[bytes, int, int, Record]]:
        latest = b""
        for number, record in enumerate(log):
            latest = max(latest, key(record))
            yield latest, place, number, record

    return (item[3] for item in heapq.merge(*(iter_keyed(place, log) for place, log in enumerate(logs))))


def in_turn(logs: Sequence[Iterable[Record]]) -> Iterator[Record]:
    """Where there are no times: a record of each log in turn."""
    left = [iter(log) for log in logs]
    while left:
        for log in list(left):
            record = next(log, None)
            if record is None:
                left.remove(log)
            else:
                yield record


def format_with_rank(record: Record, text: bytes) -> bytes:
    """The record, as it is shown, with its rank in front, as launchers write it, where its header does not say it."""
    return text if record.rank is None or record.names_rank else b"[rank%d]: %s" % (record.rank, text)


def ensure_newline(data: bytes) -> bytes:
    """With a newline at its end, so that what follows from another file is a line of its own."""
    return data if data.endswith(b"\n") else data + b"\n"
