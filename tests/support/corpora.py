"""A small corpus in Search-R1's form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

PASSAGES = [
    ("0", '"Beijing"\nBeijing is the capital of China.'),
    ("1", '"Paris"\nParis is the capital of France. It lies on the Seine.'),
    ("2", '"Foxes"\nFoxes jump over lazy dogs, and a fox sleeps by day.'),
    ("3", '"Rain"\nRain falls when clouds cool.'),
    ("4", '"Rain"\nRain falls when clouds cool.'),
]


def write_corpus(path: Path, passages: Sequence[tuple[str, str]] = PASSAGES) -> Path:
    rows = [{"id": name, "contents": contents} for name, contents in passages]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
