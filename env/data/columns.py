"""Names of the columns that data sets have."""

from __future__ import annotations

from collections.abc import Mapping

PROMPT_COLUMNS = ("prompt", "question", "problem", "query", "instruction", "input")
"""Usual names of the prompts' column, the most usual first."""
ANSWER_COLUMNS = (
    *("answer", "solution", "ground_truth", "label", "target", "output", "completion", "response"),
)
"""Usual names of the answers'. Their text is tried as a completion if no --label_key is given."""
GSM8K = "openai/gsm8k"
KNOWN: Mapping[str, tuple[str, str]] = {GSM8K: ("question", "answer")}
"""Data set of the hub → its columns of prompts and of answers."""

KNOWN_TEMPLATES: Mapping[str, str] = {
    GSM8K: "{} Think step by step and end with #### and the number."
}
"""Data set of the hub → the template that asks for answers as its own are written."""


def known_template(name: str) -> str | None:
    """Return the template of a hub's data set, owner/name[:configuration]; None if unknown."""
    return KNOWN_TEMPLATES.get(name.partition(":")[0])


def known_columns(name: str) -> tuple[str, ...]:
    """Return the columns of a hub's data set, owner/name[:configuration]; () if unknown."""
    return KNOWN.get(name.partition(":")[0], ())
