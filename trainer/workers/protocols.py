"""The protocol of each role: the calls that the driver makes.

Torch-free, so that the driver starts without torch. `log_probs`, `values` and `update` are
functions of their arguments and the weights. They do not depend on earlier calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from env.types import RewardRequest, Score
from trainer.checkpoint.protocol import Checkpointable, Directory, Exportable
from trainer.types import Experience, FloatArray, Measured, Metrics, Sequences
from trainer.weight_sync.messages import WeightSender


class Reference(Measured, Protocol):
    def log_probs(self, sequences: Sequences) -> FloatArray:
        """[B, T] log-probability of each action token of the rank's samples; zero elsewhere."""


class Learner(Checkpointable, Protocol):
    def update(self, experience: Experience, step: int) -> Metrics:
        """Train on a step's samples. Returns this rank's share of the metrics, and memory peaks.

        Raises TrainingError if a loss is not finite.
        """


class Policy(Learner, Exportable, WeightSender, Protocol):
    def log_probs(self, sequences: Sequences) -> FloatArray:
        """Like `Reference.log_probs`."""


class Critic(Learner, Protocol):
    def values(self, sequences: Sequences) -> FloatArray:
        """[B, T] value of the state in which each action of the rank's samples was chosen."""

    def export(self, directory: Directory) -> None:
        """Write a Hugging Face model to `directory`, with the value head beside it."""


class RewardModel(Measured, Protocol):
    def score(self, requests: Sequence[RewardRequest]) -> list[list[Score]]:
        """Returns the score of each model for each request. A failed Score stands for an error."""
