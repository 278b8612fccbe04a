"""A policy and a critic of a tiny model, and samples for them to learn from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.support.objectives import policy_objective
from tests.support.ragged import mask_of, sequences_of
from tests.support.tiny_run import Tiny
from tests.support.train_settings import take_train_settings
from trainer.algorithms.objectives import CriticObjective
from trainer.config.options.algorithm import KLSettings, LossSettings
from trainer.config.options.optimizer import OptimizerSettings
from trainer.config.options.training import LoRASettings
from trainer.models.settings import ModelSettings
from trainer.types import Experience, Sequences
from trainer.workers.critic import CriticActor
from trainer.workers.policy import PolicyActor
from trainer.workers.settings import LearnerSettings

Weights = dict[str, NDArray[np.generic]]
"""Parameter name → array. bfloat16 is sent as int16, because numpy has no such type."""

Build = Callable[..., PolicyActor | CriticActor]
"""`policy` or `critic`"""


def settings(tiny: Tiny, **changes: Any) -> LearnerSettings:
    values: dict[str, Any] = {
        "train_batch_size": 4,
        "micro_train_batch_size": 4,
        "loss_aggregation": "token",
        "longest": 6,
        "max_epochs": 1,
        "seed": 0,
        "gradient_checkpointing": False,
        **changes,
    }
    optimizer = OptimizerSettings(
        learning_rate=1e-2,
        lr_scheduler="linear",
        lr_warmup_ratio=0.0,
        l2=0.1,
        max_norm=1.0,
    )
    model = ModelSettings(
        model=str(tiny.model), mixed_precision=False, micro_batch_size=3, temperature=0.7
    )
    train = take_train_settings(values)
    return LearnerSettings(model=model, optimizer=optimizer, train=train, updates=10, **values)


def policy(tiny: Tiny, **changes: Any) -> PolicyActor:
    objective = policy_objective(kl=KLSettings(estimator="k3"))
    return PolicyActor(settings(tiny, **changes), objective)


def critic(tiny: Tiny, **changes: Any) -> CriticActor:
    return CriticActor(settings(tiny, **changes), CriticObjective(LossSettings(value_clip=0.5)))


def sequences() -> Sequences:
    """Four samples of different lengths, one with a stretch that the policy did not choose."""
    rng = np.random.default_rng(0)
    lengths = np.array([9, 4, 7, 5])
    action_mask = (np.arange(9) >= 3) & (np.arange(9) < lengths[:, None])
    action_mask[0, 5:7] = False
    return sequences_of(rng.integers(3, 15, size=(4, 9)), lengths, action_mask)


def experience(of: Sequences | None = None) -> Experience:
    known = of or sequences()
    rng = np.random.default_rng(1)
    chosen = mask_of(known)
    draw = [rng.normal(size=(4, 9))[chosen].astype(np.float32) for _ in range(5)]
    return Experience(
        sequences=known,
        old_log_probs=draw[0] - 2,
        advantages=draw[1],
        returns=draw[2],
        values=draw[3],
        ref_log_probs=draw[4] - 2,
        kl_coef=0.1,
    )


def weights_of(actor: PolicyActor) -> Weights:
    """The policy's weights as engines get them, on the CPU in its own memory; of rank 0 alone."""
    merged = actor._merged()  # all ranks gather them together
    return {name: _array(value) for name, value in merged.items()} if actor._rank.leads else {}


def _array(value: Tensor) -> NDArray[np.generic]:
    tensor = value.detach().cpu()
    return (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy()


def copy(weights: Weights) -> Weights:
    return {name: array.copy() for name, array in weights.items()}


def largest_difference(one: Weights, other: Weights) -> float:
    return max(difference(one[name], other[name]) for name in one)


def difference(one: NDArray[Any], other: NDArray[Any]) -> float:
    """The largest of any element."""
    return float(np.abs(one - other).max())


def lora(*modules: str, dropout: float = 0.0) -> LoRASettings:
    chosen = modules or ("all-linear",)
    return LoRASettings(rank=2, alpha=8, dropout=dropout, target_modules=chosen)
