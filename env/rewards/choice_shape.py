"""The shape of a text: one character for each word or mark, by what it does in a decision.

The kinds are in `choice_cues.py`. So the rules of `choice.py` are the same for every language.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from env.rewards.choice_cues import CUES, SIGNS

EAST = "\u0900-\u0963\u0966-\u097f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Scripts in which a cue may begin within what looks like a word."""
LATIN = "A-Za-z0-9À-ÖØ-öø-ɏ"
ACCENTS = re.compile("[\u0300-\u0304\u0327]")
"""Those of Latin letters, which people leave out."""


def _table() -> dict[str, str]:
    """Return the kind of each phrase, with and without its accents."""
    table: dict[str, str] = {}
    for rows in CUES.values():
        for row in rows.split("\n"):
            kind, _, phrases = row.partition(" ")
            for phrase in filter(None, phrases.split("|")):
                table.setdefault(phrase, kind)
                bare = ACCENTS.sub("", unicodedata.normalize("NFD", phrase))
                if len(phrase) > 1:
                    table.setdefault(unicodedata.normalize("NFC", bare), kind)
    return table


CUE = _table()
LONGEST = max(len(phrase.split()) for phrase in CUE)
"""Words of a phrase."""
EASTERN = sorted((phrase for phrase in CUE if re.match(f"[{EAST}]", phrase)), key=len, reverse=True)
SIGN = {sign: kind for kind, signs in SIGNS.items() for sign in signs} | {"'": ",", '"': ","}
TOKEN = re.compile(
    rf"""(?<![{LATIN}\\])\((?P<enclosed>[A-Za-z])\)
    | (?<![{LATIN}°\\]) (?P<bare>[A-Za-z])
      (?![{LATIN}'_^] | -[{LATIN}] | \.[A-Za-z] | \([A-Za-z]\) | [^\S\n]*[=<>+*^|])
    # a bare letter is not a variable, no initial, no function
    | (?P<number>\d[\d.,]*(?<![.,]))
    | (?P<eastern>{"|".join(map(re.escape, EASTERN))}|[{EAST}])
    | (?P<word>[^\W\d_{EAST}][^\W_{EAST}]*(?:['.-][^\W_{EAST}]+)*'?)
    | (?P<arrow>[-=]{1, 3}>)
    | (?P<lines>\s*\n\s*)
    | (?P<sign>[{"".join(map(re.escape, SIGN))}])""",
    re.VERBOSE,
)
WORDS = dict.fromkeys("AEOUY", ".,:;?!n()-jcixzhTwtdes") | {"I": ".,:;?!n()-ij"}
"""Letters that are words in some language, and what follows one that is a letter of a choice."""
PROVEN = frozenset(("p.", "p,", "p!", "pn", "fi"))
"""What follows the letter A, which is then not an article: A correct. A to be right."""
SMALL = ".,:;?!n)ci-x"
"""What follows a small letter that is one of a choice."""

FORMULA = (
    r"(?s:\$\$?(?![\d\s])([^$\n]{1,400}(?<!\s))\$\$?(?!\d)"
    r"|\\\(((?:(?!\\\)).){1,400})\\\)|\\\[((?:(?!\\\]).){1,400})\\\]"
    r"|\$(?![\d\s])((?:(?!\. [A-Z])[^$\n]){12,})\Z)"
)
"""In dollar signs, not of an amount of money, or in brackets; the last one may be cut."""
CHOICE = re.compile(
    r"(?is)\W*(?:(?:[a-z]{2,}:?\s+){0,6})\(?[A-Z]\)?[.:)]?(?!\s*[=<>^_+*/|-])(?:\W.*)?"
)
"""A formula that has a letter of a choice in it, and no variable."""


def _formula(found: re.Match[str]) -> str:
    """Return a formula, or a number in its place if its letters are variables."""
    inside = found[found.lastindex or 0]
    kept = "boxed" in inside or CHOICE.fullmatch(inside) or not re.search("[A-Za-z]", inside)
    return found[0] if kept else " 0 "


MARKUP: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    (r"[’‘]", "'"),
    (r"[“”]", '"'),
    ("🅰", " A "),
    ("🅱", " B "),
    (r"\\(?:Long|long)?[Rr]ightarrow\b|\\implies\b|\\to\b", "→"),
    (r"\\therefore\b", "∴"),
    (r"\\checkmark\b|^\s*[-*]?\s*\[[xX]\]", "✓ "),
    (r"^\s*[-*]?\s*\[ \]", "✗ "),
    *[(r"\\(?:text|math|bf|rm|it|sf|mbox|underline|emph)[a-z]*\s*\{([^{}]*)\}", r"\1")] * 2,
    (FORMULA, _formula),
    (r"~~[^~\n]*~~|<(s|del)>[^<\n]*</\1>", " "),
    (r"</?(?:b|i|u|p|em|br|sub|sup|span|strong|code|mark|div|center)\b[^<>]*>", " "),
    (r"(?i:<[a-z_ ]*(?:answer|choice|option)[a-z_ ]*>)|\\f?boxed\s*\{", "\nanswer: "),
    (r"^[^\S\n]*(?:(?:[-*•>·]|#+)[^\S\n]+)+|^```.*$", ""),
    (r"</?[a-z_]{2,}>|<\|\w+\|>", "\n"),
    (r"[(\[{<【「『《〈]\s*([A-Za-z])\s*[.:]?\s*[)\]}>】」』》〉]", r"(\1)"),
    (
        r"(?i:(\*\*\*|\*\*|\*|__|_|`|['\"])\s*(option |choice )?\(?([A-Z])\s*[).:]?\s*\1)",
        r" \2(\3) ",
    ),
    (r"^A(?=:\s*\(?[A-Z]\b)", "answer"),  # `Q: …` is a line above
    (r"\\[()\[\],;! ]|\\?\$|\*+|`+|__|~|\\(?:quad|qquad|displaystyle)\b|[|\"{}]", ""),
    (r"[(\[{<]\s*([A-Za-z])\s*[.:]?\s*[)\]}>]", r"(\1)"),
    (r"\n(?=[a-z]{2})", " "),  # a sentence goes on
]
"""What is replaced, one after the other."""
REPLACED = [(re.compile(pattern, re.MULTILINE), text) for pattern, text in MARKUP]


@dataclass(frozen=True, slots=True)
class Shape:
    """The kinds of a text's words, and for each that is a letter this letter, else ''."""

    kinds: str
    letters: list[str]


def plain(text: str) -> str:
    """Return a text without markup; a letter in any brackets or in bold is in round ones."""
    text = unicodedata.normalize("NFKC", text)
    for pattern, by in REPLACED:
        text = pattern.sub(by, text)
    return text.strip()


def shape(text: str) -> Shape:
    """Return the shape of a text without markup."""
    found = list(TOKEN.finditer(text))
    kinds: list[str] = []
    letters: list[str] = []
    place = 0
    while place < len(found):
        kind, width = _kind(found[place : place + LONGEST])
        if kind in "LEl" and not _is_letter(found[place : place + LONGEST], kinds[-1:]):
            kind = "_"
        kinds.append(kind)
        letters.append(found[place][0].strip("()").upper() if kind in "LEl" else "")
        place += width
    return Shape("".join(kinds), letters)


def _kind(found: list[re.Match[str]]) -> tuple[str, int]:
    """Return the kind of the first of these words, and of how many words it is the kind."""
    first = found[0]
    if first["word"] or first["bare"]:
        return _phrase(found)
    if letter := first["enclosed"]:
        return ("E" if letter.isupper() else "l" if letter in "abcdefghij" else "_"), 1
    if first["sign"]:
        return SIGN[first[0]], 1
    if first["eastern"]:
        return CUE.get(first[0], "_"), 1
    return {"number": "m", "arrow": ":", "lines": "n"}[first.lastgroup or ""], 1


def _phrase(found: list[re.Match[str]]) -> tuple[str, int]:
    """Return the kind of the longest known phrase that these words begin with, else of a word."""
    words = [one[0].lower() if one["word"] or one["bare"] else "" for one in found]
    for width in range(words.index("") if "" in words else len(words), 0, -1):
        phrase = " ".join(words[:width])
        kind = CUE.get(phrase) or CUE.get(phrase.removesuffix("'s"))
        if kind and (width > 1 or found[0]["word"] or (kind == "j" and found[0][0].islower())):
            return kind, width
    bare = found[0]["bare"] or ""
    return ("L" if bare.isupper() else "l" if bare and bare in "abcdefghij" else "_"), 1


def _is_letter(found: list[re.Match[str]], before: list[str]) -> bool:
    """Return whether the first of these words is one of a choice: no article, pronoun, variable."""
    if before == ["N"]:
        return False
    letter, after = found[0][0], found[1:]
    proves = SMALL if letter.islower() else WORDS.get(letter)
    if not after or proves is None or found[0]["enclosed"]:
        return True
    if letter.isupper() and (after[0]["eastern"] or (letter != "I" and before in (["o"], ["a"]))):
        return True
    kind, width = _kind(after)
    then = _kind(after[width:])[0] if after[width:] else "."
    return kind in proves or (letter == "A" and kind + then in PROVEN)
