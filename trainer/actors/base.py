"""What the loop asks of each role, and the settings that a role is built from.

Torch-free, so that the driver starts without torch. `log_probs`, `values` and `update` are
functions of their arguments and the weights: nothing depends on what the process did before.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainer.types import Experience, FloatArray, Sequences, Weights

Metrics = dict[str, float]


class Reference(Protocol):
    def log_probs(self, sequences: Sequences) -> FloatArray:
        """[B, T] log-probability of each action token; zero elsewhere."""


class Learner(Protocol):
    def update(self, experience: Experience, step: int) -> Metrics:
        """Train on a step's samples. Raises TrainingError where a loss is not finite."""

    def save(self, directory: Path) -> None:
        """Write weights, optimiser and schedule to `directory`, durably."""

    def restore(self, directory: Path) -> None:
        """Take them back from there."""


class Policy(Learner, Reference, Protocol):
    def weights(self) -> Weights:
        """The weights as numpy arrays."""

    def export(self, directory: Path) -> None:
        """Write a Hugging Face model, with its tokeniser, to `directory`."""


class Critic(Learner, Protocol):
    def values(self, sequences: Sequences) -> FloatArray:
        """[B, T] value of the state in which each action token was chosen; zero elsewhere."""


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
    l2: float
    max_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """How a model is loaded and run forward."""

    model: str
    mixed_precision: bool
    micro_batch_size: int
    """Samples of one forward pass without gradients."""
    temperature: float
    """Log-probabilities are those of the distribution that was sampled from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """How a model is trained."""

    model: ModelSettings
    schedule: Schedule
    train_batch_size: int
    micro_train_batch_size: int
    max_epochs: int
    seed: int
    gradient_checkpointing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyObjective:
    eps_clip: float
    kl_coef: float
    """Weight of the KL in the loss; 0 where it is in the reward."""
    kl_estimator: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticObjective:
    value_clip: float
