"""GSM8K: the number after `####` of the completion against the number of the worked solution."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

from env.rewards.completion import completion_of
from env.types import RewardRequest, Score

MARK = "####"
WRAPPED = re.compile(
    r"(?:\s|\\(?:boxed|text[a-z]*|math[a-z]*|[(\[])?|[*_`\"'$({\[])*\$?(?=[-+−$€£.\d])"
)
"""What may stand around the number: bold, a box, formula marks, brackets, quotes."""
NUMBER = re.compile(
    r"""\s* (?P<sign>[-+−]?) \s* [$€£]? \s* (?P<minus>-?)
    (?P<digits> \d{1,3} (?:,\d{3})+ (?:\.\d+)? | \d+ (?:\.\d+)? | \.\d+ )
    (?! \d | [.,]\d | e[-+]?\d | [^\S\n]* [-+*/×^:] [^\S\n]* \d )  # no date, no sum""",
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)


def score(requests: Sequence[RewardRequest]) -> list[Score]:
    """1 for the right number, else 0; a label without a number is a failure, never a score."""
    return [_score(request) for request in requests]


def gold_answer(label: str) -> Decimal | None:
    """The number of a worked solution, or of a bare number; None where there is none."""
    text = label.rpartition(MARK)[2].strip().removesuffix(".")
    found = NUMBER.fullmatch(text.removesuffix("%"))
    return _decimal(found) if found else None


def final_answer(completion: str) -> Decimal | None:
    """The number behind the last `####`; None where there is none.

    Words may follow it ("#### 72 clips"), none may stand before it; marks may ("#### **72**").
    """
    _, mark, rest = completion.rpartition(MARK)
    wrapped = WRAPPED.match(rest)
    found = NUMBER.match(rest, wrapped.end() if wrapped else 0) if mark else None
    return _decimal(found) if found else None


def _score(request: RewardRequest) -> Score:
    gold = gold_answer(request.label or "")
    if gold is None:
        return Score.failed(f"no number in the label {request.label!r}")
    answer = final_answer(completion_of(request))
    right = float(answer == gold)
    return Score.of(right, acc=right, format=float(answer is not None))


def _decimal(found: re.Match[str]) -> Decimal:
    negative = (found["sign"] in {"-", "−"}) != (found["minus"] == "-")
    value = Decimal(found["digits"].replace(",", ""))
    return value.copy_negate() if negative else value  # a minus sign would round to 28 digits
