"""Multiple choice: the letter that a completion, or a label, decides for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from env.rewards.answers import final_part, last_boxed
from env.rewards.completion import completion_of
from env.types import RewardRequest, Score

COMMAND = re.compile(
    r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathsf|bf|rm|mbox)\s*\{([^{}]*)\}"
)
MARKUP = re.compile(
    r"\\[()\[\],;! ]|\\?\$|\*+|`+|__|~|[\"“”]|\\(?:quad|qquad|displaystyle)\b|^#+ ", re.MULTILINE
)
ENCLOSED = re.compile(r"[(\[{<（【]\s*([A-Za-z])\s*[.:]?\s*[)\]}>）】]|'([A-Z])'")
LETTER = (
    r"(?<![A-Za-z0-9\\])(?:\((?P<enclosed>[A-Za-z])\)"
    r"|(?P<bare>[A-Za-z])(?![A-Za-z0-9'’_^]|-\w|\s*[=<>+]))"
)
"""Of a choice: no part of a word, and no variable of a formula."""
ALONE = re.compile(rf"\s*(?:(?:option|choice|answer)\s+)?{LETTER}[.)\]:]?\s*", re.IGNORECASE)
LEAD = re.compile(rf"\s*(?:(?:option|choice|answer)\s*)?{LETTER}", re.IGNORECASE)
FILLER = (
    r"(?:(?:therefore|thus|hence|clearly|indeed|obviously|likely|most|probably|simply|definitely|"
    r"actually|then|just|so|the|be|option|choice|letter|answer|statement|alternative)\b[\s,:]*){0,6}"
)
MARK = (
    r"(?:\b(?:answers?|ans|choice|option|solution|response|selection|pick|verdict|r[ée]ponse|antwort|"
    r"(?:correct|right|best)\s+\w+|that is (?:correct|right|true|best))\b\.?"
    r"|答案|选项|选择|正确的是)"
)
ABOUT = r"(?:\s+(?:to|for|of|here|in|that|which)\b[^.:\n]{0,80}?)?"
IS = (
    r"(?:is|are|was|would be|must be|should be|has to be|will be|remains"
    r"|[=:：为是→]|->|=>|\s[-–—]\s)"
)
STATED = (
    rf"{MARK}(?:\s+(?:choice|option|letter|left))?{ABOUT}(?:(?:\s*{IS})+\s*|\s*\n\s*){FILLER}{LETTER}",
    rf"{LETTER}(?:[.:)]\s*[^.\n]{{0,40}}?)?\s+(?:is|would be|must be|seems|appears|has to be)\s+"
    rf"(?:(?:to|be|the|clearly|indeed|therefore|thus|only|most|likely|probably|definitely)\s+)*"
    r"(?:correct|right|best|answer|true|accurate|appropriate|choice|valid)\b",
    r"(?:\b(?:choose|chose|choosing|select(?:ed|ing)?|pick(?:ed|ing)?|go(?:ing)? with|answer|"
    rf"opt(?:ing)? for|settle on|take)\b|\bans\.|选[：:]?)\s*{FILLER}{LETTER}",
    r"(?:\b(?:so|therefore|thus|hence|it'?s|it’s|it is|must be|that'?s|actually|"
    r"leaves(?: us)?(?: with)?|leads?(?: (?:me|us))? to)\b|=>|→|∴)[\s,:]*"
    rf"{FILLER}{LETTER}(?=\s*(?:[.!\n]|$))",
)
"""How a text says which letter it decides for."""
STATEMENTS = [re.compile(pattern, re.IGNORECASE) for pattern in STATED]
NEAR = 60
"""Characters around a letter that are looked at."""
REJECTED = re.compile(
    r"(?:\b(?:not|wrong|incorrect|false|never|eliminated?)|n't|n’t)\s+\w*\s*$", re.IGNORECASE
)
REFUTED = re.compile(
    r"\s+(?:is|was|are|seems|looks|can)\s*(?:n't|n’t|not|wrong|incorrect|false|too)\b",
    re.IGNORECASE,
)
ANOTHER = re.compile(
    r"\s*(?:,|/|&|\bor\b|\band\b)+\s*(?:option|choice)?\s*\(?"
    r"(?:[AI]\b(?!\s+[a-z])|[B-HJ-Z]\b(?!\s+(?:is|was|would|has|can)\b))(?!['’])"
)
"""A second letter beside the first: no decision."""
ENDS = re.compile(
    r"\s*(?:$|[.:;,!?)\n、。，]|[-–—]+\s)"
    r"|\s+(?:because|since|as|for|due|which|is|was|and|rather|instead|\()",
    re.IGNORECASE,
)
"""What follows a letter, and no article or pronoun."""
PRONOUNS = frozenset("AI")
"""Letters that are words, too."""
NUMBER = re.compile(r"\s+\d")
LISTED = re.compile(r"^\s*\(?([A-Z])[).:]\s", re.MULTILINE)
MENTIONED = re.compile(r"\b(?:option|choice)\s+\(?([A-Z])\b|\(([A-Z])\)")


def score(requests: Sequence[RewardRequest]) -> list[Score]:
    """1 for the label's letter, else 0; a label that decides for no letter is a failure."""
    return [_score(request) for request in requests]


def chosen(completion: str) -> str | None:
    """Return the letter that a text decides for; None if it decides for none or several.

    A box comes first, then the last statement ("the answer is B"), then a letter that the text
    begins or ends with, then the only letter that is named as a choice.
    """
    text = final_part(completion)
    boxed = last_boxed(text)
    text = plain(text if boxed is None else boxed)
    if alone := ALONE.fullmatch(text):
        return _letter(alone)
    if statements := sorted(_statements(text)):
        return statements[-1][1] or None
    return label_letter(text) or _last_line(text) or _only_mentioned(text)


def label_letter(label: str) -> str | None:
    """Return the letter that an answer begins with: `B`, `(b)`, `B. 12 cm`; None if it has none."""
    text = plain(label)
    found = LEAD.match(text)
    if found is None or not _is_letter(found) or len(set(LISTED.findall(text))) > 1:
        return None
    after = text[found.end() :][:NEAR]
    if ANOTHER.match(after) or REFUTED.match(after):
        return None
    before_number = str(found["bare"]).isupper() and found["bare"] not in PRONOUNS
    ends = found["enclosed"] or ENDS.match(after) or (before_number and NUMBER.match(after))
    return _letter(found) if ends else None


def plain(text: str) -> str:
    """Return a text without markup; a letter in any brackets is in round ones."""
    for _ in range(2):
        text = COMMAND.sub(r"\1", text)
    text = MARKUP.sub("", text)
    return ENCLOSED.sub(lambda found: f"({found[1] or found[2]})", text).strip()


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield where a statement ends, and its letter; no letter if it has several."""
    for pattern in STATEMENTS:
        for found in pattern.finditer(text):
            place = found.end("enclosed") + 1 if found["enclosed"] else found.end("bare")
            after, before = (
                text[place : place + NEAR],
                text[max(0, found.start() - NEAR) : found.start()],
            )
            if REFUTED.match(after) or REJECTED.search(before) or not _is_letter(found, after):
                continue
            yield place, "" if ANOTHER.match(after) else _letter(found)


def _is_letter(found: re.Match[str], after: str | None = None) -> bool:
    """Return whether a match is a letter of a choice, and no article, pronoun or variable."""
    bare = found["bare"]
    if bare is None:
        return True
    after = found.string[found.end() :] if after is None else after
    return bool(ENDS.match(after)) or (bare.isupper() and bare not in PRONOUNS)


def _letter(found: re.Match[str]) -> str:
    return str(found["enclosed"] or found["bare"]).upper()


def _last_line(text: str) -> str | None:
    """Return the letter that the last of several lines begins with, if they are no list."""
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) < 2 or len(LISTED.findall(text)) > 1:
        return None
    return label_letter(lines[-1])


def _only_mentioned(text: str) -> str | None:
    letters = {one or other for one, other in MENTIONED.findall(text)}
    return letters.pop() if len(letters) == 1 else None


def _score(request: RewardRequest) -> Score:
    gold = chosen(request.label or "")
    if gold is None:
        return Score.failed(f"no letter of a choice in the label {request.label!r}")
    letter = chosen(completion_of(request))
    right = float(letter == gold)
    return Score.of(right, acc=right, format=float(letter is not None))
