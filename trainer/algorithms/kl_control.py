"""The weight of the KL to the reference over a run: fixed, or steered towards a target."""

from __future__ import annotations

LARGEST_ERROR = 0.2
"""As a share of the target: what is further off counts as this."""


def next_coefficient(
    coefficient: float, kl: float, *, target: float | None, horizon: int, samples: int
) -> float:
    """The weight of the next step, after one whose KL was `kl` nats.

    β ← β (1 + clip(kl / target − 1, ±0.2) · samples / horizon): Ziegler et al. 2019, section 2.2.
    Without a target it stays as it is.
    """
    if target is None:
        return coefficient
    error = max(min(kl / target - 1, LARGEST_ERROR), -LARGEST_ERROR)
    return coefficient * (1 + error * samples / horizon)


def stays_positive(*, horizon: int, samples: int) -> bool:
    """Whether no step of so many samples can bring the weight to 0 or below, where it would reward
    what it is there to punish. A step is meant to change it by a little: a 50th in the paper."""
    return LARGEST_ERROR * samples < horizon
