"""Rows as tokens, fitted into --max_len: which are cut, and which are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from datasets import Dataset

Row = Mapping[str, Any]
"""A row as TRL's trainer tokenises it: columns of token ids, and labels for `sft`."""
IGNORED = -100
"""Label of a token that is not trained."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How the rows of a stage get at most a number of tokens."""

    length: Callable[[Row], int]
    """Returns the tokens of a row's longest sequence."""
    cut: Callable[[Row, int], Row]
    """Returns the columns of a row, cut to the limit."""
    keeps: Callable[[Row, int], bool]
    """Returns whether a row, cut or not, has something to train."""
    why_not: str
    """What is wrong with the others."""


def fitted(rows: Dataset, limit: int, fit: Fit) -> tuple[Dataset, str]:
    """Return the rows that remain, cut to `limit` tokens, and a sentence about the others.

    The sentence is empty if every row fits.
    """
    kept, longer = [], 0
    for number, row in enumerate(rows):
        if fit.keeps(row, limit):
            kept.append(number)
            longer += fit.length(row) > limit
    told, total = [], len(rows)
    if out := total - len(kept):
        told.append(f"{out} of {total} rows are left out, because {fit.why_not}")
    if longer:
        told.append(f"{longer} of {total} rows are cut at their end")
    fitting = rows.select(kept) if out else rows
    return fitting.map(lambda row: fit.cut(row, limit)) if longer else fitting, "; ".join(told)


def _cut_example(row: Row, limit: int) -> Row:
    return {name: row[name][:limit] for name in ("input_ids", "labels")}


def _trains_example(row: Row, limit: int) -> bool:
    # The first token follows nothing, so that no model predicts it.
    return any(label != IGNORED for label in row["labels"][1:limit])


def _longest(row: Row) -> int:
    return max(len(row["chosen_ids"]), len(row["rejected_ids"]))


def _cut_answers(row: Row, limit: int) -> Row:
    room = limit - len(row["prompt_ids"])
    return {name: row[name][:room] for name in ("chosen_ids", "rejected_ids")}


def _trains_answers(row: Row, limit: int) -> bool:
    start = len(row["prompt_ids"])
    end = min(limit, start + min(len(row["chosen_ids"]), len(row["rejected_ids"])))
    return max(1, start) < end


NO_ROOM = "their prompts leave no room for an answer"
FITS: Mapping[str, Fit] = {
    "sft": Fit(lambda row: len(row["input_ids"]), _cut_example, _trains_example, NO_ROOM),
    "rm": Fit(
        _longest,
        lambda row, limit: {},
        lambda row, limit: _longest(row) <= limit,
        "a prompt with its answer is longer",
    ),
    "dpo": Fit(
        lambda row: len(row["prompt_ids"]) + _longest(row), _cut_answers, _trains_answers, NO_ROOM
    ),
}
