"""KL estimators, for the driver's numpy arrays and the loss's torch tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from trainer.types import IntArray, sums

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


@dataclass(frozen=True, slots=True)
class KLSums:
    """Sums of the KL of some samples, which add up over ranks."""

    tokens: float = 0.0
    """Of the KL of all actions."""
    means: float = 0.0
    """Of the samples' means over their actions."""

    @classmethod
    def of(cls, kl: NDArray[np.floating], actions: IntArray) -> KLSums:
        """Return the sums of `kl` [N], of samples with `actions` [B]."""
        of_samples = sums(kl, actions)
        return cls(float(of_samples.sum()), float((of_samples / np.maximum(actions, 1)).sum()))

    def step_mean(self, actions: IntArray, *, in_loss: bool) -> float:
        """Return the mean that OpenRLHF logs and adapts the weight of the KL by.

        If the KL is in the loss it is the mean of all tokens, else the mean of the sequences'
        means. Sequences without an action token do not count.
        """
        if in_loss:
            return self.tokens / max(1, int(actions.sum()))
        return self.means / max(1, int((actions > 0).sum()))
