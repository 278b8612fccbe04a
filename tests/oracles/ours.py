"""This trainer's losses on the same [B, T] arrays that the peers are given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.oracles.batches import Array, Batch
from trainer.algorithms import losses
from trainer.algorithms.losses import LossPart, PolicyInputs, ValueInputs, token_weights
from trainer.algorithms.objectives import PolicyObjective
from trainer.types import BoolArray

LONGEST = 12
"""The longest completion there can be, where the loss is divided by it."""


@dataclass
class Outcome:
    value: float
    gradient: Array
    """[B, T] with respect to the log-probabilities or values"""
    entropy_gradient: Array | None = None
    metrics: dict[str, float] = field(default_factory=dict)


def policy_loss(
    batch: Batch,
    objective: PolicyObjective,
    *,
    advantages: Array | None = None,
    aggregation: str = "token",
    kl_coef: float = 0.0,
) -> Outcome:
    action_mask = batch.action_mask
    log_probs, entropy = leaf(batch.log_probs), leaf(batch.entropy)
    chosen = torch.tensor(action_mask)

    def flat(array: Array) -> Tensor:
        return torch.tensor(array)[chosen]

    inputs = PolicyInputs(
        log_probs=log_probs[chosen],
        old_log_probs=flat(batch.old),
        advantages=flat(batch.advantages if advantages is None else advantages),
        weights=weights_of(action_mask, aggregation),
        rows=chosen.nonzero()[:, 0],
        metric_weight=1 / int(action_mask.sum()),
        rollout_log_probs=flat(batch.rollout),
        ref_log_probs=flat(batch.reference),
        kl_coef=kl_coef,
        entropy=entropy[chosen],
    )
    return outcome(losses.policy_loss(inputs, objective), log_probs, entropy)


def value_loss(batch: Batch, value_clip: float) -> Outcome:
    chosen = torch.tensor(batch.action_mask)
    values = leaf(batch.values)
    inputs = ValueInputs(
        values=values[chosen],
        old_values=torch.tensor(batch.old_values)[chosen],
        returns=torch.tensor(batch.returns)[chosen],
        weights=weights_of(batch.action_mask, "token"),
        metric_weight=1 / int(batch.action_mask.sum()),
    )
    loss = losses.value_loss(inputs, value_clip)
    return outcome(loss, values, None)


def weights_of(action_mask: BoolArray, aggregation: str) -> Tensor:
    counts = action_mask.sum(axis=1)
    return torch.tensor(np.repeat(token_weights(counts, aggregation, LONGEST), counts))


def leaf(array: NDArray[Any]) -> Tensor:
    return torch.tensor(np.asarray(array, dtype=np.float64)).requires_grad_()


def gradient(of: Tensor) -> Array:
    assert of.grad is not None
    found: Array = of.grad.numpy()
    return found


def outcome(loss: LossPart, of: Tensor, entropy: Tensor | None) -> Outcome:
    loss.value.backward()
    return Outcome(
        loss.value.item(),
        gradient(of),
        None if entropy is None or entropy.grad is None else gradient(entropy),
        {name: float(value) for name, value in loss.metrics.items()},
    )
