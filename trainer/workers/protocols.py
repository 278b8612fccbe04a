"""The protocol of each role: the calls that the driver makes.

Torch-free, so that the driver starts without torch. `log_probs`, `values` and `update` are
functions of their arguments and the weights. They do not depend on earlier calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from contract.launch.rank_times import RankTime
from env.types import RewardRequest, Score
from trainer.algorithms.division import Part
from trainer.algorithms.estimates import Outputs, Statistics, Worth
from trainer.checkpoint.protocol import Checkpointable, Directory, Exportable
from trainer.types import FloatArray, Measured, Metrics
from trainer.weight_sync.messages import WeightSender


@dataclass(frozen=True, slots=True)
class Updated:
    """What a rank tells of the updates of a step."""

    metrics: Metrics
    """The rank's share of the metrics, and its memory peaks."""
    time: RankTime


class Reference(Measured, Protocol):
    def log_probs(self, part: Part) -> list[FloatArray]:
        """Log-probability of each action of the rank's samples, chunk by chunk."""


class Learner(Checkpointable, Protocol):
    def update(self, part: Part, outputs: Outputs, worth: Worth, step: int) -> Updated:
        """Train on the rank's samples of a step.

        Raises TrainingError if a loss is not finite.
        """


class Policy(Learner, Exportable, WeightSender, Protocol):
    def log_probs(self, part: Part) -> list[FloatArray]:
        """Like `Reference.log_probs`."""

    def statistics(self, part: Part, outputs: Outputs, worth: Worth) -> Statistics:
        """Sums over the rank's samples, of which the driver makes metrics and moments."""


class Critic(Learner, Protocol):
    def values(self, part: Part) -> list[FloatArray]:
        """Value of the state in which each action of the rank's samples was chosen, by chunk."""

    def export(self, directory: Directory) -> None:
        """Write a Hugging Face model to `directory`, with the value head beside it."""


class RewardModel(Measured, Protocol):
    def score(self, requests: Sequence[RewardRequest]) -> list[list[Score]]:
        """Return the score of each model for each request. A failed Score stands for an error."""
