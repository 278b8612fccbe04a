"""JSON from storage that may have damaged it: whatever is there is read, and judged, not raised.

A file of the run directory is read again by later processes. Between them a disk may flip a bit, a
power cut may leave zeros, an older version may have written another shape. Torch-free.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, TypeGuard

from contract.os_errors import named

LARGEST = 2**53
"""Counts are at most that: JSON of other programs is exact up to there."""


def parsed(text: bytes) -> Any:
    """The JSON value in `text`. Raises ValueError for whatever is no JSON in UTF-8."""
    try:
        value = json.loads(text.decode())
        if b"\\ud" in text.lower():  # half a character may be escaped; nothing could print it
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def json_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in the file; None for a file that holds anything else.

    Raises OSError, also where there is no file.
    """
    with named(path):
        content = path.read_bytes()
    try:
        row = parsed(content)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST


def is_count(value: object) -> TypeGuard[int]:
    """Whether it is a whole number, 0 or more."""
    return is_integer(value) and value >= 0


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a finite number."""
    return is_integer(value) or (isinstance(value, float) and math.isfinite(value))
