"""The protocol of each role: the calls that the driver makes.

Torch-free, so that the driver starts without torch. `log_probs`, `values` and `update` are
functions of their arguments and the weights. They do not depend on earlier calls.
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
        """Train on a step's samples. Returns this rank's share of the metrics, and memory peaks.

        Raises TrainingError if a loss is not finite.
        """

    def snapshot(self, step: int, needed: Sequence[int] = ()) -> int:
        """Copy the rank's shard of weights, optimiser and schedule, as the copy of `step`.

        May overwrite copies of steps that are not in `needed`. Returns the bytes of the copy.
        """

    def save(self, step: int, directory: Path) -> Written:
        """Write the copy of `step` to `directory` and sync it. May run beside other calls."""

    def hand_over(self, to: Targets) -> Receipt:
        """Send the copy of `to.step` to its replica stores. May run beside other calls."""

    def restore(self, source: Source) -> Position | None:
        """Restore the state from a checkpoint's directory, or from the memory of the nodes.

        For another trainer's checkpoint, returns the position of the run if known. Raises
        ModelMismatchError for another model's state, SnapshotLostError or UnreadableCheckpointError
        if a part is missing.
        """

    def restored_rate(self) -> float | None:
        """Returns the peak learning rate of the restored state, if known."""


class Policy(Learner, Protocol):
    def log_probs(self, sequences: Sequences) -> FloatArray:
        """Like `Reference.log_probs`."""

    def node(self) -> str:
        """Returns `shared_memory.node` of its process."""

    def offer(self) -> list[Part]:
        """Offer the newest weights from now on. Returns the parts."""

    def stage(self, part: Part, *, abroad: bool = False) -> Parcel:
        """Put a part into shared memory. `abroad`: other nodes read the part too."""

    def meet(self, members: tuple[Member, ...]) -> Meeting | None:
        """Returns where the policy and `members` meet; None if they are its group already.

        Raises TrainingError if the port is taken.
        """

    def gather(self, seconds: float) -> None:
        """Wait until all members have joined. Raises BrokenGroupError after `seconds`."""

    def announce(self) -> list[Part]:
        """Offer the newest weights from GPU to GPU from now on. Returns the parts.

        All ranks get this call and the calls that follow, because they gather sharded weights part
        by part.
        """

    def broadcast(self, part: Part, seconds: float) -> None:
        """Broadcast a part to the group, from rank 0.

        Raises BrokenGroupError if a member does not take the part within `seconds`. The group is
        gone then.
        """

    def lend(self, part: Part) -> Lent:
        """Lend a part in the memory of each rank's GPU, until the next part is lent."""

    def withdraw(self) -> None:
        """All engines have all parts: free the GPU memory of the parts."""

    def weights(self) -> Weights:
        """Returns all current weights."""

    def export(self, directory: Path) -> None:
        """Write a Hugging Face model, with its tokeniser, to `directory`."""

    def hold(self) -> None:
        """Copy what `export` would write now, for `export_held`."""

    def export_held(self, directory: Path) -> list[Written]:
        """Write the copy of `hold` and free it. May run beside other calls.

        Returns the files by their names in `directory`; none on ranks other than 0.
        """


class Critic(Learner, Protocol):
    def values(self, sequences: Sequences) -> FloatArray:
        """[B, T] value of the state in which each action of the rank's samples was chosen."""

    def export(self, directory: Path) -> None:
        """Write a Hugging Face model to `directory`, with the value head beside it."""


class RewardModel(Measured, Protocol):
    def score(self, requests: Sequence[RewardRequest]) -> list[list[Score]]:
        """Returns the score of each model for each request. A failed Score stands for an error."""
