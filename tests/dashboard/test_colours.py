"""Colours that stand beside each other are told apart by readers who see red, green or blue otherwise, or badly."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest
from django.conf import settings

CSS = Path(settings.BASE_DIR) / "dashboard" / "static" / "app.css"
# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
SIGHT = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
TOGETHER = {
    "parts of a step": ("compute", "comm", "bubble", "free"),
    "series": tuple(f"c{index}" for index in range(1, 9)),
    "statuses": ("pass", "fail", "unknown"),
}
APART = 12.0
"""Least distance in CIELAB (CIE 1976): two shades beside each other are told apart from about 2 to 3 on."""
HEAT_STEP = 6.0
LEAST_CONTRAST = 3.0
"""Of what is drawn against what it lies on: WCAG 2.2, 1.4.11."""

Triple = tuple[float, float, float]


def tokens(theme: str) -> dict[str, Triple]:
    """Linear RGB of the theme's colours, 0 to 1."""
    css = CSS.read_text(encoding="utf-8")
    start, end = {"light": (":root {", ':root[data-theme="dark"]'), "dark": (':root[data-theme="dark"]', "@media")}[
        theme
    ]
    block = css[css.index(start) : css.index(end, css.index(start) + 1)]
    return {name: linear(text) for name, text in re.findall(r"--([\w-]+): #([0-9a-f]{6})", block)}


def linear(text: str) -> Triple:
    parts = [int(text[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return red, green, blue


def seen(colour: Triple, sight: str) -> Triple:
    mixed = (sum(share * part for share, part in zip(row, colour, strict=True)) for row in SIGHT[sight])
    red, green, blue = (min(1.0, max(0.0, part)) for part in mixed)
    return red, green, blue


def luminance(colour: Triple) -> float:
    return 0.2126729 * colour[0] + 0.7151522 * colour[1] + 0.0721750 * colour[2]


def lab(colour: Triple) -> Triple:
    """CIELAB under D65."""
    red, green, blue = colour
    x = (0.4124564 * red + 0.3575761 * green + 0.1804375 * blue) / 0.95047
    z = (0.0193339 * red + 0.1191920 * green + 0.9503041 * blue) / 1.08883
    f, g, h = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, luminance(colour), z))
    return 116 * g - 16, 500 * (f - g), 200 * (g - h)


def distance(one: Triple, other: Triple) -> float:
    return float(sum((a - b) ** 2 for a, b in zip(lab(one), lab(other), strict=True)) ** 0.5)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("names", TOGETHER.values(), ids=TOGETHER)
def test_colours_that_stand_together_are_told_apart(theme, sight, names):
    known = tokens(theme)
    close = {
        pair: round(apart, 1)
        for pair in combinations(names, 2)
        if (apart := distance(*(seen(known[name], sight) for name in pair))) < APART
    }
    assert close == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("sight", SIGHT)
def test_more_heat_is_always_further_from_the_page(theme, sight):
    known = tokens(theme)
    lightness = [lab(seen(known[f"heat-{step}"], sight))[0] for step in range(6)]
    steps = [after - before for before, after in zip(lightness, lightness[1:], strict=False)]
    assert all(step < -HEAT_STEP for step in steps) if theme == "light" else all(step > HEAT_STEP for step in steps)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_controls_and_lines_stand_out_from_their_card(theme):
    known = tokens(theme)
    surface = luminance(known["surface"])
    for name in ("control", "accent", "pass", "fail", "compute", "comm", "bubble", "cast", *TOGETHER["series"]):
        high, low = sorted((luminance(known[name]), surface), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= LEAST_CONTRAST, name


def test_the_dark_theme_is_the_same_whether_chosen_or_the_system_s():
    css = CSS.read_text(encoding="utf-8")
    chosen = css[css.index(':root[data-theme="dark"]') : css.index("@media (prefers-color-scheme: dark)")]
    system = css[css.index("@media (prefers-color-scheme: dark)") :]
    system = system[: system.index("}")]
    named = [dict(re.findall(r"--([\w-]+): ([^;]+);", part)) for part in (chosen, system)]
    assert named[0] == named[1]
