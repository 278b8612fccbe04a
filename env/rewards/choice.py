"""Multiple choice: the letter that a completion, or a label, decides for.

A text becomes a shape, one character for each word (`choice_shape.py`). The rules below are
patterns of shapes: what decides for a letter, and what takes a decision back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from env.rewards.answers import before_thoughts, final_part, last_boxed
from env.rewards.choice_shape import Shape, plain, shape
from env.rewards.completion import completion_of
from env.types import RewardRequest, Score


class Rank(IntEnum):
    """How firmly a text decides: of the firmest decisions the last one counts."""

    TENTATIVE = 1
    APPROVED = 2
    CONCLUDED = 3
    STATED = 4


class Decision(NamedTuple):
    """For a letter; for several, which is none: ''."""

    rank: Rank
    place: int
    letter: str


LAST = "J"
"""Later letters are variables more often than choices, if they are not stated as the answer."""
STOPS = ".!?;n"
LETTER = "(?P<letter>[LEl])"
IS = "[iwh:]+"
SMALL = "[fo(t,np:]{0,6}"
IN = r"[^.!?;nLElrk]"
"""A word of the same sentence, and no letter."""
END = r"(?=[.!,;n)cjd]|xf?o?[LEl]|$)"
STATED = [
    rf"a{IN}{{0,14}}?{IS}n?{SMALL}{LETTER}",  # the answer to … is (B)
    rf"a[n-]+{SMALL}{LETTER}{END}",  # a heading, and B below it
    rf"af?o?{LETTER}(?=i?(?:[.n]|$))",  # answer B
    rf"v[fi:(,]{{0,3}}n?{SMALL}{LETTER}",  # I choose B
    rf"{LETTER}[^.!?;nLElxzkdc]{{0,8}}?[iwht:]+[fhp]{{0,4}}a",  # B is the best answer
    rf"p[oa]?[_fm]{{0,4}}{IS}n?{SMALL}{LETTER}",  # the correct one is B
    rf"{LETTER}i[^.!?;nLElxzk]{{0,4}}v",  # B is what I would choose
    rf"t{LETTER}f?p?a",  # making B the answer
    rf"{LETTER}[?],?p(?=[.!,n]|$)",  # Is it B? Yes.
    rf"{LETTER}t(?=[.!n]|$)",  # B it is
    rf"b[_fi:n]{{0,5}}{LETTER}",  # the answers are B and C
]
CONCLUDED = [
    rf"a{IN}{{0,10}}?{IS}[^.!?;nLElk]{{1,16}}(?P<letter>E)",  # … is 12 cm (B)
    rf"a{IN}{{0,10}}?{IS}[^.!?;nLElk]{{1,8}},o?{LETTER}(?=[.!;n]|$)",  # … is 12 cm, B
    rf"[oy]{IN}{{0,10}}i[^.!?;nLElk,]{{0,4}}[:,]?{LETTER}{END}",  # the option that reads 12 cm is B
    rf"[str][strfyi:,(n]{{0,5}}o?i?{LETTER}{END}",  # so B.
    r"i(?P<letter>E)(?=[.n]|$)|(?<![LEl]),?j(?P<last>E)(?=[.]?n?$)",  # … is (B); or (B)
    rf"[st][^.!?;nLElk]{{0,8}},{LETTER}(?=[.!n]|$)",  # it is the second one, B
    rf"p[^.!?;,nLElxzrk]{{0,6}}i{LETTER}{END}",  # the best step in the treatment is B
    rf"xp{IS}f?o?{LETTER}",  # what is not true is B
    rf"(?<![LEl])[,:d)-]f?{LETTER}[?]?(?=[.!n]?$)",  # at the end: 42 → B
    rf"[.!?]o?{LETTER}(?=!|[.]?n|[.]?$)|[?]o?(?P<reply>[LEl])(?=[.,]|$)",  # A sentence, B.
    rf"[ge]f{{0,2}}[ao]?{LETTER}|[i:]f?o(?P<named>[LEl]){END}",  # which is option B
    rf"yf?o?{LETTER}(?=[ip_])|y[f_m]{{1,5}}(?P<named>E)",  # only B fits; only the dolphin (B)
    rf"(?:xf?[LEl],?j?){{1,9}}[:-]{LETTER}{END}",  # not A, not C: B
    rf"Tf?o?{LETTER}",  # ✓ B
    rf"{LETTER}[^.!?;nLElxz]{{0,12}}T",  # B: 12 cm ✓
]
APPROVED = [
    rf"{LETTER}o?[fi:)-]{{0,3}}[pe]",  # B is correct
    rf"{LETTER}[^.!?;nLElxzkd]{{0,8}}?{IS}[fhoc]{{0,5}}[pe]",  # B, 12 cm, is correct
    rf"{LETTER}[_t][f_]{{0,3}}p",  # B gives the correct order
    rf"zo?{IS}f?{LETTER}",  # the false statement is B
    rf"h[,:f]{{0,2}}{LETTER}(?=[.!?,n]|$)",  # probably B
]
RANKED = {Rank.STATED: STATED, Rank.CONCLUDED: CONCLUDED, Rank.APPROVED: APPROVED}
RULES = [(rank, re.compile(rule)) for rank, rules in RANKED.items() for rule in rules]
NEAR = 60
"""Words around a decision that are looked at."""
DENIED = re.compile(r"x[^,:;i]{0,4}$")
"""Before a decision: I do not think that."""
DENIED_INSIDE = re.compile(r"x[fiwh:]*$|x[^LElid]*$")
"""Before the letter: the answer is not."""
REFUTED = re.compile(r"[i:]?[fw]{0,3}(?:x(?![fo]{0,2}[LEl])|z|r)|,?d[fit]{0,4}[qz]")
"""Behind a letter: is wrong; but that is an error."""
OTHERS = re.compile(r"q[^sd]*$")
"""Before a letter: many think that; not: many think so, but."""
SUPPOSED = re.compile(r"k[^sd,]*$")
"""Before a decision: if; not: if so, then."""
IMPLIED = re.compile(r"k[^,]*[LEl][^,]*$")
"""Before a letter: if A then."""
BACK = re.compile(r"(?:^|[.!?n,(-])r")
"""A clause that takes back what was said before it."""
ANOTHER = re.compile(
    r"(?:\([^()]{0,6}\))?(?:(?:,?j|,|-)[fh]?o?|(?=E)|;(?=.(?:[.;n]|$)))(?P<letter>[LEl])(?![iwxzt:])"
)
"""A second letter behind the first, of which nothing else is said: no decision."""
ONE_BEFORE = re.compile(r"[LEl](?:,?j|-)[fh]?o?$")
ONE_LISTED = re.compile(r"[^LEl]{0,20}?n[LEl]|[^LEl]{0,3}?[j,]f?[LEl]")
"""Further letters in the lines below, or in a row."""
LETTERS = "[LEl](?:[,jo]{1,3}[LEl]){0,9}"
REJECTED = re.compile(rf"[xz]f{{0,2}}o?{LETTERS}|{LETTERS}[^.!?;nLEl]{{0,12}}?[xzr]|[LEl][?]r")
"""Not A, B or C; A and B are wrong; A? No."""
NAMED = re.compile(rf"(?:(?<!n)o|(?<=n)o(?=[LEl][^:.)n-])|(?=E)){LETTER}(?!q)")
"""A letter that is one of a choice, and does not head a paragraph."""
LEADS = re.compile(
    rf"(?:^[aofi:(]{{0,4}}|n){LETTER}(?:(?=[.!);:,n(cdj-]|x[LEl]|$)|(?<=[Ll])(?=m)|(?<=E))"
    r"|n[ao](?P<named>[LEl])(?=[.):n-]|$)"
)
"""A line that begins with a letter: B, B) 12 cm, option B: 12 cm."""
ALONE = re.compile(rf"(?:^|n){LETTER}[.)]?(?=n|$)")
"""A line that is a letter."""
OPTION = re.compile(r"^\(?([A-Z])[).:]+[^\S\n]*(\S.*)$", re.MULTILINE)
ANSWER_TEXT = re.compile(r"\banswer\s*(?:is|:)\s*:?\s*([^\n]+)", re.IGNORECASE)
NEXT_QUESTION = re.compile(
    r"(?<=\S)\s*\n\s*[*#]*(?:[Qq]uestion|Q|Problem|Exercise|Example)\b\s*\d*[*\s]*(?:[.:)]|\n).*",
    re.DOTALL,
)
"""What a model that does not stop writes behind its answer."""


def score(requests: Sequence[RewardRequest]) -> list[Score]:
    """1 for the label's letter, else 0; a label that decides for no letter is a failure."""
    return [_score(request) for request in requests]


def chosen(completion: str) -> str | None:
    """Return the letter that a text decides for; None if it decides for none or several.

    A box comes first, then the last statement ("the answer is B"), then a letter that the text
    begins or ends with, then the only letter that is named and not rejected.
    """
    text = before_thoughts(final_part(completion)).strip()
    first = NEXT_QUESTION.sub("", text, count=1)
    if first != text and (letter := chosen(first)):
        return letter
    boxed = last_boxed(text)
    if boxed is not None:
        inside = shape(plain(boxed))
        if any(inside.letters):
            return _decided(inside)
    return _decided(shape(plain(text))) or _by_text(text, boxed)


def label_letter(label: str) -> str | None:
    """Return the letter that an answer begins with: `B`, `(b)`, `B. 12 cm`; None if it has none."""
    found = _leading(shape(plain(label)))
    return found[0] if found and len(set(found)) == 1 else None


def _decided(text: Shape) -> str | None:
    decisions = sorted(_decisions(text))
    firm = [one for one in decisions if one.rank > Rank.TENTATIVE]
    if back := [found.end() for found in BACK.finditer(text.kinds)]:
        firm = [one for one in firm if one.place >= back[-1]] or firm
    if firm:
        approved = {one.letter for one in firm if one.rank is Rank.APPROVED}
        if firm[-1].rank is Rank.APPROVED and len(approved) > 1:
            return None
        return firm[-1].letter or None
    lines = _leading(text)
    if len(set(lines)) == 1:
        return lines[-1]
    if decisions:
        letters = {one.letter for one in decisions}
        return letters.pop() or None if len(letters) == 1 else None
    return _left(text)


def _decisions(text: Shape) -> Iterator[Decision]:
    for rank, rule in RULES:
        for found in rule.finditer(text.kinds):
            if _holds(text.kinds, found) and not _is_variable(text, found):
                yield _decision(text, rank, found)
    alone = [found.start("letter") for found in ALONE.finditer(text.kinds)]
    if len({text.letters[place] for place in alone}) == 1:
        yield Decision(Rank.STATED, alone[-1], text.letters[alone[-1]])


def _is_variable(text: Shape, found: re.Match[str]) -> bool:
    """Return whether the letter is a late one that is not all that is stated as the answer."""
    place = _place(found)
    late = text.kinds[place] == "L" and text.letters[place] > LAST
    ends = text.kinds[place + 1 : place + 2] in ("", ".", ",", "!", "n", ")")
    return late and not (ends and found[0].startswith("a"))


def _holds(kinds: str, found: re.Match[str]) -> bool:
    """Return whether what a rule found is said in earnest, neither denied nor asked."""
    before, inside, rest = _sentence(kinds, found)
    refuted = REFUTED.match(rest) and not (inside[:1] == "a" and kinds[_place(found)] == "E")
    if DENIED.search(before) or DENIED_INSIDE.search(inside) or refuted:
        return False
    if rest.endswith("?") and not set("h?") & set(found[0]):
        return False
    unreal = "k" in before + rest and "w" in inside + found[0] + rest[:2]
    unreal = unreal or bool(IMPLIED.search(before + inside))
    return not unreal and not OTHERS.search(before + inside)


def _decision(text: Shape, rank: Rank, found: re.Match[str]) -> Decision:
    before, inside, _ = _sentence(text.kinds, found)
    place = _place(found)
    letter = text.letters[place]
    another = ANOTHER.match(text.kinds, place + 1)
    if another is None and "b" in inside:
        another = ONE_LISTED.match(text.kinds, place + 1)
    others = set(text.letters[slice(*another.span())]) if another else set()
    if others - {letter, ""} or ONE_BEFORE.search(before + inside):
        letter = ""
    unsure = "h" in found[0]
    if rank is Rank.APPROVED:
        unsure = unsure or "w" in found[0] or "k" in before
    if unsure or SUPPOSED.search(before):
        rank = Rank.TENTATIVE
    return Decision(rank, place, letter)


def _sentence(kinds: str, found: re.Match[str]) -> tuple[str, str, str]:
    """Return a sentence before a match, from there to its letter, and behind the letter."""
    begin, place = found.start(), _place(found)
    before = re.split(rf"[{STOPS}]", kinds[max(0, begin - NEAR) : begin])[-1]
    before = "" if kinds[begin] in STOPS else before
    rest = re.split(rf"(?<=[{STOPS}])", kinds[place + 1 : place + NEAR], maxsplit=1)[0]
    return before, kinds[begin:place], rest


def _place(found: re.Match[str]) -> int:
    """Return where the letter of a match is: its only group."""
    return found.start(found.lastgroup or 0)


def _leading(text: Shape) -> list[str]:
    """Return the letters that lines begin with; none unless the first or the last line does."""
    found = [one for one in LEADS.finditer(text.kinds) if not REFUTED.match(text.kinds, one.end())]
    if not found or not (found[0].start() == 0 or "n" not in text.kinds[found[-1].end() :]):
        return []
    if any(ANOTHER.match(text.kinds, one.end()) for one in found):
        return []
    letters = [text.letters[_place(one)] for one in found]
    first, *others = letters
    in_order = others == sorted(set(others)) and letters != sorted(letters)
    if found[0].start() == 0 and len(others) > 1 and first not in others and in_order:
        return [first]  # B, and below it what is wrong with A, C and D
    return letters if max(letters) <= LAST or "(" not in text.kinds else []


def _left(text: Shape) -> str | None:
    """Return the only letter that is not rejected, if it is named as a choice."""
    rejected = {
        letter
        for found in REJECTED.finditer(text.kinds)
        for letter in text.letters[found.start() : found.end()]
    }
    left = set(text.letters) - rejected - {""}
    if len(left) != 1 or "u" in text.kinds or max(left) > LAST:
        return None
    named = {
        text.letters[_place(found)]
        for found in NAMED.finditer(text.kinds)
        if _holds(text.kinds, found)
    }
    return left.pop() if left <= named or set(text.kinds) <= set("LE.,n") else None


def _by_text(text: str, boxed: str | None) -> str | None:
    """Return the letter of the one listed option whose text is the answer."""
    said = [boxed] if boxed is not None else ANSWER_TEXT.findall(text)
    options = [(letter, _bare(option)) for letter, option in OPTION.findall(plain(text))]
    found = {letter for letter, option in options if said and option == _bare(said[-1])}
    return found.pop() if len(found) == 1 and len(dict(options)) > 1 else None


def _bare(text: str) -> str:
    return re.sub(r"[\s.,$]+|\\\w+(?=[{ ])|[{}]", "", plain(text)).lower()


def _score(request: RewardRequest) -> Score:
    gold = chosen(request.label or "")
    if gold is None:
        return Score.failed(f"no letter of a choice in the label {request.label!r}")
    letter = chosen(completion_of(request))
    right = float(letter == gold)
    return Score.of(right, acc=right, format=float(letter is not None))
