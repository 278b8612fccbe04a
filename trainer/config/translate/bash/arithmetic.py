"""The arithmetic of bash: whole numbers of 64 bits (bash(1), "ARITHMETIC EVALUATION")."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

from trainer.config.translate.bash.open_text import is_open
from trainer.config.translate.bash.scope import Scope, text_of
from trainer.config.translate.bash.state import ABSENT, Array, Unknown
from trainer.config.translate.bash.syntax import SHOWN, Node, below, literal, parsed

Text = Callable[[Node], str]
"""Returns a word's text, without a split."""
NUMBER = re.compile(r"\s*([-+]?)\s*(?:(0[xX][0-9a-fA-F]+)|(0[0-7]*)|([1-9]\d*)|(\d+)#(\w+))\s*")
NAME = re.compile(r"[A-Za-z_]\w*")
DEEPEST = 20
"""How often a variable may name another one."""


class NoNumberError(ValueError):
    """The sum is not known; the text says why, "" if only variables from outside lack.

    `has_line`: it names the line that is the reason.
    """

    def __init__(self, why: str, *, has_line: bool = False) -> None:
        super().__init__(why)
        self.has_line = has_line


def _quotient(a: int, b: int) -> int:
    whole = abs(a) // abs(b)
    return whole if (a < 0) == (b < 0) else -whole


def _power(a: int, b: int) -> int:
    if b < 0 or b > 10_000:
        raise NoNumberError("the exponent is out of range")
    return int(a**b)


SIGNS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
    "%": lambda a, b: a - b * _quotient(a, b),
    "**": _power,
    "<<": lambda a, b: a << (b & 63),
    ">>": lambda a, b: a >> (b & 63),
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def number(text: str) -> int:
    """Return the value of a number as text. Raises NoNumberError."""
    found = NUMBER.fullmatch(text)
    if not found:
        raise NoNumberError(f"`{text}` is not a number")
    sign, hexadecimal, octal, decimal, base, digits = found.groups()
    if base:
        if not 2 <= int(base) <= 36:
            raise NoNumberError(f"base {base} is not read")
        try:
            value = int(digits, int(base))
        except ValueError:
            raise NoNumberError(f"`{text}` is not a number") from None
    else:
        value = int(hexadecimal, 16) if hexadecimal else int(octal, 8) if octal else int(decimal)
    return wrapped(-value if sign == "-" else value)


def wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


class Sum:
    """Evaluates a tree of arithmetic; assignments in it change the scope's state."""

    def __init__(self, scope: Scope, text: Text) -> None:
        self._scope, self._text = scope, text

    def value(self, node: Node | None) -> int:
        """Return the value. Raises NoNumberError."""
        if node is None:
            return 0
        match node["Type"]:
            case "ParenArithm":
                return self.value(node["X"])
            case "UnaryArithm":
                return self._unary(node)
            case "BinaryArithm":
                return self._binary(node)
            case "Word":
                return self._word(node)
        raise NoNumberError(f"`{node['Type']}` is not read")

    def shown(self, node: Node) -> str:
        """Return the sum with what is known filled in. Raises NoNumberError."""
        match node["Type"]:
            case "ParenArithm":
                return f"({self.shown(node['X'])})"
            case "UnaryArithm" if node["Op"] in ("-", "+", "!", "~"):
                return f"{node['Op']}{self.shown(node['X'])}"
            case "BinaryArithm" if node["Op"] in SIGNS:
                return f"{self.shown(node['X'])} {node['Op']} {self.shown(node['Y'])}"
            case "Word":
                try:
                    return str(self._word(node))
                except NoNumberError as error:
                    if str(error):
                        raise
                    return self._scope.source.of(node).strip("${}")
        raise NoNumberError("a part of it is not known")

    def _unary(self, node: Node) -> int:
        op = node["Op"]
        if op in ("++", "--"):
            before = self.value(node["X"])
            after = self._assign(node, before + (1 if op == "++" else -1))
            return before if node.get("Post") else after
        value = self.value(node["X"])
        return wrapped({"-": -value, "+": value, "!": int(not value), "~": ~value}[op])

    def _binary(self, node: Node) -> int:
        op, left, right = node["Op"], node["X"], node["Y"]
        if op == "&&":
            return int(bool(self.value(left)) and bool(self.value(right)))
        if op == "||":
            return int(bool(self.value(left)) or bool(self.value(right)))
        if op == "?":
            return self.value(right["X"] if self.value(left) else right["Y"])
        if op == ",":
            self.value(left)
            return self.value(right)
        if op == "=":
            return self._assign(node, self.value(right))
        if op.endswith("=") and op[:-1] in SIGNS and op not in SIGNS:
            return self._assign(node, self._of(op[:-1], self.value(left), self.value(right)))
        if op in SIGNS:
            return self._of(op, self.value(left), self.value(right))
        raise NoNumberError(f"`{op}` is not read")

    def _of(self, op: str, left: int, right: int) -> int:
        if op in ("/", "%") and not right:
            raise NoNumberError("it divides by zero")
        return wrapped(int(SIGNS[op](left, right)))

    def _assign(self, node: Node, value: int) -> int:
        name = literal(node["X"])
        if not NAME.fullmatch(name):
            raise NoNumberError("an assignment to a part of an array is not read")
        self._scope.assign(name, str(wrapped(value)), node)
        return wrapped(value)

    def _word(self, node: Node) -> int:
        name = literal(node)
        if not NAME.fullmatch(name):
            return self._of_text(self._text(node))
        self._scope.noted(name, self._scope.value(name), node)
        return self._named(name)

    def _named(self, name: str, depth: int = 0) -> int:
        value = self._scope.value(name)
        if value is ABSENT:
            raise NoNumberError("")
        if isinstance(value, Unknown):
            self._scope.ask(name, value)
            raise NoNumberError(f"{name} is not known: {value.sentence}")
        return self._of_text(text_of(value) or "", depth)

    def _of_text(self, text: str, depth: int = 0) -> int:
        """Return the value of a variable's text, which may be another one's name."""
        if is_open(text):
            found = self._scope.unknown_piece(text)
            if found is None:
                raise NoNumberError("")
            raise NoNumberError(found.sentence, has_line=found.has_line)
        if not text.strip():
            return 0
        if depth > DEEPEST:
            raise NoNumberError("its variables name each other")
        if NAME.fullmatch(text.strip()):
            return self._named(text.strip(), depth + 1)
        if NUMBER.fullmatch(text):
            return number(text)
        try:
            (statement,) = parsed(f"(({text}))").statements
        except ValueError:
            raise NoNumberError(f"`{text}` is not a sum") from None
        if statement["Cmd"]["Type"] != "ArithmCmd" or any(
            "Param" in one for one in below(statement)
        ):
            raise NoNumberError(f"`{text}` is not a sum that is read")
        sum_ = statement["Cmd"]["X"]
        if sum_["Type"] == "Word":  # itself again
            raise NoNumberError(f"`{text}` is not a number")
        return self.value(sum_)


def index_of(scope: Scope, text: Text, node: Node, array: Array | None) -> int | str:
    """Return the index that `NAME[index]` means. Raises NoNumberError."""
    if array is not None and array.by_key:
        return _key(scope, text, node)
    place = Sum(scope, text).value(node)
    if place < 0 and array is not None:
        place += max((int(key) for key in array.values), default=-1) + 1
    return place


def _key(scope: Scope, text: Text, node: Node) -> str:
    """Return a key with its expansions; the tree may have it as a sum, as `[llama-8b]`."""
    source = scope.source.text
    start, end = node["Pos"]["Offset"], node["End"]["Offset"]
    while source[start - 1 : start].isspace():
        start -= 1
    while source[end : end + 1].isspace():
        end += 1
    made = ""
    for word in _words(node):
        made += source[start : word["Pos"]["Offset"]].decode() + text(word)
        start = word["End"]["Offset"]
    return (made + source[start:end].decode()).translate(SHOWN)


def _words(node: Node) -> list[Node]:
    """Return the words of a sum, in order."""
    if node["Type"] == "Word":
        return [node]
    return [word for key in ("X", "Y") if key in node for word in _words(node[key])]
