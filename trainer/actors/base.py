"""What the loop asks of each role, and the settings that a role is built from.

Torch-free, so that the driver starts without torch. `log_probs`, `values` and `update` are
functions of their arguments and the weights: nothing depends on what the process did before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from contract.manifest import Written
from env.types import RewardRequest, Score
from trainer.shared import Lent, Parcel, Part
from trainer.sync import Meeting, Member
from trainer.types import Experience, FloatArray, Sequences, Weights

if TYPE_CHECKING:
    from trainer.checkpoint.openrlhf import OpenRLHF, Position
    from trainer.checkpoint.peers import Receipt, Snapshot, Targets

    Source: TypeAlias = Path | Snapshot | OpenRLHF

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class Rank:
    """One of the processes that hold a model together. Each is asked for the same at once."""

    index: int = 0
    world: int = 1

    @property
    def leads(self) -> bool:
        return self.index == 0


ALONE = Rank()


class Measured(Protocol):
    def peaks(self) -> Metrics:
        """The most memory that the process took in each phase, in GB, since it was last asked."""


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
class ModelSettings:
    """How a model is loaded and run forward."""

    model: str
    mixed_precision: bool
    micro_batch_size: int
    """Samples of one forward pass without gradients."""
    deterministic: bool = False
    """Kernels that repeat to the bit."""
    offload: bool = False
    """In the CPU's memory between two passes."""
    temperature: float
    """Log-probabilities are those of the distribution that was sampled from."""
    max_tokens: int | None = None
    """Tokens of one forward pass without gradients, in place of samples."""
    packing: bool = True
    """Samples end to end, where the model's attention can tell them apart."""
    attention: str | None = None
    """transformers' name for an attention; what fits the machine where None."""
    at_once: int = 1
    """Models that run forward at the same time; on a CPU they share its threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """What the ranks of a model share among themselves (Rajbhandari et al. 2020, section 5)."""

    zero_stage: int = 0
    """0: nothing; 1: the optimiser's state; 2: the gradients too; 3: the weights too."""
    adam_offload: bool = False
    """The optimiser, and what it holds, on the CPU."""
    zpg: int = 1
    """Ranks of a node that keep a copy of the weights among them, so that gathers stay there."""
    overlap_comm: bool = False
    grad_accum_dtype: str = ""
    """fp32 or bf16; the weights' own where empty."""
    sleep: bool = False
    """What is on the GPU goes to the CPU's memory between two calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSettings:
    """How reward models are loaded and run."""

    models: tuple[str, ...]
    mixed_precision: bool
    micro_batch_size: int
    """Samples of one forward pass."""
    deterministic: bool = False
    offload: bool = False
    """In the CPU's memory between two passes."""
    attention: str | None = None
    value_head_prefix: str = "score"
    """The head's name in the files of a model of OpenRLHF's that does not say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoRASettings:
    rank: int
    alpha: int
    dropout: float
    target_modules: tuple[str, ...]
    """Last parts of modules' names, or all-linear."""


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
    sharding: Sharding = Sharding()
    sync_port: int = 0
    """Of the policy's first node, where other nodes read its weights; 0 for any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionSettings:
    """How the difference between engine and trainer is corrected; values are the flags'."""

    level: str = "off"
    """off, token or seq"""
    mode: str = "mask"
    """mask or clip"""
    gating: str = "ratio"
    """ratio, binary_kl or tv"""
    threshold: tuple[float, float] = (0.5, 5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyObjective:
    clip_range: tuple[float, float] = (0.2, 0.2)
    """How far the ratio may be below and above 1."""
    loss_type: str = "ppo"
    """ppo or gspo"""
    dual_clip: float | None = None
    kl_estimator: str = "k1"
    kl_unbiased_gradient: bool = False
    """The gradient of the KL itself, in place of the estimator's."""
    entropy_coef: float | None = None
    """Weight of the entropy; 0 to see its metric only, None to leave it out."""
    correction: CorrectionSettings = CorrectionSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticObjective:
    value_clip: float
    value_head_prefix: str = "score"
    """The head's name in a model's files."""
