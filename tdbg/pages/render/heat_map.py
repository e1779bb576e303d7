"""A tensor on a terminal: a heat map of two dimensions, a grid of three, labelled with tokens if they are known."""

import math

from tdbg.core.tables import measure_width, safe
from tdbg.pages.render import pixels
from tdbg.pages.render.terminal_screen import Screen, pick_shade
from tdbg.pages.stats.value_stats import to_real_array, to_real_values

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import numpy

    from tdbg.pages.read.tensor_slices import Part
    from tdbg.pages.render.pixels import Plane
    from tdbg.pages.stats.value_stats import ValueStats

    Array = numpy.ndarray[Any, Any]

SMALLEST = 6  # cells that a channel keeps on either side
LARGEST_PIXELS = 1024  # of a real picture
WIDEST_PIXELS = 480
LABEL = 14  # columns of a token
LABELLED = 64  # rows that are labelled


def render_heat_map(part: "Part", figures: "ValueStats", screen: Screen, labels: "Sequence[str]" = ()) -> list[str]:
    """The picture of a tensor; none for what has fewer than two dimensions, or no finite value."""
    shape = tuple(size for size in part.shape if size != 1)
    said = ""
    if len(shape) > 3:
        said = f"the first of {math.prod(shape[:-3])}; --slice shows another"
    if len(shape) < 2 or 0 in shape or figures.min is None or figures.max is None:
        return []
    high, wide = shape[-2:]
    count = shape[-3] if len(shape) > 2 else 1
    if count == 1 and labels and len(labels) == high <= LABELLED and not screen.protocol:
        found = _render_labelled(_extract_planes(part, (1, high, wide), high, wide)[0], figures, screen, labels)
    elif screen.protocol:
        found = _render_image(part, (count, high, wide), figures, screen)
    else:
        found, shown = _render_grid(part, (count, high, wide), figures, screen)
        if shown < count:
            said = f"the first {shown} of {count}; --slice {shown}: shows others{'; ' if said else ''}{said}"
    return [*found, *_format_legend(figures, screen), *([said] if said else [])]


def shrink_plane(plane: "Plane", high: int, wide: int) -> "Plane":
    """A plane of at most so many rows and columns, each cell the mean of a block; a nan stays a nan."""
    rows, columns = len(plane), len(plane[0])
    if rows <= high and columns <= wide:
        return plane
    high, wide = min(rows, high), min(columns, wide)
    across = _split_blocks(columns, wide)
    narrow = [[_compute_mean(row[low:end]) for low, end in across] for row in plane]
    return [
        [_compute_mean([row[at] for row in narrow[low:end]]) for at in range(wide)]
        for low, end in _split_blocks(rows, high)
    ]


def _compute_mean(values: "Sequence[float]") -> float:
    return values[0] if len(values) == 1 else sum(values) / len(values)


def _split_blocks(size: int, parts: int) -> list[tuple[int, int]]:
    return [(size * at // parts, size * (at + 1) // parts) for at in range(parts)]


def _extract_planes(part: "Part", shape: tuple[int, int, int], high: int, wide: int) -> "list[Plane]":
    """The first planes of the last two dimensions, so many of that size, each of at most ``high`` by ``wide`` cells."""
    count, rows, columns = shape
    if part.array is not None:
        return _array_planes(part.array.reshape(-1, rows, columns)[:count], min(high, rows), min(wide, columns))
    assert part.numbers is not None
    size = rows * columns
    flat: Sequence[float] = to_real_values(part.numbers[: count * size])
    starts = [[at * size + row * columns for row in range(rows)] for at in range(count)]
    return [shrink_plane([flat[start : start + columns] for start in begins], high, wide) for begins in starts]


def _array_planes(planes: "Array", high: int, wide: int) -> "list[Plane]":
    """The same of an array, which may be too large for lists."""
    import numpy

    found = to_real_array(planes)
    for axis, parts in ((2, wide), (1, high)):
        size = found.shape[axis]
        if parts < size:
            edges = _split_blocks(size, parts)
            counts = numpy.array([end - low for low, end in edges], "f8")
            with numpy.errstate(all="ignore"):
                sums = numpy.add.reduceat(found.astype("f8"), [low for low, _ in edges], axis)
                found = sums / (counts if axis == 2 else counts[:, None])
    listed: list[Plane] = found.tolist()
    return listed


def _render_grid(
    part: "Part", shape: tuple[int, int, int], figures: "ValueStats", screen: Screen
) -> tuple[list[str], int]:
    """As text, and how many planes fit. A line of text has two rows of pixels, or of letters the mean of two rows."""
    count, high, wide = shape
    room, rows = screen.columns - 1, 2 * max(screen.lines - 10, 12)
    columns = min(count, max(math.ceil(math.sqrt(count)), 1))
    columns = min(columns, max((room + 1) // (min(wide, SMALLEST) + 1), 1))
    tile_wide = min(wide, (room + 1) // columns - 1 if columns > 1 else room)
    tile_high = min(max(round(high * tile_wide / wide), 1), high, rows)
    shown = min(count, columns * max(rows // (tile_high + 1), 1))
    assert figures.min is not None and figures.max is not None
    lines_high = tile_high if screen.colour else -(-tile_high // 2)
    planes = _extract_planes(part, (shown, high, wide), lines_high, tile_wide)
    if screen.colour:
        colour = pixels.build_color_map(figures.min, figures.max)
        return screen.render_pixels(
            pixels.tile_pictures([pixels.paint_plane(plane, colour) for plane in planes], columns)
        ), shown
    letters = [_render_letters(plane, figures) for plane in planes]
    found: list[str] = []
    for start in range(0, shown, columns):
        row = letters[start : start + columns]
        found += [" ".join(texts) for texts in zip(*row, strict=True)] + [""] * (start + columns < shown)
    return found, shown


def _render_letters(plane: "Plane", figures: "ValueStats") -> list[str]:
    low, high = figures.min or 0.0, figures.max or 0.0
    return ["".join(pick_shade(value, low, high) for value in row) for row in plane]


def _render_image(part: "Part", shape: tuple[int, int, int], figures: "ValueStats", screen: Screen) -> list[str]:
    """As real pixels: every value one, or a square of several."""
    count, high, wide = shape
    assert figures.min is not None and figures.max is not None
    columns = math.ceil(math.sqrt(count * high / wide)) if count > 1 else 1
    columns = min(max(columns, 1), count)
    tile = max(LARGEST_PIXELS // columns - 1, 1)
    planes = _extract_planes(part, shape, tile, tile)
    zoom = max(WIDEST_PIXELS // (columns * (len(planes[0][0]) + 1)), 1)
    colour = pixels.build_color_map(figures.min, figures.max)
    picture = pixels.tile_pictures([pixels.paint_plane(plane, colour, zoom) for plane in planes], columns)
    return [screen.encode_picture(picture)]


def _render_labelled(plane: "Plane", figures: "ValueStats", screen: Screen, labels: "Sequence[str]") -> list[str]:
    """A row a token; its columns have the tokens' first letters above them if there are as many."""
    names = [_clip_text(safe(label), LABEL) for label in labels]
    left = max(map(measure_width, names))
    plane = shrink_plane(plane, len(plane), max((screen.columns - left - 2) // 2, 1))
    low, high = figures.min or 0.0, figures.max or 0.0
    colour = pixels.build_color_map(low, high)
    found = []
    if len(plane[0]) == len(labels):
        found.append(" " * (left + 1) + "".join(_pad_text(_clip_text(name, 2), 2) for name in names).rstrip())
    for name, row in zip(names, plane, strict=True):
        cells = (
            screen.format_cell(colour(value)) if screen.colour else pick_shade(value, low, high) * 2 for value in row
        )
        found.append(" " * (left - measure_width(name)) + f"{name} {''.join(cells)}")
    return found


def _clip_text(text: str, columns: int) -> str:
    while measure_width(text) > columns:
        text = text[:-1]
    return text


def _pad_text(text: str, columns: int) -> str:
    return text + " " * (columns - measure_width(text))


def _format_legend(figures: "ValueStats", screen: Screen) -> list[str]:
    low, high = figures.min or 0.0, figures.max or 0.0
    if not (screen.colour or screen.protocol):
        odd = "; ? nan" * bool(figures.nan) + "; ! inf" * bool(figures.inf)
        return [f"blank {low:.4g} to @ {high:.4g}{odd}"]
    words = "blue to red" if low < 0 < high else "dark to light"
    ends = (-max(-low, high), max(-low, high)) if low < 0 < high else (low, high)
    odd = "; magenta: nan" * bool(figures.nan) + "; orange: inf, cyan: -inf" * bool(figures.inf)
    return [f"{words}: {ends[0]:.4g} to {ends[1]:.4g}{odd}"]
