"""The style sheet's two themes: contrast, and colours that readers with any usual deficiency can tell apart."""

import math
from itertools import combinations, pairwise

import pytest
from themes import STYLE, THEMES, theme

from llmirage_client.report.html.charts import COLORS, LEVELS

# Severity 1.0 of Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision
# Deficiency" (2009), on linear RGB.
SEEN_BY = {
    "everyone": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


BOTH = pytest.mark.parametrize("colors", THEMES.values(), ids=THEMES)


def linear(color: str) -> tuple[float, ...]:
    parts = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return tuple(c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)


def contrast(a: str, b: str) -> float:
    """WCAG 2.2's contrast ratio."""
    low, high = sorted(sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(x), strict=True)) for x in (a, b))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: tuple[float, ...]) -> tuple[float, float, float]:
    r, g, b = rgb
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883,
    )
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def difference(a: str, b: str, eye: str) -> float:
    """CIE76 distance of two colours as that eye sees them; 2.3 is just noticeable."""

    def seen(color: str) -> tuple[float, float, float]:
        rgb = linear(color)
        return lab(tuple(min(max(sum(m * c for m, c in zip(row, rgb, strict=True)), 0), 1) for row in SEEN_BY[eye]))

    return math.dist(seen(a), seen(b))


def test_both_ways_to_the_dark_theme_have_the_same_colours() -> None:
    assert theme(':root:not([data-theme="light"])') == THEMES["dark"]
    assert THEMES["light"].keys() == THEMES["dark"].keys()


@BOTH
def test_text_has_the_contrast_of_wcag_aa(colors: dict[str, str]) -> None:
    for ground in ("ground", "card"):
        assert contrast(colors["text"], colors[ground]) >= 7
        assert contrast(colors["muted"], colors[ground]) >= 4.5
    for state in ("good", "warn", "bad"):
        assert contrast(colors[state], colors[f"{state}-ground"]) >= 4.5
    assert contrast(colors["c1"], colors["ground"]) >= 4  # links, which are underlined or in the navigation too
    assert contrast(colors["card"], colors["text"]) >= 4.5  # the tooltip


@BOTH
def test_shapes_have_the_contrast_of_wcag_aa_against_their_card(colors: dict[str, str]) -> None:
    for number in range(1, COLORS + 1):
        assert contrast(colors[f"c{number}"], colors["card"]) >= 3, number
    assert contrast(colors["bad"], colors["card"]) >= 3


@BOTH
@pytest.mark.parametrize("eye", SEEN_BY)
def test_every_eye_can_tell_the_series_apart(colors: dict[str, str], eye: str) -> None:
    for a, b in combinations(range(1, COLORS + 1), 2):
        assert difference(colors[f"c{a}"], colors[f"c{b}"], eye) >= 10, (a, b)


@BOTH
@pytest.mark.parametrize("eye", SEEN_BY)
def test_the_two_parts_of_a_request_and_a_failure_differ_for_every_eye(colors: dict[str, str], eye: str) -> None:
    for a, b in combinations(("c5", "c1", "bad"), 2):
        assert difference(colors[a], colors[b], eye) >= 15, (a, b)


@BOTH
def test_the_heat_ramp_goes_one_way(colors: dict[str, str]) -> None:
    lightness = [lab(linear(colors[f"h{n}"]))[0] for n in range(1, LEVELS + 1)]
    steps = [b - a for a, b in pairwise(lightness)]
    assert all(abs(s) >= 3 for s in steps)
    assert len({s > 0 for s in steps}) == 1


def test_every_class_of_a_level_has_a_colour() -> None:
    for level in range(1, LEVELS + 1):
        assert f".h{level} {{ background: var(--h{level}); fill: var(--h{level}); }}" in STYLE
