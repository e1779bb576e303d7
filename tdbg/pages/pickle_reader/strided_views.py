"""Copy the elements of a strided view into contiguous bytes."""

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy

Read = Callable[[int, int], bytes]  # offset, count

SMALL = 2048  # elements that are picked one by one, sooner than numpy is imported
PIECE_BYTES = 64 << 20
WORDS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "V16"}


def view_span(shape: tuple[int, ...], strides: tuple[int, ...], width: int) -> int:
    """Bytes from the first element to the end of the farthest; strides in elements, none of them negative."""
    if 0 in shape:
        return 0
    return (sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1) * width


def gather_view(read: Read, start: int, shape: tuple[int, ...], strides: tuple[int, ...], width: int) -> bytes:
    """The elements in C order, of a view that begins at byte ``start``.

    Memory: twice the result and 64 MiB; a wide view of a large storage is read in pieces. Only what the view spans is read.
    """
    if 0 in shape:
        return b""
    if math.prod(shape) <= SMALL and view_span(shape, strides, width) <= PIECE_BYTES:
        return _gather_elements(read(start, view_span(shape, strides, width)), shape, strides, width)
    import numpy as np

    out = np.empty(shape, WORDS[width])
    _fill_array(read, start, out, strides)
    return out.tobytes()


def _gather_elements(data: bytes, shape: tuple[int, ...], strides: tuple[int, ...], width: int) -> bytes:
    steps = [
        range(0, size * stride, stride) if stride else (0,) * size for size, stride in zip(shape, strides, strict=True)
    ]
    return b"".join(data[at * width : (at + 1) * width] for at in map(sum, itertools.product(*steps)))


def _fill_array(read: Read, start: int, out: "numpy.ndarray[Any, Any]", strides: tuple[int, ...]) -> None:
    """Fill ``out``; a view that spans too much is cut along the dimension that reaches farthest."""
    import numpy as np

    width, reach = out.itemsize, view_span(out.shape, strides, out.itemsize)
    if reach <= PIECE_BYTES:
        steps = tuple(stride * width for stride in strides)
        out[...] = np.ndarray(out.shape, out.dtype, read(start, reach), 0, steps)
        return
    across = max(range(out.ndim), key=lambda axis: (out.shape[axis] - 1) * strides[axis])
    count = max(1, min(PIECE_BYTES // (strides[across] * width), out.shape[across] // 2))
    for begin in range(0, out.shape[across], count):
        part = (slice(None),) * across + (slice(begin, begin + count),)
        _fill_array(read, start + begin * strides[across] * width, out[part], strides)
