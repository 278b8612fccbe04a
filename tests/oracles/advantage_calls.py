"""Advantages of one batch: ours, OpenRLHF's and TRL's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.oracles.batches import Array, Batch
from tests.oracles.process import Peers
from tests.support import padded_advantages
from tests.support.padded_advantages import PaddedInputs
from trainer.config.options.algorithm import AdvantageSettings
from trainer.types import FloatArray


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """Settings of the advantages, and the KL in the reward."""

    settings: AdvantageSettings
    kl_coef: float
    kl_estimator: str


def estimator(
    name: str, *, kl_coef: float = 0.0, kl_estimator: str = "k1", **settings: Any
) -> Estimator:
    return Estimator(
        settings=AdvantageSettings(estimator=name, **settings),
        kl_coef=kl_coef,
        kl_estimator=kl_estimator,
    )


def ours(batch: Batch, estimator: Estimator) -> tuple[FloatArray, FloatArray]:
    return padded_advantages.estimate(
        estimator.settings,
        PaddedInputs(
            rewards=batch.rewards,
            action_mask=batch.action_mask,
            old_log_probs=batch.log_probs,
            ref_log_probs=batch.reference,
            values=batch.values,
            group_size=batch.group_size,
            kl_coef=estimator.kl_coef,
            kl_estimator=estimator.kl_estimator,
        ),
    )


def of_openrlhf(
    peers: Peers, batch: Batch, estimator: Estimator, batches: list[NDArray[np.int64]] | None = None
) -> tuple[Array, Array]:
    """Its values at the actions; what it has at other tokens is masked out by its losses."""
    settings = estimator.settings
    theirs = peers.openrlhf(
        "advantages",
        arrays={
            "rewards": batch.rewards,
            "values": batch.values,
            "action_mask": batch.action_mask,
            "log_probs": batch.log_probs,
            "reference": batch.reference,
        },
        settings={
            "advantage": {
                "estimator": settings.estimator,
                "gamma": settings.gamma,
                "lambd": settings.lambd,
                "no_std_norm": settings.no_std_norm,
            },
            "reward": {"clip_range": settings.reward_clip_range},
            "rollout": {"n_samples_per_prompt": batch.group_size},
            "kl_coef": estimator.kl_coef,
            "kl_estimator": estimator.kl_estimator,
        },
        batches=batches or [np.arange(len(batch.action_mask))],
    )
    return theirs["advantages"] * batch.action_mask, theirs["returns"] * batch.action_mask


def of_trl(peers: Peers, batch: Batch, algorithm: str, rewards: Array, **options: Any) -> Array:
    theirs = peers.trl(
        "scores",
        algorithm=algorithm,
        rewards=rewards,
        action_mask=batch.action_mask,
        log_probs=batch.old,
        rollout_log_probs=batch.rollout,
        options={"num_generations": batch.group_size} | options,
    )
    return np.where(batch.action_mask, theirs["advantages"][:, None], 0)
