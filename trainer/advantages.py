"""Rewards → advantages and returns, in numpy on the driver.

Arrays are [B, T], aligned with the tokens; `actions` says which tokens count. A sample whose
reward is unknown has no action at all there: it takes part in nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.divergence import kl
from trainer.types import BoolArray, FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator:
    """How advantages are estimated."""

    name: str
    """gae or group_norm"""
    group_size: int
    """Completions of one prompt; neighbours in the batch."""
    gamma: float = 1.0
    lambd: float = 1.0
    kl_coef: float = 0.0
    """Weight of the KL in the reward; 0 where it is in the loss."""
    kl_estimator: str = "k1"
    reward_range: tuple[float, float] = (-10.0, 10.0)


def estimate(
    estimator: Estimator,
    rewards: FloatArray,
    actions: BoolArray,
    log_probs: FloatArray,
    reference: FloatArray | None,
    values: FloatArray | None,
) -> tuple[FloatArray, FloatArray]:
    """Advantages and returns [B, T] of samples with `rewards` [B] (NaN: unknown).

    In the order of the field: group baseline, clip, token rewards with KL, then GAE (whitened)
    or discounted sums. `values` is needed by gae, `reference` by a KL in the reward.
    """
    scores = rewards if estimator.name == "gae" else group_norm(rewards, estimator.group_size)
    clipped = np.clip(np.nan_to_num(scores), *estimator.reward_range)
    token_rewards = place_rewards(clipped, actions)
    if reference is not None and estimator.kl_coef:
        penalty = kl(log_probs, reference, estimator.kl_estimator)
        token_rewards -= estimator.kl_coef * np.where(actions, penalty, 0)
    if estimator.name == "gae":
        assert values is not None
        advantages, returns = gae(token_rewards, values, actions, estimator.gamma, estimator.lambd)
        return whiten(advantages, actions), returns
    returns = discounted_sums(token_rewards, actions, estimator.gamma)
    return returns, returns


def group_norm(rewards: FloatArray, size: int) -> FloatArray:
    """(r − mean) / (std + 1e-9) over each prompt's samples with a known reward; std with ddof 1.

    GRPO (Shao et al. 2024, section 4.1.2). A group with fewer than two known rewards has
    nothing to compare with: zero.
    """
    groups = rewards.reshape(-1, size).astype(np.float64)
    known = ~np.isnan(groups)
    count = known.sum(axis=1, keepdims=True)
    mean = np.where(known, groups, 0).sum(axis=1, keepdims=True) / np.maximum(count, 1)
    centred = np.where(known, groups - mean, 0)
    deviation = np.sqrt((centred**2).sum(axis=1, keepdims=True) / np.maximum(count - 1, 1))
    normal: FloatArray = (centred / (deviation + 1e-9)).reshape(-1).astype(np.float32)
    return normal


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


def whiten(advantages: FloatArray, actions: BoolArray) -> FloatArray:
    """(A − μ) / √max(var, 1e-8) over all action tokens of the batch; zero elsewhere."""
    chosen = advantages[actions].astype(np.float64)
    if not chosen.size:
        return np.zeros_like(advantages)
    scale = 1 / np.sqrt(max(chosen.var(), 1e-8))
    return np.where(actions, (advantages - chosen.mean()) * scale, 0).astype(np.float32)
