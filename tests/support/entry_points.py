"""What the installed package's metadata must say."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

NEEDS_ENTRY_POINT = pytest.mark.skipif(
    not entry_points(group="torch.backends", name="rollcall"),
    reason="needs make setup again: torch finds no entry point in the installed package",
)
