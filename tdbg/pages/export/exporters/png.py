"""PNG pictures: a matrix as a color map, a tensor of three dimensions as a grid of channels, images unchanged.

Written band by band with zlib (source: the PNG specification, third edition). Maps have a palette: a colour a step of
the scale, and three that no number has, for NaN and the infinities.
"""

import math
import zlib
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from tdbg.pages.export.exporter import FileExporter, UnsupportedTensorError
from tdbg.pages.export.exporters import EXPORTERS
from tdbg.pages.read.datapoint import Tensor
from tdbg.pages.read.tensor_slices import CHUNK_BYTES, flat_parts
from tdbg.pages.render.pixels import (
    BLUE_RED,
    GAP,
    MINUS,
    NAN,
    PALETTE,
    PLUS,
    RGB,
    RGBA,
    VIRIDIS,
    encode_png_chunk,
    interpolate_color,
    is_image,
    png_head,
)

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

STEPS = 252  # colours of the scale
GAP_CODE, MINUS_CODE, PLUS_CODE, NAN_CODE = range(STEPS, 256)
WIDTH = 512  # pixels that a small map is drawn to, each number a square
LARGEST_ZOOM = 16
LARGEST_SIDE = 1 << 24


class Scale(NamedTuple):
    """The finite values' smallest and largest. Both signs: the same distance from 0 on either side."""

    low: float
    high: float

    @property
    def stops(self) -> Any:
        """The colours along it."""
        return BLUE_RED if self.low < 0 < self.high else VIRIDIS

    def map_to_codes(self, found: "Array") -> "Array":
        """Numbers as places in the palette."""
        import numpy

        low, high = self.low, self.high
        if low < 0 < high:
            high = max(-low, high)
            low = -high
        with numpy.errstate(all="ignore"):
            share = (found / 2 - low / 2) / (high / 2 - low / 2) if high > low else numpy.full(found.shape, 0.5)
            codes: Array = numpy.nan_to_num(share * (STEPS - 1) + 0.5).clip(0, STEPS - 1).astype("u1")
        codes[numpy.isnan(found)] = NAN_CODE
        codes[found == numpy.inf] = PLUS_CODE
        codes[found == -numpy.inf] = MINUS_CODE
        return codes

    def build_palette(self) -> bytes:
        """256 colours."""
        found = [colour for step in range(STEPS) for colour in interpolate_color(self.stops, step / (STEPS - 1))]
        return bytes([*found, *GAP, *MINUS, *PLUS, *NAN])


@EXPORTERS.add
class PngExporter(FileExporter):
    """Tensors as pictures: two dimensions as a map, three as a grid of channels or as an image."""

    name = "png"

    def write_tensor(self, file: IO[bytes], tensor: Tensor) -> Scale:
        """Write the picture of a tensor of two or three dimensions. Memory: a few MB, and a row of channels."""
        shape = tensor.shape
        if len(shape) not in (2, 3) or not math.prod(shape) or tensor.dtype.packed > 1:
            raise UnsupportedTensorError(f"{tensor.dtype.name}{list(shape)} cannot be drawn as PNG", "export it as npy")
        if is_image(tensor):
            return _write_image(file, tensor)
        scale = measure_scale(tensor)
        count, high, wide = (1, *shape) if len(shape) == 2 else shape
        columns = min(max(round(math.sqrt(count * high / wide)), 1), count)
        size = columns * (wide + 1) - 1, -(-count // columns) * (high + 1) - 1
        zoom = min(max(WIDTH // max(size), 1), LARGEST_ZOOM)
        bands = _iter_map_bands(tensor, scale) if count == 1 else _iter_grid_bands(tensor, scale, columns)
        _write_png(
            file, size[0] * zoom, size[1] * zoom, (_zoom_band(band, zoom) for band in bands), scale.build_palette()
        )
        return scale

    def split_tensor(self, tensor: Tensor) -> list[tuple[str, Tensor]]:
        """Split a tensor of more dimensions into its last three at a time."""
        while len(tensor.shape) > 2 and tensor.shape[0] == 1:
            tensor = tensor.row(0)
        if len(tensor.shape) <= 3:
            return [("", tensor)]
        rows = range(tensor.shape[0])
        return [(f"-{row}{suffix}", part) for row in rows for suffix, part in self.split_tensor(tensor.row(row))]


def measure_scale(tensor: Tensor) -> Scale:
    """Of its finite values; of complex numbers' absolute ones."""
    import numpy

    low, high = math.inf, -math.inf
    for part in flat_parts(tensor):
        numbers = _to_real(part)
        known = numbers[numpy.isfinite(numbers)]
        if len(known):
            low, high = min(low, float(known.min())), max(high, float(known.max()))
    return Scale(low, high) if low <= high else Scale(0.0, 0.0)


def _to_real(found: "Array") -> "Array":
    return abs(found) if found.dtype.kind == "c" else found.astype("f8")


def _read_plane(tensor: Tensor) -> "Array":
    """A tensor of two dimensions, whole."""
    return _to_real(tensor.array()).reshape(tensor.shape)


def _iter_map_bands(tensor: Tensor, scale: Scale) -> "Iterator[Array]":
    if len(tensor.shape) == 3:
        tensor = tensor.row(0)
    wide = tensor.shape[1]
    row_bytes = tensor.nbytes // tensor.shape[0]
    for part in flat_parts(tensor, max(CHUNK_BYTES // 8 // row_bytes, 1) * row_bytes):
        yield scale.map_to_codes(_to_real(part).reshape(-1, wide))


def _iter_grid_bands(tensor: Tensor, scale: Scale, columns: int) -> "Iterator[Array]":
    """Channels side by side, a line between them."""
    import numpy

    count, high, wide = tensor.shape
    for start in range(0, count, columns):
        band = numpy.full((high + bool(start), columns * (wide + 1) - 1), GAP_CODE, "u1")
        for at in range(start, min(start + columns, count)):
            left = (at - start) * (wide + 1)
            band[-high:, left : left + wide] = scale.map_to_codes(_read_plane(tensor.row(at)))
        yield band


def _zoom_band(band: "Array", zoom: int) -> "Array":
    return band if zoom == 1 else band.repeat(zoom, 0).repeat(zoom, 1)


def _write_image(file: IO[bytes], tensor: Tensor) -> Scale:
    """Bytes are pixels; so are numbers from 0 to 1; others are stretched to that."""
    import numpy

    shape = tensor.shape
    if shape[0] != 3 or (tensor.dtype.name == "uint8" and shape[2] in (3, 4)):
        found = tensor.array().reshape(shape)
        _write_png(file, shape[1], shape[0], iter([found.reshape(shape[0], -1)]), None, shape[2])
        return Scale(0.0, 255.0)
    scale = Scale(0.0, 255.0)
    if tensor.dtype.name != "uint8":
        scale = measure_scale(tensor)
        scale = Scale(0.0, 1.0) if scale.low >= 0 and scale.high <= 1 else scale
    planes = [_read_plane(tensor.row(at)) for at in range(3)]
    width = (scale.high - scale.low) or 1.0
    with numpy.errstate(all="ignore"):
        pixels = [numpy.nan_to_num((plane - scale.low) / width * 255 + 0.5, nan=0).clip(0, 255) for plane in planes]
    rows = numpy.stack([plane.astype("u1") for plane in pixels], -1)
    _write_png(file, shape[2], shape[1], iter([rows.reshape(shape[1], -1)]), None, 3)
    return scale


def _write_png(
    file: IO[bytes], wide: int, high: int, bands: "Iterator[Array]", palette: bytes | None, channels: int = 1
) -> None:
    """A PNG of eight bits a sample, out of bands of rows."""
    import numpy

    if max(wide, high) > LARGEST_SIDE:
        raise UnsupportedTensorError(f"a picture of {wide:,} by {high:,} pixels is too large", "export it as npy")
    file.write(png_head(wide, high, PALETTE if palette else {3: RGB, 4: RGBA}[channels]))
    if palette:
        file.write(encode_png_chunk(b"PLTE", palette))
    packer = zlib.compressobj(6)
    for band in bands:
        rows = numpy.zeros((len(band), band.shape[1] + 1), "u1")  # each row begins with its filter: none
        rows[:, 1:] = band
        data = packer.compress(rows.tobytes())
        if data:
            file.write(encode_png_chunk(b"IDAT", data))
    file.write(encode_png_chunk(b"IDAT", packer.flush()) + encode_png_chunk(b"IEND", b""))
