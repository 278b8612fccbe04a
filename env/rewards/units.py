"""Units behind the number of an answer."""

from __future__ import annotations

import re

NAMES = {
    **dict.fromkeys(("mm", "millimeter", "millimetre"), "mm"),
    **dict.fromkeys(("cm", "centimeter", "centimetre"), "cm"),
    **dict.fromkeys(("m", "meter", "metre"), "m"),
    **dict.fromkeys(("km", "kilometer", "kilometre"), "km"),
    **dict.fromkeys(("in", "inch", "inche"), "in"),
    **dict.fromkeys(("ft", "foot", "feet"), "ft"),
    **dict.fromkeys(("yd", "yard"), "yd"),
    **dict.fromkeys(("mi", "mile"), "mi"),
    **dict.fromkeys(("sec", "second"), "s"),
    **dict.fromkeys(("min", "minute"), "min"),
    **dict.fromkeys(("h", "hr", "hour"), "h"),
    **dict.fromkeys(("mg", "milligram"), "mg"),
    **dict.fromkeys(("g", "gram"), "g"),
    **dict.fromkeys(("kg", "kilogram"), "kg"),
    **dict.fromkeys(("lb", "pound"), "lb"),
    **dict.fromkeys(("oz", "ounce"), "oz"),
    **dict.fromkeys(("ml", "milliliter", "millilitre"), "ml"),
    **dict.fromkeys(("l", "liter", "litre"), "l"),
    **{name: name for name in ("day", "week", "month", "year", "dollar", "cent", "degree")},
    **{name: name for name in ("radian", "mph", "acre", "gallon", "quart", "pint", "cup")},
}
"""Units, without the s of the plural, and one name for each."""
GROUP = r"\\(?:text|textbf|textit|textrm|mathrm|mbox|rm)\s*\{[^{}]*[A-Za-z][^{}]*\}"
POWER = r"(?:\s*\^\s*(?:\d|\{\s*-?\d\s*\}))?"
WORD = rf"(?:[A-Za-z]{{4,}}|{'|'.join(f'{name}s?' for name in NAMES if 1 < len(name) < 4)}|sq|per)"
WORDS = rf"{WORD}\.?(?:[ -]{WORD}\.?)*"
BEHIND = re.compile(
    rf"(?P<value>.*(?:[\w)}}%!]|\\[\]}}]))(?:\s|~|\\[,;: ])*"
    rf"(?P<unit>(?:{GROUP}{POWER}(?:\s|/|\\cdot|\\[,;: ]|~)*)+)"
    rf"|(?P<number>.*[\d)}}])\s*(?P<words>{WORDS}{POWER})",
    re.DOTALL,
)
"""A value with a unit: in a command for text, or of words that are not products of letters."""
MODIFIERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}


def split(text: str) -> tuple[str, str]:
    """Return a formula without the unit behind it, and the unit; nothing if there is none."""
    found = BEHIND.fullmatch(text)
    if not found:
        return text, ""
    return found["value"] or found["number"], found["unit"] or found["words"]


def differ(one: str, other: str) -> bool:
    """Return whether both are units that are known, and not the same."""
    known, wanted = _known(one), _known(other)
    return known is not None and wanted is not None and known != wanted


def _known(unit: str) -> tuple[str, int] | None:
    """Return name and power of a unit; None for several ones, and for what is none."""
    words = re.findall(r"[a-z]+|\d", re.sub(r"\\[A-Za-z]+", " ", unit).lower())
    power = 1
    names = []
    for word in words:
        if word.isdigit():
            power = int(word)
        elif word in MODIFIERS:
            power = MODIFIERS[word]
        else:
            names.append(NAMES.get(word) or NAMES.get(word.removesuffix("s"), ""))
    return (names[0], power) if len(names) == 1 and names[0] else None
