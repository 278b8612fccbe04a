"""Lengths of time and numbers of things as text."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal


def duration(seconds: float) -> str:
    """Return seconds in their two largest units: 4.2 s, 3 min 20 s, 5 h 10 min, 2 d 4 h."""
    if seconds < 60:
        return f"{f'{seconds:.1f}'.removesuffix('.0')} s"
    whole = round(seconds)
    for small, large, per in (("s", "min", 60), ("min", "h", 60), ("h", "d", 24)):
        rest, whole = whole % per, whole // per
        if whole < (24 if large == "h" else 60) or large == "d":
            return f"{whole} {large} {rest} {small}"
    raise AssertionError("days have no end")


def counted(number: float, noun: str) -> str:
    """Pure: return the number with its noun, such as `1 step`, `2 steps` and `2 processes`."""
    shown = f"{number:g}" if isinstance(number, float) else str(number)
    ending = "es" if noun.endswith("s") else "s"
    return f"{shown} {noun}{'' if number == 1 else ending}"


def steps_kept(kept: int, lost: int) -> str:
    """Pure: return how many steps a run has; how many it has made, if failures have lost some."""
    return f"{counted(kept, 'step')} kept of {kept + lost} made" if lost else counted(kept, "step")


FOUR_DIGITS = Context(prec=4, rounding=ROUND_HALF_UP)
NOISE = 1e-12
"""What is less is 0 but for rounding, as on the page."""


def significant(value: float) -> str:
    """Pure: return a measured value with four digits that count; a half goes up, as on the page."""
    if abs(value) < NOISE:
        return "0"
    return f"{float(FOUR_DIGITS.create_decimal(Decimal(value))):.4g}"
