"""Pictures: heat maps in letters and in colours, real pixels, labels."""

import base64
import math
import re
import struct
import zlib
from typing import Any

import numpy
import pytest

from tdbg.pages.read.tensor_slices import Part
from tdbg.pages.render import heat_map, pixels
from tdbg.pages.render.terminal_screen import Screen
from tdbg.pages.stats.value_stats import of_numbers


def make_screen(monkeypatch: pytest.MonkeyPatch, image: str = "never", **about: Any) -> Screen:
    for name in ("TMUX", "TERM", "TERM_PROGRAM", "KITTY_WINDOW_ID", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    found = Screen(image)
    found.unicode, found.colour, found.deep, found.columns, found.lines = True, False, True, 80, 50
    for name, value in about.items():
        setattr(found, name, value)
    return found


def draw_lines(
    numbers: list[float], shape: tuple[int, ...], found: Screen, labels: list[str] | None = None
) -> list[str]:
    return heat_map.render_heat_map(Part(shape, numbers), of_numbers(numbers), found, labels or [])


def test_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = draw_lines([0.0, 1.0, 2.0, 3.0] * 2, (2, 4), make_screen(monkeypatch))
    assert lines == [" -*@", "blank 0 to @ 3"]
    assert draw_lines([0.0, 2.0, 1.0, 3.0], (2, 2), make_screen(monkeypatch)) == [
        ".%",
        "blank 0 to @ 3",
    ]  # means of two rows


def test_what_is_not_finite_is_seen_in_the_smallest_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [0.0] * 99_999 + [math.nan]
    numbers[0] = math.inf
    lines = draw_lines([*numbers], (250, 400), make_screen(monkeypatch))
    assert lines[-2][-1] == "?" and lines[0][0] == "!" and lines[-1].endswith("? nan; ! inf")
    assert max(map(len, lines)) <= 80


def test_half_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = draw_lines([-1.0, 1.0, 0.0, math.nan], (2, 2), make_screen(monkeypatch, colour=True))
    low, high, zero = "33;102;172", "178;24;43", "247;247;247"
    assert lines[0] == f"\x1b[38;2;{low}m\x1b[48;2;{zero}m▀\x1b[38;2;{high}m\x1b[48;2;255;0;255m▀\x1b[0m"
    assert lines[1] == "blue to red: -1 to 1; magenta: nan"
    zero_is_white = pixels.build_color_map(-1.0, 4.0)
    assert zero_is_white(0.0) == (247, 247, 247) and zero_is_white(4.0) == (178, 24, 43)
    assert pixels.build_color_map(-4.0, 1.0)(-4.0) == (33, 102, 172) and pixels.build_color_map(-4.0, 1.0)(0.0) == (
        247,
        247,
        247,
    )
    assert (
        zero_is_white(-1.0)[2] > zero_is_white(-1.0)[0] and pixels.build_color_map(0.0, 4.0)(0.0) == pixels.VIRIDIS[0]
    )
    few = draw_lines([0.0, 1.0, 2.0], (3, 1, 1), make_screen(monkeypatch, colour=True))
    assert few == []


@pytest.mark.parametrize(("channels", "columns"), [(1, 80), (16, 80), (64, 40), (512, 30)])
@pytest.mark.parametrize("colour", [False, True])
def test_a_grid_of_channels_fits(monkeypatch: pytest.MonkeyPatch, channels: int, columns: int, colour: bool) -> None:
    found = make_screen(monkeypatch, colour=colour, columns=columns, lines=40)
    numbers = [float(number % 97) for number in range(channels * 14 * 14)]
    lines = draw_lines(numbers, (channels, 14, 14), found)
    widths = [len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in lines if "shows others" not in line]
    assert max(widths) <= max(columns, 22) and len(lines) <= 40
    assert any("shows others" in line for line in lines) is (channels >= 64)


def test_the_first_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [0.0] * 12 + [1.0] * 24
    lines = draw_lines(numbers, (3, 1, 3, 4), make_screen(monkeypatch))
    assert "first" not in lines[-1]  # the ones are gone: three planes
    four = draw_lines([*numbers, *numbers], (2, 3, 3, 4), make_screen(monkeypatch))
    assert four[-1] == "the first of 2; --slice shows another" and four[0] == "     @@@@"


def test_tokens_name_the_rows_and_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = ["the", "\x1b[2Jcat", "猫", "a-very-long-token-indeed"]
    lines = draw_lines(
        [float(row == column) for row in range(4) for column in range(4)], (4, 4), make_screen(monkeypatch), labels
    )
    assert lines[0] == "               th\\x猫a-"
    assert lines[1].split() == ["the", "@@"]
    assert [line.index("@") for line in lines[1:5]] == [15, 17, 18, 21]
    assert lines[4].startswith("a-very-long-to ")
    coloured = draw_lines([0.0, 1.0] * 8, (4, 4), make_screen(monkeypatch, colour=True), labels)
    assert coloured[1].count("\x1b[48;2;") == 4


def test_shrunk_is_the_mean_of_blocks() -> None:
    plane = [[float(row * 4 + column) for column in range(4)] for row in range(4)]
    assert heat_map.shrink_plane(plane, 2, 2) == [[2.5, 4.5], [10.5, 12.5]]
    assert heat_map.shrink_plane(plane, 9, 9) is plane
    assert heat_map.shrink_plane(plane, 1, 4) == [[6.0, 7.0, 8.0, 9.0]]


@pytest.mark.parametrize("shape", [(1, 7, 9), (5, 20, 13), (2, 4, 4)])
@pytest.mark.parametrize("image", ["never", "sixel"])
def test_arrays_are_drawn_as_lists_are(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], image: str) -> None:
    found = make_screen(monkeypatch, image, columns=30, lines=24)
    array = numpy.random.default_rng(0).standard_normal(shape)
    array[0, 3, 3] = math.nan
    numbers = array.reshape(-1).tolist()
    lists = heat_map.render_heat_map(Part(shape, numbers), of_numbers(numbers), found)
    assert heat_map.render_heat_map(Part(shape, None, array), of_numbers(numbers), found) == lists != []


def decode_png(data: bytes) -> list[list[tuple[int, int, int]]]:
    """The pixels of a PNG without filters."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        (size,), kind = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + size
    wide, high = struct.unpack(">II", chunks[b"IHDR"][:8])
    raw = zlib.decompress(chunks[b"IDAT"])
    lines = [raw[row * (3 * wide + 1) + 1 : (row + 1) * (3 * wide + 1)] for row in range(high)]
    return [[tuple(line[3 * at : 3 * at + 3]) for at in range(wide)] for line in lines]  # type: ignore[misc]


PICTURE = [[(255, 0, 0), (0, 255, 0)], [(0, 0, 255), (10, 20, 30)], [(0, 0, 0), (255, 255, 255)]]


def test_png() -> None:
    assert decode_png(pixels.encode_png(PICTURE)) == PICTURE


def test_kitty_and_iterm_carry_a_png() -> None:
    noise = [[((7 * x * y) % 256, (x * x) % 256, (11 * y + x) % 256) for x in range(90)] for y in range(80)]
    parts = re.findall(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\", pixels.encode_kitty(noise))
    assert len(parts) > 1 and all(len(text) <= 4096 for _, text in parts)
    assert parts[0][0] == "a=T,f=100,q=2,m=1" and [head for head, _ in parts[1:]] == ["m=1"] * (len(parts) - 2) + [
        "m=0"
    ]
    assert decode_png(base64.b64decode("".join(text for _, text in parts))) == noise
    found = re.fullmatch(
        r"\x1b\]1337;File=inline=1;size=(\d+);width=2px;height=3px:([^\a]*)\a", pixels.encode_iterm(PICTURE)
    )
    assert found and len(base64.b64decode(found[2])) == int(found[1])
    assert decode_png(base64.b64decode(found[2])) == PICTURE


def decode_sixel(text: str) -> list[list[int]]:
    """The colours of a sixel picture, by number."""
    found = re.fullmatch(r'\x1bPq"1;1;(\d+);(\d+)(.*)\x1b\\', text, re.S)
    assert found
    wide, high = int(found[1]), int(found[2])
    grid = [[-1] * wide for _ in range(-(-high // 6) * 6)]
    row = at = colour = 0
    for word in re.finditer(r"#(\d+);2;\d+;\d+;\d+|#(\d+)|!(\d+)(.)|([$-])|(.)", found[3]):
        if word[2]:
            colour = int(word[2])
        elif word[5]:
            at, row = 0, row + 6 * (word[5] == "-")
        elif not word[1]:
            for _ in range(int(word[3] or 1)):
                bits = ord(word[4] or word[6]) - 63
                for bit in range(6):
                    if bits >> bit & 1:
                        grid[row + bit][at] = colour
                at += 1  # noqa: SIM113 - it goes on where the last run ended
    return grid[:high]


def test_sixel() -> None:
    noise = [[((7 * x * y) % 256, 9, (11 * y) % 256) for x in range(20)] for y in range(15)]
    assert decode_sixel(pixels.encode_sixel(noise)) == [
        [pixels.quantize_color(pixel) for pixel in row] for row in noise
    ]


def test_real_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    found = make_screen(monkeypatch, "kitty")
    lines = draw_lines([0.0, 1.0, 2.0, 3.0], (2, 2), found)
    (_, text), *rest = re.findall(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\", lines[0])
    picture = decode_png(base64.b64decode(text + "".join(part for _, part in rest)))
    zoom = len(picture) // 2
    assert zoom > 50 and picture[0][0] == pixels.VIRIDIS[0] and picture[-1][-1] == pixels.VIRIDIS[-1]
    assert picture[zoom - 1][0] == picture[0][0] != picture[zoom][0]


@pytest.mark.parametrize(
    ("environment", "terminal", "protocol"),
    [
        ({"TERM": "xterm-kitty"}, True, "kitty"),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1"}, True, "kitty"),
        ({"TERM_PROGRAM": "iTerm.app"}, True, "iterm"),
        ({"TERM_PROGRAM": "WezTerm"}, True, "iterm"),
        ({"TERM": "foot"}, True, "sixel"),
        ({"TERM": "xterm-sixel"}, True, "sixel"),
        ({"TERM": "xterm-256color"}, True, ""),
        ({"TERM": "screen-256color", "KITTY_WINDOW_ID": "1"}, True, ""),
        ({"TERM": "xterm-kitty", "TMUX": "/tmp/x"}, True, ""),
        ({"TERM": "xterm-kitty"}, False, ""),
    ],
)
def test_which_terminal_takes_pictures(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], terminal: bool, protocol: str
) -> None:
    make_screen(monkeypatch)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    assert Screen().protocol == protocol
    assert Screen("never").protocol == "" and Screen("sixel").protocol == "sixel"


def test_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    found = make_screen(monkeypatch)
    assert (
        found.format_histogram([0, 1, 500, 1000]) == " ▁▄█"
        and found.format_histogram([]) == ""
        and found.format_histogram([0, 0]) == "  "
    )
    found.unicode = False
    assert found.format_histogram([0, 1, 1000]).isascii() and found.format_histogram([0, 1000])[1] == "#"


@pytest.mark.parametrize("special", [pixels.NAN, pixels.PLUS, pixels.MINUS])
@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 1.0)])
def test_the_colour_of_what_is_no_number_is_far_from_that_of_any(special, bounds):
    low, high = bounds
    colors = pixels.build_color_map(low, high)
    nearest = min(math.dist(special, colors(low + (high - low) * at / 256)) for at in range(257))
    assert nearest > 75, "it can be taken for a number"
