"""Types of episodes: tasks, replies of the policy, turns of the environment. No dependency."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from env.images.types import PlacedImage
from env.types import Messages, Prompt, Score

ToolSpec = Mapping[str, Any]
"""JSON schema of a tool, as chat templates take it."""


CANCELLING = (asyncio.CancelledError, GeneratorExit)
"""What ends a call from outside.

Everything else that a user's code raises is a failure of that code, also KeyboardInterrupt and
SystemExit, which would end the thread of all episodes.
"""


LONGEST_REASON = 500
"""Characters of the reason why an environment failed."""


class EnvironmentFailedError(RuntimeError):
    """The environment cannot continue an episode. The reason is not the policy's."""

    def __str__(self) -> str:
        """Return the reason without the rest of a long one: a user's error may have megabytes."""
        reason = super().__str__()
        return reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]}…"


class WrongReturnError(EnvironmentFailedError, TypeError):
    """A method of the environment raised, or returned what it must not."""

    def __init__(self, reason: str, method: object) -> None:
        super().__init__(reason)
        self.method = method


class UnusableTaskError(EnvironmentFailedError):
    """The task itself cannot be used, so that another attempt would fail as well."""

    def __init__(self, reason: str, code: object = None) -> None:
        """`code`: the method or the class whose fault it is; None if it is the row's."""
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True)
class Task:
    """One row of the prompt data."""

    index: int
    """Row in the data set."""
    messages: Messages
    label: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Every column of the row."""
    text: str = ""
    """The messages as text, in the chat template if the run has one."""

    @classmethod
    def of(cls, prompt: Prompt) -> Task:
        """Return the task of a prompt. A plain text is one user message."""
        messages = prompt.messages or ({"role": "user", "content": prompt.text},)
        return cls(prompt.index, messages, prompt.label, prompt.columns, prompt.text)

    def copied(self) -> Task:
        """Return a task that shares nothing that can be changed."""
        return replace(self, messages=deepcopy(self.messages), columns=deepcopy(dict(self.columns)))


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that the policy wrote. Both templates and environments know it by `id`."""

    name: str
    arguments: Mapping[str, Any]
    id: str
    error: str = ""
    """Why the call cannot be read; empty for a well-formed call."""


class ReplyStop(StrEnum):
    """Why the policy's reply ended."""

    END = "end"
    """The policy wrote an end token."""
    STOP_STRING = "stop_string"
    """The reply has one of the environment's stop strings."""
    LENGTH = "length"
    """The reply reached its longest length."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One message of the policy."""

    text: str
    """Without its end token."""
    tool_calls: Sequence[ToolCall] = ()
    stop: ReplyStop = ReplyStop.END
    last: bool = False
    """No further reply is allowed: the limit of turns is reached."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The environment's answer to one reply. The policy sees it and never trains on it."""

    messages: Messages = ()
    """New messages of the chat, for example with the role `tool` or `user`."""
    text: str = ""
    """Text that follows the reply as it is: the policy continues the same message."""
    done: bool = False
    reward: float | None = None
    """Reward of this turn, which belongs to the last token of the reply; None: it has none."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Sums over the turns of an episode are logged."""


class StopReason(StrEnum):
    """Why an episode ended."""

    DONE = "done"
    """The environment ended it."""
    TURNS = "turns"
    """The limit of turns is reached."""
    OBSERVATION_LENGTH = "observation_length"
    """The last observation does not fit into the episode's total length."""
    TOTAL_LENGTH = "total_length"
    """The replies have used the episode's total length."""
    WALL_TIME = "wall_time"
    """The environment has used the episode's time."""
    FAILED = "failed"
    """The environment failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of an episode."""

    turns: int = 10
    """Replies of the policy."""
    prompt: int = 1024
    """Tokens of the first context. A longer one loses its beginning."""
    reply: int = 1024
    """Tokens of one reply."""
    observation: int = 1024
    """Tokens of the texts of one turn of the environment. The rest is cut off."""
    total: int = 4096
    """Tokens of the whole episode."""
    seconds: float = 600.0
    """Time of all calls of the environment together. The time of the engines does not count."""


@dataclass(frozen=True, slots=True)
class Context:
    """What an engine continues."""

    tokens: Sequence[int]
    limit: int
    """Most new tokens."""
    stops: Sequence[str] = ()
    """Strings that end the reply; the reply has the string."""
    images: tuple[PlacedImage, ...] = ()
    """The images in `tokens`."""


@dataclass(frozen=True, slots=True)
class Generated:
    """What an engine wrote after a context. The three sequences have the same length."""

    tokens: Sequence[int]
    log_probs: Sequence[float]
    versions: Sequence[int]
    """Version of the policy that chose each token."""
    stop: ReplyStop

    @property
    def ended(self) -> bool:
        """Whether the last token is an end token."""
        return self.stop is ReplyStop.END


Generate = Callable[[Context], Awaitable[Generated]]
"""Tokens in, tokens out: one reply of the policy."""


@dataclass(slots=True, kw_only=True)
class Episode:
    """The tokens and messages of an episode so far. The four lists have the same length."""

    task: Task
    tokens: list[int] = field(default_factory=list)
    action_mask: list[bool] = field(default_factory=list)
    """True if the policy chose the token."""
    log_probs: list[float] = field(default_factory=list)
    """Zero for tokens that the policy did not choose."""
    versions: list[int] = field(default_factory=list)
    """-1 for tokens that the policy did not choose."""
    turn_rewards: dict[int, float] = field(default_factory=dict)
    """Index of the last token of a reply → reward of the turn, if it has one."""
    messages: list[Mapping[str, Any]] = field(default_factory=list)
    """The chat as the environment knows it."""
    images: list[PlacedImage] = field(default_factory=list)
    """The images in `tokens`."""
    prompt: str = ""
    """The first context, as text."""
    text: str = ""
    """Everything after the first context, as text without the last end token."""
    turns: int = 0
    """Replies so far."""
    stop: StopReason | None = None
    score: Score | None = None
    """None: the environment gives none. Rewards of turns are added to it."""
    metrics: dict[str, float] = field(default_factory=dict)

    def observe(self, tokens: Sequence[int], images: Sequence[PlacedImage] = ()) -> None:
        """Append tokens that the policy did not choose. `images`: in their places in `tokens`."""
        before = len(self.tokens)
        self.images += [PlacedImage(before + placed.start, placed.image) for placed in images]
        self.tokens += tokens
        self.action_mask += [False] * len(tokens)
        self.log_probs += [0.0] * len(tokens)
        self.versions += [-1] * len(tokens)

    def act(self, written: Generated) -> None:
        """Append a reply of the policy."""
        self.tokens += written.tokens
        self.action_mask += [True] * len(written.tokens)
        self.log_probs += written.log_probs
        self.versions += written.versions
        self.turns += 1

    def count(self, metrics: Mapping[str, float]) -> None:
        """Add to the sums of `metrics`."""
        for given, value in metrics.items():
            name = metric_name(given)
            self.metrics[name] = self.metrics.get(name, 0.0) + float(value)


OWN_METRICS = frozenset({"turns", *(f"stop_{reason}" for reason in StopReason)})
"""Metrics that every episode has."""


def metric_name(name: object) -> str:
    """Return the name under which a user's metric is kept beside those of the episode."""
    return f"score_{name}" if name in OWN_METRICS else str(name)
