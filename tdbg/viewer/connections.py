"""Connections of clients that are slow, silent or many: each has a deadline, and where there are too many the idle ones end.

Anybody on this machine may connect, whoever reads nothing or never ends a request included. Without deadlines a few
hundred such connections would keep the user's own browser out.
"""

import asyncio

import msgspec
from starlette.types import Message, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tdbg.viewer.routes import Problem

REQUEST_S = 20.0  # from the first byte until the request is there with its body
STALL_S = 30.0  # a client that has room for no byte for so long is given up
MAX_CONNECTIONS = 256
PIECE_BYTES = 64 << 10  # of an answer that are handed on at a time: a slow reader holds no more in memory


class Deadline:
    """Ends a connection unless it is stopped in time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop, self._transport = loop, transport
        self._timer: asyncio.TimerHandle | None = None

    def start(self, seconds: float) -> None:
        """Begin to count, if it does not yet."""
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, self._transport.abort)

    def stop(self) -> None:
        """There is time again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class TimedConnection(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it, with deadlines."""

    request: Deadline
    stall: Deadline
    idle_since: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new client; of too many the one that has been idle longest goes."""
        super().connection_made(transport)
        self.idle_since = self.loop.time()
        self.request, self.stall = Deadline(self.loop, transport), Deadline(self.loop, transport)
        self._watch_request()
        idle = [one for one in self.connections if isinstance(one, TimedConnection) and one.is_waiting]
        if len(self.connections) > MAX_CONNECTIONS and idle:
            min(idle, key=lambda one: one.idle_since).transport.abort()

    @property
    def is_waiting(self) -> bool:
        """True while it is the client's turn: no request is there, or not all of one."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def data_received(self, data: bytes) -> None:
        """A part of a request."""
        super().data_received(data)
        self._watch_request()

    def _watch_request(self) -> None:
        if self.is_waiting:
            self.request.start(REQUEST_S)
        else:
            self.request.stop()

    def on_response_complete(self) -> None:
        """The next request has its own deadline; that of an idle connection is uvicorn's."""
        super().on_response_complete()
        self.idle_since = self.loop.time()
        if self.cycle is not None and not self.cycle.more_body:
            self.request.stop()

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        self.stall.start(STALL_S)

    def resume_writing(self) -> None:
        """It reads again."""
        super().resume_writing()
        self.stall.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        super().connection_lost(exc)
        self.request.stop()
        self.stall.stop()

    def send_400_response(self, msg: str) -> None:
        """Say that this was no request, as every refusal is said."""
        problem = Problem(
            error="not a valid HTTP request, or its URL or headers are too long", try_next="send a well-formed request"
        )
        body = msgspec.json.encode(problem)
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()


async def send_in_pieces(send: Send, message: Message) -> None:
    """Send a message of an answer; a long body in pieces, each when the client has taken those before."""
    body = message.get("body", b"")
    if message["type"] != "http.response.body" or len(body) <= PIECE_BYTES:
        await send(message)
        return
    for start in range(0, len(body), PIECE_BYTES):
        piece = bytes(body[start : start + PIECE_BYTES])
        goes_on = start + PIECE_BYTES < len(body) or message.get("more_body", False)
        await send({**message, "body": piece, "more_body": goes_on})
