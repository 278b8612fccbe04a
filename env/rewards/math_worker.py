"""A process that compares answers by math-verify: one JSON line a question, two lines an answer.

The CPU limit and the memory limit are the kernel's: math-verify's own limit is a signal handler,
which works in a main thread only and not while the interpreter computes with large numbers.
"""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

from latex2sympy2_extended import NormalizationConfig
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy import (
    Basic,
    Expr,
    FiniteSet,
    Integer,
    MatrixBase,
    Rational,
    UnevaluatedExpr,
    ceiling,
    log,
    oo,
)

from env.rewards import formula, units
from env.rewards.answers import last_boxes

SPELLING = NormalizationConfig(basic_latex=True, malformed_operators=True, nits=True)
"""Without units: math-verify drops the variables c, d, g, h, l, m, s and t for them."""
IN_BOX = (LatexExtractionConfig(boxed_match_priority=0, normalization_config=SPELLING),)
ANYWHERE = (*IN_BOX, ExprExtractionConfig())
FINAL = re.compile(r"final answer is:?\s*(\S[^\n]{0,200}?)\.?\s*I hope", re.IGNORECASE)
"""The end of an answer as Minerva's prompt asks for it."""
INTEGER = re.compile(r"-?\d{1,1000}", re.ASCII)
"""Most answers: what math-verify reads in them is known."""
SHORT = 100
"""Characters of a completion that may be an answer alone."""
RELATIVE_BELOW = 3
"""Numbers are compared to decimal places down to 10 to the minus this, and relatively below."""
MOST_ZEROS = 400
"""Decimal places by which the smallest number may be smaller than that."""
DIGITS = 15
FAR = 1e-6
"""Share of a number by which another one is surely another."""


def main() -> None:
    """Answer each line of the standard input, until it ends."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # nothing that a library prints gets between the answers
    memory = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        job = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, job["seconds"])  # SIGPROF ends the process
        label = read_label(job["label"])
        print(json.dumps({"label": bool(label)}), file=answers)
        readings = read_completion(job["answer"]) if label else []
        right = any(is_same(label, reading, job["places"]) for reading in readings)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps({"read": bool(readings), "right": right}), file=answers)


@dataclass(frozen=True, slots=True)
class Part:
    """One of the parts of an answer with commas."""

    read: tuple[Any, ...] = ()
    """What math-verify reads in it, and its text."""
    words: str = ""
    prose: bool = False
    unit: str = ""


Reading = tuple[Part, ...]


@lru_cache(maxsize=1024)  # the completions of one prompt have one label
def read_label(text: str) -> Reading:
    r"""Return the parts of a label; none if it is not a formula, or cannot stand in a box."""
    if is_object(text):
        return ()
    content = ",".join(last_boxes(rf"\boxed{{{text}}}"))
    return read(content) if content else ()


def is_object(text: str) -> bool:
    """Return whether a label is a JSON object: the answer is a part of it, hardly the whole."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def read_completion(text: str) -> list[Reading]:
    """Return the readings of a completion: of its last boxes, or of its words."""
    if final := FINAL.findall(text):
        readings = [read(final[-1])]
    elif boxes := last_boxes(text):
        readings = [read(",".join(boxes))]
    else:
        readings = [in_prose(text)]
        if len(text) <= SHORT and "\n" not in text.strip():
            readings.append(read(text))
    return [reading for reading in readings if reading]


def read(text: str) -> Reading:
    """Return the parts of an answer; none if one of them cannot be read."""
    if formula.is_prose(text):
        return in_prose(text)
    parts = [part for item in formula.items(text) for part in parts_of(item)]
    return tuple(parts) if all(part.read or part.prose for part in parts) else ()


def parts_of(item: formula.Item) -> Iterator[Part]:
    """Yield the parts of an item: several of a set."""
    if INTEGER.fullmatch(item.latex):
        yield Part((Integer(item.latex), item.latex), unit=item.unit)
        return
    found = [] if item.prose else parse(rf"\boxed{{{item.latex}}}", IN_BOX, parsing_timeout=None)
    if found and not isinstance(found[0], str):
        yield from elements(found, item.words, item.unit)
    else:
        yield Part((), item.words, item.prose)


def in_prose(text: str) -> Reading:
    """Return what math-verify finds in a text with words around formulas."""
    found = parse(formula.spelled(text), ANYWHERE, parsing_timeout=None)
    return tuple(elements(found)) if found and not isinstance(found[0], str) else ()


def elements(found: Sequence[Any], words: str = "", unit: str = "") -> Iterator[Part]:
    """Yield the elements of a set, or what is none."""
    if isinstance(found[0], FiniteSet):
        for one in found[0].args:
            yield Part((one,))
    else:
        yield Part(tuple(found), words, unit=unit)


def is_same(label: Reading, answer: Reading, places: int) -> bool:
    """Return whether the parts of both are the same, in any order.

    The answer may repeat a part of a list, if the label repeats none.
    """
    left = list(answer)
    for part in label:
        same = [other for other in left if is_same_part(part, other, places)]
        if not same:
            return False
        left.remove(same[0])
    if not left:
        return True
    repeats = any(is_same_part(*pair, places) for pair in combinations(label, 2))
    return len(label) > 1 and not repeats and all(is_in(label, other, places) for other in left)


def is_in(label: Reading, other: Part, places: int) -> bool:
    return any(is_same_part(part, other, places) for part in label)


def is_same_part(label: Part, answer: Part, places: int) -> bool:
    """Return whether two parts are equal: as words if one is in words, else as formulas."""
    if label.prose or answer.prose:
        return label.words == answer.words != ""
    if units.differ(label.unit, answer.unit):
        return False
    if label.read == answer.read:
        return True
    wanted, given = label.read[0], answer.read[0]
    if isinstance(wanted, Rational) and isinstance(given, Rational):
        return bool(wanted == given)
    numbers = [*numbers_of(wanted), *numbers_of(given)]
    if is_far(wanted, given, numbers, places):
        return False
    zeros = zeros_of(numbers)
    return bool(
        verify(
            list(label.read),
            list(answer.read),
            float_rounding=places + zeros,
            numeric_precision=DIGITS + zeros,
            timeout_seconds=None,
        )
    )


def is_far(one: Any, other: Any, values: Sequence[Any], places: int) -> bool:
    """Return whether two numbers, with these values, differ by more than any rounding.

    math-verify computes all digits of such numbers. Percents it takes for two numbers each.
    """
    if not (
        isinstance(one, Expr) and isinstance(other, Expr) and one.is_number and other.is_number
    ):
        return False
    if len(values) != 2 or one.has(UnevaluatedExpr) or other.has(UnevaluatedExpr):
        return False
    apart = abs(values[0] - values[1])
    return bool(apart > 10.0**-places and apart > max(map(abs, values)) * FAR)


def zeros_of(numbers: Sequence[Any]) -> int:
    """Return the places by which the smallest number of all is below the relative ones."""
    if not numbers:
        return 0
    smallest = min(abs(number) for number in numbers)
    return min(MOST_ZEROS, max(0, -RELATIVE_BELOW - int(ceiling(log(smallest, 10)))))


def numbers_of(value: Any) -> Iterator[Any]:
    """Yield the values of the numbers in a formula, apart from 0 and what cannot be computed."""
    if isinstance(value, MatrixBase):
        for one in value:
            yield from numbers_of(one)
    elif isinstance(value, Basic):
        if value.is_number:
            with suppress(Exception):  # sympy and mpmath raise what they like
                number = value.evalf(DIGITS)
                if abs(number) > 0 and abs(number) < oo:
                    yield number
        else:
            for one in value.args:
                yield from numbers_of(one)


if __name__ == "__main__":
    main()
