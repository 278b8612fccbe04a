"""The weight of the KL to the reference over a run: fixed, or steered towards a target."""

from __future__ import annotations

import numpy as np


def next_coefficient(
    coefficient: float, kl: float, *, target: float | None, horizon: int, samples: int
) -> float:
    """The weight of the next step, after one whose mean KL a token was `kl` nats.

    β ← β (1 + clip(kl / target − 1, ±0.2) · samples / horizon): Ziegler et al. 2019, section 2.2.
    Without a target it stays as it is.
    """
    if target is None:
        return coefficient
    error = float(np.clip(kl / target - 1, -0.2, 0.2))
    return coefficient * (1 + error * samples / horizon)
