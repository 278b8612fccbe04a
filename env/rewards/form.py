"""The form of a completion: thoughts and an answer in tags, or a user's own pattern."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from env.rewards.completion import completion_of
from env.types import RewardFunction, RewardRequest, Score

INNER = r"(?:(?!</?(?:think|answer)>).)*"
THINK_ANSWER = rf"<think>{INNER}</think>\s*<answer>{INNER}</answer>"
OPEN = "<think>"


def make(pattern: str = THINK_ANSWER) -> RewardFunction:
    """Return a reward: 1 if a whole completion matches, spaces around it apart, else 0.

    Raises ValueError if `pattern` is not a regular expression.
    """
    try:
        return partial(_scores, re.compile(pattern, re.DOTALL))
    except re.error as error:
        raise ValueError(f"pattern {pattern!r} is not a regular expression: {error}") from error


def _scores(pattern: re.Pattern[str], requests: Sequence[RewardRequest]) -> list[Score]:
    matches = [pattern.fullmatch(_text(request)) is not None for request in requests]
    return [Score.of(float(match), format=float(match)) for match in matches]


def _text(request: RewardRequest) -> str:
    """Return the completion; a chat template may have written its first tag into the prompt."""
    opened = request.prompt.rstrip().endswith(OPEN)
    return f"{OPEN if opened else ''}{completion_of(request)}".strip()
