"""What the loop asks of each role, and the settings that a role is built from.

Torch-free, so that the driver starts without torch. `log_probs`, `values` and `update` are
functions of their arguments and the weights: nothing depends on what the process did before.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from contract.manifest import Written
from env.types import RewardRequest, Score
from trainer.cluster.shared_memory import Lent, Parcel, Part
from trainer.types import Experience, FloatArray, Measured, Metrics, Sequences, Weights
from trainer.weight_sync.choose import Meeting, Member

if TYPE_CHECKING:
    from trainer.checkpoint.openrlhf import OpenRLHF, Position
    from trainer.checkpoint.replication import Receipt, Snapshot, Targets

    Source: TypeAlias = Path | Snapshot | OpenRLHF


class Reference(Measured, Protocol):
    def log_probs(self, sequences: Sequences) -> FloatArray:
        """[B, T] log-probability of each action token of the rank's samples; zero elsewhere."""


class Learner(Protocol):
    def update(self, experience: Experience, step: int) -> Metrics:
        """Train on a step's samples. Returns this rank's shares of the metrics, with its peaks.

        Raises TrainingError where a loss is not finite.
        """

    def snapshot(self, step: int, needed: Sequence[int] = ()) -> int:
        """Copy the rank's share of weights, optimiser and schedule: it is that of `step`.

        Copies of other steps than `needed` may be overwritten. Returns its bytes.
        """

    def save(self, step: int, directory: Path) -> Written:
        """Write the copy of `step` to `directory`, durably; may be asked for beside other work."""

    def hand_over(self, to: Targets) -> Receipt:
        """Give the copy of `to.step` to its holders; may be asked for beside other work."""

    def restore(self, source: Source) -> Position | None:
        """Take them back from a checkpoint's directory, or from the memory of the nodes.

        Of another trainer's checkpoint, returns how far the run was if that is known. Raises
        ModelMismatchError for another model's, SnapshotLostError or UnreadableCheckpointError
        where a part is gone.
        """

    def restored_rate(self) -> float | None:
        """The peak of the learning rate that the restored state was trained with, if known."""


class Policy(Learner, Protocol):
    def log_probs(self, sequences: Sequences) -> FloatArray:
        """As the reference's."""

    def node(self) -> str:
        """What `shared.node` says where it runs."""

    def offer(self) -> list[Part]:
        """The newest weights are those that are given out from now on, in these parts."""

    def stage(self, part: Part, *, abroad: bool = False) -> Parcel:
        """Some of the offered weights, in shared memory; `abroad`: for other nodes to read, too."""

    def meet(self, members: tuple[Member, ...]) -> Meeting | None:
        """Where these and the policy can meet; None where they are its group already.

        Raises TrainingError where the port is taken.
        """

    def gather(self, seconds: float) -> None:
        """Wait until they have come. Raises BrokenGroupError where one has not, after `seconds`."""

    def announce(self) -> list[Part]:
        """The newest weights are given out from GPU to GPU from now on, in these parts.

        This and what follows is asked of all ranks together, for they gather sharded weights
        part by part.
        """

    def broadcast(self, part: Part, seconds: float) -> None:
        """To the group, from the first rank.

        Raises BrokenGroupError where one does not take it within `seconds`; there is no group then.
        """

    def lend(self, part: Part) -> Lent:
        """On each rank's GPU, until the next part is lent."""

    def withdraw(self) -> None:
        """All engines have all parts: the GPU's memory that they were in is free."""

    def weights(self) -> Weights:
        """All weights, as they are now."""

    def export(self, directory: Path) -> None:
        """Write a Hugging Face model, with its tokeniser, to `directory`."""

    def hold(self) -> None:
        """Copy what `export` would write now, for `export_held`."""

    def export_held(self, directory: Path) -> list[Written]:
        """Write that copy, which is then let go; may be asked for beside other work.

        Returns the files, by their names in `directory`; on ranks that do not lead none.
        """


class Critic(Learner, Protocol):
    def values(self, sequences: Sequences) -> FloatArray:
        """[B, T] value of the state in which each action of the rank's samples was chosen."""

    def export(self, directory: Path) -> None:
        """Write a Hugging Face model to `directory`, with the value head beside it."""


class RewardModel(Measured, Protocol):
    def score(self, requests: Sequence[RewardRequest]) -> list[list[Score]]:
        """For each request the score of each model; what one cannot read is a failed Score."""
