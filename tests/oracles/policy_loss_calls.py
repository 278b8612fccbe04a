"""The policy's loss of one batch: our objective, OpenRLHF's loss and TRL's."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.oracles import ours
from tests.oracles.batches import Batch
from tests.oracles.process import Peers
from tests.support.objectives import policy_objective
from trainer.algorithms.objectives import PolicyObjective

LOW, HIGH = 0.2, 0.3


def of_openrlhf(peers: Peers, batch: Batch, **settings: Any) -> dict[str, Any]:
    theirs: dict[str, Any] = peers.openrlhf(
        "policy_loss",
        log_probs=batch.log_probs,
        arrays={
            "old_log_probs": batch.old,
            "advantages": batch.advantages,
            "action_mask": batch.action_mask,
            "rollout_log_probs": batch.rollout,
        },
        settings={"clip_eps_low": LOW, "clip_eps_high": HIGH} | settings,
    )
    return theirs


def objective(**settings: Any) -> PolicyObjective:
    return policy_objective(eps_clip_low_high=(LOW, HIGH), **settings)


def of_trl(
    peers: Peers, batch: Batch, loss_type: str, factors: Any = None, **options: Any
) -> dict[str, Any]:
    theirs: dict[str, Any] = peers.trl(
        "grpo_loss",
        log_probs=batch.log_probs,
        entropy=batch.entropy,
        arrays={
            "old_per_token_logps": batch.old,
            "ref_per_token_logps": batch.reference,
            "advantages": batch.gains,
            "action_mask": batch.action_mask,
            "importance_sampling_ratio": np.ones((1, 1)) if factors is None else factors,
        },
        options={
            "loss_type": loss_type,
            "epsilon_low": LOW,
            "epsilon_high": HIGH,
            "max_completion_length": ours.LONGEST,
            "use_vllm": factors is not None,
        }
        | options,
    )
    return theirs


def spread(batch: Batch) -> Any:
    """[B, T] a row's advantage at each of its actions."""
    return np.where(batch.action_mask, batch.gains[:, None], 0)
