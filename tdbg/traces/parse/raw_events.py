"""The events of a trace together with their raw bytes, for copying some of them to another file."""

from typing import Any

import msgspec

from tdbg.traces.parse.event_stream import Event, Trace


class RawEvent(Event, gc=False):
    """An event, its id, and all of it as JSON. ``text`` lives as long as the block it is of: keep ``bytes(text)``."""

    id: msgspec.Raw = msgspec.field(default=msgspec.Raw())
    text: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name=" ")  # filled in below


class RawEventTrace(Trace):
    """As `Trace`; its events are of class `RawEvent`."""

    def __init__(self, path: Any, size: int = 1 << 20) -> None:
        super().__init__(path, size)
        events = msgspec.json.Decoder(list[RawEvent]).decode
        texts = msgspec.json.Decoder(list[msgspec.Raw]).decode
        one = msgspec.json.Decoder(RawEvent).decode

        def decode_events(data: bytes) -> list[Event]:
            found = events(data)
            for event, text in zip(found, texts(data), strict=True):
                event.text = text
            return list(found)

        def decode_one(data: bytes) -> Event:
            event = one(data)
            event.text = msgspec.Raw(data)
            return event

        self._decode = decode_events
        self._decode_one = decode_one

    def _convert_item(self, item: Any) -> Event | None:
        try:
            return self._decode_one(msgspec.json.encode(item))
        except (msgspec.ValidationError, TypeError, ValueError):
            return None
