"""KL estimators, one formula for the driver's numpy arrays and the loss's torch tensors."""

from __future__ import annotations

import math
from typing import Any, TypeVar, cast

Array = TypeVar("Array", bound=Any)

LIMIT = 10.0
"""Estimates are clamped to ±LIMIT, as OpenRLHF does."""


def kl(log_probs: Array, reference: Array, estimator: str) -> Array:
    """Estimate of KL(policy ‖ reference) for each token, in nats; the shape of the inputs.

    With ℓ = log π − log π_ref (Schulman, "Approximating KL divergence"):
    k1 = ℓ, k2 = ℓ²/2, k3 = e^(−ℓ) − 1 + ℓ. Raises ValueError for another estimator.
    """
    ratio = log_probs - reference
    if estimator == "k1":
        value = ratio
    elif estimator == "k2":
        value = ratio**2 / 2
    elif estimator == "k3":
        bounded = ratio.clip(-LIMIT, None)  # below it is over the limit, and e^−ℓ could overflow
        value = math.e**-bounded - 1 + bounded
    else:
        raise ValueError(f"unknown KL estimator {estimator!r}")
    return cast(Array, value.clip(-LIMIT, LIMIT))
