"""`[ … ]`, `test` and `[[ … ]]`: true, false, or None where only a run of the script tells."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from trainer.config.translate.bash import files, patterns
from trainer.config.translate.bash.arithmetic import NoNumberError, Sum, number
from trainer.config.translate.bash.open_text import has_known, is_open
from trainer.config.translate.bash.scope import Scope
from trainer.config.translate.bash.state import ABSENT, Array, Unknown
from trainer.config.translate.bash.syntax import Node, literal
from trainer.config.translate.bash.words import Words

Answer = bool | None
NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
UNARY = frozenset(f"-{char}" for char in "abcdefghknoprstuvwxzGLNORS")
BINARY = frozenset([*NUMBERS, "=", "==", "!=", "<", ">", "-nt", "-ot", "-ef"])


def opposite(answer: Answer) -> Answer:
    return None if answer is None else not answer


def both(left: Answer, right: Answer) -> Answer:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def either(left: Answer, right: Answer) -> Answer:
    return opposite(both(opposite(left), opposite(right)))


class InvalidTestError(ValueError):
    """`[` itself fails: exit code 2."""


def of_words(words: list[str], scope: Scope) -> Answer:
    """Return what `test` says of its arguments, by their number. Raises InvalidTestError."""
    match words:
        case []:
            return False
        case [one]:
            return _is_full(one)
        case ["!", *rest] if len(rest) < 4:
            return opposite(of_words(rest, scope))
        case [operator, one] if operator in UNARY:
            return _unary(operator, one, scope)
        case [one, operator, other] if operator in BINARY:
            return _binary(one, operator, other)
        case [one, "-a", other]:
            return both(_is_full(one), _is_full(other))
        case [one, "-o", other]:
            return either(_is_full(one), _is_full(other))
        case ["(", one, ")"]:
            return _is_full(one)
    return _of_many(words, scope)


def _of_many(words: list[str], scope: Scope) -> Answer:
    """Return the answer of more than four words: `-o` binds less than `-a`."""
    if "(" in words or ")" in words:
        return None
    for sign, join in (("-o", either), ("-a", both)):
        for place in range(1, len(words) - 1):
            if words[place] == sign and not (sign == "-a" and words[place - 1] in BINARY):
                left, right = of_words(words[:place], scope), of_words(words[place + 1 :], scope)
                return join(left, right)
    raise InvalidTestError("too many arguments")


def _is_full(text: str) -> Answer:
    return True if has_known(text) else None if text else False


def _unary(operator: str, text: str, scope: Scope) -> Answer:
    if operator == "-n":
        return _is_full(text)
    if operator == "-z":
        return opposite(_is_full(text))
    if operator == "-v" and text.isidentifier():
        value = scope.value(text)
        if value is ABSENT or isinstance(value, Unknown):
            return None
        return 0 in value.values if isinstance(value, Array) else value is not None
    if scope.state.whole:
        return files.tested(operator, text, scope.state, scope.record, scope.place)
    return None


def _binary(one: str, operator: str, other: str) -> Answer:
    if is_open(one) or is_open(other):
        same = one == other and operator in ("=", "==", "!=")
        return operator != "!=" if same else _differs(one, operator, other)
    if operator in NUMBERS:
        try:
            return NUMBERS[operator](_decimal(one), _decimal(other))
        except NoNumberError as error:
            raise InvalidTestError(str(error)) from None
    if operator in ("=", "=="):
        return one == other
    if operator == "!=":
        return one != other
    return one < other if operator == "<" else one > other if operator == ">" else None


def _differs(one: str, operator: str, other: str) -> Answer:
    """Return the answer of an equality in which one side has known text and the other is empty."""
    if (
        operator in ("=", "==", "!=")
        and "" in (one, other)
        and (has_known(one) or has_known(other))
    ):
        return operator == "!="
    return None


def _decimal(text: str) -> int:
    if not re.fullmatch(r"\s*[-+]?\d+\s*", text):
        raise NoNumberError(f"`{text}` is not a number")
    return int(text)


def of_tree(node: Node, scope: Scope) -> Answer:
    """Return what `[[ … ]]` says. Raises InvalidTestError."""
    words = Words(scope)
    match node["Type"]:
        case "ParenTest":
            return of_tree(node["X"], scope)
        case "Word":
            return _is_full(words.text(node))
        case "UnaryTest" if node["Op"] == "!":
            return opposite(of_tree(node["X"], scope))
        case "UnaryTest":
            return _unary(node["Op"], words.text(node["X"]), scope)
        case "BinaryTest" if node["Op"] == "&&":
            left = of_tree(node["X"], scope)
            return left if left is False else both(left, of_tree(node["Y"], scope))
        case "BinaryTest" if node["Op"] == "||":
            left = of_tree(node["X"], scope)
            return left if left else either(left, of_tree(node["Y"], scope))
        case "BinaryTest":
            return _comparison(node, scope, words)
    return None


def _comparison(node: Node, scope: Scope, words: Words) -> Answer:
    operator, text = node["Op"], words.text(node["X"])
    if operator in NUMBERS:
        try:
            return NUMBERS[operator](_value(node["X"], scope), _value(node["Y"], scope))
        except NoNumberError:
            return None
    if operator in ("=", "==", "!="):
        return matched(text, words.field(node["Y"]), negated=operator == "!=")
    if operator == "=~":
        return _searched(text, node["Y"], words)
    return _binary(text, operator, words.text(node["Y"]))


def _value(word: Node, scope: Scope) -> int:
    """Return a side of -eq and the like, which `[[` takes as a sum. Raises NoNumberError."""
    text = Words(scope).text(word)
    if not text.strip():
        return 0
    if text.strip().isidentifier():
        name = {"Type": "Word", "Parts": [{"Type": "Lit", "Value": text.strip()}]}
        return Sum(scope, Words(scope).text).value(name)
    if is_open(text):
        raise NoNumberError("")
    return number(text)


def matched(text: str, field: patterns.Field, *, negated: bool = False) -> Answer:
    """Return whether a text matches a pattern as a whole."""
    shown = "".join(piece for piece, _ in field)
    if is_open(text) or is_open(shown):
        if all(quoted for _, quoted in field):
            return _binary(text, "!=" if negated else "==", shown)
        if shown == "*":
            return not negated
        return None
    pattern = patterns.regex_of(field)
    return None if pattern is None else patterns.matches(pattern, text) != negated


SAME_IN_BOTH = re.compile(r"(?:[\w\s/.^$|()+*?:,=-]|\[[\w.-]+\]|\[\^?[\w.-]+\])*")
"""Regular expressions that Python reads as POSIX's extended ones."""


def _searched(text: str, word: Node, words: Words) -> Answer:
    field = words.field(word)
    pattern = "".join(re.escape(piece) if quoted else piece for piece, quoted in field)
    bare = "".join(piece for piece, quoted in field if not quoted)
    if is_open(text) or is_open(pattern) or not SAME_IN_BOTH.fullmatch(bare) or "(?" in bare:
        return None
    try:
        return re.search(pattern.replace("$", r"\Z"), text) is not None
    except re.error:
        return None


def default_of(statements: list[Node]) -> tuple[str, bool]:
    """Return the variable whose emptiness is all that is asked, and whether true means empty.

    That is a default, as `${NAME:-…}` is one. ("", False): another condition.
    """
    if len(statements) != 1:
        return "", False
    statement, command = statements[0], statements[0].get("Cmd") or {}
    empty = not statement.get("Negated")
    if command.get("Type") == "TestClause":
        return _of_one(command["X"], empty=empty)
    words = command.get("Args") or []
    if command.get("Type") != "CallExpr" or not words or literal(words[0]) not in ("[", "test"):
        return "", False
    words = words[1:-1] if literal(words[0]) == "[" else words[1:]
    if words and literal(words[0]) == "!":
        words, empty = words[1:], not empty
    match words:
        case [one]:
            return _variable(one), not empty
        case [sign, one] if literal(sign) in ("-z", "-n", "-v"):
            name = literal(one) if literal(sign) == "-v" else _variable(one)
            return name, empty == (literal(sign) == "-z")
        case [one, sign, other] if literal(sign) in ("=", "==", "!=") and _is_empty(other):
            return _variable(one), empty == (literal(sign) != "!=")
    return "", False


def _of_one(node: Node, *, empty: bool) -> tuple[str, bool]:
    match node:
        case {"Type": "UnaryTest", "Op": "!", "X": inner}:
            return _of_one(inner, empty=not empty)
        case {"Type": "UnaryTest", "Op": "-z" | "-n" as sign, "X": word}:
            return _variable(word), empty == (sign == "-z")
        case {"Type": "UnaryTest", "Op": "-v", "X": word}:
            return literal(word), not empty
        case {"Type": "BinaryTest", "Op": "=" | "==" | "!=" as sign, "X": one, "Y": other}:
            return (_variable(one), empty == (sign != "!=")) if _is_empty(other) else ("", False)
        case {"Type": "Word"}:
            return _variable(node), not empty
    return "", False


def _variable(word: Node) -> str:
    """Return the name if the word is nothing but `$NAME`."""
    parts = word.get("Parts") or []
    if len(parts) == 1 and parts[0]["Type"] == "DblQuoted":
        parts = parts[0].get("Parts") or []
    match parts:
        case [{"Type": "ParamExp", "Param": {"Value": name}} as part]:
            extra = set(part) & {"Exp", "Index", "Length", "Slice", "Repl", "Excl"}
            return "" if extra else str(name)
    return ""


def _is_empty(word: Node) -> bool:
    parts = word.get("Parts") or []
    return all(
        part["Type"] in ("DblQuoted", "SglQuoted") and not (part.get("Parts") or part.get("Value"))
        for part in parts
    )
