"""Where the answer of a completion is: after the thoughts, in tags, in a box."""

from __future__ import annotations

import re

THOUGHTS_END = "</think>"
ANSWER = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL)
BRACES = re.compile(r"(?P<box>\\{1,2}(?:boxed|fbox)\s*\{)|\\.|[{}]", re.DOTALL)
"""Beginnings of boxes, and braces; an escaped one is none."""


def final_part(completion: str) -> str:
    """Return the text in the last `<answer>` after the thoughts; without tags all that follows."""
    after = completion.rpartition(THOUGHTS_END)[2]
    tagged = ANSWER.findall(after)
    return (tagged[-1] if tagged else after).strip()


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last complete `\boxed{…}`; None if there is none."""
    opened: list[int] = []  # where the content of a box begins; -1 for another brace
    last, content = -1, None
    for found in BRACES.finditer(text):
        if found["box"] or found[0] == "{":
            opened.append(found.end() if found["box"] else -1)
        elif found[0] == "}" and opened and (start := opened.pop()) > last:
            last, content = start, text[start : found.start()].strip()
    return content
