"""Stream the events of a trace in typed batches, in memory that does not grow with the file.

A trace is one JSON object whose ``traceEvents`` is a list of events, or that list alone. Whoever writes it puts the
same bytes between all of its events, so a block can be cut at the last of these and decoded whole. A cut inside a
text or inside an event cannot be decoded, so it is never taken for an event: the cut before it is tried. Where the
first block has no such place, ijson reads the file, in any layout and several times slower.
"""

import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tdbg.core.errors import TdbgError
from tdbg.core.tables import format_count, safe
from tdbg.traces.parse import event_names
from tdbg.traces.parse.chunks import Blocks

BATCH = 4096  # events of a batch, where ijson reads
HEAD = 64 << 20  # bytes before the first event; what has more is no trace
SAMPLE = 1 << 20  # bytes that show how the events are parted
HELD = 64 << 20  # bytes of one event
TRIES = 4  # cuts, from the last one backwards
HOPELESS = 20_000  # damaged events, where they are more than the good ones
DEPTH = 10_000  # brackets within brackets
JOINED = 4  # pieces that may belong to one event
ENDS = 32  # brackets that may close the list, from the last one backwards

NO_TRACE = "name a file that torch.profiler exported"
OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
BETWEEN = re.compile(rb"\}\s*,\s*\{")
TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
EARLY = re.compile("premature|ncomplete")  # and for: it is not
BEHIND = re.compile("trailing|dditional data")  # ijson's words for: the list is over, and more follows
NOT_FINITE = re.compile(rb"(?<=[:\[,\s])[-+]?(?:NaN|nan|Infinity|inf)(?=\s*[,}\]])")
CONTROL = re.compile(rb"[\x00-\x1f]")
TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
BRACKET = re.compile(rb'[][{}"]')  # and a text that has no end, which no bracket is behind
PAIRS = {b"]": ord("["), b"}": ord("{"), b'"': 0}
BACKSLASH = re.compile(rb'\\(["\\/bfnrtu])?')  # with what it escapes; alone it escapes nothing

MOST_CATEGORIES, SHOWN_CATEGORIES = 1000, 6

Number = int | float | str | None


class Args(msgspec.Struct, gc=False):
    """What an event tells besides: only what somebody asks for. Raw values are JSON."""

    correlation: Number = None
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input Dims")
    concrete: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Concrete Inputs")
    device: Number = None
    bytes: Number = None
    allocated: Number = msgspec.field(default=None, name="Total Allocated")
    reserved: Number = msgspec.field(default=None, name="Total Reserved")
    amount: Number = msgspec.field(default=None, name="Bytes")
    address: Number = msgspec.field(default=None, name="Addr")
    device_type: Number = msgspec.field(default=None, name="Device Type")
    device_id: Number = msgspec.field(default=None, name="Device Id")


class Event(msgspec.Struct, gc=False):
    """One event as it stands in the file: ``ts`` and ``dur`` in microseconds with fractions."""

    ph: str
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: Args | None = None


class Trace:
    """One file of a trace, to be read once from its beginning to its end.

    ``head``: what stands beside the events (deviceProperties, distributedInfo, trace_id ...), as far as it was read.
    ``problems``: after the last event, what was wrong with the file, a line each. ``damaged``: events left out.
    Raises TdbgError, at the first event, for a file that cannot be read or is no trace.
    """

    def __init__(self, path: str | os.PathLike[str], size: int = 1 << 20) -> None:
        self.blocks = Blocks(path, size)
        self.path = self.blocks.path
        self.head: dict[str, Any] = {}
        self.problems: list[str] = []
        self.damaged = 0
        self.events = 0
        self.unread: Counter[str] = Counter()  # category -> events of kinds that nobody reads here
        self._ended = False  # the list was closed
        self._bare = False  # there is nothing but the list
        self._decode: Callable[[bytes], list[Event]] = msgspec.json.Decoder(list[Event]).decode
        self._decode_any = msgspec.json.Decoder(list[msgspec.Raw]).decode
        self._decode_one: Callable[[bytes], Event] = msgspec.json.Decoder(Event).decode

    def __iter__(self) -> Iterator[list[Event]]:
        """The events in the order of the file, in batches."""
        blocks = iter(self.blocks)
        data = self._read_opening(blocks)
        seen = Counter(BETWEEN.findall(data[:SAMPLE])).most_common(1)  # a name or an argument may hold others
        more = None if seen else next(blocks, None)
        if more is not None:
            batches = self._by_ijson(data + more, blocks)
        else:
            batches = self._by_chunks(data, blocks, seen[0][0] if seen else b"},{")
        for batch in batches:
            self.events += len(batch)
            if not {event.cat for event in batch} <= event_names.KNOWN:
                self._normalize_categories(batch)
            yield batch
            if self.damaged > HOPELESS + self.events:
                self.problems.append("most of its events are damaged: the rest was not read")
                self._ended = True
                break
        self._report_problems()

    def _normalize_categories(self, batch: list[Event]) -> None:
        """Give events of older profilers and other devices today's categories; count those that have none."""
        for event in batch:
            if event.cat not in event_names.KNOWN:
                event.cat = event_names.normalize_category(event.cat)
                if event.cat not in event_names.KNOWN and event.ph == "X":
                    self.unread[event.cat if len(self.unread) < MOST_CATEGORIES else ""] += 1

    @property
    def is_torn(self) -> bool:
        """After the last event: there was more in the file that was written."""
        return bool(self.blocks.torn) or not self._ended

    def _report_problems(self) -> None:
        if self._bare and not self.events and (self.damaged or not self._ended):
            raise TdbgError(f"{self.path} is not a trace: a list without trace events", NO_TRACE)
        if self.unread:
            named = ", ".join(safe(name or "others") for name, _ in self.unread.most_common(SHOWN_CATEGORIES))
            more = " and others" if len(self.unread) > SHOWN_CATEGORIES else ""
            events = format_count(self.unread.total(), "event")
            self.problems.append(f"{events} of other kinds left out: {named}{more}")
        if self.blocks.torn:
            self.problems.append(f"{self.blocks.torn}: everything after that point is missing")
        elif not self._ended:
            self.problems.append("the file is truncated: the last events are missing")
        if self.damaged:
            verbs = "is damaged and was" if self.damaged == 1 else "are damaged and were"
            self.problems.append(f"{format_count(self.damaged, 'event')} {verbs} left out")

    # the frame around the events

    def _read_opening(self, blocks: Iterator[bytes]) -> bytes:
        """Read to the first event: what stands before it becomes the head; returns the bytes behind it."""
        data = next(blocks, b"")
        if not data.strip():
            if self.blocks.torn:
                raise TdbgError(f"{self.path} cannot be read: {self.blocks.torn}", "copy it again, or profile again")
            raise TdbgError(f"{self.path} is empty", "the program may have ended during the export")
        data = data.removeprefix(b"\xef\xbb\xbf").lstrip()
        if data[:1] == b"[":
            self._bare = True
            return data[1:]
        found = OPENING.search(data) if data[:1] == b"{" else None
        while found is None and data[:1] == b"{" and len(data) < HEAD:
            more = next(blocks, None)
            if more is None:
                break
            data += more
            found = OPENING.search(data)
        if found is None:
            if self.path.endswith(".gz") and not self.blocks.is_packed:
                raise TdbgError(f"{self.path} is not a trace: it is not gzip data", NO_TRACE)
            torn = f" ({self.blocks.torn})" if self.blocks.torn else ""
            raise TdbgError(f"{self.path} is not a trace: it has no traceEvents{torn}", NO_TRACE)
        self._add_head(data[: found.start()].rstrip().removesuffix(b",") + b"}")
        return data[found.end() :]

    def _add_head(self, text: bytes) -> None:
        try:
            found = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            self.problems.append("the fields beside traceEvents cannot be read")
            return
        self.head |= found

    def _read_closing(self, tail: bytes, blocks: Iterator[bytes]) -> None:
        """The list of events is over: what follows it belongs to the head."""
        self._ended = True
        for more in blocks:
            if len(tail) < HEAD:
                tail += more
        tail = tail.strip()
        if tail.startswith(b",") and not self.blocks.torn:
            self._add_head(b"{" + tail[1:])
        elif tail not in (b"", b"}"):
            self.problems.append("the data after the events cannot be read")

    # by chunks

    def _by_chunks(self, data: bytes, blocks: Iterator[bytes], between: bytes) -> Iterator[list[Event]]:
        """between: the bytes from the end of an event to the beginning of the next, both braces with them."""
        for more in blocks:
            batch, data = self._decode_whole_events(data, between)
            if self._ended:
                yield batch
                self._read_closing(data + more, blocks)
                return
            if batch:
                yield batch
            data += more
            if len(data) > HELD:
                self._too_large()
                return
        yield from self._iter_last_events(data, blocks, between)

    def _too_large(self) -> None:
        self.problems.append(f"an event is larger than {HELD >> 20} MB: the rest was not read")
        self._ended = True

    def _decode_whole_events(self, data: bytes, between: bytes) -> tuple[list[Event], bytes]:
        """Decode up to the last whole event; returns the events, and the bytes that are left."""
        end = len(data)
        for _ in range(TRIES):
            end = data.rfind(between, 0, end)
            if end < 0:
                return [], data
            try:
                return self._decode(b"[" + data[: end + 1] + b"]"), data[end + len(between) - 1 :]
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
                closed = self._decode_list_end(data, error)
                if closed is not None:
                    return closed
        end = data.rfind(between)
        found = self._one_by_one(data[: end + 1], between)
        return found, data[end + len(between) - 1 :]

    def _decode_list_end(self, data: bytes, error: Exception) -> tuple[list[Event], bytes] | None:
        """The events of a block in which their list ends, and what is behind it."""
        match = TRAILING.search(str(error))
        if match is None:
            return None
        end = int(match[1]) - 2  # it counts from 1, and from the bracket that is put before the data
        try:
            found = self._decode(b"[" + data[:end])
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return None
        self._ended = True
        return found, data[end:]

    def _iter_last_events(self, data: bytes, blocks: Iterator[bytes], between: bytes) -> Iterator[list[Event]]:
        """What is left when the file ends."""
        try:
            found = self._decode(b"[" + data)
            self._ended = True
            yield found
            return
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            closed = self._decode_list_end(data, error)
        if closed is not None:
            yield closed[0]
            self._read_closing(closed[1], blocks)
            return
        found, rest = self._decode_whole_events(data, between)
        yield found
        if not self._ended:
            yield self._one_by_one(rest, between, last=True)

    def _one_by_one(self, data: bytes, between: bytes, *, last: bool = False) -> list[Event]:
        """Decode the events each for itself, mend what can be mended, count what cannot.

        last: the file ends with them. Then the last one may be torn, or the list may be closed behind it.
        """
        found: list[Event] = []
        pieces = data.split(between)
        at = lost = 0
        while at < len(pieces) and lost <= HOPELESS:
            events, width = self._join_pieces(pieces, at, between)
            if events is None:
                lost += 1
            else:
                found += events
                self.damaged += lost
                lost = 0
            at += width
        if last and lost:
            before = between.join(pieces[-lost:-1]) + between[:-1] if lost > 1 else b""
            before = b"{" + before if 1 < lost < len(pieces) else before
            more = self._before_the_end(before, (b"{" if len(pieces) > 1 else b"") + pieces[-1])
            found += more or []
            lost = max(lost - JOINED, 0) if more is None else lost - bool(more)  # what is torn is told as torn
        self.damaged += lost
        return found

    def _join_pieces(self, pieces: list[bytes], at: int, between: bytes) -> tuple[list[Event] | None, int]:
        """The event that begins with a piece, and how many pieces it takes: a text in it may hold what parts events."""
        for width in range(1, min(JOINED, len(pieces) - at) + 1):
            text = between.join(pieces[at : at + width])
            event = self._decode_repaired((b"{" if at else b"") + text + (b"}" if at + width < len(pieces) else b""))
            if event is not None:
                return [event], width
        return self._decode_several((b"{" if at else b"") + pieces[at] + (b"}" if at + 1 < len(pieces) else b"")), 1

    def _decode_several(self, text: bytes) -> list[Event] | None:
        """The events among several things, those that are none counted; None where there is no event."""
        try:
            every = self._decode_any(b"[" + text + b"]")
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return None
        found = [event for one in every if (event := self._decode_repaired(bytes(one))) is not None]
        self.damaged += len(every) - len(found) if found else 0
        return found or None

    def _decode_repaired(self, text: bytes) -> Event | None:
        for repair in (bytes, _repair_json):
            try:
                return self._decode_one(repair(text))
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                continue
        return None

    def _before_the_end(self, before: bytes, text: bytes) -> list[Event] | None:
        """The last event of a list that is closed behind it, none if that is no event; None if nothing closes it.

        before: what could not be decoded in front of the text.
        """
        end = len(text)
        for _ in range(ENDS):
            end = text.rfind(b"]", 0, end)
            if end < 0:
                break
            event = self._decode_repaired(text[:end])
            found = [event] if event is not None else self._decode_several(text[:end])
            if found or _is_closed(b"[" + before + text[: end + 1]):
                self._ended = True
                return found or []
        return None

    # by ijson

    def _by_ijson(self, data: bytes, blocks: Iterator[bytes]) -> Iterator[list[Event]]:
        """The same in any layout."""
        import ijson

        source = _Joined(itertools.chain((b"[" + data,), blocks))
        batch: list[Event] = []
        try:
            for item in ijson.items(source, "item", use_float=True):
                source.since = 0
                event = self._convert_item(item)
                if event is None:
                    self.damaged += 1
                    continue
                batch.append(event)
                if len(batch) == BATCH:
                    yield batch
                    batch = []
            self._ended = True
        except _TooLarge:
            self._too_large()
        except (ijson.JSONError, ValueError, RecursionError) as error:
            self._ended = not EARLY.search(str(error))
            if self._ended and not BEHIND.search(str(error)):
                self.problems.append("the file is damaged: everything after that point is missing")
        yield batch

    def _convert_item(self, item: Any) -> Event | None:
        """What ijson made of an event; None if it is none."""
        return _convert_to_event(item)


def _is_closed(text: bytes) -> bool:
    """True if each bracket has its end, the last one the first, whatever is wrong between them."""
    open_ones = bytearray()
    for sign in BRACKET.findall(TEXT.sub(b"", text)):
        if sign in b"[{":
            open_ones += sign
        elif not open_ones or open_ones.pop() != PAIRS[sign]:
            return False
    return not open_ones


def _repair_json(text: bytes) -> bytes:
    """What some writers leave in an event although JSON has no such thing: made into what it means."""
    text = CONTROL.sub(b" ", NOT_FINITE.sub(b"null", text))
    return BACKSLASH.sub(lambda match: match[0] if match[1] else rb"\\", text)


def _convert_to_event(item: Any) -> Event | None:
    if isinstance(item, dict) and isinstance(item.get("args"), dict):
        args = item["args"]
        for key in ("Input Dims", "Concrete Inputs"):
            if key in args:
                args[key] = msgspec.Raw(msgspec.json.encode(args[key]))
    try:
        return msgspec.convert(item, Event)
    except msgspec.ValidationError:
        return None


class _TooLarge(ValueError):
    """One event is larger than is held."""


class _Joined:
    """Blocks as a file that ijson reads. ``since``: bytes that were read since the last event was whole."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._data = b""
        self.since = 0
        self._open = 0  # brackets, those in texts with them: a crude measure, and a cheap one

    def read(self, size: int = -1) -> bytes:
        """At least one byte, but at the end; no more than size."""
        if not self._data:
            self._data = self._read_next_block()
        size = len(self._data) if size < 0 else size
        part, self._data = self._data[:size], self._data[size:]
        self.since += len(part)
        if self.since > HELD:
            raise _TooLarge
        return part

    def _read_next_block(self) -> bytes:
        data = next(self._blocks, b"")
        self._open += sum(data.count(sign) for sign in (b"[", b"{")) - sum(data.count(sign) for sign in (b"]", b"}"))
        if self._open > DEPTH:
            raise ValueError("nested too deeply")
        return data
