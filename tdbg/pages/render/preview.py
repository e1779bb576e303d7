"""A preview of a tensor: planes of its last two dimensions, reduced to block means if they are large."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tdbg.core.tables import format_count
from tdbg.pages.read.datapoint import Tensor
from tdbg.pages.read.tensor_slices import CHUNK_BYTES, flat_parts
from tdbg.pages.read.tensor_values import value_shape
from tdbg.pages.render.pixels import is_image, is_image_batch

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

PLANES = 64  # of a tensor that is too large to be shown whole
LEAST_SIDE = 32  # cells; rather fewer planes than smaller ones
LARGEST_BYTES = 6_000_000  # of one tensor
EXACT_BYTES = 1 << 18  # up to here values are kept as float32, if there is room
LEAST_BYTES = 64
ROW_BYTES = 256 << 20
STEPS = 252  # of "u1": the codes behind them are -inf, inf and nan


class Preview(NamedTuple):
    """What is shown of a tensor.

    data: planes of cells, in row order. kind: "f4", "f2" (times ``scale``), "raw" (bytes), "u1" (steps from low to high).
    shape: planes, rows, columns of cells; whole: of values. block: how many values of each dimension a cell is the mean of.
    exact: the cells are the values. image: three planes each are the colours of one.
    """

    data: bytes
    kind: str
    shape: tuple[int, int, int]
    whole: tuple[int, int, int]
    block: tuple[int, int, int]
    exact: bool
    image: bool = False
    scale: float = 1.0
    low: float = 0.0
    high: float = 0.0

    @property
    def reduction_note(self) -> str:
        """What a person has to know who looks at it."""
        planes = f"the first {self.shape[0]} of {self.whole[0]} planes" if self.shape[0] < self.whole[0] else ""
        _, high, wide = self.block
        blocks = f"each cell is the mean of {high} by {format_count(wide, 'value')}" if high * wide > 1 else ""
        coarse = "in 252 steps" if self.kind == "u1" else ""
        return "; ".join(part for part in (planes, blocks, coarse) if part)


def planes_of(tensor: Tensor) -> tuple[int, int, int]:
    """Planes, rows and columns of a tensor; leading dimensions are planes, what has one is a row."""
    shape = value_shape(tensor.dtype, tensor.shape)
    high, wide = (1, 1, *shape)[-2:]
    return math.prod(shape[:-2]), high, wide


def wanted_bytes(tensor: Tensor) -> int:
    """Bytes of a preview that leaves nothing out: float32 of small ones, else float16; at most `LARGEST_BYTES`."""
    cells = math.prod(planes_of(tensor))
    return 4 * cells if 4 * cells <= EXACT_BYTES else min(2 * cells, LARGEST_BYTES)


def build_preview(tensor: Tensor, budget: int) -> Preview | None:
    """At most ``budget`` bytes of it; None for an empty one, one whose rows are too long, or no budget.

    Memory: some rows, and the preview. Raises TdbgError where it cannot be read.
    """
    whole = planes_of(tensor)
    if (
        not math.prod(whole)
        or budget < min(LEAST_BYTES, wanted_bytes(tensor))
        or whole[2] * tensor.dtype.size > ROW_BYTES
    ):
        return None
    image = is_image(tensor)
    if image and tensor.shape[0] != 3:
        return _build_image_preview(tensor, budget)
    count, block = _fit_to_budget(whole, budget)
    image = (image or is_image_batch(tensor)) and count >= 3
    if image:
        count -= count % 3  # whole images
    cells = _compute_cells(tensor, count, block)
    return _pack_cells(cells, whole, (1, *block), budget, image=image, are_bytes=_are_bytes(tensor))


def build_difference_previews(first: Tensor, second: Tensor, budget: int) -> tuple[Preview, Preview, Preview] | None:
    """Both, and the second minus the first, each at most ``budget`` bytes; None as for `build_preview`.

    They are of one shape, and of the same planes and blocks. Raises TdbgError where one cannot be read.
    """
    import numpy

    whole = planes_of(first)
    if not math.prod(whole) or whole[2] * max(first.dtype.size, second.dtype.size) > ROW_BYTES:
        return None
    count, block = _fit_to_budget(whole, budget)
    one, other = _compute_cells(first, count, block), _compute_cells(second, count, block)
    with numpy.errstate(all="ignore"):
        gaps = numpy.where(one == other, 0.0, other - one)  # equal infinities have no gap

    def pack_cells(cells: "Array", *, are_bytes: bool) -> Preview:
        return _pack_cells(cells, whole, (1, *block), budget, image=False, are_bytes=are_bytes)

    return (
        pack_cells(one, are_bytes=_are_bytes(first)),
        pack_cells(other, are_bytes=_are_bytes(second)),
        pack_cells(gaps, are_bytes=False),
    )


def _are_bytes(tensor: Tensor) -> bool:
    return tensor.dtype.name in ("uint8", "bool")


def _fit_to_budget(whole: tuple[int, int, int], budget: int) -> tuple[int, tuple[int, int]]:
    """How many planes are kept, and the values of a cell, so that a byte a cell fits into the budget."""
    count, high, wide = whole
    if count * high * wide <= budget:
        return count, (1, 1)
    least = min(high, LEAST_SIDE) * min(wide, LEAST_SIDE)
    count = max(min(count, PLANES, budget // least), 1)
    block = 1
    while count * -(-high // block) * -(-wide // block) > budget:
        block += 1
    return count, (min(block, high), min(block, wide))


def _compute_cells(tensor: Tensor, count: int, block: tuple[int, int]) -> "Array":
    """The means of blocks, of the first ``count`` planes: float64 [planes, rows, columns]."""
    import numpy

    _, high, wide = planes_of(tensor)
    rows, columns = -(-high // block[0]), -(-wide // block[1])
    found = numpy.empty((count * rows, columns), "f8")
    at = 0
    for part in _row_groups(tensor, block[0], high, wide, count):
        found[at : at + len(part)] = _compute_block_means(part, 1, block[1])
        at += len(part)
    return found.reshape(count, rows, columns)


def _row_groups(tensor: Tensor, size: int, high: int, wide: int, count: int) -> "Iterator[Array]":
    """The means of every ``size`` rows of each plane, some at a time; none reaches into the next plane."""
    import numpy

    left = count * high
    rest = numpy.empty((0, wide))
    place = 0  # of the first row of ``rest`` in its plane
    for rows in _iter_row_blocks(tensor, wide):
        rows = numpy.concatenate([rest, rows[: left - len(rest)]]) if len(rest) else rows[:left]
        while len(rows):
            take = min(high - place, len(rows))
            whole = take if take == high - place else take // size * size
            if not whole:
                break
            yield _compute_block_means(rows[:whole], size, 1)
            rows, left, place = rows[whole:], left - whole, (place + whole) % high
        rest = rows
        if left <= 0:
            return


def _iter_row_blocks(tensor: Tensor, wide: int) -> "Iterator[Array]":
    """All values as rows, in float64; of complex numbers the absolute ones."""
    import numpy

    width = max(wide * tensor.dtype.size // tensor.dtype.packed, 1)
    for part in flat_parts(tensor, max(CHUNK_BYTES // 8 // width, 1) * width):
        yield (numpy.abs(part) if part.dtype.kind == "c" else part).astype("f8").reshape(-1, wide)


def _compute_block_means(rows: "Array", high: int, wide: int) -> "Array":
    """The means of blocks; those at the edges are of fewer values."""
    import numpy

    with numpy.errstate(all="ignore"):
        for axis, size in ((0, high), (1, wide)):
            if size > 1:
                edges = numpy.arange(0, rows.shape[axis], size)
                counts = numpy.diff(numpy.append(edges, rows.shape[axis]))
                sums = numpy.add.reduceat(rows, edges, axis)
                rows = sums / (counts[:, None] if axis == 0 else counts)
    return rows


def _pack_cells(
    cells: "Array",
    whole: tuple[int, int, int],
    block: tuple[int, int, int],
    budget: int,
    *,
    image: bool,
    are_bytes: bool,
) -> Preview:
    """The cells in as many bytes as there are for them."""
    import numpy

    shape: Any = cells.shape
    known = cells[numpy.isfinite(cells)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    plain = block == (1, 1, 1)
    made = Preview(b"", "raw", shape, whole, block, plain, image, low=low, high=high)
    if plain and are_bytes:
        return made._replace(data=cells.astype("u1").tobytes())
    with numpy.errstate(all="ignore"):
        if 4 * cells.size <= budget and max(-low, high) < 3e38:
            exact = plain and numpy.array_equal(cells.astype("<f4").astype("f8"), cells, equal_nan=True)
            return made._replace(data=cells.astype("<f4").tobytes(), kind="f4", exact=bool(exact))
        if 2 * cells.size <= budget:
            scale = max(-low, high) or 1.0
            return made._replace(data=(cells / scale).astype("<f2").tobytes(), kind="f2", exact=False, scale=scale)
        step = (high / 2 - low / 2) / STEPS * 2 or 1.0
        codes = numpy.nan_to_num((cells - low) / step + 0.5).clip(0, STEPS).astype("u1")
    for code, where in ((253, cells == -numpy.inf), (254, cells == numpy.inf), (255, numpy.isnan(cells))):
        codes[where] = code
    return made._replace(data=codes.tobytes(), kind="u1", exact=False)


def _build_image_preview(tensor: Tensor, budget: int) -> Preview | None:
    """An image of bytes whose channels come last: its planes are the first three."""
    import numpy

    high, wide, channels = tensor.shape
    if tensor.nbytes > ROW_BYTES:
        return None
    step = 1
    while 3 * -(-high // step) * -(-wide // step) > budget:
        step += 1
    found = tensor.array().reshape(high, wide, channels).astype("f8")
    cells = (
        numpy.stack([_compute_block_means(found[..., channel], step, step) for channel in range(3)])
        .round()
        .astype("u1")
    )
    shape: Any = cells.shape
    block = (1, step, step)
    return Preview(cells.tobytes(), "raw", shape, (3, high, wide), block, step == 1, True, low=0.0, high=255.0)
