"""The engine of the filter: blocks of bytes in, whole records out, at the speed of `bytes.find`.

A block is read into one buffer that is used again and again (a new object a read would double the CPU time). Only
where a literal is found does Python look closer: back to the header, forward to the next one.
"""

import os
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from tdbg.logs.formats import Format, match_header
from tdbg.logs.query import Buffer, Matcher

if TYPE_CHECKING:
    from tdbg.logs.dense import Block
    from tdbg.logs.seek import Seek

BLOCK_BYTES = 1 << 20
LARGEST_BYTES = 4 << 20  # a record longer than that is judged by its beginning, and passes in pieces
LOOKS, LOOK_BYTES = 4096, 400  # how many kinds of headers are remembered, and how long ones
DENSE_HITS = 600  # in a block; with more of them numpy is faster than the loop over hits
CROWDED_HITS = 2000
DENSE_BLOCKS = 8  # the loop's time for so many of them is that of importing numpy
SPARSE_HITS = 100  # in a block; with fewer of them the search is all there is to the work
SPARSE_BLOCKS = 32  # what the quicker search saves on so many of them is what its import costs
ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
SLACK = 16  # so that looking a little further needs no care
TWO, ZERO, DASH, TEE, CLOSES = b"20-T]"

Emit = Callable[[memoryview], None]


class Stream(Protocol):
    """Where bytes come from: a file, a decompressor, a pipe."""

    def readinto(self, into: memoryview) -> int | None: ...


class Workspace:
    """What a process uses for all files that it filters in turn: the buffer, and how dense the last hits were.

    A buffer of its own for each file would cost as much as searching it.
    """

    def __init__(self, block_bytes: int = 0) -> None:
        self.buffer = bytearray((block_bytes or BLOCK_BYTES) + SLACK)  # never read into the slack
        self._block: Block | None = None
        self._seek: Seek | None = None
        self._dense_blocks, self._dense, self._sparse = 0, False, 0
        self._crowded = False

    @property
    def dense(self) -> bool:
        """True if the next block is one for numpy."""
        return self._dense and self._dense_blocks >= DENSE_BLOCKS

    @property
    def sparse(self) -> bool:
        """True if hits are so rare that the quicker search, which takes longer to start, pays."""
        return self._sparse >= SPARSE_BLOCKS

    @property
    def crowded(self) -> bool:
        """True if hits are so dense that every line is worth a look."""
        return self._crowded

    def record_hit_density(self, hits: int, size: int) -> None:
        """So many hits were in so many bytes; small pieces say nothing."""
        if size >= BLOCK_BYTES // 4:
            self._crowded = hits * BLOCK_BYTES >= CROWDED_HITS * size
            self._dense = hits * BLOCK_BYTES >= DENSE_HITS * size
            self._dense_blocks += self._dense
            self._sparse = self._sparse + 1 if hits * BLOCK_BYTES <= SPARSE_HITS * size else 0

    @property
    def block(self) -> "Block":
        """The buffer for numpy."""
        if self._block is None or self._block.buffer is not self.buffer:
            os.environ.setdefault(
                "OPENBLAS_NUM_THREADS", "1"
            )  # its threads would take as long to start as all the rest
            from tdbg.logs.dense import Block

            self._block = Block(self.buffer)
        return self._block

    @property
    def seek(self) -> "Seek":
        """The buffer for the C library's search."""
        if self._seek is None or self._seek.buffer is not self.buffer:
            from tdbg.logs.seek import Seek

            self._seek = Seek(self.buffer)
        return self._seek


class Filter:
    """Reads one stream and emits the records that count, in order, each whole.

    begin, end: offsets; records that start in between are this filter's. The stream stands at ``begin``, or one byte
    before it where ``begin`` is not 0, so that it can be seen whether a line starts there.
    each: go record by record even where all of them count, for ``taken``, which else is not their number then.
    space: that of the files before; else block_bytes of one read, for those who hold many files at once.
    """

    def __init__(
        self,
        matcher: Matcher,
        emit: Emit,
        *,
        begin: int = 0,
        end: int | None = None,
        each: bool = False,
        block_bytes: int = 0,
        space: Workspace | None = None,
    ) -> None:
        self.matcher = matcher
        self.format: type[Format] = matcher.format
        self.emit = emit
        self.taken = 0  # records
        self._next_hit = matcher.next_hit()
        self._by_tag_alone = matcher.by_tag_alone
        self._literals = literals = matcher.collect_literals()
        self._literal = literals[0] if len(literals) == 1 else b""
        self._space = space or Workspace(block_bytes)
        self._alike: dict[
            bytes, bool
        ] = {}  # a header's beginning, its digits as zeros, and its tag -> whether it counts
        self._start = self.format.start.match
        self._everything = matcher.query.everything and not each
        self._begin, self._end = begin, end
        self._verdict: bool | None = None  # of the record that is too long for the buffer
        self._buffer = self._space.buffer

    def filter_stream(self, stream: Stream) -> int:
        """Filter the whole stream; returns the number of records that counted."""
        for _ in self.filter_blocks(stream):
            pass
        return self.taken

    def filter_blocks(self, stream: Stream) -> Iterator[None]:
        """The same block by block, for those who take turns between streams: what a block holds is emitted by then."""
        kept = 0  # bytes at the front of the buffer that are not decided yet
        base = self._begin - 1 if self._begin else 0  # offset of the buffer's first byte
        first = self._begin > 0
        while True:
            view = memoryview(self._buffer)
            got = stream.readinto(view[kept:-SLACK]) or 0
            filled, done = kept + got, got == 0
            start = 0
            if first and filled:
                start = self._first_header(filled)
                if start < 0:  # what is whole of it belongs to a record of the unit before
                    cut = self._undecided_from(filled)
                    if done or self._is_past_end(base + cut + 1):
                        return
                    base, kept = base + cut, filled - cut
                    self._buffer[:kept] = self._buffer[cut:filled]
                    continue
                first = False
            stop, last = self._find_complete_end(start, filled, base, done)
            self._filter_region(start, stop)
            if last:
                return
            yield
            kept = filled - stop
            if kept == len(self._buffer) - SLACK:
                kept = self._too_long(filled)
                stop = filled - kept
            view.release()
            self._buffer[:kept] = self._buffer[stop:filled]
            base += stop

    def _is_past_end(self, offset: int) -> bool:
        return self._end is not None and offset >= self._end

    def _first_header(self, filled: int) -> int:
        """The first header behind the first byte, which is the one before this unit; -1 if there is none."""
        at = self._buffer.find(b"\n", 0, filled)
        while 0 <= at < filled - 1:
            if self._start(self._buffer, at + 1, filled):
                return at + 1
            at = self._buffer.find(b"\n", at + 1, filled)
        return -1

    def _undecided_from(self, filled: int) -> int:
        """The byte before the last line, which may be a header that is not whole yet."""
        at = self._buffer.rfind(b"\n", 0, filled)
        if at == 0 and filled == len(self._buffer) - SLACK:  # a line that fills the buffer
            if filled >= LARGEST_BYTES:
                return filled - 1
            self._grow_buffer(filled)
        return at if at >= 0 else filled - 1

    def _grow_buffer(self, filled: int) -> None:
        larger = bytearray(LARGEST_BYTES + SLACK)
        larger[:filled] = self._buffer[:filled]
        self._buffer = self._space.buffer = larger

    def _find_complete_end(self, start: int, filled: int, base: int, done: bool) -> tuple[int, bool]:
        """Up to where records are complete, and whether the unit ends there."""
        if self._is_past_end(base + filled):
            at = self._next_header(max(self._end or 0, base + start) - base, start, filled)
            if at >= 0:
                return at, True
        if done:
            return filled, True
        at = self._buffer.rfind(b"\n", start, filled)
        if self.format.by_context:  # half a line cannot be compared with what the line before goes on with
            at = self._buffer.rfind(b"\n", start, max(at, start))
        while at > start:
            if at + 1 < filled and self._start(self._buffer, at + 1, filled):
                return at + 1, False
            at = self._buffer.rfind(b"\n", start, at)
        return start, False

    def _next_header(self, at: int, start: int, filled: int) -> int:
        """The first header at or behind ``at``; -1 if there is none yet."""
        buffer = self._buffer
        inside = self._verdict is not None  # the buffer begins within a record, not with a line
        if inside if at == start else buffer[at - 1] != 10:
            at = buffer.find(b"\n", at, filled) + 1 or filled
        while at < filled:
            if self._start(buffer, at, filled):
                return at
            at = buffer.find(b"\n", at, filled) + 1 or filled
        return -1

    def _too_long(self, filled: int) -> int:
        """One record fills the buffer: a larger buffer, or pieces that follow the verdict on the first."""
        if filled < LARGEST_BYTES:
            self._grow_buffer(filled)
            return filled
        if self._verdict is None:
            self._verdict = self.matcher.accept(self._buffer, 0, filled)
            self.taken += self._verdict
        if self._verdict:
            self.emit(memoryview(self._buffer)[:filled])
        return 0

    def _filter_region(self, start: int, stop: int) -> None:
        """Decide on the complete records in ``buffer[start:stop]``."""
        if self._verdict is not None and stop > start:
            start = self._rest_of_long(start, stop)
        if stop <= start:
            return
        if self._everything:
            self.taken += 1
            self.emit(memoryview(self._buffer)[start:stop])
        elif self._next_hit is None:
            self._ask_all(start, stop)
        elif self._by_tag_alone:
            taken = self.taken
            if not (self.format.column and self._space.dense and self._ask_block(start, stop)):
                self._ask_tags(start, stop)
            self._space.record_hit_density(self.taken - taken, stop - start)
        else:
            self._ask_hits(start, stop)

    def _rest_of_long(self, start: int, stop: int) -> int:
        """The end of the record that came in pieces."""
        end = self._record_end(start, stop)
        if self._verdict:
            self.emit(memoryview(self._buffer)[start:end])
        self._verdict = None
        return end

    def _ask_all(self, start: int, stop: int) -> None:
        header = self.format.header
        alone = not self.format.by_context  # one expression can tell where a record ends
        record = re.compile(self.format.record(header.pattern), header.flags).match if alone else header.match
        buffer, judge = self._buffer, self.matcher.judge
        run = -1  # where a run of records that count began
        at = start
        while at < stop:
            found = record(buffer, at, stop)
            end = found.end() if alone and found is not None else self._record_end(at, stop)
            if judge(found, buffer, at, end):
                self.taken += 1
                run = at if run < 0 else run
            elif run >= 0:
                self.emit(memoryview(buffer)[run:at])
                run = -1
            at = end
        if run >= 0:
            self.emit(memoryview(buffer)[run:stop])

    def _ask_tags(self, start: int, stop: int) -> None:
        """Where the tag decides. What the loop does is what a dense log costs: no call in it that could be saved."""
        buffer, alike, column, literal = self._buffer, self._alike, self.format.column, self._literal
        find, rfind, starts = buffer.find, buffer.rfind, self._start
        seek: Callable[[bytes, int, int], int] = find if literal else self._find_next_literal
        width = len(literal)
        if literal and self._space.sparse:
            seek = self._space.seek.find
        kept: list[bytearray] = []
        at = low = start  # low: where a line starts
        while (hit := seek(literal, at, stop)) >= 0:
            begin = rfind(b"\n", low, hit) + 1 or low
            # The first lines are short cuts for tdbg's own format, the others say the same for all.
            if hit - begin != column or buffer[hit + width] != CLOSES or buffer[begin + 10] != TEE or not width:
                look = bytes(buffer[begin:hit]).translate(ZEROS)
                if not width or buffer[hit + width] != CLOSES:  # the tag is not the literal itself
                    look += b"\n" + buffer[hit : find(b"]", hit, stop) + 1]
                counts = alike.get(look)
                if counts is None:
                    counts = self._judge_header(look, begin, hit, stop)
                if not counts:
                    at, low = hit + 1, begin
                    continue
            end = find(b"\n", hit, stop) + 1 or stop
            sure = buffer[end + 4] == DASH and buffer[end] == TWO and buffer[end + 1] == ZERO and column
            if not sure and end < stop and not starts(buffer, end, stop):
                end = self._record_end(begin, stop)
            kept.append(buffer[begin:end])
            at = low = end
        if kept:
            self.taken += len(kept)
            self.emit(memoryview(b"".join(kept)))

    def _ask_block(self, start: int, stop: int) -> bool:
        """The same by numpy; False if these lines are not what it is for."""
        block, column = self._space.block, self.format.column
        runs = None
        if self._literal and not self._space.crowded:
            runs = block.find_literal_records(
                start,
                stop,
                column,
                self._literal,
                counts=lambda begin, hit: self._is_record_match(begin, stop, hit),
                record_end=lambda begin: self._record_end(begin, stop),
            )
            taken = len(runs or ())
        if runs is None:
            found = block.find_record_runs(
                start,
                stop,
                column,
                self._literals,
                starts=self._start,
                counts=lambda begin: self._is_record_match(begin, stop),
            )
            if found is None:
                return False
            runs, taken = found
        self.taken += taken
        if runs:
            self.emit(memoryview(b"".join([self._buffer[begin:end] for begin, end in runs])))
        return True

    def _is_record_match(self, begin: int, stop: int, place: int = -1) -> bool:
        """Whether the record that starts at ``begin`` counts. place: where its tag must be."""
        found = match_header(self.format, self._buffer, begin, stop)
        hit = found.start("tag") if found is not None else -1
        if hit < 0 or place not in (-1, hit):
            return False
        close = self._buffer.find(b"]", hit, stop) + 1
        look = bytes(self._buffer[begin:hit]).translate(ZEROS) + b"\n" + self._buffer[hit:close]
        counts = self._alike.get(look)
        return self._judge_header(look, begin, hit, stop) if counts is None else counts

    def _find_next_literal(self, literal: bytes, start: int, stop: int) -> int:
        """The next hit of several literals."""
        assert self._next_hit is not None
        return self._next_hit(self._buffer, start, stop)

    def _judge_header(self, look: bytes, begin: int, hit: int, stop: int) -> bool:
        """Whether the tag at ``hit`` is that of a record that starts at ``begin`` and counts."""
        found = match_header(self.format, self._buffer, begin, stop)
        counts = (
            found is not None and found.start("tag") == hit and self.matcher.judge(found, self._buffer, begin, stop)
        )
        if len(look) < LOOK_BYTES:
            if len(self._alike) == LOOKS:
                self._alike.clear()
            self._alike[look] = counts
        return counts

    def _ask_hits(self, start: int, stop: int) -> None:
        buffer, next_hit, accept = self._buffer, self._next_hit, self.matcher.accept
        assert next_hit is not None
        run = run_end = -1
        at = start
        while at < stop:
            hit = next_hit(buffer, at, stop)
            if hit < 0:
                break
            begin = self._record_start(hit, at)
            end = self._record_end(begin, stop)
            end = end if end > hit else self._record_end(hit, stop)
            if accept(buffer, begin, end):
                self.taken += 1
                if run_end != begin:
                    if run >= 0:
                        self.emit(memoryview(buffer)[run:run_end])
                    run = begin
                run_end = end
            at = end
        if run >= 0:
            self.emit(memoryview(buffer)[run:run_end])

    def _record_start(self, hit: int, low: int) -> int:
        """The header line of the record that holds ``hit``; ``low`` is where a record starts for certain."""
        buffer, match = self._buffer, self._start
        at = buffer.rfind(b"\n", low, hit) + 1 or low
        while at > low and not match(buffer, at):
            at = buffer.rfind(b"\n", low, at - 1) + 1 or low
        return at

    def _record_end(self, start: int, stop: int) -> int:
        """Where the next record starts, or ``stop``."""
        buffer, match = self._buffer, self._start
        at = buffer.find(b"\n", start, stop) + 1
        while 0 < at < stop and not match(buffer, at, stop):
            at = buffer.find(b"\n", at, stop) + 1
        return at or stop


def filter_bytes(buffer: Buffer, matcher: Matcher) -> bytes:
    """Filter bytes that are in memory; for small inputs and tests."""
    import io

    kept: list[bytes] = []
    Filter(matcher, lambda view: kept.append(bytes(view))).filter_stream(io.BytesIO(buffer))
    return b"".join(kept)
