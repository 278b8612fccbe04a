"""Text with pieces that a shell fills in: `UNSET{NAME}`, `UNSET(command)`, `UNSET((sum))`."""

from __future__ import annotations

import re

from trainer.config.translate.rows import UNSET

PAIRS = {"{": "}", "(": ")"}
BASE = 0xE100
"""First of the characters that stand for an open piece while text is split."""


def pieces(text: str) -> list[str]:
    """Return the parts of a text, in order; those that begin with UNSET are open."""
    found: list[str] = []
    at = 0
    while (start := text.find(UNSET, at)) >= 0:
        if start > at:
            found.append(text[at:start])
        at = _end(text, start + 1)
        found.append(text[start:at])
    if at < len(text):
        found.append(text[at:])
    return found


def _end(text: str, at: int) -> int:
    opening = text[at : at + 1]
    if opening not in PAIRS:
        return at
    depth = 0
    for place in range(at, len(text)):
        depth += {opening: 1, PAIRS[opening]: -1}.get(text[place], 0)
        if not depth:
            return place + 1
    return len(text)


def opened(inner: str) -> str:
    """Return an open piece. A command whose brackets do not pair is named without them."""
    piece = UNSET + inner
    if _end(piece, 1) == len(piece) and inner[-1:] == PAIRS.get(inner[:1]):
        return piece
    return f"{UNSET}({re.sub(r'[(){}]', '', inner)})"


def is_open(text: str) -> bool:
    return UNSET in text


def names_in(piece: str) -> list[str]:
    """Return the variables, and the numbers of arguments, that an open piece may name."""
    return re.findall(r"\w+", piece)


def known_tail(text: str) -> str:
    """Return the text behind the last open piece."""
    found = pieces(text)
    return found[-1] if found and not is_open(found[-1]) else ""


def has_known(text: str) -> bool:
    """Return whether a part of the text is known, so that the whole cannot be empty."""
    return any(not is_open(piece) for piece in pieces(text))


def hide(text: str) -> tuple[str, list[str]]:
    """Return the text with a character for each open piece, and the pieces."""
    shown: list[str] = []
    kept: list[str] = []
    for piece in pieces(text):
        if is_open(piece):
            shown.append(chr(BASE + len(kept)))
            kept.append(piece)
        else:
            shown.append(piece)
    return "".join(shown), kept


def show(text: str, kept: list[str]) -> str:
    return re.sub(
        f"[{chr(BASE)}-{chr(BASE + 0x7FF)}]",
        lambda found: kept[ord(found[0]) - BASE] if ord(found[0]) - BASE < len(kept) else found[0],
        text,
    )


def separators_of(characters: str) -> tuple[str, str, str]:
    """Return those of IFS that are spaces, the others, and a regular expression of a separator."""
    spaces = "".join(char for char in characters if char in " \t\n")
    others = "".join(char for char in characters if char not in " \t\n")
    space, other = (f"[{re.escape(chars)}]" if chars else "(?!)" for chars in (spaces, others))
    return spaces, others, f"{space}*{other}{space}*|{space}+"


def split(text: str, separators: str) -> tuple[bool, list[str], bool]:
    """Return the fields of an expansion that is not quoted (bash(1), "Word Splitting").

    The switches say whether a separator that is a space comes first, and whether one comes last.
    """
    shown, kept = hide(text)
    spaces, _, sign = separators_of(separators)
    body = shown.lstrip(spaces) if spaces else shown
    found = re.split(sign, body) if body else []
    ends = len(found) > 1 and not found[-1]
    return len(body) < len(shown), [show(one, kept) for one in found[: -1 if ends else None]], ends
