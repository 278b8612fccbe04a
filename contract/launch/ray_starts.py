"""Starts of Ray that fail: which of them another try may mend."""

from __future__ import annotations

import re

STARTING_AGAIN = "Ray did not start in its own time: starting it again"
"""Begins the line that says so; the reason and the machine's load follow."""
LACKED_TIME = re.compile(r"timed out|timeout|deadline exceeded", re.IGNORECASE)


def lacked_time(words: str) -> bool:
    """Return whether another try may succeed where a start ended with these words."""
    return LACKED_TIME.search(words) is not None
