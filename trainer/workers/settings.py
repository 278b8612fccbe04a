"""What the workers of a role are told once, as they are made."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainer.models.settings import LoRASettings, ModelSettings, Sharding


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """An optimiser's settings."""

    learning_rate: float
    lr_scheduler: str
    lr_warmup_ratio: float
    updates: int
    """Optimiser steps of the whole run."""
    min_lr_ratio: float = 0.1
    """Where cosine_with_min_lr ends, as a share of the peak."""
    adam_betas: tuple[float, float]
    adam_eps: float
    l2: float
    max_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """How a model is trained."""

    model: ModelSettings
    schedule: Schedule
    train_batch_size: int
    micro_train_batch_size: int
    max_tokens: int | None = None
    """Tokens of one forward and backward pass, in place of samples."""
    loss_aggregation: str
    """token, sequence or constant"""
    longest: int
    """Tokens of the longest completion there can be."""
    max_epochs: int
    seed: int
    gradient_checkpointing: bool
    at_once: int = 1
    """Models that are trained at the same time; on a CPU they share its threads."""
    ema_beta: float | None = None
    """Weight of the old average in a moving average of the weights; None: none is kept."""
    lora: LoRASettings | None = None
    """None: every parameter is trained."""
    sharding: Sharding = field(default_factory=Sharding)
    sync_port: int = 0
    """Of the policy's first node, where other nodes read its weights; 0 for any."""
