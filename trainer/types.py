"""Types that a step passes on: completions, samples, sequences, experience; and errors.

Torch-free: the driver uses numpy arrays only, and workers convert them to tensors. In comments B
is a number of samples, T of a sample's tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from env.episodes.types import Context, Task
from env.images.types import PlacedImage
from env.types import Prompt, Score

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
TokenArray = NDArray[np.int32]
"""Token ids: half the bytes of torch's int64, to which a model's input alone is converted."""
VersionArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]


class TrainingError(RuntimeError):
    """Training cannot continue: for example, a loss is not finite, or no reward is known."""


class UserCodeError(TrainingError):
    """The user's reward function or environment raised the same exception for all completions."""

    asks_others: ClassVar[bool] = True
    """Whether the code may ask a server, so that after whole steps another attempt may help."""


class UserFormulaError(UserCodeError):
    """A user's loss or estimator cannot be used; the message names the file and the line."""

    asks_others = False


class LostWorkerError(TrainingError):
    """A process of the run has died or does not answer; the message names it and the reason."""

    def __init__(self, sentence: str, role: str, how: str = "") -> None:
        super().__init__(sentence)
        self.role = role
        self.how = how or sentence
        """The known facts of its end, in a few words."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.role, self.how)


class SilentRankError(LostWorkerError):
    """A rank of a model does not answer; the message names the rank and its node."""


class BehindRankError(LostWorkerError):
    """A rank has not entered a collective in which the others wait; the message names both."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker runs."""

    node: str
    """Its name, or its address if it has none."""
    words: str

    def __str__(self) -> str:
        return self.words


class CorruptedRankError(LostWorkerError):
    """A rank holds other bits than it must, or computes others: its state is not used any more.

    `place`: the node, GPU and process of the rank, once the driver has added them.
    """

    def __init__(self, role: str, rank: int, told: str, place: Place | None = None) -> None:
        who = f"{role}-{rank}" + (f", {place}" if place else "")
        super().__init__(f"{who}: {told}", role, f"{who}: {told}")
        self.rank, self.place, self._told = rank, place, told

    def at(self, place: Place) -> CorruptedRankError:
        """Return the error with the place of the rank."""
        return type(self)(self.role, self.rank, self._told, place)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.role, self.rank, self._told, self.place)


class UnreadableCheckpointError(TrainingError):
    """Another trainer's checkpoint is incomplete."""


class SnapshotLostError(TrainingError):
    """A saved state is damaged, or gone with a file or with the processes that held it."""


class BeyondRepairError(TrainingError):
    """The attempt cannot continue after a loss; another attempt may."""


class NoRoomError(TrainingError):
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
    tokens: TokenArray
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
    versions: VersionArray
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
    greedy: Sample | None = None
    """The greedy completion of the prompt, which trains nothing; None: the run has none."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """Token sequences of different lengths, end to end.

    B sequences have M tokens, and N of them are actions. Arrays [N] have all actions in order.
    """

    tokens: TokenArray
    """[M]"""
    lengths: IntArray
    """[B]"""
    action_mask: BoolArray
    """[M] true if the policy chose the token."""
    rollout_log_probs: FloatArray | None = None
    """[N] the engine's log-probability of each action."""
    turn_rewards: FloatArray | None = None
    """[N] rewards of turns, at the last token of each reply; None if no turn has a reward."""
    images: tuple[tuple[PlacedImage, ...], ...] | None = None
    """[B] the images of each sequence; None if there is none."""
    actions: IntArray = field(init=False)
    """[B] number of actions of each sequence."""

    def __post_init__(self) -> None:
        before, ends = np.zeros(len(self.action_mask) + 1, np.int64), np.cumsum(self.lengths)
        np.cumsum(self.action_mask, out=before[1:])
        object.__setattr__(self, "actions", before[ends] - before[ends - self.lengths])

    @classmethod
    def collate(cls, completions: Sequence[Completion]) -> Sequences:
        images = tuple(completion.images for completion in completions)
        rewarded = any(completion.turn_rewards for completion in completions)
        return cls(
            _end_to_end([c.tokens for c in completions], np.int32),
            np.array([len(c.tokens) for c in completions], dtype=np.int64),
            _end_to_end([c.action_mask for c in completions], np.bool_),
            _end_to_end([c.log_probs[c.action_mask] for c in completions], np.float32),
            _end_to_end([*map(_turn_rewards, completions)], np.float32) if rewarded else None,
            images if any(images) else None,
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def rows(self, index: IntArray) -> Sequences:
        """Return the sequences of `index`."""
        tokens, actions = places(self.lengths, index), places(self.actions, index)
        return Sequences(
            self.tokens[tokens],
            self.lengths[index],
            self.action_mask[tokens],
            _taken(self.rollout_log_probs, actions),
            _taken(self.turn_rewards, actions),
            None if self.images is None else tuple(self.images[row] for row in index),
        )


def places(lengths: IntArray, index: IntArray) -> IntArray:
    """Return where the elements of the rows of `index` are, in rows of `lengths` end to end."""
    chosen = lengths[index]
    shifts = (np.cumsum(lengths) - lengths)[index] - (np.cumsum(chosen) - chosen)
    return np.repeat(shifts, chosen) + np.arange(chosen.sum())


def sums(values: NDArray[Any], lengths: IntArray) -> NDArray[np.float64]:
    """Return [B] the sum of each row, of rows of `lengths` end to end."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    added = np.bincount(rows, weights=values, minlength=len(lengths))
    return added.astype(np.float64, copy=False)


def _end_to_end(rows: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *rows], dtype=dtype, casting="same_kind")


def _turn_rewards(completion: Completion) -> FloatArray:
    rewards = np.zeros(len(completion.tokens), dtype=np.float32)
    for at, reward in completion.turn_rewards.items():
        rewards[at] = reward
    return rewards[completion.action_mask]


def _taken(array: FloatArray | None, index: IntArray) -> FloatArray | None:
    return None if array is None else array[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """The data that policy and critic learn from; arrays are [N], of all actions in order.

    `old_log_probs` has each action's log-probability. `values` has the value of the state in which
    the action was chosen.
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
        at = places(self.sequences.actions, index)
        return Experience(
            sequences=self.sequences.rows(index),
            old_log_probs=_taken(self.old_log_probs, at),
            advantages=self.advantages[at],
            returns=self.returns[at],
            values=_taken(self.values, at),
            ref_log_probs=_taken(self.ref_log_probs, at),
            kl_coef=self.kl_coef,
        )

    def of_nothing(self, sequences: Sequences) -> Experience:
        """Return an experience of `sequences` with the same parts, which are all zero."""
        zeros = np.zeros(int(sequences.action_mask.sum()), dtype=np.float32)
        return Experience(
            sequences=sequences,
            old_log_probs=None if self.old_log_probs is None else zeros,
            advantages=zeros,
            returns=zeros,
            values=None if self.values is None else zeros,
            ref_log_probs=None if self.ref_log_probs is None else zeros,
            kl_coef=self.kl_coef,
        )


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
        """Return the peak memory of each phase since the last call, in GB."""


Key = tuple[int, int]
"""(prompt group number, index of the sample in its group)."""


Seed = int | None
"""Of a completion; None: it is greedy, the likeliest token at each place."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, and the seed of each completion to generate."""

    text: str
    seeds: tuple[Seed, ...]
    context: Context | None = None
    """The prompt as tokens, and limits of the completions; replaces `text`."""


@dataclass(frozen=True, slots=True)
class PartialRollout:
    """An unfinished completion: its prompt, its seed and the tokens so far. Arrays are [t]."""

    key: Key
    text: str
    """The prompt."""
    seed: Seed
    tokens: TokenArray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    log_probs: FloatArray = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    versions: VersionArray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
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
