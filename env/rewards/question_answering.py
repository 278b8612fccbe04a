"""Short answers in words: exact match and F1, normalised as SQuAD's evaluation does."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from env.rewards.answers import final_part
from env.rewards.completion import completion_of
from env.types import RewardRequest, Score

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
NUMBER = re.compile(r"([^\w.]*+)([0-9]{1,3}(?:,[0-9]{3})+|[0-9]*)(\.[0-9]+)?\W*")
"""A word that is a number, with signs and punctuation around it.

What stands before it is never tried again (`*+`): a policy may write thousands of brackets."""
PARTED = re.compile(r"(?<=\d)(?:[/:–—-]|,(?!\d{3}(?!\d)))(?=\d)")
"""Between two numbers: a fraction, a time, a score or a range is no longer number."""
PARTS = ("target", "answers", "answer", "text", "ground_truth")
"""Where a label that is a JSON object has its answers: Search-R1's and SQuAD's names first."""


def exact_match(requests: Sequence[RewardRequest]) -> list[Score]:
    """1 if the normalised answer equals one of the label's answers, else 0."""
    return [_score(request, by_f1=False) for request in requests]


def f1(requests: Sequence[RewardRequest]) -> list[Score]:
    """The best F1 of the answer's words with those of one of the label's answers, 0 to 1."""
    return [_score(request, by_f1=True) for request in requests]


def normalised(text: str) -> str:
    """Return lower-case words with one space between, without punctuation and articles.

    Numbers keep sign and decimal point, and are parted where a mark parts them, unlike in SQuAD,
    where 3.5 is 35 and 10:30 is 1030. A text of nothing but articles keeps them, one of nothing
    but punctuation too: no text equals the empty one.
    """
    words = " ".join(map(_word, PARTED.sub(" ", text.lower()).split()))
    kept = ARTICLES.sub(" ", words), words, text.lower()
    return next((found for one in kept if (found := " ".join(one.split()))), "")


def word_f1(answer: str, gold: str) -> float:
    """Return the F1 of two normalised texts' words."""
    words, wanted = answer.split(), gold.split()
    same = sum((Counter(words) & Counter(wanted)).values())
    return 2 * same / (len(words) + len(wanted)) if same else 0.0


def gold_answers(label: str) -> list[str]:
    """Return the normalised answers of a text, a JSON list, or an object that has one.

    Numbers of a list stay as they are spelled.
    """
    try:
        read = json.loads(label, parse_int=str, parse_float=str, parse_constant=_constant)
    except (ValueError, RecursionError):
        read = label
    return [found for text in _texts(read) if (found := normalised(text))]


def _texts(read: Any) -> Iterator[str]:
    """Yield the answers in a JSON value."""
    if isinstance(read, str):
        yield read
    elif isinstance(read, bool):
        yield str(read)
    elif isinstance(read, list):
        for one in read:
            yield from _texts(one)
    elif isinstance(read, dict):
        yield from _texts(next((read[name] for name in PARTS if name in read), None))


def _constant(name: str) -> str | None:
    return None if name == "NaN" else name


def _word(word: str) -> str:
    found = NUMBER.fullmatch(word)
    if not found or not (found[2] or found[3]):
        return word.translate(PUNCTUATION)
    decimals = (found[3] or "").rstrip("0").rstrip(".")
    sign = "-" if "-" in found[1] or "−" in found[1] else ""
    return f"{sign}{found[2].replace(',', '') or '0'}{decimals}"


def _score(request: RewardRequest, *, by_f1: bool) -> Score:
    golds = gold_answers(request.label or "")
    if not golds:
        return Score.failed(f"no answer in the label {request.label!r}")
    answer = normalised(final_part(completion_of(request)))
    matches = float(answer in golds)
    overlap = max(word_f1(answer, gold) for gold in golds)
    return Score.of(overlap if by_f1 else matches, acc=matches, f1=overlap)
