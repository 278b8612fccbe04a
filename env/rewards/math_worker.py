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
from functools import lru_cache
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

TARGETS = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
MARKS = ("$", r"\boxed", r"\fbox", r"\(", r"\[")
"""How a text shows that it has formulas with words around them."""
WORDS = re.compile(r"[^\W\d_]{2,}(?:[ -][^\W\d_]+)*")
"""An answer in words, which would else be read as a product of letters."""


NUMBER = re.compile(r"[-+]?[\d.,]+")
"""A number in itself: a comma in it may be a decimal one, where LaTeX has two numbers."""


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
        read = read_answer(job["answer"]) if label else []
        right = bool(read) and _verify(label, read, job["places"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps({"read": bool(read), "right": right}), file=answers)


@lru_cache(maxsize=1024)  # the completions of one prompt have one label
def read_label(text: str) -> tuple[Any, ...]:
    """Return what math-verify reads in a label; empty if that is no formula."""
    text = text.strip()
    if is_object(text):
        return ()
    box = rf"\boxed{{\text{{{text}}}}}" if WORDS.fullmatch(text) else rf"\boxed{{{text}}}"
    is_whole = NUMBER.fullmatch(text) or any(mark in text for mark in MARKS)
    for form in (text, box) if is_whole else (box, text):
        if (found := read_answer(form)) and not isinstance(found[0], str):
            return tuple(found)
    return ()


def is_object(text: str) -> bool:
    """Return whether a label is a JSON object: the answer is a part of it, hardly the whole."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def read_answer(text: str) -> list[Any]:
    """Return what math-verify reads in a completion: a formula, and its text."""
    return list(parse(text, TARGETS, parsing_timeout=None))


def _verify(label: tuple[Any, ...], answer: list[Any], places: int) -> bool:
    return bool(verify(list(label), answer, float_rounding=places, timeout_seconds=None))


if __name__ == "__main__":
    main()
