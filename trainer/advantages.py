"""Rewards → advantages and returns, in numpy on the driver.

Arrays are [B, T], aligned with the tokens; `actions` says which tokens count. A sample whose
reward is unknown has no action at all there: it takes part in nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer import baselines
from trainer.divergence import kl
from trainer.types import BoolArray, FloatArray

WHITENED = ("gae", "reinforce", "reinforce_baseline")
"""Estimators whose advantages are normalised over the action tokens of the whole batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator:
    """How advantages are estimated."""

    name: str
    """gae, reinforce, or a key of `baselines.BASELINES`"""
    group_size: int
    """Completions of one prompt; neighbours in the batch."""
    gamma: float = 1.0
    lambd: float = 1.0
    kl_coef: float = 0.0
    """Weight of the KL in the reward; 0 where it is in the loss."""
    kl_estimator: str = "k1"
    reward_range: tuple[float, float] = (-10.0, 10.0)
    std_norm: bool = True
    """Whitening divides by the deviation, too."""


def estimate(
    estimator: Estimator,
    rewards: FloatArray,
    actions: BoolArray,
    log_probs: FloatArray,
    reference: FloatArray | None,
    values: FloatArray | None,
) -> tuple[FloatArray, FloatArray]:
    """Advantages and returns [B, T] of samples with `rewards` [B] (NaN: unknown).

    In OpenRLHF's order: group baseline, clip, token rewards with KL, estimator, whitening.
    `values` is needed by gae, `reference` by a KL in the reward.
    """
    above = baselines.subtract(estimator.name, rewards, estimator.group_size)
    token_rewards = place_rewards(np.clip(above, *estimator.reward_range), actions)
    if reference is not None and estimator.kl_coef:
        penalty = kl(log_probs, reference, estimator.kl_estimator)
        token_rewards -= estimator.kl_coef * np.where(actions, penalty, 0)
    if estimator.name == "gae":
        assert values is not None
        advantages, returns = gae(token_rewards, values, actions, estimator.gamma, estimator.lambd)
    else:
        advantages = returns = discounted_sums(token_rewards, actions, estimator.gamma)
    if estimator.name in WHITENED:
        advantages = whiten(advantages, actions, std_norm=estimator.std_norm)
    return advantages, returns


def place_rewards(scores: FloatArray, actions: BoolArray) -> FloatArray:
    """A sample's score [B] at its last action; zero elsewhere. [B, T]"""
    after = np.cumsum(actions[:, ::-1], axis=1)[:, ::-1]
    is_last = actions & (after == 1)
    placed: FloatArray = (is_last * scores[:, None]).astype(np.float32)
    return placed


def gae(
    rewards: FloatArray, values: FloatArray, actions: BoolArray, gamma: float, lambd: float
) -> tuple[FloatArray, FloatArray]:
    """Generalised advantage estimation (Schulman et al. 2015) over action tokens only.

    δ_t = r_t + γ V_{t+1} − V_t, A_t = δ_t + γλ A_{t+1}, R_t = A_t + V_t, where t + 1 is the next
    *action*: a token that the policy did not choose is passed over, not stepped through.
    """
    advantages = np.zeros(rewards.shape, dtype=np.float64)
    next_value = np.zeros(len(rewards))
    next_advantage = np.zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        here = delta + gamma * lambd * next_advantage
        next_advantage = np.where(actions[:, t], here, next_advantage)
        next_value = np.where(actions[:, t], values[:, t], next_value)
        advantages[:, t] = np.where(actions[:, t], here, 0)
    returns = advantages + np.where(actions, values, 0)
    return advantages.astype(np.float32), returns.astype(np.float32)


def discounted_sums(rewards: FloatArray, actions: BoolArray, gamma: float) -> FloatArray:
    """R_t = r_t + γ R_{t+1} over action tokens; zero elsewhere."""
    sums = np.zeros(rewards.shape, dtype=np.float64)
    following = np.zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        here = rewards[:, t] + gamma * following
        following = np.where(actions[:, t], here, following)
        sums[:, t] = np.where(actions[:, t], here, 0)
    return sums.astype(np.float32)


def whiten(advantages: FloatArray, actions: BoolArray, *, std_norm: bool = True) -> FloatArray:
    """(A − μ) / √max(var, 1e-8) over all action tokens of the batch; zero elsewhere.

    REINFORCE++ (Hu et al. 2025, section 3.3). Without `std_norm` it is A − μ.
    """
    chosen = advantages[actions].astype(np.float64)
    if not chosen.size:
        return np.zeros_like(advantages)
    scale = 1 / np.sqrt(max(chosen.var(), 1e-8)) if std_norm else 1.0
    return np.where(actions, (advantages - chosen.mean()) * scale, 0).astype(np.float32)
