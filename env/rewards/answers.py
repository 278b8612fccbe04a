"""Where the answer of a completion is: after the thoughts, in tags, in a box."""

from __future__ import annotations

import re

THOUGHTS = re.compile(
    r"(?P<end></(?:seed:)?think(?:ing)?>|</(?:thoughts?|reasoning)>|\[/THINK\]|◁/think▷"
    r"|<\|end_of_thought\|>|<\|channel\|>final<\|message\|>)"
    r"|<(?:seed:)?think(?:ing)?>|<(?:thoughts?|reasoning)>|\[THINK\]|◁think▷"
    r"|<\|begin_of_thought\|>|<\|channel\|>analysis<\|message\|>"
)
"""Where thoughts begin or end, in the marks of several families of models."""
ANSWER = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL)
BRACES = re.compile(r"(?P<box>\\{1,2}(?:boxed|fbox)\s*\{)|\\.|[{}]", re.DOTALL)
"""Beginnings of boxes, and braces; an escaped one is none."""
SEPARATOR = re.compile(r"\b(?:and|or)\b|[,;]")
"""Between two boxes that are one answer."""


def final_part(completion: str) -> str:
    """Return the text in the last `<answer>` after the thoughts; without tags all that follows."""
    after = after_thoughts(completion)
    tagged = ANSWER.findall(after)
    return (tagged[-1] if tagged else after).strip()


def after_thoughts(completion: str) -> str:
    """Return what follows the last end of thoughts; without one, the whole text."""
    ends = [found.end() for found in THOUGHTS.finditer(completion) if found["end"]]
    return completion[ends[-1] :] if ends else completion


def before_thoughts(text: str) -> str:
    """Return what precedes thoughts that do not end."""
    begun = THOUGHTS.search(text)
    return text[: begun.start()] if begun else text


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last complete `\boxed{…}`; None if there is none."""
    boxes = _boxes(text)
    return boxes[-1][2] if boxes else None


def last_boxes(text: str) -> list[str]:
    r"""Return the contents of the last complete `\boxed{…}`, and of those that it goes on.

    A box goes on another one if little stands between them: "\boxed{1} and \boxed{2}". The rule is
    math-verify's.
    """
    boxes = _boxes(text)
    begin = len(boxes) - 1
    while begin > 0 and _goes_on(text[boxes[begin - 1][1] : boxes[begin][0]]):
        begin -= 1
    contents = [content for _, _, content in boxes[max(0, begin) :]]
    return [one for place, one in enumerate(contents) if contents[place - 1 : place] != [one]]


def _goes_on(between: str) -> bool:
    return len(between) < 10 or (len(between) < 70 and bool(SEPARATOR.search(between)))


def _boxes(text: str) -> list[tuple[int, int, str]]:
    """Return begin, end and content of the complete boxes; of one in another the inner alone."""
    boxes: list[tuple[int, int, str]] = []
    opened: list[re.Match[str] | None] = []  # boxes; None is another brace
    for found in BRACES.finditer(text):
        if found["box"] or found[0] == "{":
            opened.append(found if found["box"] else None)
        elif found[0] == "}" and opened:
            box = opened.pop()
            if box and (not boxes or boxes[-1][0] < box.start()):
                content = text[box.end() : found.start()].strip()
                boxes.append((box.start(), found.end(), content))
    return boxes
