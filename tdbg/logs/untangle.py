"""Lines of several ranks in one file, told apart by the launcher's prefix: each record's lines put together again.

[rank3]: Traceback (most recent call last):
[rank0]: 2026-11-20 03:06:40,123 INFO train: step 1
[rank3]: KeyError: 'a'
"""

import re
from collections import deque
from typing import Any

from tdbg.logs.formats import LAUNCHED, SNIFF_LINES, Format

CONTEXT_LINES = 200  # of a record, to judge the next line by
WAITING_RECORDS = 2000  # of other ranks, while one may go on; then it counts as whole
WAITING_BYTES = 4 << 20
BLOCK_BYTES = 1 << 18


def is_tangled(sample: bytes) -> bool:
    """True where most lines have a prefix, and not all the same."""
    lines = [line for line in sample.split(b"\n")[:SNIFF_LINES] if line]
    ranks = [found[0] for line in lines if (found := LAUNCHED.match(line))]
    return len(set(ranks)) > 1 and 2 * len(ranks) >= len(lines)


class _Record:
    __slots__ = ("lines", "whole")

    def __init__(self, line: bytes) -> None:
        self.lines, self.whole = [line], False


class Untangled:
    """A stream whose records are whole, in the order of their beginnings.

    Memory: what waits for the rest of the oldest record, `WAITING_BYTES` at most. Cost: some 2 us a line.
    """

    def __init__(self, stream: Any, form: type[Format]) -> None:
        self._stream = stream
        self._starts, self._by_context = form.start.match, form.by_context
        self._block = bytearray(BLOCK_BYTES)
        self._half = b""  # a line that has not ended
        self._ready = memoryview(b"")
        self._records: deque[_Record] = deque()
        self._open: dict[bytes, _Record] = {}
        self._waiting_bytes = 0
        self._ended = False

    def readinto(self, into: memoryview) -> int:
        """Some bytes, 0 at the end."""
        while not self._ready and not self._ended:
            got = self._stream.readinto(memoryview(self._block))
            self._ended = not got
            self._ready = memoryview(self.feed(bytes(self._block[: got or 0])))
            if self._ended:
                self._ready = memoryview(self.flush_held())
        count = min(len(into), len(self._ready))
        into[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def feed(self, data: bytes) -> bytes:
        """Take more of the file; returns the records that are whole by now."""
        *lines, self._half = (self._half + data).split(b"\n")
        for line in lines:
            self._append_line(line + b"\n")
        return b"".join(self._pop_complete_lines())

    def flush_held(self) -> bytes:
        """What is held, at the end."""
        if self._half:
            self._append_line(self._half)
            self._half = b""
        for record in self._records:
            record.whole = True
        self._open.clear()
        return b"".join(self._pop_complete_lines())

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _append_line(self, line: bytes) -> None:
        found = LAUNCHED.match(line)
        rank = _parse_rank(found)
        known = self._open.get(rank)
        self._waiting_bytes += len(line)
        if known is not None and not self._is_record_start(line, known):
            known.lines.append(line)
            return
        if known is not None:
            known.whole = True
        self._open[rank] = record = _Record(line)
        self._records.append(record)

    def _is_record_start(self, line: bytes, before: _Record) -> bool:
        if not self._by_context:
            return self._starts(line) is not None
        lines = b"".join(before.lines[-CONTEXT_LINES:])
        return bool(self._starts(lines + line, len(lines)))

    def _pop_complete_lines(self) -> list[bytes]:
        found: list[bytes] = []
        while self._records:
            oldest = self._records[0]
            late = len(self._records) > WAITING_RECORDS or self._waiting_bytes > WAITING_BYTES
            if not oldest.whole and not late:
                break
            if not oldest.whole:
                self._open = {rank: record for rank, record in self._open.items() if record is not oldest}
            self._records.popleft()
            self._waiting_bytes -= sum(map(len, oldest.lines))
            found += oldest.lines
        return found


def _parse_rank(found: "re.Match[bytes] | None") -> bytes:
    return b"" if found is None else found[0].strip(b"[]: ")
