"""The colours of curves are told apart by people with any colour vision, in light and dark."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from entrypoint.cluster import page
from entrypoint.run.curves import GREY, LINES

XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
"""Of linear sRGB (IEC 61966-2-1), to which CIE XYZ; its second row is the luminance."""
WHITE = np.array([0.95047, 1.0, 1.08883])
MISSING_CONES = {
    "none": np.eye(3),
    "long": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "middle": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "short": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
"""Machado, Oliveira and Fernandes (2009), severity 1.0, on linear sRGB."""


def linear(colour: str) -> np.ndarray:
    full = colour if len(colour) == 7 else "#" + "".join(2 * digit for digit in colour[1:])
    value = np.array([int(full[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(light: np.ndarray) -> np.ndarray:
    """CIE 1976 L*a*b* of linear sRGB."""
    share = XYZ @ light.clip(0, 1) / WHITE
    x, y, z = np.where(share > 216 / 24389, np.cbrt(share), (24389 / 27 * share + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    """WCAG 2.2."""
    dark, light = sorted(float(XYZ[1] @ linear(colour)) + 0.05 for colour in (one, other))
    return light / dark


@pytest.mark.parametrize("cone", MISSING_CONES)
def test_any_two_colours_differ_for_people_without_a_kind_of_cones(cone: str) -> None:
    seen = {colour: lab(MISSING_CONES[cone] @ linear(colour)) for colour in (*LINES, GREY)}
    for one, other in combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) >= 18, (one, other)


def test_each_colour_is_seen_on_the_light_and_on_the_dark_ground_of_a_chart() -> None:
    style = (Path(page.__path__[0]) / "style.css").read_text()
    grounds = re.findall(r"--(?:back|raised): light-dark\((#\w+), (#\w+)\)", style)
    assert len(grounds) == 2
    for colour in (*LINES, GREY):
        for ground in (of for both in grounds for of in both):
            assert contrast(colour, ground) >= 3, (colour, ground)
