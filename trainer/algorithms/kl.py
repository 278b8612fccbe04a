"""KL estimators, for the driver's numpy arrays and the loss's torch tensors."""

from __future__ import annotations

import math
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from trainer.types import BoolArray

Array = TypeVar("Array", bound=Any)

LIMIT = 10.0
"""Estimates are clamped to ±LIMIT, as in OpenRLHF."""


def kl(log_probs: Array, reference: Array, estimator: str) -> Array:
    """Return an estimate of KL(policy ‖ reference) for each token, in nats.

    The result has the shape of the inputs. With ℓ = log π − log π_ref (Schulman, "Approximating KL
    divergence"): k1 = ℓ, k2 = ℓ²/2, k3 = e^(−ℓ) − 1 + ℓ. Raises ValueError if the
    estimator is unknown.
    """
    ratio = log_probs - reference
    if estimator == "k1":
        value = ratio
    elif estimator == "k2":
        value = ratio**2 / 2
    elif estimator == "k3":
        bounded = ratio.clip(
            -LIMIT, None
        )  # below −LIMIT e^−ℓ could overflow, and is clamped anyway
        value = math.e**-bounded - 1 + bounded
    else:
        raise ValueError(f"unknown KL estimator {estimator!r}")
    return cast(Array, value.clip(-LIMIT, LIMIT))


def step_mean(kl: NDArray[np.floating], action_mask: BoolArray, *, in_loss: bool) -> float:
    """Return the mean of `kl` [B, T] that OpenRLHF logs and adapts the weight of the KL by.

    If the KL is in the loss it is the mean of all tokens, else the mean of the sequences' means.
    Sequences without an action token do not count.
    """
    counts = action_mask.sum(axis=1)
    acting = counts > 0
    if not acting.any():
        return 0.0
    if in_loss:
        return float(kl[action_mask].mean(dtype=np.float64))
    sums = np.where(action_mask, kl, 0).sum(axis=1, dtype=np.float64)
    return float((sums[acting] / counts[acting]).mean())
