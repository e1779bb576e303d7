"""Numbers as colors, and colors as PNG or terminal graphics. Standard library alone."""

import math

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tdbg.pages.read.datapoint import Tensor

    Rgb = tuple[int, int, int]
    Plane = Sequence[Sequence[float]]
    Pixels = Sequence[Sequence[Rgb]]

NAN, PLUS, MINUS = (255, 0, 255), (255, 128, 0), (0, 255, 255)  # colours that no number has
GAP = (24, 24, 24)
RGB, PALETTE, RGBA = 2, 3, 6  # kinds of pixels of a PNG file
VIRIDIS = (
    *((68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141)),
    *((39, 173, 129), (92, 200, 99), (170, 220, 50), (253, 231, 37)),
)
BLUE_RED = (
    (33, 102, 172),
    (103, 169, 207),
    (209, 229, 240),
    (247, 247, 247),
    (253, 219, 199),
    (239, 138, 98),
    (178, 24, 43),
)


def is_image(tensor: "Tensor") -> bool:
    """True for three channels of at least 8 by 8 numbers, first or (of bytes) last."""
    shape = tensor.shape
    if len(shape) != 3:
        return False
    last = shape[2] in (3, 4) and tensor.dtype.name == "uint8" and min(shape[:2]) >= 8
    return last or (shape[0] == 3 and min(shape[1:]) >= 8)


def is_image_batch(tensor: "Tensor") -> bool:
    """True for images of three channels, at least 8 by 8 numbers each: N, 3, rows, columns."""
    shape = tensor.shape
    return len(shape) == 4 and shape[1] == 3 and min(shape[2:]) >= 8 and tensor.dtype.name != "bool"


def has_channels_last(tensor: "Tensor") -> bool:
    """True for images of bytes whose last dimension is three or four channels, one or a batch, at least 8 by 8."""
    shape = tensor.shape
    if tensor.dtype.name != "uint8" or len(shape) not in (3, 4) or shape[-1] not in (3, 4):
        return False
    return min(shape[-3:-1]) >= 8 and not (len(shape) == 3 and shape[0] == 3)


def build_color_map(low: float, high: float) -> "Callable[[float], Rgb]":
    """Value -> colour. Values of both signs go from blue by white (zero) to red, others from dark to light."""
    both = low < 0 < high
    if both:
        high = max(-low, high)
        low = -high
    stops = BLUE_RED if both else VIRIDIS
    width = high - low
    table = [interpolate_color(stops, step / 256) for step in range(257)]

    def map_color(value: float) -> "Rgb":
        if value != value:
            return NAN
        if math.isinf(value):
            return PLUS if value > 0 else MINUS
        share = (value - low) / width if width > 0 and math.isfinite(width) else 0.5
        return table[min(max(int(share * 256 + 0.5), 0), 256)]

    return map_color


def interpolate_color(stops: "Sequence[Rgb]", share: float) -> "Rgb":
    """The colour at a place from 0 to 1 along some."""
    at = share * (len(stops) - 1)
    first = min(int(at), len(stops) - 2)
    red, green, blue = (round(a + (b - a) * (at - first)) for a, b in zip(stops[first], stops[first + 1], strict=True))
    return red, green, blue


def paint_plane(plane: "Plane", colour: "Callable[[float], Rgb]", zoom: int = 1) -> "Pixels":
    """A plane of numbers as pixels, each number a square of ``zoom`` by ``zoom``."""
    rows = []
    for row in plane:
        pixels = [pixel for value in row for pixel in (colour(value),) * zoom]
        rows += [pixels] * zoom
    return rows


def tile_pictures(tiles: "Sequence[Pixels]", columns: int) -> "Pixels":
    """Pictures of one size in a grid, a dark line between them."""
    high, wide = len(tiles[0]), len(tiles[0][0])
    rows: list[list[Rgb]] = []
    for start in range(0, len(tiles), columns):
        line = tiles[start : start + columns]
        if start:
            rows.append([GAP] * (columns * (wide + 1) - 1))
        for at in range(high):
            row: list[Rgb] = []
            for tile in line:
                row += [*tile[at], GAP]
            row += [GAP] * ((columns - len(line)) * (wide + 1))
            rows.append(row[:-1])
    return rows


def encode_png(pixels: "Pixels") -> bytes:
    """A PNG file."""
    import zlib

    lines = b"".join(b"\0" + bytes(part for pixel in row for part in pixel) for row in pixels)
    return (
        png_head(len(pixels[0]), len(pixels), RGB)
        + encode_png_chunk(b"IDAT", zlib.compress(lines, 6))
        + encode_png_chunk(b"IEND", b"")
    )


def png_head(wide: int, high: int, colour: int) -> bytes:
    """How a PNG file of eight bits a sample begins. colour: the kind of its pixels, as PNG counts them."""
    size = wide.to_bytes(4, "big") + high.to_bytes(4, "big")
    return b"\x89PNG\r\n\x1a\n" + encode_png_chunk(b"IHDR", size + bytes([8, colour, 0, 0, 0]))


def encode_png_chunk(kind: bytes, data: bytes) -> bytes:
    """One part of a PNG file."""
    import zlib

    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def encode_kitty(pixels: "Pixels") -> str:
    """For kitty's graphics protocol: a PNG in pieces of 4,096 letters."""
    import base64

    text = base64.b64encode(encode_png(pixels)).decode()
    parts = [text[start : start + 4096] for start in range(0, len(text), 4096)]
    heads = ["a=T,f=100,q=2,"] + [""] * (len(parts) - 1)
    last = len(parts) - 1
    return "".join(
        f"\x1b_G{head}m={int(at < last)};{part}\x1b\\" for at, (head, part) in enumerate(zip(heads, parts, strict=True))
    )


def encode_iterm(pixels: "Pixels") -> str:
    """For iTerm2's inline images."""
    import base64

    data = encode_png(pixels)
    size = f"size={len(data)};width={len(pixels[0])}px;height={len(pixels)}px"
    return f"\x1b]1337;File=inline=1;{size}:{base64.b64encode(data).decode()}\a"


def encode_sixel(pixels: "Pixels") -> str:
    """For terminals that draw six rows of pixels at a time; colours of a cube of 6 by 6 by 6."""
    indexed = [[quantize_color(pixel) for pixel in row] for row in pixels]
    used = sorted({index for row in indexed for index in row})
    wide = len(indexed[0])
    parts = [f'\x1bPq"1;1;{wide};{len(indexed)}']
    for index in used:
        red, green, blue = index // 36, index // 6 % 6, index % 6
        parts.append(f"#{index};2;{red * 20};{green * 20};{blue * 20}")
    for start in range(0, len(indexed), 6):
        parts += ["$".join(_encode_sixel_band(indexed[start : start + 6], wide)), "-"]
    return "".join(parts) + "\x1b\\"


def _encode_sixel_band(rows: "Sequence[Sequence[int]]", wide: int) -> "Iterator[str]":
    """Six rows, colour by colour, runs of one letter shortened."""
    from itertools import groupby

    for index in sorted({index for row in rows for index in row}):
        letters = (chr(63 + sum((row[at] == index) << bit for bit, row in enumerate(rows))) for at in range(wide))
        runs = ((letter, sum(1 for _ in same)) for letter, same in groupby(letters))
        text = "".join(f"!{count}{letter}" if count > 3 else letter * count for letter, count in runs)
        yield f"#{index}{text}"


def quantize_color(pixel: "Rgb") -> int:
    """The nearest colour of a cube of 6 by 6 by 6, as a number below 216."""
    red, green, blue = ((part * 5 + 127) // 255 for part in pixel)
    return 36 * red + 6 * green + blue
