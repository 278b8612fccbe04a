"""Reads JSON files that storage may have damaged, and checks the types of their values.

Later processes read the files of the run directory again. Meanwhile a disk may flip a bit, a power
cut may leave zeros, or an older version may have written other fields.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeGuard

from contract.files.os_errors import with_path

LARGEST = 2**53
"""Largest valid count: other programs read JSON numbers exactly up to this value."""
ANY_NUMBER = json.JSONDecoder()
FINITE = json.JSONDecoder(parse_constant=lambda name: None)


def parsed(text: bytes, *, finite: bool = False) -> Any:
    """Return the JSON value in `text`. Raises ValueError unless it is JSON in UTF-8.

    Python writes and reads NaN and infinity, which no other program takes for JSON. `finite`:
    None stands for them.
    """
    try:
        value = (FINITE if finite else ANY_NUMBER).decode(text.decode())
        if b"\\ud" in text.lower():  # an escaped lone surrogate cannot be printed
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def json_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in the file; None if the file has other content.

    Raises OSError, also if the file does not exist.
    """
    with with_path(path):
        content = path.read_bytes()
    try:
        row = parsed(content)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def json_object_or_empty(path: Path) -> dict[str, Any]:
    """Return what the file has; {} if it is not there, or has something else. Raises OSError."""
    try:
        return json_object(path) or {}
    except FileNotFoundError:
        return {}


def fields_of(kind: type[Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the dataclass `kind` in a row, which may be of another version."""
    return {one.name: row[one.name] for one in fields(kind) if one.name in row}


def is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST


def is_count(value: object) -> TypeGuard[int]:
    """Return whether `value` is a whole number, 0 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def is_number(value: object) -> TypeGuard[float]:
    """Return whether `value` is a finite number."""
    return is_integer(value) or (isinstance(value, float) and math.isfinite(value))
