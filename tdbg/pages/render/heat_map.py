"""A tensor as a picture: a heat map of two dimensions, a grid of three, with the names of tokens where they are known."""

import math

from tdbg.core.tables import safe, width
from tdbg.pages.render import pixels
from tdbg.pages.render.terminal_screen import Screen, shade
from tdbg.pages.stats.value_stats import magnitudes, plain

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


def lines(part: "Part", figures: "ValueStats", screen: Screen, labels: "Sequence[str]" = ()) -> list[str]:
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
        found = _labelled(_planes(part, (1, high, wide), high, wide)[0], figures, screen, labels)
    elif screen.protocol:
        found = _image(part, (count, high, wide), figures, screen)
    else:
        found, shown = _grid(part, (count, high, wide), figures, screen)
        if shown < count:
            said = f"the first {shown} of {count}; --slice {shown}: shows others{'; ' if said else ''}{said}"
    return [*found, *_legend(figures, screen), *([said] if said else [])]


def shrunk(plane: "Plane", high: int, wide: int) -> "Plane":
    """A plane of at most so many rows and columns, each cell the mean of a block; a nan stays a nan."""
    rows, columns = len(plane), len(plane[0])
    if rows <= high and columns <= wide:
        return plane
    high, wide = min(rows, high), min(columns, wide)
    across = _edges(columns, wide)
    narrow = [[_mean(row[low:end]) for low, end in across] for row in plane]
    return [[_mean([row[at] for row in narrow[low:end]]) for at in range(wide)] for low, end in _edges(rows, high)]


def _mean(values: "Sequence[float]") -> float:
    return values[0] if len(values) == 1 else sum(values) / len(values)


def _edges(size: int, parts: int) -> list[tuple[int, int]]:
    return [(size * at // parts, size * (at + 1) // parts) for at in range(parts)]


def _planes(part: "Part", shape: tuple[int, int, int], high: int, wide: int) -> "list[Plane]":
    """The first planes of the last two dimensions, so many of that size, each of at most ``high`` by ``wide`` cells."""
    count, rows, columns = shape
    if part.array is not None:
        return _array_planes(part.array.reshape(-1, rows, columns)[:count], min(high, rows), min(wide, columns))
    assert part.numbers is not None
    size = rows * columns
    flat: Sequence[float] = plain(part.numbers[: count * size])
    starts = [[at * size + row * columns for row in range(rows)] for at in range(count)]
    return [shrunk([flat[start : start + columns] for start in begins], high, wide) for begins in starts]


def _array_planes(planes: "Array", high: int, wide: int) -> "list[Plane]":
    """The same of an array, which may be too large for lists."""
    import numpy

    found = magnitudes(planes)
    for axis, parts in ((2, wide), (1, high)):
        size = found.shape[axis]
        if parts < size:
            edges = _edges(size, parts)
            counts = numpy.array([end - low for low, end in edges], "f8")
            with numpy.errstate(all="ignore"):
                sums = numpy.add.reduceat(found.astype("f8"), [low for low, _ in edges], axis)
                found = sums / (counts if axis == 2 else counts[:, None])
    listed: list[Plane] = found.tolist()
    return listed


def _grid(part: "Part", shape: tuple[int, int, int], figures: "ValueStats", screen: Screen) -> tuple[list[str], int]:
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
    planes = _planes(part, (shown, high, wide), lines_high, tile_wide)
    if screen.colour:
        colour = pixels.colours(figures.min, figures.max)
        return screen.drawn(pixels.tiled([pixels.painted(plane, colour) for plane in planes], columns)), shown
    letters = [_letters(plane, figures) for plane in planes]
    found: list[str] = []
    for start in range(0, shown, columns):
        row = letters[start : start + columns]
        found += [" ".join(texts) for texts in zip(*row, strict=True)] + [""] * (start + columns < shown)
    return found, shown


def _letters(plane: "Plane", figures: "ValueStats") -> list[str]:
    low, high = figures.min or 0.0, figures.max or 0.0
    return ["".join(shade(value, low, high) for value in row) for row in plane]


def _image(part: "Part", shape: tuple[int, int, int], figures: "ValueStats", screen: Screen) -> list[str]:
    """As real pixels: every value one, or a square of several."""
    count, high, wide = shape
    assert figures.min is not None and figures.max is not None
    columns = math.ceil(math.sqrt(count * high / wide)) if count > 1 else 1
    columns = min(max(columns, 1), count)
    tile = max(LARGEST_PIXELS // columns - 1, 1)
    planes = _planes(part, shape, tile, tile)
    zoom = max(WIDEST_PIXELS // (columns * (len(planes[0][0]) + 1)), 1)
    colour = pixels.colours(figures.min, figures.max)
    picture = pixels.tiled([pixels.painted(plane, colour, zoom) for plane in planes], columns)
    return [screen.sent(picture)]


def _labelled(plane: "Plane", figures: "ValueStats", screen: Screen, labels: "Sequence[str]") -> list[str]:
    """A row a token; its columns have the tokens' first letters above them if there are as many."""
    names = [_clip(safe(label), LABEL) for label in labels]
    left = max(map(width, names))
    plane = shrunk(plane, len(plane), max((screen.columns - left - 2) // 2, 1))
    low, high = figures.min or 0.0, figures.max or 0.0
    colour = pixels.colours(low, high)
    found = []
    if len(plane[0]) == len(labels):
        found.append(" " * (left + 1) + "".join(_filled(_clip(name, 2), 2) for name in names).rstrip())
    for name, row in zip(names, plane, strict=True):
        cells = (screen.cell(colour(value)) if screen.colour else shade(value, low, high) * 2 for value in row)
        found.append(" " * (left - width(name)) + f"{name} {''.join(cells)}")
    return found


def _clip(text: str, columns: int) -> str:
    while width(text) > columns:
        text = text[:-1]
    return text


def _filled(text: str, columns: int) -> str:
    return text + " " * (columns - width(text))


def _legend(figures: "ValueStats", screen: Screen) -> list[str]:
    low, high = figures.min or 0.0, figures.max or 0.0
    if not (screen.colour or screen.protocol):
        odd = "; ? nan" * bool(figures.nan) + "; ! inf" * bool(figures.inf)
        return [f"blank {low:.4g} to @ {high:.4g}{odd}"]
    words = "blue to red" if low < 0 < high else "dark to light"
    ends = (-max(-low, high), max(-low, high)) if low < 0 < high else (low, high)
    odd = "; magenta: nan" * bool(figures.nan) + "; yellow: inf, cyan: -inf" * bool(figures.inf)
    return [f"{words}: {ends[0]:.4g} to {ends[1]:.4g}{odd}"]
