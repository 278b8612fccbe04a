"""What the collective check and its page of documentation agree on."""

from __future__ import annotations

SLOW_PAIR = 0.25
"""A pair of nodes is bad below this share of what good pairs reach. It is a quarter, since two
processes on one busy machine were seen to halve each other's bandwidth."""
