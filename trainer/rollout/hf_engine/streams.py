"""Random numbers by counter: a completion's t-th draw is a function of its seed and t alone.

Whatever else is in the batch, in whatever order and on however many engines, a completion is
drawn with the same numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """[B] numbers in [0, 1), one for each pair of seed and position.

    SplitMix64 (Steele, Lea and Flood 2014, figure 17): the mix of seed + (position + 1)·γ. Seeds
    are hashed already (`seeds.derive`), so that streams of neighbouring rows do not meet.
    """
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is the algorithm
        state = seeds + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    drawn: NDArray[np.float64] = (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return drawn
