"""A preview of a tensor: planes of its last two dimensions, reduced to block means if they are large."""

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tdbg.core.tables import format_count
from tdbg.pages.read.datapoint import Tensor
from tdbg.pages.read.tensor_slices import CHUNK_BYTES, is_read_whole
from tdbg.pages.read.tensor_values import decode_array, value_count, value_shape
from tdbg.pages.render.pixels import has_channels_last, is_image, is_image_batch
from tdbg.pages.render.region import Region, whole_region

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

PLANES = 64  # of a tensor that is too large to be shown whole
LEAST_SIDE = 32  # cells; rather fewer planes than smaller ones
LARGEST_BYTES = 6_000_000  # of one tensor
EXACT_BYTES = 1 << 18  # up to here values are kept as float32, if there is room
LEAST_BYTES = 64
READ_BYTES = 4 << 30  # that one preview reads: a file with a hole may claim any size
WHOLE_BYTES = 64 << 20  # of what is read and widened at once: an image, and what has to be read whole
LONG_VALUES = 1 << 19  # of a row that is read in pieces
ATTENTION = re.compile(r"attention|attn")
STEPS = 252  # of "u1": the codes behind them are -inf, inf and nan


class Preview(NamedTuple):
    """What is shown of a tensor.

    data: planes of cells, in row order. kind: "f4", "f2" (times ``scale``), "raw" (bytes), "u1" (steps from low to high).
    shape: planes, rows, columns of cells; whole: of values. block: how many values of each dimension a cell is the mean of.
    exact: the cells are the values. image: three planes each are the colours of one. region: of the whole, what is
    shown. leading: the dimensions that planes are counted along.
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
    region: Region = Region((0, 0), (0, 0), (0, 0))
    leading: tuple[int, ...] = ()

    @property
    def reduction_note(self) -> str:
        """What a person has to know who looks at it."""
        (start, stop), rows, columns = self.region
        few = f"the first {stop}" if not start else f"planes {start} to {stop - 1}"
        planes = f"{few} of {self.whole[0]}{' planes' if not start else ''}" if self.shape[0] < self.whole[0] else ""
        named = zip(("rows", "columns"), (rows, columns), self.whole[1:], strict=True)
        sides = ", ".join(f"{name} {a} to {b - 1} of {size}" for name, (a, b), size in named if b - a < size)
        _, high, wide = self.block
        blocks = f"each cell is the mean of {high} by {format_count(wide, 'value')}" if high * wide > 1 else ""
        coarse = "values rounded to 252 levels" if self.kind == "u1" else ""
        return "; ".join(part for part in (planes, sides, blocks, coarse) if part)


def planes_of(tensor: Tensor) -> tuple[int, int, int]:
    """Planes, rows and columns of a tensor; leading dimensions are planes, what has one is a row."""
    if has_channels_last(tensor):
        return 3 * math.prod(tensor.shape[:-3]), tensor.shape[-3], tensor.shape[-2]
    shape = value_shape(tensor.dtype, tensor.shape)
    high, wide = (1, 1, *shape)[-2:]
    return math.prod(shape[:-2]), high, wide


def wanted_bytes(tensor: Tensor) -> int:
    """Bytes of a preview that leaves nothing out: float32 of small ones, else float16; at most `LARGEST_BYTES`."""
    cells = math.prod(planes_of(tensor))
    return 4 * cells if 4 * cells <= EXACT_BYTES else min(2 * cells, LARGEST_BYTES)


def build_preview(tensor: Tensor, budget: int, region: Region | None = None) -> Preview | None:
    """At most ``budget`` bytes of it, or of a part; None for an empty one, one of which too much is read, or no budget.

    Memory: some rows, and the preview. Raises TdbgError where it cannot be read.
    """
    whole = planes_of(tensor)
    if not math.prod(whole) or budget < min(LEAST_BYTES, wanted_bytes(tensor)):
        return None
    tensor.check_size()  # before anything is worked out for what may only be claimed
    area = region or whole_region(whole)
    count, block = _fit_to_budget(area.size, budget)
    image = _is_colored(tensor) and count >= 3 and area.planes[0] % 3 == 0
    if image:
        count -= count % 3  # whole images
    area = area._replace(planes=(area.planes[0], area.planes[0] + count))
    if _is_too_large(tensor, area):
        return None
    cells = _compute_cells(tensor, area, block)
    made = _pack_cells(cells, whole, (1, *block), budget, image=image, are_bytes=_are_bytes(tensor))
    return made._replace(region=area, leading=_leading_of(tensor))


def build_difference_previews(
    first: Tensor, second: Tensor, budget: int, region: Region | None = None
) -> tuple[Preview, Preview, Preview] | None:
    """Both or a part of both, and the second minus the first, each at most ``budget`` bytes; None as for `build_preview`.

    They are of one shape, and of the same planes and blocks. Memory: some rows of both, and the previews. Raises
    TdbgError where one cannot be read.
    """
    import numpy

    whole = planes_of(first)
    if not math.prod(whole) or planes_of(second) != whole:
        return None
    first.check_size()
    second.check_size()
    area = region or whole_region(whole)
    count, block = _fit_to_budget(area.size, budget)
    area = area._replace(planes=(area.planes[0], area.planes[0] + count))
    if _is_too_large(first, area) or _is_too_large(second, area):
        return None
    one, other = _compute_cells(first, area, block), _compute_cells(second, area, block)
    with numpy.errstate(all="ignore"):
        gaps = numpy.where(one == other, 0.0, other - one)  # equal infinities have no gap

    def pack_cells(cells: "Array", *, are_bytes: bool) -> Preview:
        made = _pack_cells(cells, whole, (1, *block), budget, image=False, are_bytes=are_bytes)
        return made._replace(region=area, leading=_leading_of(first))

    return (
        pack_cells(one, are_bytes=_are_bytes(first)),
        pack_cells(other, are_bytes=_are_bytes(second)),
        pack_cells(gaps, are_bytes=False),
    )


def _is_colored(tensor: Tensor) -> bool:
    """True for pictures; three heads of attention are none."""
    found = is_image(tensor) or is_image_batch(tensor) or has_channels_last(tensor)
    return found and not (ATTENTION.search(tensor.path) and tensor.dtype.name != "uint8")


def _leading_of(tensor: Tensor) -> tuple[int, ...]:
    return (*tensor.shape[:-3], 3) if has_channels_last(tensor) else tensor.shape[:-2]


def _is_too_large(tensor: Tensor, area: Region) -> bool:
    """True if too much is read for a part, or at once: of channels that come last an image is."""
    count, high, _ = area.size
    if has_channels_last(tensor):
        image = high * tensor.shape[-2] * tensor.shape[-1]
        return image > WHOLE_BYTES or image * (count + 5) // 3 > READ_BYTES
    if is_read_whole(tensor):
        return value_count(tensor.dtype, tensor.shape) > WHOLE_BYTES
    return count * high * planes_of(tensor)[2] * tensor.dtype.size > READ_BYTES


def _are_bytes(tensor: Tensor) -> bool:
    return tensor.dtype.name in ("uint8", "bool")


def _fit_to_budget(whole: tuple[int, int, int], budget: int) -> tuple[int, tuple[int, int]]:
    """How many planes are kept, and the values of a cell, so that a byte a cell fits into the budget."""
    count, high, wide = whole
    if count * high * wide <= budget:
        return count, (1, 1)
    least = min(high, LEAST_SIDE) * min(wide, LEAST_SIDE)
    count = max(min(count, PLANES, budget // least), 1)
    low, block = 0, max(high, wide)  # too small, large enough
    while block - low > 1:
        middle = (low + block) // 2
        fits = count * -(-high // middle) * -(-wide // middle) <= budget
        low, block = (low, middle) if fits else (middle, block)
    return count, (min(block, high), min(block, wide))


def _compute_cells(tensor: Tensor, area: Region, block: tuple[int, int]) -> "Array":
    """The means of blocks of a part: float64 [planes, rows, columns]."""
    import numpy

    count, high, wide = area.size
    rows, columns = -(-high // block[0]), -(-wide // block[1])
    found = numpy.empty((count * rows, columns), "f8")
    left = 0
    for piece in _cut_long_rows(tensor, area, block[1]):
        at, size = 0, piece.size[2]
        right = left - (-size // block[1])
        for part in _group_rows(_iter_rows(tensor, piece), block[0], high, size):
            found[at : at + len(part), left:right] = _compute_block_means(part, 1, block[1])
            at += len(part)
        left = right
    return found.reshape(count, rows, columns)


def _cut_long_rows(tensor: Tensor, area: Region, block: int) -> Iterator[Region]:
    """The part in pieces of some columns, whole blocks of them: a row in float64 may be many times its bytes."""
    first, last = area.columns
    whole = last - first <= LONG_VALUES or is_read_whole(tensor) or has_channels_last(tensor)
    step = last - first if whole else -(-LONG_VALUES // block) * block
    for at in range(first, last, step):
        yield area._replace(columns=(at, min(at + step, last)))


def _group_rows(found: "Iterator[Array]", size: int, high: int, wide: int) -> "Iterator[Array]":
    """The means of every ``size`` rows of each plane, some at a time; none reaches into the next plane."""
    import numpy

    rest = numpy.empty((0, wide))
    place = 0  # of the first row of ``rest`` in its plane
    for more in found:
        rows = numpy.concatenate([rest, more]) if len(rest) else more
        while len(rows):
            take = min(high - place, len(rows))
            whole = take if take == high - place else take // size * size
            if not whole:
                break
            yield _compute_block_means(rows[:whole], size, 1)
            rows, place = rows[whole:], (place + whole) % high
        rest = rows


def _iter_rows(tensor: Tensor, area: Region) -> "Iterator[Array]":
    """The rows of a part, plane by plane, in float64; of complex numbers the absolute values."""
    import numpy

    if has_channels_last(tensor):
        parts = _iter_channels(tensor, area)
    elif is_read_whole(tensor):
        values = tensor.array().reshape(planes_of(tensor))[slice(*area.planes), slice(*area.rows), slice(*area.columns)]
        step = max(LONG_VALUES // values.shape[2], 1)
        parts = (plane[at : at + step] for plane in values for at in range(0, len(plane), step))
    else:
        parts = _iter_stored_rows(tensor, area)
    for part in parts:
        yield (numpy.abs(part) if part.dtype.kind == "c" else part).astype("f8")


def _iter_stored_rows(tensor: Tensor, area: Region) -> "Iterator[Array]":
    """Only the rows of the part are read."""
    _, high, wide = planes_of(tensor)
    size, (left, right) = tensor.dtype.size, area.columns
    width = wide * size
    step = max(CHUNK_BYTES // 8 // width, 1)
    for start, stop in _find_runs(area, high):
        if wide > LONG_VALUES:
            for row in range(start, stop):
                data = tensor.read_range(row * width + left * size, row * width + right * size)
                yield decode_array(data, tensor.dtype, note=tensor.note).reshape(1, -1)
            continue
        for at in range(start, stop, step):
            data = tensor.read_range(at * width, min(at + step, stop) * width)
            yield decode_array(data, tensor.dtype, note=tensor.note).reshape(-1, wide)[:, slice(*area.columns)]


def _find_runs(area: Region, high: int) -> "Iterator[tuple[int, int]]":
    """Rows that lie side by side, counted over all planes."""
    first, last = area.planes
    if area.rows == (0, high):
        yield first * high, last * high
        return
    for plane in range(first, last):
        yield plane * high + area.rows[0], plane * high + area.rows[1]


def _iter_channels(tensor: Tensor, area: Region) -> "Iterator[Array]":
    """One plane of a channel at a time; an image is read once."""
    high, wide, channels = tensor.shape[-3:]
    first, last = area.planes
    for image in range(first // 3, -(-last // 3)):
        start, stop = ((image * high + row) * wide * channels for row in area.rows)
        data = decode_array(tensor.read_range(start, stop), tensor.dtype).reshape(-1, wide, channels)
        for channel in range(3):
            if first <= 3 * image + channel < last:
                yield data[:, slice(*area.columns), channel]


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
    if are_bytes and (plain or image):
        return made._replace(data=cells.round().astype("u1").tobytes(), high=255.0 if image else high)
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
