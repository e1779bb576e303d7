"""Reads the file of an offline Weights & Biases run: a log of LevelDB's form, with a protocol buffer a record.

wandb itself reads it in its Go part alone; the messages are decoded with the classes that it installs.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEADER = 7  # of the file: ":W&B", a magic number, a version
BLOCK = 32768
PIECE = struct.Struct("<IHB")  # checksum, length, kind
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(folder: Path) -> Iterator[Any]:
    """The records of the one offline run below a folder, in order."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    for data in _logged(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        yield record


def _logged(data: bytes) -> Iterator[bytes]:
    assert data[:4] == b":W&B"
    at, parts = HEADER, b""
    while at + PIECE.size <= len(data):
        left = BLOCK - at % BLOCK
        if left < PIECE.size:
            at += left
            continue
        _, length, kind = PIECE.unpack_from(data, at)
        piece = data[at + PIECE.size : at + PIECE.size + length]
        at += PIECE.size + length
        parts = piece if kind in (FULL, FIRST) else parts + piece
        if kind in (FULL, LAST):
            yield parts
