"""Prompts, requests for rewards, scores and episodes. No dependency: everyone imports this."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from env.user_code import Raised

IN_PYTHON = "python"
"""Name of a reward or an environment that a program gives as an object."""
Messages = Sequence[Mapping[str, Any]]
"""Turns of a chat, each with `role` and `content`."""


def finite(value: object) -> float | None:
    """Return a number as a finite one of Python; None for NaN, infinity and what is not a number.

    Numbers are those of Python and numpy, decimals, fractions, and tensors of one. An integer of
    hundreds of digits is none: no float is so large.
    """
    if isinstance(value, str | bytes | bytearray):
        return None
    try:
        number = _float(value)
    except (ArithmeticError, TypeError, ValueError, RuntimeError):
        return None
    return number if math.isfinite(number) else None


def _float(value: Any) -> float:
    """Return a number of Python or numpy, or what an array or tensor of one number holds."""
    is_array = bool(getattr(value, "shape", ())) and hasattr(value, "item")
    return float(value.item() if is_array else value)


def no_number(value: object) -> str:
    """Return why a value is no reward and no metric, as a predicate: "is a text (str): give …"."""
    if hasattr(value, "__float__") or hasattr(value, "__index__"):
        return "is not a finite number"
    kind = "text (str)" if isinstance(value, str) else type(value).__name__
    return f"is a {kind}: give a number, such as 1.0"


def brief(value: object) -> str:
    """Return a value as a short text for a message."""
    try:
        shown = repr(value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        shown = f"a {type(value).__name__} that is too long"
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


@dataclass(frozen=True, slots=True)
class Prompt:
    """One line of the prompt data."""

    index: int
    """Row in the data set; stable over epochs and resumes."""
    text: str
    label: str | None = None
    messages: Messages | None = field(default=None, compare=False)
    """The chat that `text` was rendered from; None where it is a text of its own."""
    columns: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Every column of the row, if an environment wants them."""


@dataclass(frozen=True, slots=True)
class RewardRequest:
    """One completion to score; the fields of OpenRLHF's remote reward protocol."""

    query: str
    """Prompt and completion together, as the policy saw and wrote them."""
    prompt: str
    label: str | None = None
    messages: Messages | None = field(default=None, compare=False)
    """The chat before the completion, for who reads chats in another form than the policy."""
    columns: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Every column of the prompt's row, if the run reads them."""
    completion_ids: Sequence[int] = field(default=(), compare=False)
    """Tokens after the prompt, if they are known."""

    @property
    def response(self) -> str:
        """The query without the prompt. `env.rewards.completion` also removes end tokens."""
        return self.query[len(self.prompt) :] if self.query.startswith(self.prompt) else self.query


class ScoreStatus(StrEnum):
    OK = "ok"
    FAILED = "failed"
    """Nobody could say what the completion is worth: never trained on, never counted as zero."""


class RewardPart(NamedTuple):
    """What one of several reward functions gave."""

    reward: float
    """Before the weight."""
    weight: float


@dataclass(frozen=True, slots=True)
class Score:
    status: ScoreStatus
    reward: float = float("nan")
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    raised: Raised | None = field(default=None, compare=False)
    """The exception of the user's code, if that is why it failed."""
    not_finite: bool = field(default=False, compare=False)
    """Whether it failed because the reward is NaN or infinite."""
    parts: tuple[RewardPart, ...] = ()
    """What the reward is the weighted sum of, if several functions gave it."""

    @property
    def ok(self) -> bool:
        return self.status is ScoreStatus.OK

    @property
    def accuracy(self) -> float:
        """How right the completion is: the metric `acc`, or the reward where there is none."""
        return self.metrics.get("acc", self.reward)

    def plain(self) -> Score:
        """Return the score with texts and Python's numbers: a checkpoint has no others.

        Raises TypeError and ValueError for something that is not a number, or too large a one.
        """
        _check_numbers(self.reward, self.metrics)
        try:
            metrics = {str(name): _float(value) for name, value in self.metrics.items()}
            parts = tuple(RewardPart(_float(part[0]), _float(part[1])) for part in self.parts)
            return replace(self, reward=_float(self.reward), metrics=metrics, parts=parts)
        except OverflowError as error:
            raise ValueError(str(error)) from None

    @classmethod
    def of(cls, reward: float, /, **metrics: float) -> Score:
        """Return a score. A metric may have any name, `reward` too.

        Raises TypeError for a reward or a metric that is not a number, such as a text.
        """
        _check_numbers(reward, metrics)
        return cls(ScoreStatus.OK, reward, metrics)

    @classmethod
    def failed(cls, error: str, raised: Raised | None = None) -> Score:
        return cls(ScoreStatus.FAILED, error=error, raised=raised)


def _check_numbers(reward: object, metrics: Mapping[str, object]) -> None:
    """Raise TypeError if one is no number at all. NaN and infinity are numbers."""
    named = {"reward": reward} | {f"metric {name}": value for name, value in metrics.items()}
    for name, value in named.items():
        if not hasattr(value, "__float__") and not hasattr(value, "__index__"):
            raise TypeError(f"Score: the {name} {brief(value)} {no_number(value)}")


class RewardFunction(Protocol):
    """Scores completions: one Score for each request, in order. Raises nothing for bad content."""

    def __call__(self, requests: Sequence[RewardRequest]) -> list[Score]: ...
