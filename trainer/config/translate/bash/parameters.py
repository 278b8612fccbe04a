"""`$NAME` and `${NAME…}` (bash(1), "Parameter Expansion")."""

from __future__ import annotations

import shlex
from typing import Protocol

from trainer.config.translate.bash import patterns
from trainer.config.translate.bash.arithmetic import NoNumberError, Sum, index_of
from trainer.config.translate.bash.open_text import has_known, is_open, known_tail, opened
from trainer.config.translate.bash.patterns import Field
from trainer.config.translate.bash.scope import Scope, UnboundError, text_of
from trainer.config.translate.bash.state import ABSENT, STANDING, Array, Unknown
from trainer.config.translate.bash.syntax import Node, literal

READ = {"Type", "Pos", "End", "Dollar", "Rbrace", "Short", "Param", "Index", "Length", "Excl",
        "Exp", "Slice", "Repl", "Names"}  # fmt: skip
"""Parts of an expansion that this module reads."""
ALL = ("@", "*")


class Expands(Protocol):
    """Expands the words inside of an expansion."""

    def text(self, word: Node | None) -> str: ...
    def field(self, word: Node | None) -> Field: ...
    def default(self, word: Node | None, *, quoted: bool) -> list[Field]: ...


Values = list[str] | list[Field]


class Parameter:
    """One expansion in a scope."""

    def __init__(self, node: Node, scope: Scope, expand: Expands, *, quoted: bool) -> None:
        self._node, self._scope, self._expand, self._quoted = node, scope, expand, quoted
        self._name = str(node.get("Param", {}).get("Value", ""))

    def values(self) -> Values:
        """Return one value, one for each of `$@` and `${NAME[@]}`, or a default's fields."""
        if not set(self._node) <= READ or self._node.get("Names"):
            return [self._strange()]
        if self._node.get("Excl"):
            return self._indirect()
        if self._several():
            return self._of_list(self._list())
        value = self._value()
        if isinstance(value, str) or value is None:
            return self._of_text(value)
        if isinstance(value, Unknown):
            return [self._scope.ask(self._name, value)]
        return self._of_outside()

    def _strange(self, why: str = "") -> str:
        return self._scope.ask_for(self._node, why or "this expansion is not read")

    def _several(self) -> bool:
        return self._name in ALL or literal(self._node.get("Index")) in ALL

    def _list(self) -> list[str] | Unknown:
        state = self._scope.state
        if self._name in ALL:
            arguments = state.arguments
            return arguments if isinstance(arguments, Unknown) else list(arguments)
        value = self._scope.value(self._name)
        if isinstance(value, Unknown):
            return value
        if isinstance(value, Array):
            if value.by_key and len(value.values) > 1 and not self._node.get("Length"):
                return Unknown(f"the order of {self._name}'s keys is known only to bash")
            return [
                value.values[key]
                for key in sorted(value.values, key=lambda key: (str(type(key)), key))
            ]
        if value is ABSENT:
            return []
        if isinstance(value, str) and self._name in self._scope.state.given:
            return shlex.split(value)  # nobody can give an array otherwise
        return [value] if isinstance(value, str) else []

    def _of_list(self, found: list[str] | Unknown) -> Values:
        if isinstance(found, Unknown):
            return [self._scope.ask(self._name.strip("@*") or "1", found)]
        self._scope.noted(self._name, found, self._node)
        if self._node.get("Length"):
            return [str(len(found))]
        if cut := self._node.get("Slice"):
            return self._as_one(self._cut_list(found, cut))
        if exp := self._node.get("Exp"):
            if exp["Op"] in (":-", "-", ":+", "+"):
                full = any(found) if exp["Op"].startswith(":") else bool(found)
                if full != exp["Op"].endswith("+"):
                    return list(found) if full else []
                return self._expand.default(exp.get("Word"), quoted=self._quoted)
            return [self._changed(one) for one in found]
        if self._node.get("Repl"):
            return [self._changed(one) for one in found]
        return self._as_one(found)

    def _as_one(self, found: list[str]) -> Values:
        """Return the values; in quotes `*` makes one text of them."""
        if not self._quoted or "*" not in (self._name, literal(self._node.get("Index"))):
            return list(found)
        between = self._scope.state.variables.get("IFS", " ")
        if between is not None and not isinstance(between, str):
            return [self._strange()]
        return [(" " if between is None else between[:1]).join(found)]

    def _cut_list(self, found: list[str], cut: Node) -> list[str]:
        try:
            sum_ = Sum(self._scope, self._expand.text)
            start = sum_.value(cut.get("Offset"))
            count = sum_.value(cut["Length"]) if cut.get("Length") else None
        except NoNumberError as error:
            return [self._strange(str(error))]
        if self._name in ALL:
            found = [self._scope.place.script, *found]
        if start < 0:
            start += len(found)
        if start < 0 or (count is not None and count < 0):
            return [self._strange()]
        return found[start:] if count is None else found[start : start + count]

    def _value(self) -> object:
        """Return text, None if it is not set, Unknown, or ABSENT for a variable from outside."""
        name, scope = self._name, self._scope
        state = scope.state
        if name.isdecimal() or name in ("#", "?"):
            return self._special(name)
        if name == "BASH_SOURCE":
            return self._scope.place.sourced or self._special("0")
        if not name.isidentifier():
            return Unknown(f"`${name}` is known only when the script runs")
        if name == "PWD":
            return state.directory or ABSENT
        value = scope.value(name)
        if value is ABSENT or isinstance(value, Unknown):
            return value
        if (node := self._node.get("Index")) is None:
            return text_of(value)
        array = value if isinstance(value, Array) else Array({0: text_of(value) or ""})
        try:
            return array.values.get(index_of(scope, self._expand.text, node, array))
        except NoNumberError as error:
            why = str(error) or "the index is not known"
            return Unknown(why, has_line=error.has_line)

    def _special(self, name: str) -> object:
        state = self._scope.state
        if name == "0":
            return self._scope.place.script
        if name == "?":
            unknown = Unknown("an exit code is known only when the script runs")
            return unknown if state.status is None else str(state.status)
        if isinstance(state.arguments, Unknown):
            return state.arguments
        if name == "#":
            return str(len(state.arguments))
        place = int(name) - 1
        return state.arguments[place] if place < len(state.arguments) else None

    def _of_outside(self) -> Values:
        """Return the expansion of a variable that the script never set and nobody gave."""
        exp, name = self._node.get("Exp"), self._name
        plain = not (
            exp or any(self._node.get(key) for key in ("Length", "Slice", "Repl", "Index"))
        )
        if plain or (exp and exp["Op"] in (":?", "?")):
            return [opened(f"{{{name}}}")]
        if exp and exp["Op"] in (":-", "-", ":=", "=", ":+", "+") and name not in STANDING:
            return self._of_text(None)
        if self._scope.of_outside(self._node):
            return [opened(self._scope.source.of(self._node).removeprefix("$"))]
        return [self._strange("it depends on the script's own variables, and on one from outside")]

    def _of_text(self, value: str | None) -> Values:
        exp = self._node.get("Exp")
        if self._node.get("Length") and value is not None:
            if is_open(value):
                return [self._unknown(value)]
            return [str(len(value))]
        if exp and exp["Op"].lstrip(":") in ("-", "=", "?", "+"):
            return self._by_default(exp, value)
        if value is None and "nounset" in self._scope.state.options:
            raise UnboundError(self._name)
        self._scope.noted(self._name, value, self._node)
        if value is None:
            return ["0" if self._node.get("Length") else ""]
        return [self._changed(value)]

    def _by_default(self, exp: Node, value: str | None) -> Values:
        op = exp["Op"]
        standing = value in [opened(f"{{{name}}}") for name in STANDING]
        if value and op.startswith(":") and not (has_known(value) or standing):
            return [self._unknown(value)]
        absent = value is None or (not value and op.startswith(":"))
        sign = op.lstrip(":")
        if sign == "+":
            return [""] if absent else self._expand.default(exp.get("Word"), quoted=self._quoted)
        if not absent:
            self._scope.noted(self._name, value, self._node)
            return [value or ""]
        if sign == "?":
            raise UnboundError(self._name)
        fields = self._expand.default(exp.get("Word"), quoted=self._quoted)
        if sign == "=":
            text = " ".join("".join(piece for piece, _ in one) for one in fields)
            if self._node.get("Index") or not self._name.isidentifier():
                return [self._strange()]
            self._scope.assign(self._name, text, self._node)
            return [text]
        return fields

    def _unknown(self, value: str) -> str:
        """Return the open text of an expansion of a value that is itself open."""
        found = self._scope.unknown_piece(value) or Unknown("it depends on a variable from outside")
        return self._scope.ask(self._name, found) if self._name.isidentifier() else self._strange()

    def _changed(self, value: str) -> str:
        """Return a value after `%`, `#`, `/`, `:`, `^` or `,`."""
        if exp := self._node.get("Exp"):
            return self._by_operator(exp, value)
        if repl := self._node.get("Repl"):
            return self._with_replaced(repl, value)
        if cut := self._node.get("Slice"):
            return self._cut(cut, value)
        return value

    def _by_operator(self, exp: Node, value: str) -> str:
        op, field = exp["Op"], self._expand.field(exp.get("Word"))
        if op in ("^", "^^", ",", ",,"):
            if is_open(value):
                return self._unknown(value)
            if field:
                return self._strange()
            change = str.upper if op[0] == "^" else str.lower
            return change(value) if len(op) > 1 else change(value[:1]) + value[1:]
        pattern = patterns.regex_of(field)
        if op not in ("%", "%%", "#", "##") or pattern is None or is_open(pattern):
            return self._strange()
        if not is_open(value):
            cut = patterns.without_suffix if op[0] == "%" else patterns.without_prefix
            return cut(pattern, value, longest=len(op) > 1)
        tail = known_tail(value)
        if op == "%" and (kept := patterns.without_suffix(pattern, tail, longest=False)) != tail:
            return value[: len(value) - len(tail)] + kept
        if op == "##" and field == [("*/", False)] and "/" in tail:
            return tail.rpartition("/")[2]
        return self._unknown(value)

    def _with_replaced(self, repl: Node, value: str) -> str:
        field, by = self._expand.field(repl.get("Orig")), self._expand.text(repl.get("With"))
        at = ""
        if field and not field[0][1] and field[0][0][:1] in ("#", "%") and not repl.get("All"):
            at, field = field[0][0][0], [(field[0][0][1:], False), *field[1:]]
        pattern = patterns.regex_of(field)
        if pattern is None or is_open(pattern) or "&" in by or "\\" in by:
            return self._strange()
        if is_open(value):
            return self._unknown(value)
        if not pattern:
            return by + value if at == "#" else value + by if at == "%" else value
        return patterns.replaced(pattern, value, by, everywhere=bool(repl.get("All")), at=at)

    def _cut(self, cut: Node, value: str) -> str:
        try:
            sum_ = Sum(self._scope, self._expand.text)
            start = sum_.value(cut.get("Offset"))
            length = sum_.value(cut["Length"]) if cut.get("Length") else None
        except NoNumberError as error:
            return self._strange(str(error))
        if is_open(value):
            return self._unknown(value)
        if start < 0:
            start += len(value)
            if start < 0:
                return ""
        if length is None:
            return value[start:]
        end = len(value) + length if length < 0 else start + length
        return value[start:end] if end >= start else self._strange()

    def _indirect(self) -> Values:
        """Return `${!NAME}`, or the keys of `${!NAME[@]}`."""
        value = self._scope.value(self._name)
        if self._several() and isinstance(value, Array) and not value.by_key:
            return [str(key) for key in sorted(value.values)]
        name = text_of(value)
        if self._several() or name is None or not name.isidentifier():
            if isinstance(value, Unknown):
                return [self._scope.ask(self._name, value)]
            return [self._strange()]
        node = {key: found for key, found in self._node.items() if key != "Excl"}
        node["Param"] = {**self._node["Param"], "Value": name}
        return Parameter(node, self._scope, self._expand, quoted=self._quoted).values()
