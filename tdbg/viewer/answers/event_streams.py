"""What a run does now, as a stream of events for its page."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.concurrency import run_in_threadpool

from tdbg.core.tables import to_json_value
from tdbg.launch.live import Snapshot, read_snapshot
from tdbg.viewer.encoding import encode_json
from tdbg.viewer.rank_activity import describe_ranks
from tdbg.viewer.routes import API, route
from tdbg.viewer.run_library import Served

EVERY_S = 2.0
BEAT_S = 15.0  # a comment after so long shows that the server lives


@route("GET", f"{API}/runs/{{run}}/events")
async def stream_status(served: Served, run: str) -> AsyncIterator[bytes]:
    """The status whenever it changes, as server-sent events, until the run ends."""
    before, silent_s = b"", 0.0
    while True:
        found = await run_in_threadpool(served.runs.open_run, run)  # of a store, a copy that grows
        snapshot = await run_in_threadpool(read_snapshot, found)
        status: dict[str, Any] = to_json_value(snapshot.as_dict()) | {"ranks": describe_ranks(snapshot)}
        now = _encode_lasting(snapshot, status)
        if now != before:
            before, silent_s = now, 0.0
            yield b"event: status\ndata: " + encode_json(status) + b"\n\n"
        elif silent_s >= BEAT_S:
            silent_s = 0.0
            yield b": still here\n\n"
        if status["state"] == "ended":
            yield b"event: end\ndata: {}\n\n"
            return
        await asyncio.sleep(EVERY_S)
        silent_s += EVERY_S


def _encode_lasting(snapshot: Snapshot, status: dict[str, Any]) -> bytes:
    """A status without what changes by itself: when a rank was last seen instead of how long ago."""
    silences = [bool(rank["quiet"]) for rank in status["ranks"]]
    seen = [rank.last_t for rank in snapshot.ranks]
    ranks = [{**rank, "last_seen_s": None, "quiet": ""} for rank in status["ranks"]]
    return encode_json([status | {"ranks": ranks}, seen, silences])
