"""Colours of charts can be told apart by the colour-blind, and stand out from both backgrounds."""

import itertools
import math
import re
from importlib import resources

import pytest

SCRIPT = resources.files("tdbg.core").joinpath("web/charts.js").read_text(encoding="utf-8")
# What those see who lack one kind of cone, in linear RGB: Machado, Oliveira and Fernandes 2009, severity 1.
SEEN = {
    "all": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "no red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "no blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
BACKGROUNDS = ("#ffffff", "#16181b")
LEAST_DISTANCE = 15.0  # in CIELAB; 2.3 is just noticeable side by side
LEAST_CONTRAST = 3.0  # of graphics, by WCAG 2.1


def list_colors(name: str) -> list[str]:
    found = re.search(rf"const {name} = \[(.*?)\];", SCRIPT)
    assert found is not None
    return re.findall(r"#[0-9a-f]{6}", found[1])


def to_linear(color: str) -> tuple[float, ...]:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return tuple(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)


def compute_luminance(color: str) -> float:
    red, green, blue = to_linear(color)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def compute_contrast(one: str, other: str) -> float:
    dark, bright = sorted((compute_luminance(one), compute_luminance(other)))
    return (bright + 0.05) / (dark + 0.05)


def to_lab(color: str, seen: str) -> tuple[float, float, float]:
    """CIELAB of a colour as it is seen."""
    red, green, blue = (_mix(row, color) for row in SEEN[seen])
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883
    fx, fy, fz = (value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116 for value in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def _mix(row: tuple[float, ...], color: str) -> float:
    mixed = sum(weight * part for weight, part in zip(row, to_linear(color), strict=True))
    return min(max(mixed, 0.0), 1.0)


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("name", ["LINE_COLORS", "LANE_COLORS"])
def test_any_two_are_told_apart(name: str, seen: str) -> None:
    colors = list_colors(name)[:6]
    for one, other in itertools.combinations(colors, 2):
        assert math.dist(to_lab(one, seen), to_lab(other, seen)) >= LEAST_DISTANCE, (one, other)


@pytest.mark.parametrize("background", BACKGROUNDS)
def test_each_stands_out_from_the_page(background: str) -> None:
    for color in list_colors("LINE_COLORS"):
        assert compute_contrast(color, background) >= LEAST_CONTRAST, color
