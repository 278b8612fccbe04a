"""What flows through a step: completions, samples, sequences, experience.

Torch-free: the driver moves numpy arrays only; actors turn them into tensors. Suffixes in
comments: B samples, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from env.types import Prompt, Score

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


class TrainingError(RuntimeError):
    """Training cannot go on in a meaningful way (a loss that is not finite, no reward at all)."""


class LostWorkerError(TrainingError):
    """A process of the run has died, or does not answer; the sentence says which and how."""

    def __init__(self, sentence: str, role: str, how: str = "") -> None:
        super().__init__(sentence)
        self.role = role
        self.how = how or sentence
        """In a few words: what is known of its end."""


class SilentRankError(LostWorkerError):
    """A process that holds a part of a model does not answer; the sentence says which and where."""


class UnreadableCheckpointError(TrainingError):
    """Another trainer's checkpoint that has not all that it should have."""


class SnapshotLostError(TrainingError):
    """A snapshot that was in the nodes' memory is torn, or its holders are gone."""


class BeyondRepairError(TrainingError):
    """Something was lost, and the run cannot go on without it; another attempt may."""


class NoSeatError(TrainingError):
    """No node has room for a process that must be started anew."""


class EngineFailedError(TrainingError):
    """A rollout engine cannot go on in its process; another one could."""


class BrokenGroupError(TrainingError):
    """Not all came to where the policy gives its weights to all engines at once, or not in time."""


class ModelMismatchError(TrainingError):
    """A checkpoint's weights are those of another model; the sentence says where they differ."""


class UnfitModelError(TrainingError):
    """The model cannot be used as the flags ask; the sentence says what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How completions are drawn. Temperature 0 is greedy decoding."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0

    def greedy(self) -> Sampling:
        return Sampling(max_new_tokens=self.max_new_tokens, temperature=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What an engine wrote after one prompt."""

    text: str
    """What it wrote, without special tokens."""
    tokens: IntArray
    """[T] prompt and completion together."""
    action_mask: BoolArray
    """[T] true where the policy chose the token."""
    log_probs: FloatArray
    """[T] the engine's own log-probability of each action, under its logits divided by the
    temperature and before top_p cuts them; zero elsewhere."""
    finished: bool
    """Ended by an end-of-sequence token, not by the length limit."""
    versions: IntArray
    """[T] version of the policy that chose each action: the number of finished steps; -1 elsewhere.
    One that new weights met half written has several."""

    @property
    def version(self) -> int:
        """Of the oldest policy that had a part in it."""
        return int(self.versions[self.action_mask].min())

    @property
    def length(self) -> int:
        """Tokens that the policy chose."""
        return int(self.action_mask.sum())


@dataclass(frozen=True, slots=True)
class Sample:
    """A completion and what it is worth."""

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
    """[B, T] true where the policy chose the token."""
    rollout_log_probs: FloatArray | None = None
    """[B, T] log-probability of each action as the engine had it; zero elsewhere."""

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
        return cls(tokens, lengths, action_mask, log_probs)

    def __len__(self) -> int:
        return len(self.tokens)

    def where_known(self, rewards: FloatArray) -> Sequences:
        """The same, with no action where the reward [B] is NaN: such a row trains nothing."""
        return replace(self, action_mask=self.action_mask & ~np.isnan(rewards)[:, None])

    def rows(self, index: IntArray) -> Sequences:
        """The rows of `index`, padded no wider than the longest of them."""
        lengths = self.lengths[index]
        width = int(lengths.max())
        drawn = self.rollout_log_probs
        return Sequences(
            self.tokens[index, :width],
            lengths,
            self.action_mask[index, :width],
            None if drawn is None else drawn[index, :width],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """What policy and critic learn from; arrays are [B, T], aligned with the tokens.

    A token's entry in `old_log_probs` is its own log-probability, its entry in `values` the value
    of the state in which it was chosen; both are zero for tokens that the policy did not choose.
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


Key = tuple[int, int]
"""(prompt group number, index of the sample in its group)."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, and the seed of each completion of it that is wanted."""

    text: str
    seeds: tuple[int, ...]


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


@dataclass(frozen=True, slots=True)
class FinishedRollout:
    key: Key
    completion: Completion


@dataclass(frozen=True, slots=True)
class SliceResult:
    """The result of one slice of an engine's work."""

    ended: list[FinishedRollout]
    left: frozenset[Key]
    """Unfinished in the engine. A rollout that is neither here nor in `ended` was lost."""
