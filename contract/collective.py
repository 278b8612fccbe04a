"""The threshold that the collective check and its page of documentation share."""

from __future__ import annotations

SLOW_PAIR = 0.25
"""A pair of nodes is slow below this fraction of the bandwidth of good pairs.

Two processes on one busy machine can halve each other's bandwidth; the fraction is lower.
"""
