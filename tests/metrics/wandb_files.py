"""What the files of an offline run of W&B hold. Their frame is that of LevelDB's log; the records are wandb's own protobuf.

wandb itself no longer has a reader in Python (0.31): the frame is read here, checksums checked, the rest by wandb.
"""

import json
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 32_768
HEAD = 7  # of the file: ":W&B", magic, version; and of a chunk: checksum, length, type
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def iter_frames(path: Path) -> Iterator[bytes]:
    """The records of one file."""
    data = path.read_bytes()
    assert data[:4] in (b":W&B", b""), path
    at, parts = HEAD, b""
    while at + HEAD <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEAD:
            at += left
            continue
        checksum, length, kind = struct.unpack("<IHB", data[at : at + HEAD])
        body = data[at + HEAD : at + HEAD + length]
        if kind == 0 or len(body) < length:
            return
        assert zlib.crc32(bytes([kind]) + body) == checksum
        at += HEAD + length
        parts = body if kind in (WHOLE, FIRST) else parts + body
        if kind in (WHOLE, LAST):
            yield parts


def load_runs(folder: Path, names: str = "*") -> list[dict[str, Any]]:
    """History, config, summary, tags, alerts and id of each run that lies in a folder, in the order of their begin.

    names: of wandb's folders of the runs; one that never began is never ended either, and waited for to no end.

    wandb's own process writes the end of a run after ``finish`` is back: it is waited for.
    """
    until = time.monotonic() + 30
    paths = [path for path in folder.rglob(f"{names}/*.wandb") if "latest-run" not in path.parts]
    found = []
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns):
        one = _load_run(path)
        while not one["ended"] and time.monotonic() < until:
            time.sleep(0.1)
            one = _load_run(path)
        found.append(one)
    return found


def _load_run(path: Path) -> dict[str, Any]:
    from wandb.proto import wandb_internal_pb2 as proto

    one: dict[str, Any] = {"history": [], "config": {}, "summary": {}, "id": None, "ended": False}
    one |= {"tags": [], "alerts": [], "project": ""}
    for data in iter_frames(path):
        record = proto.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            one["history"].append(_decode_items(record.history.item))
        elif kind == "run":
            one["id"], one["project"], one["tags"] = record.run.run_id, record.run.project, list(record.run.tags)
            one["config"] |= _decode_items(record.run.config.update)
        elif kind == "config":
            one["config"] |= _decode_items(record.config.update)
        elif kind == "summary":
            one["summary"] |= _decode_items(record.summary.update)
        elif kind == "alert":
            one["alerts"].append({"title": record.alert.title, "text": record.alert.text, "level": record.alert.level})
        elif kind == "exit":
            one["ended"] = True
    return one


def _decode_items(items: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}
