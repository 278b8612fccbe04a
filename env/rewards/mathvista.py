"""Answers of MathV60K and MathVista: a letter, a whole number, a decimal, a list or words."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, InvalidOperation
from typing import Any

from env.rewards.answers import final_part, last_boxed
from env.rewards.choice import chosen, label_letter
from env.rewards.completion import completion_of
from env.rewards.question_answering import normalised
from env.types import RewardRequest, Score

NUMBER = re.compile(r"[-+−]?\s*[$€£]?\s*(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|(?<=\d)\.?)(?!\d)")
FRACTION = re.compile(r"(-?\d+)\s*/\s*(\d+)")
LATEX_FRACTION = re.compile(r"\\[dt]?frac\{(-?\d+)\}\{(\d+)\}")
STATED = re.compile(r"(?:answer|therefore)(?:\s+is)?\s*:?\s*(.+)", re.IGNORECASE)
OPERATORS = re.compile(r"[+*/^=<>±×÷√]|(?<![A-Za-z]{2})[-−](?=[\w(])")
"""What words have none of: `x+1` is not `x-1`."""
OPERATION = re.compile(r"\s*[-+−]\s")
PART = re.compile(r"(?:[\w.+*/^<>±×÷√(-]|\bnot\s*|n't\s*)$")
"""Before a number that is part of a word or a formula, or denied."""
LIST = re.compile(r"\[(.+)\]|\((.+,.+)\)", re.DOTALL)
MOST_PLACES = 100
"""A label with more decimal places has none that count."""
EXACT = Context(prec=5000, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
"""Differences of numbers of thousands of digits, none of which raises."""
WRAPPER = re.compile(r"\\(?:text|textbf|mathrm)\s*\{([^{}]*)\}|\$|\\[()\[\]]|\*\*|__|`")
DEGREE = re.compile(r"\s*\^\s*\{?\s*\\circ\s*\}?")
CLAUSE = re.compile(r"[,.](?!\d)|[;\n]")
"""Ends the answer where a reason or a confirmation follows: Yes, it is."""


@dataclass(frozen=True, slots=True)
class Gold:
    """A label. `choices` are the texts behind the letters A, B, C, if the label has them."""

    answer: str
    letter: str | None = None
    number: Decimal | None = None
    precision: int | None = None
    """Decimal places that count; None: those that the label has."""
    choices: tuple[str, ...] = ()
    items: tuple[Gold, ...] = ()
    """Those of a list."""


def score(requests: Sequence[RewardRequest]) -> list[Score]:
    """1 for the label's answer, else 0; an empty or malformed label is a failure."""
    return [_score(request) for request in requests]


def read_gold(label: str) -> Gold | None:
    """Return a bare answer, or MathVista's row as JSON (answer, choices, precision); None: none."""
    row = _object(label)
    if row is None:
        row = {"answer": label}
    answer, choices = row.get("answer"), row.get("choices") or ()
    if isinstance(answer, list):
        answer = json.dumps(answer)
    if not isinstance(answer, str | int | float) or not isinstance(choices, Sequence):
        return None
    text = _bare(str(answer))
    if not text:
        return None
    texts = tuple(normalised(_bare(str(choice))) for choice in choices)
    if texts:
        return _choice(text, texts)
    precision, places = row.get("precision"), None
    if isinstance(precision, int | float) and -MOST_PLACES <= precision <= MOST_PLACES:
        places = int(precision)
    if items := _items(text):
        return Gold(text, items=tuple(_gold(item, places) for item in items))
    return _gold(text, places)


def _gold(text: str, places: int | None) -> Gold:
    """Return a label without choices."""
    number = None if (letter := label_letter(text)) else _number(text)
    return Gold(text, letter, number, places)


def _items(text: str) -> list[str]:
    """Return what stands between the commas of a list in brackets; nothing if it is none."""
    found = LIST.fullmatch(text)
    return [item.strip(" '\"") for item in (found[1] or found[2]).split(",")] if found else []


def _choice(text: str, choices: tuple[str, ...]) -> Gold | None:
    """Return a label whose answer is one of `choices`, by its text or by its letter."""
    place = choices.index(normalised(text)) if normalised(text) in choices else -1
    letter = label_letter(text)
    if place < 0 and letter is not None:
        place = ord(letter) - ord("A")
    if not 0 <= place < len(choices):
        return None
    return Gold(choices[place], chr(ord("A") + place), choices=choices)


def _object(label: str) -> Mapping[str, Any] | None:
    try:
        read = json.loads(label, parse_constant=_none)  # NaN is pandas' for none
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None


def _none(_: str) -> None:
    return None


def _score(request: RewardRequest) -> Score:
    gold = read_gold(request.label or "")
    if gold is None:
        return Score.failed(f"no answer in the label {request.label!r}")
    completion = completion_of(request)
    answer = _answer(completion)
    right = float(_is_right(gold, completion, answer))
    return Score.of(right, acc=right, format=float(bool(answer)))


def _answer(completion: str) -> str:
    """Return the text in the last box, else after "the answer is" in the last line, else all."""
    text = final_part(completion)
    boxed = last_boxed(text)
    if boxed is not None:
        return _bare(boxed)
    stated = STATED.findall(text)
    return _bare(stated[-1] if stated else text)


def _is_right(gold: Gold, completion: str, answer: str) -> bool:
    if gold.items:
        items = _items(answer) or _items(f"[{answer}]")
        return len(items) == len(gold.items) and all(
            _is_right(one, item, item) for one, item in zip(gold.items, items, strict=True)
        )
    says = any(_same_words(gold.answer, one) for one in (answer, CLAUSE.split(answer)[0]))
    if gold.letter is not None:
        letter = chosen(completion)
        return letter == gold.letter or (letter is None and says)
    if gold.number is not None:
        number = _number(answer)
        number = _only_number(answer) if number is None else number
        return number is not None and _same(gold, gold.number, number)
    return says


def _same_words(gold: str, answer: str) -> bool:
    return normalised(answer) == normalised(gold) and (
        OPERATORS.findall(answer) == OPERATORS.findall(gold)
    )


def _same(gold: Gold, wanted: Decimal, number: Decimal) -> bool:
    exponent = wanted.as_tuple().exponent
    assert isinstance(exponent, int)  # a finite number
    places = max(0, -exponent) if gold.precision is None else gold.precision
    apart = EXACT.abs(EXACT.subtract(wanted, number))
    return EXACT.add(apart, apart) < Decimal(1).scaleb(-places)


def _number(text: str) -> Decimal | None:
    """Return the number that a text is, or begins with before words; None if there is none."""
    if fraction := LATEX_FRACTION.match(text) or FRACTION.match(text):
        below = Decimal(fraction[2])
        return Decimal(fraction[1]) / below if below else None
    found = NUMBER.match(text)
    if found is None or re.match(r"\s*[-+*/^=×:]\s*\d", text[found.end() :]):
        return None  # a formula or a ratio
    try:
        return Decimal(re.sub(r"[\s,$€£+]", "", found[0]).replace("−", "-").rstrip("."))
    except InvalidOperation:
        return None


def _only_number(text: str) -> Decimal | None:
    """Return the number of a sentence that has one: There are 2 objects."""
    found = [one for one in NUMBER.finditer(text) if re.search(r"\d", one[0])]
    if len(found) != 1 or OPERATION.match(found[0][0]):
        return None
    begin = found[0].end() - len(found[0][0].lstrip())
    return None if PART.search(text[:begin]) else _number(text[begin:])


def _bare(text: str) -> str:
    text = DEGREE.sub("°", text)
    return WRAPPER.sub(lambda found: found[1] or "", text).strip().rstrip(".").strip()
