"""Brace expansion: `a{b,c}` and `{1..3}` (bash(1), "Brace Expansion")."""

from __future__ import annotations

import re
from itertools import pairwise

from trainer.config.translate.bash.syntax import Node

Atom = str | Node
"""A character without quotes, or a part of a word that braces do not see into."""
SEQUENCE = re.compile(
    r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?|([a-zA-Z])\.\.([a-zA-Z])(?:\.\.(-?\d+))?"
)
MOST = 10_000


def expanded(parts: list[Node]) -> list[list[Node]]:
    """Return the words that a word's parts are."""
    if not any(part["Type"] == "Lit" and "{" in part["Value"] for part in parts):
        return [parts]
    return [_parts(word) for word in _words(_atoms(parts))]


def _atoms(parts: list[Node]) -> list[Atom]:
    atoms: list[Atom] = []
    for part in parts:
        if part["Type"] != "Lit":
            atoms.append(part)
            continue
        chars = re.findall(r"\\.|.", part["Value"], re.DOTALL)
        atoms += [char if len(char) == 1 else {**part, "Value": char} for char in chars]
    return atoms


def _parts(atoms: list[Atom]) -> list[Node]:
    parts: list[Node] = []
    plain = False
    for atom in atoms:
        if isinstance(atom, str) and plain:
            parts[-1]["Value"] += atom
        else:
            parts.append({"Type": "Lit", "Value": atom} if isinstance(atom, str) else atom)
        plain = isinstance(atom, str)
    return parts


def _words(atoms: list[Atom]) -> list[list[Atom]]:
    for start, atom in enumerate(atoms):
        if atom != "{":
            continue
        end, commas = _closing(atoms, start)
        if not end:
            continue
        choices = _choices(atoms[start + 1 : end], [comma - start - 1 for comma in commas])
        if choices:
            rest = _words(atoms[end + 1 :])
            return [[*atoms[:start], *one, *after] for one in choices for after in rest]
    return [atoms]


def _closing(atoms: list[Atom], start: int) -> tuple[int, list[int]]:
    depth = 0
    commas: list[int] = []
    for place in range(start, len(atoms)):
        match atoms[place]:
            case "{":
                depth += 1
            case "}":
                depth -= 1
                if not depth:
                    return place, commas
            case "," if depth == 1:
                commas.append(place)
    return 0, []


def _choices(inner: list[Atom], commas: list[int]) -> list[list[Atom]]:
    if commas:
        edges = [-1, *commas, len(inner)]
        cut = [inner[a + 1 : b] for a, b in pairwise(edges)]
        return [word for one in cut for word in _words(one)]
    text = "".join(atom for atom in inner if isinstance(atom, str))
    if len(text) != len(inner) or not (found := SEQUENCE.fullmatch(text)):
        return []
    first, last, step, letter, end, letters_step = found.groups()
    by = abs(int(step or letters_step or 1)) or 1
    a, b = (int(first), int(last)) if first else (ord(letter), ord(end))
    if abs(b - a) // by > MOST:
        return []
    numbers = range(a, b + 1, by) if a <= b else range(a, b - 1, -by)
    if letter:
        return [[chr(number)] for number in numbers]
    padded = any(re.match(r"-?0\d", one) for one in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return [list(f"{number:0{width}d}") for number in numbers]
