"""Where the answer of a completion is: after the thoughts, in tags, in a box."""

from __future__ import annotations

import re
from collections.abc import Iterator

THOUGHTS_END = "</think>"
ANSWER = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL)
BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")


def final_part(completion: str) -> str:
    """Return the text in the last `<answer>` after the thoughts; without tags all that follows."""
    after = completion.rpartition(THOUGHTS_END)[2]
    tagged = ANSWER.findall(after)
    return (tagged[-1] if tagged else after).strip()


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last complete `\boxed{…}`; None if there is none."""
    return next(iter(reversed(list(_boxes(text)))), None)


def _boxes(text: str) -> Iterator[str]:
    for box in BOX.finditer(text):
        end = _closing(text, box.end())
        if end is not None:
            yield text[box.end() : end].strip()


def _closing(text: str, start: int) -> int | None:
    """Return the position of the brace that closes the one before `start`."""
    depth = 1
    for found in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return found.start()
    return None
