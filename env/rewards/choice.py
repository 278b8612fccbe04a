"""Multiple choice: the letter that the completion decides for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from env.rewards.answers import final_part, last_boxed
from env.rewards.completion import completion_of
from env.types import RewardRequest, Score

LABEL = re.compile(r"\(?([A-Za-z])\)?[.:)]?(?:\s.*)?", re.DOTALL)
ALONE = re.compile(r"\(?\*{0,2}([A-Z])\*{0,2}\)?(?:[.:](?:\s.*)?)?", re.DOTALL)
WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")
STATED = re.compile(
    r"\b(?:answer|option|choice)\b(?:\s+(?:is|would be|must be))?\s*[:=]?\s*\**\s*"
    r"(?:(?:option|choice)\s+)?\(?\**([A-Z])\**\)?(?![A-Za-z0-9'])(?!\s+or\b)",
    re.IGNORECASE,
)
IN_BRACKETS = re.compile(r"(?<!\w)\(([A-Z])\)")


def score(requests: Sequence[RewardRequest]) -> list[Score]:
    """1 for the label's letter, else 0; a label that begins with no letter is a failure."""
    return [_score(request) for request in requests]


def chosen(completion: str) -> str | None:
    """Return the letter that a completion decides for; None if it decides for none or several.

    A box comes first, then a letter alone, then "the answer is B", then the only letter in
    brackets.
    """
    text = final_part(completion)
    boxed = last_boxed(text)
    if boxed is not None:
        return _letter(WRAPPED.sub(r"\1", boxed).strip())
    if letter := _letter(text):
        return letter
    if stated := [letter for letter in STATED.findall(text) if letter.isupper()]:
        return str(stated[-1])
    in_brackets = set(IN_BRACKETS.findall(text))
    return in_brackets.pop() if len(in_brackets) == 1 else None


def label_letter(label: str) -> str | None:
    """Return the letter of `B`, `(B)`, `b` or `B. 12 cm`; None for anything else."""
    found = LABEL.fullmatch(label.strip())
    return found[1].upper() if found and not _is_word(label) else None


def _is_word(label: str) -> bool:
    """Whether the first letter begins a sentence, as in "A dog"."""
    return re.match(r"\s*[A-Za-z]\s+\w", label) is not None


def _letter(text: str) -> str | None:
    found = ALONE.fullmatch(text)
    return found[1] if found else None


def _score(request: RewardRequest) -> Score:
    gold = label_letter(request.label or "")
    if gold is None:
        return Score.failed(f"no letter of a choice in the label {request.label!r}")
    letter = chosen(completion_of(request))
    right = float(letter == gold)
    return Score.of(right, acc=right, format=float(letter is not None))
