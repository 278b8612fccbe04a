"""The weight of the KL to the reference over a run: constant, or adapted to reach a target.

On the standard library alone: a launcher checks flags with it.
"""

from __future__ import annotations

LARGEST_ERROR = 0.2
"""Bound on the relative error: KL / target − 1 is clipped to ±LARGEST_ERROR."""


def next_coefficient(
    coefficient: float, kl: float, *, target: float | None, horizon: int, samples: int
) -> float:
    """Return the weight of the KL in the next step, if this step's KL was `kl` nats.

    β ← β (1 + clip(kl / target − 1, ±0.2) · samples / horizon): Ziegler et al. 2019, section 2.2.
    Without a target the weight is constant.
    """
    if target is None:
        return coefficient
    error = max(min(kl / target - 1, LARGEST_ERROR), -LARGEST_ERROR)
    return coefficient * (1 + error * samples / horizon)


def stays_positive(*, horizon: int, samples: int) -> bool:
    """Return whether no step of `samples` samples can bring the weight to 0 or below.

    A negative weight would reward the KL. A step should change the weight a little: in the paper by
    at most a 50th.
    """
    return LARGEST_ERROR * samples < horizon
