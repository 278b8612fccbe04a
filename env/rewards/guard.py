"""Turns whatever goes wrong inside a reward function into scores that say so."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Number
from typing import Any

from env.types import RewardFunction, RewardRequest, Score, brief
from env.user_code import Raised

NANS = frozenset(("NaN", "nan"))
"""What JSON and pandas make of a label that is missing, if somebody saves it as a text."""

NUMBERS = ". A function that gives numbers takes the parameter `completions`, as TRL's do"

logger = logging.getLogger(__name__)


def guard(reward: RewardFunction) -> RewardFunction:
    """`reward`, but an exception, a wrong number of scores or what is not a score fails this batch.

    Numbers of the scores are Python's.
    """

    def guarded(requests: Sequence[RewardRequest]) -> list[Score]:
        try:
            scores = [_plain(score) for score in _listed(reward(requests))]
            if len(scores) != len(requests):
                raise ValueError(f"it gave {len(scores)} scores for {len(requests)} completions")
        except (Exception, SystemExit) as error:  # the latter would end the run, with 0 too
            logger.exception("The reward function failed on %d completions.", len(requests))
            reason = f"the reward function raised {type(error).__name__}: {error}"
            raised = Raised.of(error, getattr(reward, "code", reward))
            return [Score.failed(reason, raised)] * len(requests)
        return scores

    return functools.update_wrapper(guarded, reward, assigned=(), updated=())


def _listed(scores: Any) -> Iterable[Any]:
    """Return what a reward function has returned, if it may be scores. Raises TypeError."""
    is_one = isinstance(scores, str | bytes | Mapping)
    if isinstance(scores, Iterable) and not is_one:
        return scores
    given = f"a text, {brief(scores)}" if isinstance(scores, str) else brief(scores)
    raise TypeError(f"it returned {given}, where a list with a Score for each completion is wanted")


def _plain(score: Score) -> Score:
    if not isinstance(score, Score):
        raise TypeError(
            f"it gave {brief(score)}, where a Score is wanted, such as Score.of(1.0)"
            f"{NUMBERS if isinstance(score, Number) else ''}"
        )
    try:
        plain = score.plain()
    except ValueError as error:  # of this completion alone
        return Score.failed(f"the reward function gave no usable number: {error}")
    if plain.ok and not math.isfinite(plain.reward):
        return replace(Score.failed(f"the reward is {plain.reward}"), not_finite=True)
    return plain


def guard_each(reward: RewardFunction, ends: tuple[type[Exception], ...]) -> RewardFunction:
    """`reward`, which judges each completion alone, but an exception fails its completion alone.

    `ends`: exceptions that are about no completion. They reach the caller.
    """

    def guarded(requests: Sequence[RewardRequest]) -> list[Score]:
        try:
            return reward(requests)
        except ends:
            raise
        except Exception as error:
            if len(requests) > 1:
                return [score for request in requests for score in guarded([request])]
            logger.exception("The reward function failed on a completion.")
            reason = f"the reward function raised {type(error).__name__}: {error}"
            return [Score.failed(reason)] * len(requests)

    return functools.update_wrapper(guarded, reward, assigned=(), updated=())


def with_labels(reward: RewardFunction) -> RewardFunction:
    """`reward`, but completions of rows whose label is NaN fail."""

    def labelled(requests: Sequence[RewardRequest]) -> list[Score]:
        kept = [request for request in requests if request.label not in NANS]
        scores = iter(reward(kept) if kept else ())
        missing = Score.failed("the label is NaN: the row has none")
        return [missing if request.label in NANS else next(scores) for request in requests]

    return labelled
