"""Short answers in words: exact match and F1, normalised as SQuAD's evaluation does."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Sequence

from env.rewards.answers import final_part
from env.rewards.completion import completion_of
from env.types import RewardRequest, Score

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
PARTS = ("target", "answers", "answer", "text", "ground_truth")
"""Where a label that is a JSON object has its answers: Search-R1's and SQuAD's names first."""


def exact_match(requests: Sequence[RewardRequest]) -> list[Score]:
    """1 if the normalised answer equals one of the label's answers, else 0."""
    return [_score(request, by_f1=False) for request in requests]


def f1(requests: Sequence[RewardRequest]) -> list[Score]:
    """The best F1 of the answer's words with those of one of the label's answers, 0 to 1."""
    return [_score(request, by_f1=True) for request in requests]


def normalised(text: str) -> str:
    """Return lower-case words with one space between, without punctuation and articles."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def word_f1(answer: str, gold: str) -> float:
    """Return the F1 of two normalised texts' words."""
    words, wanted = answer.split(), gold.split()
    same = sum((Counter(words) & Counter(wanted)).values())
    return 2 * same / (len(words) + len(wanted)) if same else 0.0


def gold_answers(label: str) -> list[str]:
    """Return the normalised answers of a text, a JSON list of texts, or an object that has one."""
    try:
        read = json.loads(label)
    except (ValueError, RecursionError):
        read = label
    if isinstance(read, dict):
        read = next((read[name] for name in PARTS if name in read), [])
        read = read.get("text", []) if isinstance(read, dict) else read
    texts = read if isinstance(read, list) else [label if isinstance(read, int | float) else read]
    return [found for text in texts if isinstance(text, str) and (found := normalised(text))]


def _score(request: RewardRequest, *, by_f1: bool) -> Score:
    golds = gold_answers(request.label or "")
    if not golds:
        return Score.failed(f"no answer in the label {request.label!r}")
    answer = normalised(final_part(completion_of(request)))
    matches = float(answer in golds)
    overlap = max(word_f1(answer, gold) for gold in golds)
    return Score.of(overlap if by_f1 else matches, acc=matches, f1=overlap)
