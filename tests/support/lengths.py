"""Lengths of samples for tests and benchmarks."""

from __future__ import annotations

import numpy as np

from trainer.types import IntArray


def long_tailed(count: int) -> IntArray:
    """Return lengths [count] as of models that think: a median of 4,200 tokens, cut at 32,768."""
    drawn = np.random.default_rng(0).lognormal(8.3, 0.9, count)
    return np.minimum(drawn.astype(np.int64) + 200, 32_768)
