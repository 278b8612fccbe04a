"""Mathematics: a completion's answer against the label, as formulas or as texts."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cache, partial

from env.rewards.answers import final_part, last_boxed
from env.rewards.completion import completion_of
from env.rewards.formula import without_groups
from env.rewards.math_processes import (
    CPU_SECONDS,
    MOST_PROCESSES,
    Comparison,
    LostProcessError,
    MathProcesses,
    Question,
)
from env.types import RewardFunction, RewardRequest, Score

# Spellings that do not change what a formula says; a space between letters may.
SAME = (
    (re.compile(r"\\(?:left|right|displaystyle|[!,;:]|\$)|\$|(?<!\\)\\ "), ""),
    (re.compile(r"\\[dt]frac"), r"\\frac"),
    (re.compile(r"\\frac(\d)(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\(?:text|textbf|mathrm|mbox)\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\^\{?\\circ\}?|\\?%|°"), ""),
    (re.compile(r"\s+"), ""),
    (re.compile(r"\.$"), ""),
)


def anywhere(places: int = 6) -> RewardFunction:
    """Return a reward: 1 if math-verify finds the label's formula in the completion, else 0.

    Numbers are compared to `places` decimal places.
    """
    return partial(_anywhere, _checked(places))


def boxed(places: int = 6) -> RewardFunction:
    r"""Return a reward: 1 if the last `\boxed{…}` is the label's formula, else 0.

    A label may be a worked solution with such a box, as in the data set MATH.
    """
    return partial(_boxed, _checked(places))


def _checked(places: int) -> int:
    if places < 0:
        raise ValueError(f"places is {places}, where 0 or more is wanted")
    return places


def exact(requests: Sequence[RewardRequest]) -> list[Score]:
    r"""1 if the last `\boxed{…}` is the label's text, spaces and spellings of LaTeX apart."""
    return [_exact(_with_boxed_label(request)) for request in requests]


def _anywhere(places: int, requests: Sequence[RewardRequest]) -> list[Score]:
    answers = [final_part(completion_of(request)) for request in requests]
    return _compared(requests, answers, places)


def _boxed(places: int, requests: Sequence[RewardRequest]) -> list[Score]:
    answers = [_box(request) for request in requests]
    return _compared(
        [_with_boxed_label(request) for request in requests],
        ["" if answer is None else rf"\boxed{{{answer}}}" for answer in answers],
        places,
    )


def _exact(request: RewardRequest) -> Score:
    label = normalised(request.label or "")
    if not label:
        return Score.failed(f"no text in the label {request.label!r}")
    answer = _box(request)
    right = float(answer is not None and normalised(answer) == label)
    return Score.of(right, acc=right, format=float(answer is not None))


def normalised(text: str) -> str:
    """Return a formula in one of its spellings."""
    text = without_groups(text)
    for pattern, replacement in SAME:
        text = pattern.sub(replacement, text)
    return text


def _box(request: RewardRequest) -> str | None:
    return last_boxed(completion_of(request).rpartition("</think>")[2])


def _with_boxed_label(request: RewardRequest) -> RewardRequest:
    """Return the request with the answer of a label that is a worked solution."""
    answer = last_boxed(request.label or "")
    if answer is None:
        return request
    return RewardRequest(request.query, request.prompt, answer, request.messages)


def _compared(
    requests: Sequence[RewardRequest], answers: Sequence[str], places: int
) -> list[Score]:
    questions = [
        Question(request.label or "", answer, places)
        for request, answer in zip(requests, answers, strict=True)
    ]
    found = _processes().compare(questions)
    return [_score(request, one) for request, one in zip(requests, found, strict=True)]


def _score(request: RewardRequest, found: Comparison | LostProcessError) -> Score:
    if isinstance(found, LostProcessError):
        return Score.failed(str(found))
    if found.label is None:
        return Score.failed(f"the label {request.label!r} takes more than {CPU_SECONDS:g} s")
    if not found.label:
        return Score.failed(f"no mathematics in the label {request.label!r}")
    if found.right is None:  # the completion's own fault: the process was given all that it needs
        return Score.of(0.0, acc=0.0, format=1.0, gave_up=1.0)
    right, read = float(found.right), float(found.read or False)
    return Score.of(right, acc=right, format=read, gave_up=0.0)


@cache
def _processes() -> MathProcesses:
    return MathProcesses(min(MOST_PROCESSES, len(os.sched_getaffinity(0))))
