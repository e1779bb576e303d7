"""The smallest writer of grey pictures that a test needs."""

import struct
import zlib
from pathlib import Path

import torch


def write_png(path: Path, x_HW: torch.Tensor, scale: int = 16) -> None:
    """Black is the smallest value, white the largest; each is a square of ``scale`` pixels."""
    low, high = x_HW.min(), x_HW.max()
    grey_HW = ((x_HW - low) / (high - low).clamp(min=1e-12) * 255).to(torch.uint8)
    grey_HW = grey_HW.repeat_interleave(scale, 0).repeat_interleave(scale, 1)
    height, width = grey_HW.shape
    rows = b"".join(b"\0" + bytes(row) for row in grey_HW.tolist())
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    body = b"".join(struct.pack(">I", len(data)) + kind + data + _compute_crc(kind + data) for kind, data in parts)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


def _compute_crc(data: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(data))
