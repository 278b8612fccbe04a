"""Seeds from what they are for, never from what a process did before."""

from __future__ import annotations

import hashlib


def derive(seed: int, purpose: str, *position: int) -> int:
    """A seed of 63 bits for one purpose at one position (step, chunk, …) of a run.

    The same arguments give the same seed in any process, after any crash: a step is a function
    of (checkpoint, seed, step) only through this.
    """
    text = f"{seed}/{purpose}/{'/'.join(map(str, position))}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
