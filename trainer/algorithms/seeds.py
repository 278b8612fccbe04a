"""Seeds that depend on their purpose, never on what a process did before."""

from __future__ import annotations

import hashlib


def derive(seed: int, purpose: str, *position: int) -> int:
    """Return a 63-bit seed for one purpose at one position (step, chunk, …) of a run.

    The same arguments give the same seed in any process, after any crash. This makes a step a
    function of (checkpoint, seed, step).
    """
    text = f"{seed}/{purpose}/{'/'.join(map(str, position))}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
