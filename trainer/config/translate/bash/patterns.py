"""Patterns of bash as regular expressions (bash(1), "Pattern Matching")."""

from __future__ import annotations

import re

Field = list[tuple[str, bool]]
"""A word's pieces: text, and whether quotes make it literal."""

CLASSES = {
    "alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "upper": "A-Z", "lower": "a-z",
    "space": r"\s", "blank": " \\t", "punct": re.escape("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"),
    "xdigit": "0-9a-fA-F", "word": r"\w",
}  # fmt: skip
EXTENDED = {"?": "?", "*": "*", "+": "+", "@": ""}


def regex_of(field: Field) -> str | None:
    """Return the pattern as a regular expression; None if a form of it is not read."""
    chars = [(char, quoted) for text, quoted in field for char in text]
    try:
        made, end = _sequence(chars, 0, "")
        re.compile(made)
    except (ValueError, re.error):
        return None
    return made if end == len(chars) else None


def _sequence(chars: list[tuple[str, bool]], at: int, ends: str) -> tuple[str, int]:
    made: list[str] = []
    while at < len(chars):
        char, quoted = chars[at]
        if quoted:
            made.append(re.escape(char))
        elif char in ends:
            break
        elif char in "?*+@!" and chars[at + 1 : at + 2] == [("(", False)]:
            text, at = _extended(chars, at)
            made.append(text)
            continue
        elif char == "*":
            made.append(".*")
        elif char == "?":
            made.append(".")
        elif char == "[" and (found := _bracket(chars, at)):
            made.append(found[0])
            at = found[1]
            continue
        elif char == "\\" and at + 1 < len(chars):
            at += 1
            made.append(re.escape(chars[at][0]))
        else:
            made.append(re.escape(char))
        at += 1
    return "".join(made), at


def _extended(chars: list[tuple[str, bool]], at: int) -> tuple[str, int]:
    sign, at = chars[at][0], at + 2
    if sign == "!":
        raise ValueError("!(…) is not read")
    choices = []
    while True:
        text, at = _sequence(chars, at, "|)")
        choices.append(text)
        if at >= len(chars):
            raise ValueError("a bracket is open")
        at += 1
        if chars[at - 1][0] == ")":
            return f"(?:{'|'.join(choices)}){EXTENDED[sign]}", at


def _bracket(chars: list[tuple[str, bool]], at: int) -> tuple[str, int] | None:
    """Return `[…]` and its end; None if it is an ordinary character."""
    made, place = ["["], at + 1
    if place < len(chars) and chars[place] in (("!", False), ("^", False)):
        made.append("^")
        place += 1
    first = place
    while place < len(chars):
        char, quoted = chars[place]
        if char == "]" and not quoted and place > first:
            return "".join([*made, "]"]), place + 1
        rest = "".join(one for one, _ in chars[place : place + 12])
        if not quoted and (named := re.match(r"\[:(\w+):\]", rest)):
            made.append(CLASSES.get(named[1], ""))
            if named[1] not in CLASSES:
                raise ValueError("an unknown class")
            place += len(named[0])
            continue
        made.append("-" if char == "-" and not quoted else re.escape(char))
        place += 1
    return None


def matches(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text, re.DOTALL) is not None


def without_prefix(pattern: str, text: str, *, longest: bool) -> str:
    """Return the text without its shortest or longest beginning that matches."""
    places = range(len(text) + 1)
    found = [end for end in places if matches(pattern, text[:end])]
    return text[found[-1 if longest else 0] :] if found else text


def without_suffix(pattern: str, text: str, *, longest: bool) -> str:
    """Return the text without its shortest or longest end that matches."""
    found = [start for start in range(len(text) + 1) if matches(pattern, text[start:])]
    return text[: found[0 if longest else -1]] if found else text


def replaced(pattern: str, text: str, by: str, *, everywhere: bool, at: str = "") -> str:
    """Return the text with its longest match at each place, or at one end, replaced."""
    if at:
        ends = range(len(text), -1, -1) if at == "#" else range(len(text) + 1)
        for end in ends:
            part = text[:end] if at == "#" else text[end:]
            if matches(pattern, part):
                return by + text[end:] if at == "#" else text[:end] + by
        return text
    if not text and matches(pattern, ""):
        return by
    made, start = [], 0
    while start < len(text):
        found = (end for end in range(len(text), start, -1) if matches(pattern, text[start:end]))
        end = next(found, 0)
        if not end:
            made.append(text[start])
            start += 1
            continue
        made.append(by)
        start = end
        if not everywhere:
            break
    return "".join(made) + text[start:]
