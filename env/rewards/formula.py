r"""How answers of mathematics are spelled, before math-verify reads them.

math-verify reads `0,1` as 0.1, `2516_8` as 2516, `6.02e-23` as a multiple of e, `1\,000` as 0. So
numbers are spelled here as it reads them, and lists are taken apart. A label and a completion are
spelled by the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from env.rewards import units

LONGEST = 400
"""Digits of a number that is spelled anew."""
SIGNS = {
    **dict(zip("−–，；：（）", "--,;:()", strict=True)),
    **{"×": r"\times ", "·": r"\cdot ", "÷": r"\div ", "±": r"\pm ", "∓": r"\mp ", "π": r"\pi "},
    **{"∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∈": r"\in ", "∪": r"\cup "},
    **{"∩": r"\cap ", "°": r"^\circ ", "²": "^2", "³": "^3", "\u2009": r"\,", "\u202f": r"\,"},
    "\u00a0": " ",
}
"""Characters, and LaTeX for them."""
TRANSLATION = str.maketrans(SIGNS)
NUMBER_BEGINS = r"(?<![.\w^\\])"
GROUPS = re.compile(
    rf"""(?P<open> [(\[] | \\\{{ ) | (?P<close> [)\]] | \\\}} )
    | (?<!,){NUMBER_BEGINS} (?P<number> [1-9]\d{{0,2}}
        (?: (?: ,\\!\s* | \{{,\}} | \\[!,;:\ ]\s* | ~ | , | \ ) \d{{3}} )+ )
        (?! \d | ,\d | \s*/ )""",
    re.VERBOSE | re.ASCII,
)
"""Brackets, and numbers in groups of thousands."""
REPEATING = re.compile(
    rf"""{NUMBER_BEGINS} (?P<whole>\d{{0,40}}) \. (?P<once>\d{{0,40}})
    (?: \\(?:overline|bar)\s*\{{ (?P<line>\d{{1,40}}) \}} | \( (?P<brackets>\d{{1,40}}) \)
    | \\dot\s*\{{? (?P<first>\d) \}}?
        (?: (?P<between>\d{{0,40}}) \\dot\s*\{{? (?P<last>\d) \}}? )? )""",
    re.VERBOSE | re.ASCII,
)
SCIENTIFIC = re.compile(
    rf"""{NUMBER_BEGINS} (?P<factor> \d+(?:\.\d*)? | \.\d+ )
    (?: [eE] (?P<power> [-+]?\d{{1,3}} ) (?![\w.])
    | \s* (?: \\times | \\cdot | [xX*] ) \s* 10 \s* \^ \s*
        (?: (?P<digit>\d) | \{{ \s* (?P<inner> [-+]?\d{{1,3}} ) \s* \}} ) )""",
    re.VERBOSE | re.ASCII,
)
IN_BASE = re.compile(
    rf"""{NUMBER_BEGINS} (?P<bracket>\()? 0*(?P<digits>\d[\dA-Z]*) (?(bracket)\))
    _ (?: (?P<base>\w+) | \{{ (?P<inner> (?:[^{{}}]|\{{[^{{}}]*\}})* ) \}} )""",
    re.VERBOSE | re.ASCII,
)
BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8"}
MIXED = re.compile(rf"{NUMBER_BEGINS}(\d+) +(\d+)\s*/\s*(\d+)(?![\d.])", re.ASCII)
PI = re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])")
DOUBLED = re.compile(r"\\\\(?=[A-Za-z])")
"""A backslash too many, as from JSON in JSON; in a matrix it ends a row."""
UPRIGHT = re.compile(r"\\(?:mathrm|text|rm)\s*\{\s*([ei])\s*\}")
"""The constants e and i, which math-verify takes for units."""
IMAGINARY = re.compile(r"(?<=\d)i(?![A-Za-z])")
"""Without a space math-verify takes it for a real variable."""
WITHOUT_LETTERS = re.compile(r"\\(?:text|mathrm|mbox)\s*\{([^{}A-Za-z]*)\}")
ARTICLE = re.compile(r"^(?:an?|the)\s+(?=\w)", re.IGNORECASE)
POINT = re.compile(r"(?<=\d)\.(?=\s*[-+*/^)}\]])")
PLUS_MINUS = re.compile(r"\\(pm|mp)(?![A-Za-z])")
SIZED = re.compile(r"\\(?:left|right|displaystyle|big|Big|bigg|Bigg)(?![a-zA-Z])")
DELIMITERS = re.compile(r"(?<!\\)(?:\$|\\[()\[\]])|\\?[\"“”]")
WRAPPED = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
COMMAND = re.compile(r"\\(?:begin|end)\s*\{\w+\*?\}|\\[A-Za-z]+")
WORD = re.compile(r"[^\W\d_]{4,}")
"""A word of prose, or an answer in words: shorter ones are products of letters."""
FUNCTIONS = frozenset(("sqrt", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh"))
SEPARATOR = re.compile(
    r"""(?P<deeper> \\begin\s*\{\w+\*?\} | \\(?:langle|lfloor|lceil) | \\\{ | [(\[{] )
    | (?P<higher> \\end\s*\{\w+\*?\} | \\(?:rangle|rfloor|rceil) | \\\} | [)\]}] )
    | (?P<separator> [,;] (?:\s*(?:and|or)\b)? | \\(?:text|mbox)\s*\{,?\s*(?:and|or)\s*\}
        | (?<![A-Za-z\\]) (?:and|or) (?![A-Za-z]) )
    | \\.""",
    re.VERBOSE | re.DOTALL,
)
RATIO = re.compile(r"\s*\d+(?:\.\d+)?(?:\s*:\s*\d+(?:\.\d+)?){2,}\s*")
TIME = re.compile(r"\s*\d{1,2}:0\d(?::\d\d)?\s*(?:[ap]\.?\s*m\.?)?\s*", re.IGNORECASE)
BRACES = re.compile(r"\\\{((?:(?!\\[{}]).)*)\\\}|\{([^{}]*)\}", re.DOTALL)
"""A set, or a group of LaTeX, with none inside."""
BUILDER = re.compile(r"\\\{\s*[A-Za-z]\s*(?:\||\\mid|:)(.+)\\\}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Item:
    """One of the parts of an answer with commas."""

    latex: str
    words: str = ""
    """The letters of an answer that has nothing else."""
    prose: bool = False
    """Whether it is in words and so no product of letters."""
    unit: str = ""


def spelled(text: str) -> str:
    """Return a text with the numbers in it as math-verify reads them."""
    text = text.translate(TRANSLATION)
    if r"\begin" not in text:
        text = DOUBLED.sub(r"\\", text)
    text = SIZED.sub("", text)
    text = IMAGINARY.sub(" i", UPRIGHT.sub(r" \1 ", text))
    text = WITHOUT_LETTERS.sub(r"\1", text)
    text = without_groups(text)
    text = REPEATING.sub(_fraction, text)
    text = SCIENTIFIC.sub(_decimal, text)
    text = IN_BASE.sub(_symbol, text)
    text = POINT.sub("", text)
    text = MIXED.sub(r"\1\\frac{\2}{\3}", text)
    return PI.sub(r"\\pi ", text)


def items(text: str) -> list[Item]:
    """Return the parts of an answer that has no words around it. A set is the list of its parts."""
    text = spelled(DELIMITERS.sub("", text)).strip().rstrip(".").strip()
    if whole := WRAPPED.fullmatch(text):
        return [item for part in _parts(whole[1]) for item in _items(part, in_text=True)]
    if builder := BUILDER.fullmatch(text):
        text = builder[1]
    return [item for part in _parts(_without_braces(text)) for item in _items(part)]


def is_prose(text: str) -> bool:
    """Return whether a text has words around its formulas."""
    text = DELIMITERS.sub("", text).strip().rstrip(".")
    bare = COMMAND.sub(" ", WRAPPED.sub(" ", units.split(text)[0]))
    words = set(WORD.findall(bare)) - FUNCTIONS
    return bool(words) and not _letters(text)


def _items(text: str, *, in_text: bool = False) -> Iterator[Item]:
    r"""Yield an item, or two for plus and minus. `in_text`: whether it was in `\text{…}`."""
    plain = WRAPPED.sub(r"\1", text).strip()
    if TIME.fullmatch(plain):
        yield Item(text, re.sub(r"[\s.]", "", plain).lower(), prose=True)
    elif RATIO.fullmatch(text):
        terms = text.split(":")
        yield Item(f"({','.join(f'{term}:{terms[-1]}' for term in terms)})")
    elif PLUS_MINUS.search(text):
        for signs in ({"pm": "+", "mp": "-"}, {"pm": "-", "mp": "+"}):
            yield from _items(PLUS_MINUS.sub(lambda found, of=signs: of[found[1]], text))  # type: ignore[misc]
    else:
        words = _letters(plain)
        prose = len(words) > 1 and bool(in_text or WRAPPED.fullmatch(text) or WORD.search(plain))
        latex, unit = units.split(plain if in_text and not prose else text)
        yield Item(latex, words, prose, unit)


def _letters(text: str) -> str:
    """Return the letters of a text in words, in lower case; nothing if it has more than words."""
    text = ARTICLE.sub("", WRAPPED.sub(r"\1", text).strip())
    letters = re.sub(r"[\s().,'’!?\-]|\\ ", "", text).lower()
    return letters if letters.isalpha() else ""


def _parts(text: str) -> Iterator[str]:
    """Yield what stands between the commas outside of all brackets."""
    depth, begin = 0, 0
    for found in SEPARATOR.finditer(text):
        if found["deeper"]:
            depth += 1
        elif found["higher"]:
            depth = max(0, depth - 1)
        elif found["separator"] and depth == 0:
            if part := text[begin : found.start()].strip():
                yield part
            begin = found.end()
    if part := text[begin:].strip():
        yield part


def _without_braces(text: str) -> str:
    r"""Return what is in `\{…\}` or `{…}` if that is all."""
    found = BRACES.fullmatch(text)
    return found[1] or found[2] if found else text


def without_groups(text: str) -> str:
    """Return a text without the separators of thousands.

    In brackets a bare comma separates coordinates, unless zeros behind it show a group: `(3,500)`
    is a pair, `(1,000)` a number.
    """
    depth = 0

    def joined(found: re.Match[str]) -> str:
        nonlocal depth
        number = found["number"]
        if number is None:
            depth = max(0, depth + (1 if found["open"] else -1))
            return found[0]
        digits = re.findall(r"\d+", number)
        if depth and number == ",".join(digits) and not any(one[0] == "0" for one in digits[1:]):
            return ", ".join(digits)
        return "".join(digits)

    return GROUPS.sub(joined, text)


def _fraction(found: re.Match[str]) -> str:
    if found["brackets"] and found["once"] and found["whole"].strip("0"):
        return found[0]  # 2.5(3) is a product
    period = found["line"] or found["brackets"] or found["first"]
    period += (found["between"] or "") + (found["last"] or "")
    once = (found["whole"] or "0") + found["once"]
    above = int(once + period) - int(once)
    return rf"\frac{{{above}}}{{{'9' * len(period) + '0' * len(found['once'])}}}"


def _decimal(found: re.Match[str]) -> str:
    """Return a number with a power of ten in digits: none is too small or too large then."""
    if len(found["factor"]) > LONGEST:
        return found[0]
    power = int(found["power"] or found["digit"] or found["inner"])
    return format(Decimal(found["factor"]).scaleb(power), "f")


def _symbol(found: re.Match[str]) -> str:
    """Return a symbol for a number with a base: it is neither the digits nor the value."""
    base = re.sub(r"\W", "", WRAPPED.sub(r"\1", found["base"] or found["inner"]))
    return rf"\beta_{{{BASES.get(base, base)},{found['digits']}}}"
