"""The formulas of the policy losses: the loss of each token, before weights and aggregation.

They use methods of tensors only. `losses.policy_loss` computes the ratio, and makes one loss of
the tokens' losses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Bounds(Protocol):
    """The settings that formulas read; `LossSettings` has them."""

    @property
    def clip_range(self) -> tuple[float, float]:
        """How far the ratio may be below 1, and above 1."""

    @property
    def dual_clip(self) -> float | None: ...

    @property
    def sapo_temperature_pos(self) -> float: ...

    @property
    def sapo_temperature_neg(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTokens:
    """What a formula computes the losses of tokens from; tensors are [N]."""

    log_ratio: Tensor
    """Log of π/π_old of each token or of its sequence, within ±20; it has a gradient."""
    log_probs: Tensor
    """Under the current policy, with a gradient."""
    advantages: Tensor
    sequence_mean: Callable[[Tensor], Tensor]
    """[N] → [N]: the mean over the action tokens of each token's sequence."""


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """The losses of tokens, before weights and aggregation."""

    values: Tensor
    """[N]"""
    clipped: Tensor
    """[N] bool: whether a bound on the ratio changed the token's loss."""


Formula = Callable[[PolicyTokens, Bounds], "TokenLosses | Tensor"]
"""One without clipped tokens returns the losses of tokens [N] alone."""


def clipped_surrogate(tokens: PolicyTokens, bounds: Bounds) -> TokenLosses:
    """Return −min(ρA, clip(ρ, 1 − low, 1 + high) A), at most −cA for A < 0 with dual clip c."""
    ratio = tokens.log_ratio.exp()
    low, high = bounds.clip_range
    free = ratio * tokens.advantages
    clipped = ratio.clamp(1 - low, 1 + high) * tokens.advantages
    surrogate = free.minimum(clipped)
    if bounds.dual_clip is not None:
        bounded = surrogate.maximum(bounds.dual_clip * tokens.advantages)
        surrogate = bounded.where(tokens.advantages < 0, surrogate)
    return TokenLosses(-surrogate, clipped < free)


def clipped_weight(tokens: PolicyTokens, bounds: Bounds) -> TokenLosses:
    """Return −sg(clip(ρ, 1 − low, 1 + high)) A log π: clipped tokens keep a gradient."""
    ratio = tokens.log_ratio.detach().exp()
    low, high = bounds.clip_range
    weight = ratio.clamp(1 - low, 1 + high)
    return TokenLosses(-weight * tokens.advantages * tokens.log_probs, weight != ratio)


def soft_gate(tokens: PolicyTokens, bounds: Bounds) -> TokenLosses:
    """Return −(4/τ) σ(τ(ρ − 1)) A, where τ depends on whether A is positive."""
    gains = tokens.advantages
    positive = gains.new_full(gains.shape, bounds.sapo_temperature_pos)
    temperature = positive.where(gains > 0, bounds.sapo_temperature_neg)
    gate = (temperature * (tokens.log_ratio.exp() - 1)).sigmoid() * 4 / temperature
    return TokenLosses(-gate * gains, gains.new_zeros(gains.shape))


def geometric_mean(tokens: PolicyTokens, bounds: Bounds) -> TokenLosses:
    """Return −ρ̄Ā for each token of a sequence, where ρ̄ is the geometric mean of clipped ratios.

    Log-ratios are clipped to [−low, high], on the side to which the advantage pulls. Ā is the mean
    of the sequence's advantages.
    """
    low, high = bounds.clip_range
    sign = tokens.advantages.sign()
    free, clipped = sign * tokens.log_ratio, sign * tokens.log_ratio.clamp(-low, high)
    ratio = tokens.sequence_mean(sign * free.minimum(clipped)).exp()
    return TokenLosses(-ratio * tokens.sequence_mean(tokens.advantages), clipped < free)


FORMULAS: Mapping[str, Formula] = {
    "ppo": clipped_surrogate,
    "gspo": clipped_surrogate,
    "cispo": clipped_weight,
    "sapo": soft_gate,
    "gmpo": geometric_mean,
}
"""The formula of each of `POLICY_LOSSES`."""
