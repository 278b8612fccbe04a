"""Sums: the completion is a whole number, the label the right one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

from env.rewards.completion import completion_of
from env.types import RewardRequest, Score

NUMBER = re.compile(r"-?\d+")
MOST_FOR_A_WRONG_SUM = 0.5


def exact(requests: Sequence[RewardRequest]) -> list[Score]:
    """1 for the right sum, else 0."""
    return [_score(request, 0.0) for request in requests]


def partial(requests: Sequence[RewardRequest]) -> list[Score]:
    """1 for the right sum; a wrong one gets up to 0.5, by the share of digits in place.

    Places are counted from the units: 73 for 83 has one of two digits right and gets 0.25.
    """
    return [_score(request, MOST_FOR_A_WRONG_SUM) for request in requests]


def _score(request: RewardRequest, most_for_wrong: float) -> Score:
    label = (request.label or "").strip()
    if not NUMBER.fullmatch(label):
        return Score.failed(f"the label {request.label!r} is not a whole number")
    answer = completion_of(request).strip()
    if not NUMBER.fullmatch(answer):
        return Score.of(0.0, acc=0.0, format=0.0)
    if Decimal(answer) == Decimal(label):  # int() refuses more than 4300 digits
        return Score.of(1.0, acc=1.0, format=1.0)
    return Score.of(most_for_wrong * _digits_in_place(answer, label), acc=0.0, format=1.0)


def _digits_in_place(answer: str, label: str) -> float:
    """Share of places with the same digit, 0 to 1."""
    same = sum(a == b for a, b in zip(reversed(answer), reversed(label), strict=False))
    return same / max(len(answer), len(label))
