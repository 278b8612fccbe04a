"""Settings that a learner gets when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainer.config.options.optimizer import OptimizerSettings
from trainer.config.options.parallelism import Sharding
from trainer.config.options.training import LoRASettings
from trainer.models.settings import ModelSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """How a model is trained."""

    model: ModelSettings
    optimizer: OptimizerSettings
    updates: int
    """Optimiser steps of the whole run."""
    train_batch_size: int
    micro_train_batch_size: int
    max_tokens: int | None = None
    """Tokens of one forward and backward pass; None: `micro_train_batch_size` is the limit."""
    loss_aggregation: str
    """token, sequence or constant"""
    longest: int
    """Limit of a completion in tokens."""
    max_epochs: int
    seed: int
    gradient_checkpointing: bool
    concurrent_models: int = 1
    """Models that train at the same time; on a CPU they share its threads."""
    ema_beta: float | None = None
    """Weight of the old average in the moving average of the weights; None: no average."""
    lora: LoRASettings = field(default_factory=LoRASettings)
    """Rank 0: every parameter is trained."""
    sharding: Sharding = field(default_factory=Sharding)
    sync_port: int = 0
    """TCP port on the policy's first node, where other nodes read its weights; 0: any free port."""
