"""Reads the commands of a shell script, and runs nothing.

Line continuations, comments, quotes, `NAME=value`, `NAME+=more`, `$NAME`, `${NAME:-default}`,
`$((sums))`, arrays, here documents and `bash -c "…"` are understood; conditions and loops are not.
A line that begins with `--` continues the one before, as in guides that leave the backslash out.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trainer.config.translate.rows import UNSET

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
"""Name, sign of an addition, value."""
NAME = re.compile(r"[A-Za-z_]\w*")
BRACED = re.compile(r"\{([A-Za-z_]\w*|[0-9@*])(\[[@*]\])?(?:(:?[-=])((?:[^{}]|\{[^{}]*\})*))?\}")
CUT = re.compile(r"\{[#!]?([A-Za-z_]\w*|[0-9@*])[^{}]*\}")
"""Any other expansion, such as `${NAME##*/}` and `${@:2}`."""
PLACEHOLDER = re.compile(r"<[\w./ -]+>")
HERE = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
DECLARES = ("export", "declare", "readonly", "local", "typeset")
SPACES = " \t\r"
SUM = re.compile(r"\$\(\((.*)\)\)", re.DOTALL)
SIGNS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.Div: lambda a, b: int(a / b),
}


@dataclass
class Script:
    """The commands of a script and the variables that it sets."""

    commands: list[list[str]] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    exported: list[str] = field(default_factory=list)


def read(text: str, variables: Mapping[str, str]) -> Script:
    """Return the script's commands as words. `variables` count more than what the script sets."""
    script = Script()
    _Reader(text, script, variables).read()
    return script


def value_of(sum_: str, variables: Mapping[str, str]) -> str:
    """Return the value of what is in `$((…))`; "" if a name has no number, or a sign is rare."""
    text = re.sub(
        r"\$?\{?([A-Za-z_]\w*)\}?", lambda name: variables.get(name[1], name[0]), sum_.strip()
    )
    try:
        return str(_number(ast.parse(text, mode="eval").body))
    except (SyntaxError, ValueError, ArithmeticError):
        return ""


def _number(node: ast.expr) -> int:
    """Return the value of a sum of whole numbers. Raises ValueError and ArithmeticError."""
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in SIGNS:
            return SIGNS[type(op)](_number(left), _number(right))
    raise ValueError(ast.dump(node))


class _Reader:
    """Goes through the text once; `_word` is None between two words."""

    def __init__(self, text: str, script: Script, given: Mapping[str, str]) -> None:
        self._text = text
        self._at = 0
        self._script = script
        self._given = given
        self._word: str | None = None
        self._words: list[str] = []
        self._bodies: list[str] = []
        """Ends of the here documents that begin on the next line."""

    def read(self) -> None:
        while self._at < len(self._text):
            self._step()
        self._end_command()

    def _step(self) -> None:
        text, at = self._text, self._at
        char = text[at]
        if char == "\\":
            self._escape()
        elif char == "\n":
            self._newline()
        elif char in SPACES:
            self._at += 1
            self._end_word()
            if not self._words and text.startswith("$ ", self._at):
                self._at += 2  # a guide's prompt
        elif char == "#" and self._word is None:
            end = text.find("\n", at)
            self._at = len(text) if end < 0 else end
        elif char == "'":
            end = text.find("'", at + 1)
            end = len(text) if end < 0 else end
            self._add(text[at + 1 : end])
            self._at = end + 1
        elif char == '"':
            self._quoted()
        elif char in "$`":
            self._expand_bare()
        elif char == "(" and self._word is not None and self._word.endswith("="):
            self._array()
        elif char in ";|&()<>":
            self._operator()
        else:
            self._add(char)
            self._at += 1

    def _add(self, text: str) -> None:
        self._word = (self._word or "") + text

    def _end_word(self) -> None:
        if self._word is not None:
            self._words.append(self._word)
            self._word = None

    def _end_command(self) -> None:
        self._end_word()
        words, self._words = self._words, []
        if words[:1] == ["$"]:
            words = words[1:]  # a guide's prompt
        declares = bool(words) and words[0] in DECLARES
        assigned = [ASSIGNMENT.fullmatch(word) for word in words[declares:]]
        if words and all(assigned):
            for found in filter(None, assigned):
                name, more, value = found.groups()
                before = self._script.variables.pop(name, "")
                if f"{UNSET}(" in value:
                    continue  # a value that only the shell can find
                self._script.variables[name] = f"{before}{value}" if more else value
                if words[0] == "export":
                    self._script.exported.append(name)
        elif words:
            self._script.commands.append(words)

    def _escape(self) -> None:
        after = re.compile(r"\\[ \t\r]*\n").match(self._text, self._at)
        if after:  # spaces behind the backslash are a slip, and the line still goes on
            self._at = after.end()
            self._end_word()
            return
        self._add(self._text[self._at + 1 : self._at + 2])
        self._at += 2

    def _newline(self) -> None:
        self._at += 1
        for end in self._bodies:
            self._body(end)
        self._bodies = []
        rest = self._text[self._at :].lstrip(SPACES + "\n")
        if (self._words or self._word is not None) and rest.startswith("--"):
            self._end_word()
        else:
            self._end_command()

    def _body(self, end: str) -> None:
        found = re.compile(rf"^[ \t]*{end}[ \t]*$", re.MULTILINE).search(self._text, self._at)
        body = self._text[self._at : found.start() if found else None]
        self._at = found.end() if found else len(self._text)
        if self._words[:1] == ["read"]:  # read -r -d '' NAME <<EOF
            self._script.variables[self._words[-1]] = body.replace("\\\n", " ")

    def _quoted(self) -> None:
        self._add("")
        self._at += 1
        text = self._text
        while self._at < len(text) and text[self._at] != '"':
            char = text[self._at]
            if char == "\\" and text[self._at + 1 : self._at + 2] in ('"', "\\", "$", "`", "\n"):
                self._add(text[self._at + 1].replace("\n", " "))
                self._at += 2
            elif char in "$`":
                values = self._expanded()
                self._add(" ".join(values[:1]))
                for value in values[1:]:  # "${ARRAY[@]}" is a word for each of its values
                    self._end_word()
                    self._add(value)
            else:
                self._add(char)
                self._at += 1
        self._at += 1

    def _expand_bare(self) -> None:
        """Add an expansion outside of quotes: spaces in it end a word."""
        if self._word is not None and ASSIGNMENT.fullmatch(self._word):
            self._add(" ".join(self._expanded()))  # an assignment is one word
            return
        for place, value in enumerate(self._expanded()):
            if place:
                self._end_word()
            if value.startswith(f"{UNSET}("):
                self._add(value)
                continue
            for piece in re.split(r"(\s+)", value):
                if piece.isspace():
                    self._end_word()
                elif piece:
                    self._add(piece)

    def _expanded(self) -> list[str]:
        """Return the values of the expansion here; a variable that is not set stays as it is."""
        text, at = self._text, self._at
        if text[at] == "`" or text.startswith("$(", at):
            return [self._command_substitution()]
        if braced := BRACED.match(text, at + 1):
            name, array, way, default = braced.groups()
            self._at = braced.end()
            if array and name in self._script.arrays:
                return self._script.arrays[name]
        elif cut := CUT.match(text, at + 1):
            self._at = cut.end()
            return [""] if cut[1] in ("@", "*") else [UNSET + cut[0]]
        elif bare := NAME.match(text, at + 1):
            name, way, default = bare[0], None, ""
            self._at = bare.end()
        elif text[at + 1 : at + 2] in ("@", "*"):
            name, way, default = "@", None, ""
            self._at = at + 2
        else:
            self._at = at + 1
            return ["$"]
        if name in ("@", "*"):
            return [""]
        value = self._given.get(name, self._script.variables.get(name))
        if way and (value is None or (not value and way.startswith(":"))):
            value = self._default(default)
            if way.endswith("="):
                self._script.variables[name] = value
        return [f"{UNSET}{{{name}}}" if value is None else value]

    def _default(self, text: str) -> str:
        """Return the default of an expansion, in which others may be."""
        inner = _Reader(text, Script(variables=self._script.variables), self._given)
        while inner._at < len(text):
            inner._step()
        inner._end_word()
        return " ".join(inner._words)

    def _command_substitution(self) -> str:
        """Return a sum's value, and any other `$(…)` as it stands, for the shell to expand."""
        text = self._substitution()
        if found := SUM.fullmatch(text.replace(UNSET, "$", 1)):
            sum_ = re.sub(r"\$" + BRACED.pattern, lambda braced: self._default(braced[0]), found[1])
            return value_of(sum_, {**self._script.variables, **self._given}) or text
        return text

    def _substitution(self) -> str:
        start = self._at
        if self._text[start] == "`":
            end = self._text.find("`", start + 1)
            self._at = len(self._text) if end < 0 else end + 1
            return f"{UNSET}({self._text[start + 1 : self._at - 1]})"
        depth = 0
        for place in range(start + 1, len(self._text)):
            depth += {"(": 1, ")": -1}.get(self._text[place], 0)
            if not depth:
                self._at = place + 1
                return UNSET + self._text[start + 1 : self._at]
        self._at = len(self._text)
        return UNSET + self._text[start + 1 :]

    def _array(self) -> None:
        """Read `NAME=(…)`, whose words may be on several lines."""
        name = (self._word or "")[:-1].removesuffix("+")
        inner = _Reader(self._text, Script(self._script.commands[:0]), self._given)
        inner._script.variables, inner._script.arrays = self._script.variables, self._script.arrays
        inner._at = self._at + 1
        while inner._at < len(inner._text) and inner._text[inner._at] != ")":
            if inner._text[inner._at] == "\n":
                inner._end_word()
                inner._at += 1
            else:
                inner._step()
        inner._end_word()
        before = self._script.arrays.get(name, []) if (self._word or "").endswith("+=") else []
        self._script.arrays[name] = before + inner._words
        self._at = inner._at + 1
        self._word = None

    def _operator(self) -> None:
        text, at = self._text, self._at
        if here := HERE.match(text, at):
            self._bodies.append(here[2])
            self._at = here.end()
        elif placeholder := PLACEHOLDER.match(text, at):  # <address> in a guide
            self._add(placeholder[0])
            self._at = placeholder.end()
        elif text[at] in "<>" or text.startswith("&>", at):
            if self._word is not None and self._word.isdecimal():
                self._word = None  # 2> file
            self._end_word()
            self._at = at + len(re.compile(r"&?[<>]+[&|]?[ \t]*").match(text, at)[0])  # type: ignore[index]
            before = len(self._words)
            while self._at < len(text) and text[self._at] not in " \t\r\n;|&()":
                self._step()
            self._end_word()
            del self._words[before:]
        else:
            self._at += 1
            self._end_command()
