"""Advantages of one batch: ours, OpenRLHF's and TRL's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.oracles.batches import Array, Batch
from tests.oracles.process import Peers
from trainer.algorithms import advantages
from trainer.algorithms.advantages import AdvantageInputs, Estimator
from trainer.types import FloatArray


def estimator(batch: Batch, name: str, **settings: Any) -> Estimator:
    return Estimator(name=name, group_size=batch.group_size, **settings)


def ours(batch: Batch, settings: Estimator) -> tuple[FloatArray, FloatArray]:
    return advantages.estimate(
        settings,
        AdvantageInputs(
            rewards=batch.rewards,
            action_mask=batch.actions,
            old_log_probs=batch.log_probs,
            ref_log_probs=batch.reference,
            values=batch.values,
        ),
    )


def of_openrlhf(
    peers: Peers, batch: Batch, settings: Estimator, batches: list[NDArray[np.int64]] | None = None
) -> tuple[Array, Array]:
    """Its values at the actions; what it has at other tokens is masked out by its losses."""
    theirs = peers.openrlhf(
        "advantages",
        arrays={
            "rewards": batch.rewards,
            "values": batch.values,
            "action_mask": batch.actions,
            "log_probs": batch.log_probs,
            "reference": batch.reference,
        },
        settings={
            "advantage": {
                "estimator": settings.name,
                "gamma": settings.gamma,
                "lambd": settings.lambd,
                "no_std_norm": not settings.std_norm,
            },
            "reward": {"clip_range": settings.reward_range},
            "rollout": {"n_samples_per_prompt": batch.group_size},
            "kl_coef": settings.kl_coef,
            "kl_estimator": settings.kl_estimator,
        },
        batches=batches or [np.arange(len(batch.actions))],
    )
    return theirs["advantages"] * batch.actions, theirs["returns"] * batch.actions


def of_trl(peers: Peers, batch: Batch, algorithm: str, rewards: Array, **options: Any) -> Array:
    theirs = peers.trl(
        "scores",
        algorithm=algorithm,
        rewards=rewards,
        action_mask=batch.actions,
        log_probs=batch.old,
        rollout_log_probs=batch.rollout,
        options={"num_generations": batch.group_size} | options,
    )
    return np.where(batch.actions, theirs["advantages"][:, None], 0)
