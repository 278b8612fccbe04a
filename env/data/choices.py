"""Multiple choice: rows whose options are in a column of their own, which no prompt shows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from env.data.columns import ANSWER_COLUMNS
from env.data.rows import IMAGES, PromptError, Row

COLUMNS = ("choices", "options", "candidates", "endings")
"""Usual names of the options' column, in small letters."""
PASSAGES = ("passage", "article", "context", "support", "paragraph", "document", "story", "input")
"""Usual names of the column of what a question is about, in small letters."""
ASKED = 'End with "The answer is (X)", where X is the letter of the right option.'
LETTERS = ascii_uppercase
LETTER = re.compile(r"\(?([A-Za-z])[).:]?")
LETTERED = re.compile(r"\(?([A-Z])[).:]\s*(?=\S)")
"""Begins an option that has its own letter."""
NO_NUMBER = 10**6
"""As the number of the first option: answers are only letters, labels and texts."""
PROMPT, ANSWER = "prompt", "answer"
"""The columns of converted rows."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a row lets the policy choose from."""

    column: str
    texts: Sequence[str]
    names: Sequence[str]
    """The row's own labels; letters if it has none."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Options | None:
        """Return the options of a row; None if it has no column of them."""
        for column, value in row.items():
            if column.lower() in COLUMNS and (found := _read(value)):
                names, texts = found
                if 2 <= len(texts) <= len(LETTERS) and _are_texts([*texts, *names]):
                    return cls(column, _unlettered(texts), names)
        return None

    def place(self, answer: object, first: int = 0) -> int | None:
        """Return which option an answer names, from 0; None if none.

        `first`: the number of the first option, if answers are numbers.
        """
        if isinstance(answer, str):
            said = answer.strip()
            letter = LETTER.fullmatch(said)
            for spelled, among in (
                (said, self.names),
                (letter[1].upper() if letter else "", self.names),
                (said, self.texts),
            ):
                if spelled and among.count(spelled) == 1:
                    return among.index(spelled)
        number = _number(answer)
        if number is None or not first <= number < first + len(self.texts):
            return None
        return number - first

    def are_in(self, prompt: object) -> bool:
        """Return whether a prompt, a text or messages, has every option."""
        shown = "\n".join(_texts(prompt))
        return all(text in shown for text in self.texts)

    def asked(self, question: str) -> str:
        """Return the end of the prompt: the question, options with letters, and how to answer."""
        lines = (f"{LETTERS[place]}. {text}" for place, text in enumerate(self.texts))
        return "\n".join([question.rstrip(), *lines, ASKED])


def _read(value: object) -> tuple[Sequence[Any], Sequence[Any]] | None:
    """Return labels and texts of a column of options; None for any other value."""
    if isinstance(value, Sequence) and value and all(isinstance(one, Mapping) for one in value):
        return [one.get("label") for one in value], [one.get("text") for one in value]
    if isinstance(value, list | tuple):
        return LETTERS[: len(value)], value
    if not isinstance(value, Mapping):
        return None
    texts, names = value.get("text"), value.get("label")
    if isinstance(texts, list) and isinstance(names, list):
        return (names, texts) if len(names) == len(texts) else None
    if all(len(name) == 1 and name in LETTERS for name in value):  # {"A": "car", …}
        return list(value), list(value.values())
    return None


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) and value.strip() for value in values)


def _unlettered(texts: Sequence[str]) -> Sequence[str]:
    """Return options without letters of their own, if each begins with its letter."""
    found = [LETTERED.match(text.strip()) for text in texts]
    if [one and one[1] for one in found] == list(LETTERS[: len(texts)]):
        return [LETTERED.sub("", text.strip(), count=1) for text in texts]
    return [text.strip() for text in texts]


def _number(answer: object) -> int | None:
    if isinstance(answer, str) and re.fullmatch(r"\s*[0-9]{1,2}\s*", answer):
        return int(answer)
    return answer if isinstance(answer, int) and not isinstance(answer, bool) else None


def _texts(prompt: object) -> Iterator[str]:
    if isinstance(prompt, str):
        yield prompt
    elif isinstance(prompt, Mapping):
        for value in prompt.values():
            yield from _texts(value)
    elif isinstance(prompt, Sequence):
        for value in prompt:
            yield from _texts(value)


def unseen(rows: Sequence[Mapping[str, Any]], input_key: str, label_key: str | None) -> str:
    """Return the column of options that prompts do not show; "" if there is none.

    A row has one if its answer names an option. `label_key`: the answers' column; None: any usual.
    """
    asked = [(row, found) for row in rows if (found := Options.of(row)) is not None]
    asked = [one for one in asked if _is_answered(*one, label_key)]
    hidden = [found for row, found in asked if not found.are_in(_value(row, input_key))]
    is_usual = 2 * len(hidden) >= len(asked)  # a few may name all in their words by chance
    return hidden[0].column if hidden and is_usual else ""


def passage(row: Mapping[str, Any], input_key: str) -> tuple[str, str] | None:
    """Return column and text of what a question is about, unless the prompt shows it."""
    shown = "\n".join(_texts(_value(row, input_key)))
    found = {column.lower(): (column, row[column]) for column in row}
    texts = (found[name] for name in PASSAGES if name in found)
    return next(
        (one for one in texts if isinstance(one[1], str) and one[1].strip() not in shown), None
    )


def _is_answered(row: Mapping[str, Any], options: Options, label_key: str | None) -> bool:
    usual = (name for name in row if name in ANSWER_COLUMNS or "answer" in name.lower())
    answers = [_value(row, name) for name in ([label_key] if label_key else usual)]
    return any(options.place(one, first) is not None for one in answers for first in (0, 1))


def _value(row: Mapping[str, Any], key: str) -> Any:
    try:
        return Row("", row).value(key) if row else None
    except (PromptError, KeyError):
        return None


@dataclass(frozen=True, slots=True)
class Converted:
    """Rows whose prompt has the passage and the options, and whose answer is a letter."""

    rows: Sequence[Mapping[str, str]]
    left_out: int
    """Rows without options, or with an answer that names none."""
    first: int | None
    """The number of the first option; None if no answer is a number."""


def converted(
    rows: Iterable[Mapping[str, Any]], input_key: str, label_key: str
) -> Converted | None:
    """Return rows that show their options; None if a question is no text, or has images.

    Numbers count from 0, or from 1 if one is as great as the number of options and none is 0.
    """
    read: list[tuple[str, Options | None, Any]] = []
    for row in rows:
        question = _value(row, input_key)
        if not isinstance(question, str) or any(row.get(name) for name in IMAGES):
            return None
        if about := passage(row, input_key):
            question = f"{about[1].strip()}\n\n{question}"
        read.append((question, Options.of(row), _value(row, label_key)))
    numbers = {
        (number, len(options.texts))
        for _, options, answer in read
        if options and options.place(answer, NO_NUMBER) is None
        if (number := _number(answer)) is not None
    }
    is_from_one = any(n == count for n, count in numbers) and all(n for n, _ in numbers)
    made = [
        {PROMPT: options.asked(question), ANSWER: LETTERS[place]}
        for question, options, answer in read
        if options and (place := options.place(answer, int(is_from_one))) is not None
    ]
    return Converted(made, len(read) - len(made), int(is_from_one) if numbers else None)
