"""What a script's own options, by `argparse`, stand for: what is typed behind it, or the default.

Nothing runs. An option counts if one `add_argument` names it, and the script sets it nowhere else.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence

PARSES = ("parse_args", "parse_known_args")
SWITCHES = {"store_true": (True, False), "store_false": (False, True)}
"""An action → its value with the flag, and without it."""
NUMBERS = ("int", "float")
TEXTS = ("", "str", "Path")
LIBRARIES = (
    *("trl", "transformers", "peft", "datasets", "accelerate", "torch", "pprint", "rich"),
    *("dataclasses", "copy", "json", "logging"),
)
"""Packages whose functions change no options of a script."""
SWITCH = ("bool",)
"""Types of options whose values are known; another one is a function of the script's."""
Given = Mapping[str, tuple[str, ...]]
BOTH_WAYS = "BooleanOptionalAction"


class Options:
    """The options that a script adds, and the names that hold what was parsed."""

    def __init__(self, nodes: Sequence[ast.AST], typed: Mapping[str, tuple[str, ...]]) -> None:
        self.own: dict[str, ast.Call] = {}
        """Name of an option, as the script reads it → the call that adds it."""
        self.used: set[str] = set()
        """The names of `own` whose value was asked for."""
        self.flags: dict[str, str] = {}
        """Each flag of an option, without its first hyphens → the option's name."""
        self.parsed: set[str] = set()
        """The names of what was parsed."""
        calls = [one for one in nodes if isinstance(one, ast.Call)]
        added = [(_name(call), call) for call in calls if called(call) == "add_argument"]
        names = [name for name, _ in added]
        if any(called(call) in PARSES for call in calls):
            self.parsed = {*_holders(nodes)}
            sets = {*changed(nodes, self.parsed)}
            self.own = {
                name: call
                for name, call in added
                if name and names.count(name) == 1 and not {name, None} & sets
            }
        self.is_open = bool(self.parsed) and ("" in names or _is_handed_on(nodes, calls))
        """Whether the script may have options that are not written in it."""
        for name, call in added if self.parsed else ():
            texts = (getattr(one, "value", None) for one in call.args)
            flags = [one.lstrip("-") for one in texts if isinstance(one, str) and one[:1] == "-"]
            self.flags |= dict.fromkeys(flags, name)
            if _action(call) == BOTH_WAYS:
                self.flags |= {f"no-{flag}": name for flag in flags}
        self._typed = {name: typed[flag] for flag in typed if (name := self.of(flag))}

    def of(self, flag: str) -> str:
        """Return the option that a flag sets, also if it is cut short; "" if none."""
        found = {name for own, name in self.flags.items() if own.startswith(flag) and len(own) > 1}
        return self.flags.get(flag, "") or (found.pop() if len(found) == 1 else "")

    def parted(self, given: Given, strange: Sequence[str]) -> tuple[Given, list[str]]:
        """Return the flags with the options of one letter, which stand among other words."""
        found: dict[str, tuple[str, ...]] = {}
        left: list[str] = []
        for flag, texts in [("", strange), *given.items()]:
            name = flag
            if name:
                found[name] = ()
            for text in texts:
                short = next((one for one in (text[1:], text[1:2]) if one in self.flags), "")
                if text[:1] == "-" and short:
                    name, value = short, text[1 + len(short) :].lstrip("=")
                    found[name] = (value,) if value else ()
                elif name:
                    found[name] = (*found[name], text)
                else:
                    left.append(text)
        return found, left

    def value(self, node: ast.expr) -> ast.expr:
        """Return the value of `args.NAME`; the node itself if it is no option, or not known."""
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
            return node
        call = self.own.get(node.attr)
        if call is None or node.value.id not in self.parsed:
            return node
        value = _value(call, self._typed.get(node.attr))
        self.used.add(node.attr)
        return node if value is None else value


def _is_handed_on(nodes: Sequence[ast.AST], calls: Sequence[ast.Call]) -> bool:
    """Whether a function that is not the script's gets its parser, and may add options."""
    parsers = {
        getattr(to, "id", "")
        for one in nodes
        if isinstance(one, ast.Assign) and isinstance(one.value, ast.Call)
        if called(one.value) == "ArgumentParser"
        for to in one.targets
    }
    own = {one.name for one in nodes if isinstance(one, ast.FunctionDef)}
    return any(
        called(call) not in own and any(getattr(one, "id", "-") in parsers for one in call.args)
        for call in calls
    )


def called(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def changed(nodes: Sequence[ast.AST], parsed: set[str]) -> Iterator[str | None]:
    """Yield the options that the script sets by itself; None if it may set any."""
    makers = _makers(nodes)
    others = {
        alias.asname or alias.name
        for one in nodes
        if isinstance(one, ast.ImportFrom)
        for alias in one.names
        if (one.module or ".").split(".")[0] not in LIBRARIES or one.level
    }
    for one in nodes:
        if isinstance(one, ast.Attribute) and not isinstance(one.ctx, ast.Load):
            if getattr(one.value, "id", "") in parsed:
                yield one.attr
        elif isinstance(one, ast.Assign) and not _parses(one.value, makers):
            known = getattr(one.value, "id", "") in parsed
            if not known and parsed & {getattr(to, "id", "") for to in one.targets}:
                yield None  # another object has the name, too
        elif isinstance(one, ast.Call) and called(one) == "set_defaults":
            yield from (key.arg for key in one.keywords)
        elif isinstance(one, ast.Subscript) and not isinstance(one.ctx, ast.Load):
            if _is_namespace(one.value, parsed):
                yield None
        elif isinstance(one, ast.Import | ast.ImportFrom):
            names = [getattr(one, "module", ""), *(alias.name for alias in one.names)]
            if "configargparse" in names:
                yield None  # a file and the environment give values, too
        elif isinstance(one, ast.Call) and (_sets_any(one, parsed) or _takes(one, parsed, others)):
            yield None


def _sets_any(call: ast.Call, parsed: Collection[str]) -> bool:
    """Whether a call may set options that are not named here, or parses words of its own."""
    name, of = called(call), getattr(call.func, "value", None)
    if name == "setattr":
        return bool(call.args) and getattr(call.args[0], "id", "") in parsed
    if name == "update" and of is not None:
        return _is_namespace(of, parsed)
    return name in PARSES and bool(call.args or call.keywords)


def _takes(call: ast.Call, parsed: Collection[str], others: Collection[str]) -> bool:
    """Whether a function of another file of the user's gets what was parsed, and may change it."""
    given = [*call.args, *(one.value for one in call.keywords)]
    is_other = isinstance(call.func, ast.Name) and call.func.id in others
    return is_other and any(getattr(one, "id", "") in parsed for one in given)


def _is_namespace(node: ast.AST, parsed: Collection[str]) -> bool:
    """Whether an expression is `vars(args)`, or `args.__dict__`."""
    if isinstance(node, ast.Call) and called(node) == "vars":
        return not node.args or getattr(node.args[0], "id", "") in parsed
    return isinstance(node, ast.Attribute) and node.attr == "__dict__"


def _keywords(call: ast.Call) -> dict[str | None, ast.expr]:
    return {one.arg: one.value for one in call.keywords}


def _name(call: ast.Call) -> str:
    """Return the name by which the script reads an option; "" if it is not written as a text."""
    dest = _keywords(call).get("dest")
    given = [one.value for one in ([dest] if dest else call.args) if isinstance(one, ast.Constant)]
    texts = [one for one in given if isinstance(one, str)]
    long = next((one for one in texts if one.startswith("--")), next(iter(texts), ""))
    return long.lstrip("-").replace("-", "_")


def _holders(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the names that what was parsed is given, also as a parameter of a function."""
    makers = _makers(nodes)
    found: set[str] = set()
    for one in nodes:
        if isinstance(one, ast.Assign) and _parses(one.value, makers):
            for to in one.targets:
                first = to.elts[0] if isinstance(to, ast.Tuple) and to.elts else to
                found.add(getattr(first, "id", ""))
    found -= {""}
    for one in nodes:
        if isinstance(one, ast.Assign) and getattr(one.value, "id", "") in found:
            found |= {getattr(to, "id", "") for to in one.targets} - {""}
    yield from found
    functions = {one.name: one.args.args for one in nodes if isinstance(one, ast.FunctionDef)}
    for call in (one for one in nodes if isinstance(one, ast.Call)):
        for parameter, given in zip(functions.get(called(call), ()), call.args, strict=False):
            if _parses(given, makers) or getattr(given, "id", "") in found:
                yield parameter.arg
        for key in call.keywords if called(call) in functions else ():
            if key.arg and (_parses(key.value, makers) or getattr(key.value, "id", "") in found):
                yield key.arg


def _makers(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names of what parses: the methods, and the script's functions that return it."""
    found = {*PARSES}
    for one in nodes:
        if isinstance(one, ast.FunctionDef):
            returns = [part.value for part in ast.walk(one) if isinstance(part, ast.Return)]
            names = {
                getattr(to, "id", "")
                for part in ast.walk(one)
                if isinstance(part, ast.Assign) and _parses(part.value)
                for to in part.targets
            }
            if any(_parses(value) or getattr(value, "id", "-") in names for value in returns):
                found.add(one.name)
    return found


def _parses(node: ast.AST | None, makers: Collection[str] = PARSES) -> bool:
    return isinstance(node, ast.Call) and called(node) in makers


def _action(call: ast.Call) -> str:
    action = _keywords(call).get("action")
    return (
        str(getattr(action, "value", "") or "")
        if isinstance(action, ast.Constant)
        else (getattr(action, "attr", getattr(action, "id", "")) if action else "")
    )


def _value(call: ast.Call, typed: tuple[str, ...] | None) -> ast.expr | None:
    """Return an option's value as an expression; None if it must be given, or is not known."""
    words = _keywords(call)
    if None in words:
        return None  # **NAME may have any
    action, kind = _action(call), _kind(words.get("type"))
    if action in SWITCHES:
        given, without = SWITCHES[action]
        return words.get("default", ast.Constant(without)) if typed is None else ast.Constant(given)
    if typed is None:
        is_flag = "required" not in words and _is_dashed(call)
        default = words.get("default", ast.Constant(None) if is_flag else None)
        is_text = isinstance(default, ast.Constant) and isinstance(default.value, str)
        return None if is_text and kind not in TEXTS + NUMBERS else default
    if action not in ("", "store") or kind not in TEXTS + NUMBERS + SWITCH:
        return None
    values = [typed_value(text, kind) for text in typed]
    if "nargs" in words:
        return ast.List(elts=values, ctx=ast.Load())
    return values[0] if len(values) == 1 else None


def _kind(node: ast.expr | None) -> str:
    """Return the name of an option's type; "" without one, "?" of one that is written otherwise."""
    return str(getattr(node, "id", getattr(node, "attr", "?"))) if node else ""


def _is_dashed(call: ast.Call) -> bool:
    return any(str(getattr(one, "value", "")).startswith("-") for one in call.args)


def typed_value(text: str, kind: str) -> ast.expr:
    if kind in SWITCH:
        return ast.Constant(bool(text))  # as bool("False"), which is True
    if kind in TEXTS:
        return ast.Constant(text)
    for convert in (int, float):
        try:
            return ast.Constant(convert(text))
        except ValueError:
            pass
    return ast.Constant(text)
