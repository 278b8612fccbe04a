"""Types that a step passes on: completions, samples, sequences, experience; and errors.

Torch-free: the driver uses numpy arrays only, and workers convert them to tensors. In comments B
is a number of samples, T of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from env.episodes.types import Context, Task
from env.images.types import PlacedImage
from env.types import Prompt, Score

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


class TrainingError(RuntimeError):
    """Training cannot continue: for example, a loss is not finite, or no reward is known."""


class LostWorkerError(TrainingError):
    """A process of the run has died or does not answer; the message names it and the reason."""

    def __init__(self, sentence: str, role: str, how: str = "") -> None:
        super().__init__(sentence)
        self.role = role
        self.how = how or sentence
        """The known facts of its end, in a few words."""


class SilentRankError(LostWorkerError):
    """A rank of a model does not answer; the message names the rank and its node."""


class UnreadableCheckpointError(TrainingError):
    """Another trainer's checkpoint is incomplete."""


class SnapshotLostError(TrainingError):
    """A saved state is damaged, or gone with a file or with the processes that held it."""


class BeyondRepairError(TrainingError):
    """The attempt cannot continue after a loss; another attempt may."""


class NoSeatError(TrainingError):
    """No node has room for a process that must be restarted."""


class EngineFailedError(TrainingError):
    """A rollout engine cannot continue in its process; a new process could."""


class BrokenGroupError(TrainingError):
    """Not all members joined the group for weight updates in time."""


class ModelMismatchError(TrainingError):
    """A checkpoint has the weights of another model; the message says where they differ."""


class AdapterMismatchError(ModelMismatchError):
    """A checkpoint has other adapters than the flags of LoRA give; the message says how."""


class MissingModelError(TrainingError):
    """A checkpoint has no state of a model that the run trains; the message names the role."""


class UnknownShardError(TrainingError):
    """Another version wrote a shard that this one cannot read; the message names the file."""


class NotSharedError(TrainingError):
    """A directory of the run is not the same on all nodes; the message names the nodes."""


class UnfitModelError(TrainingError):
    """The model does not fit the flags; the message says what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A prompt with the tokens that an engine generated after it."""

    text: str
    """The generated text without its end token; `env.episodes.codec` makes it."""
    tokens: IntArray
    """[T] prompt and completion together."""
    action_mask: BoolArray
    """[T] true if the policy chose the token."""
    log_probs: FloatArray
    """[T] the engine's log-probability of each action; zero elsewhere.

    Its logits are divided by the temperature; top_p does not apply.
    """
    finished: bool
    """An end-of-sequence token ended the completion, not the length limit.

    An episode is finished if its environment ended it.
    """
    versions: IntArray
    """[T] version of the policy that chose each action: its number of finished steps; -1 elsewhere.

    A completion has several if new weights came while it was generated.
    """
    turn_rewards: Mapping[int, float] = field(default_factory=dict)
    """Rewards of an episode's turns by the index of the last token of each reply; parts of the
    score's reward."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of an episode."""
    images: tuple[PlacedImage, ...] = ()
    """The images that the policy has seen."""

    @property
    def version(self) -> int:
        """Version of the oldest policy that chose an action; -1 if none is chosen."""
        return int(self.versions[self.action_mask].min(initial=self.versions.max()))

    @property
    def length(self) -> int:
        """Number of tokens that the policy chose."""
        return int(self.action_mask.sum())


@dataclass(frozen=True, slots=True)
class Sample:
    """A completion and its score."""

    prompt: Prompt
    completion: Completion
    score: Score


@dataclass(frozen=True, slots=True)
class Sequences:
    """Token sequences, padded on the right."""

    tokens: IntArray
    """[B, T]"""
    lengths: IntArray
    """[B]"""
    action_mask: BoolArray
    """[B, T] true if the policy chose the token."""
    rollout_log_probs: FloatArray | None = None
    """[B, T] the engine's log-probability of each action; zero elsewhere."""
    turn_rewards: FloatArray | None = None
    """[B, T] rewards of turns, at the last token of each reply; None if no turn has a reward."""
    images: tuple[tuple[PlacedImage, ...], ...] | None = None
    """[B] the images of each row; None if no row has one."""

    @classmethod
    def collate(cls, completions: Sequence[Completion]) -> Sequences:
        lengths = np.array([len(c.tokens) for c in completions], dtype=np.int64)
        shape = (len(completions), int(lengths.max()))
        tokens = np.zeros(shape, dtype=np.int64)
        action_mask = np.zeros(shape, dtype=np.bool_)
        log_probs = np.zeros(shape, dtype=np.float32)
        for row, completion in enumerate(completions):
            tokens[row, : lengths[row]] = completion.tokens
            action_mask[row, : lengths[row]] = completion.action_mask
            log_probs[row, : lengths[row]] = completion.log_probs
        images = tuple(completion.images for completion in completions)
        return cls(
            tokens,
            lengths,
            action_mask,
            log_probs,
            _turn_rewards(completions, shape),
            images if any(images) else None,
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def where_known(self, rewards: FloatArray) -> Sequences:
        """Returns the sequences without actions in rows whose reward [B] is NaN."""
        return replace(self, action_mask=self.action_mask & ~np.isnan(rewards)[:, None])

    def rows(self, index: IntArray) -> Sequences:
        """Returns the rows of `index`, padded to the longest of them."""
        lengths = self.lengths[index]
        width = int(lengths.max())
        drawn = self.rollout_log_probs
        return Sequences(
            self.tokens[index, :width],
            lengths,
            self.action_mask[index, :width],
            None if drawn is None else drawn[index, :width],
            images=None if self.images is None else tuple(self.images[row] for row in index),
        )


def _turn_rewards(completions: Sequence[Completion], shape: tuple[int, int]) -> FloatArray | None:
    if not any(completion.turn_rewards for completion in completions):
        return None
    rewards = np.zeros(shape, dtype=np.float32)
    for row, completion in enumerate(completions):
        for at, reward in completion.turn_rewards.items():
            rewards[row, at] = reward
    return rewards


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """The data that policy and critic learn from; arrays are [B, T], aligned with the tokens.

    `old_log_probs` has each token's own log-probability. `values` has the value of the state in
    which the token was chosen. Both are zero for tokens that the policy did not choose.
    """

    sequences: Sequences
    old_log_probs: FloatArray | None
    """Under the policy before the step's first update; None: that update computes them."""
    advantages: FloatArray
    returns: FloatArray
    values: FloatArray | None = None
    """None without a critic."""
    ref_log_probs: FloatArray | None = None
    """Under the reference; None if there is no reference."""
    kl_coef: float = 0.0
    """Weight of the KL in this step's loss; 0 if the KL is in the reward."""

    def rows(self, index: IntArray) -> Experience:
        sequences = self.sequences.rows(index)
        width = sequences.tokens.shape[1]
        return Experience(
            sequences=sequences,
            old_log_probs=_rows(self.old_log_probs, index, width),
            advantages=self.advantages[index, :width],
            returns=self.returns[index, :width],
            values=_rows(self.values, index, width),
            ref_log_probs=_rows(self.ref_log_probs, index, width),
            kl_coef=self.kl_coef,
        )


def _rows(array: FloatArray | None, index: IntArray, width: int) -> FloatArray | None:
    return None if array is None else array[index, :width]


Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class Rank:
    """The index of a process among those that hold a model together.

    The driver sends each call to all of them.
    """

    index: int = 0
    world: int = 1
    sharing: int = 1
    """Ranks that share each sample: consecutive ones, which thus get the same samples."""

    @property
    def leads(self) -> bool:
        return self.index == 0

    @property
    def data(self) -> Rank:
        """The index of this process's samples, and among how many parts they are divided."""
        return Rank(self.index // self.sharing, self.world // self.sharing)

    @property
    def speaks(self) -> bool:
        """Whether the process answers for those that have the same samples."""
        return self.index % self.sharing == 0


ALONE = Rank()


class Measured(Protocol):
    def peaks(self) -> Metrics:
        """Returns the peak memory of each phase since the last call, in GB."""


Key = tuple[int, int]
"""(prompt group number, index of the sample in its group)."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, and the seed of each completion to generate."""

    text: str
    seeds: tuple[int, ...]
    context: Context | None = None
    """The prompt as tokens, and limits of the completions; replaces `text`."""


@dataclass(frozen=True, slots=True)
class PartialRollout:
    """An unfinished completion: its prompt, its seed and the tokens so far. Arrays are [t]."""

    key: Key
    text: str
    """The prompt."""
    seed: int
    tokens: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    log_probs: FloatArray = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    versions: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    context: Context | None = None
    """The prompt as tokens, and limits of the completion; replaces `text`."""
    home: int | None = None
    """The engine that wrote the reply before: it may have keys and values of the context."""
    task: Task | None = None
    """The task of an episode that is to begin. Engines get none: they write its replies."""


@dataclass(frozen=True, slots=True)
class FinishedRollout:
    key: Key
    completion: Completion
    score: Score | None = None
    """The score that an environment gave."""
    engine: int | None = None
    """The engine that wrote the end of it, if that is known."""


@dataclass(frozen=True, slots=True)
class SliceResult:
    """The result of one slice of an engine's work."""

    ended: list[FinishedRollout]
    left: frozenset[Key]
    """Keys of unfinished rollouts. A rollout that is neither here nor in `ended` was lost."""
