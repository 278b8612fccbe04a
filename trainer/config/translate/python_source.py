"""What the source of a Python script says: its calls, and what its names stand for. Nothing runs.

A name stands for its value if the script certainly assigns it before, and changes it nowhere.
"""

from __future__ import annotations

import ast
import platform
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from trainer.config.translate.python_arithmetic import MOST_DEPTH, computed
from trainer.config.translate.script_fields import OwnFields
from trainer.config.translate.script_flow import FUNCTIONS, Places, decide
from trainer.config.translate.script_options import LIBRARIES, Options

MOST_SHOWN = 60
"""Characters of an argument in a sentence."""
CHANGES = ("append", "clear", "extend", "insert", "pop", "remove", "setdefault", "update")
"""Methods that change a list or a dictionary."""
ONLY_READ = ("dict", "list", "tuple", "len", "str", "print", "sorted", "sum", "dumps", "update")
"""Functions that change no list or dictionary that they are given."""
BUILT = (ast.Assign, ast.AnnAssign, ast.NamedExpr)
ENUMS = ("SchedulerType", "IntervalStrategy", "SaveStrategy")
"""Classes of transformers whose names are their values in capitals."""
NOTEBOOK = "!%"
"""With what a command of a notebook begins."""
BLOCKS = (ast.stmt, ast.ExceptHandler)


def fault(file: str) -> str:
    """Return why a file is no Python; "" if it is, or is not here."""
    try:
        ast.parse(Path(file).read_bytes())
    except SyntaxError as error:
        where, first = f"{file} line {error.lineno}", (error.text or "").split()[:1]
        if first and first[0][0] in NOTEBOOK:
            what = f"{first[0]} is a notebook's command, and no Python"
            return f"{where}: {what}. Leave out the lines that begin with ! or %"
        version = ".".join(platform.python_version_tuple()[:2])
        return f"{where} is not Python {version}: {error.msg}"
    except ValueError as error:
        return f"{file} is not Python: {error}"
    except (OSError, RecursionError):
        pass
    return ""


class Source:
    """A script's syntax; that of an empty one if it is not here, or is no Python."""

    def __init__(self, file: str, typed: Mapping[str, tuple[str, ...]] | None = None) -> None:
        """`typed`: the flags behind the script, of which its own options have their values."""
        self.file = file
        try:
            self.tree = ast.parse(Path(file).read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            self.tree = ast.Module([], [])
        self.inner = _inner(self.tree)
        """Functions that an import of the file does not give."""
        self._read(typed or {})
        decide(self.tree, self.resolved)
        options, fields = self.options.used, self.fields.used
        self._read(typed or {})
        self.options.used |= options
        self.fields.used |= fields
        self.imports = {
            alias.asname or alias.name: f"{'.' * one.level}{one.module or ''}.{alias.name}"
            for one in self.nodes
            if isinstance(one, ast.ImportFrom)
            for alias in one.names
        }
        """A name → module and name from which the script imports it."""
        self.modules = {
            alias.asname or alias.name: alias.name
            for one in self.nodes
            if isinstance(one, ast.Import)
            for alias in one.names
        }
        """A name → the module that it is."""
        self.classes = {one.name: one for one in self.nodes if isinstance(one, ast.ClassDef)}
        self.functions = {one.name for one in self.nodes if isinstance(one, FUNCTIONS)}

    def _read(self, typed: Mapping[str, tuple[str, ...]]) -> None:
        self.nodes = [*ast.walk(self.tree)]
        self.places = Places(self.tree)
        self._owners: dict[ast.AST, ast.AST] = {}
        self._any: list[ast.AST] = []
        self._of_name: dict[str, list[ast.AST]] = {}
        """A name → the parts of the syntax that may give it a value, or change that."""
        for one in self.nodes:
            if isinstance(one, (*FUNCTIONS, ast.Lambda)):
                self._owners |= dict.fromkeys(ast.walk(one.args), one)
            if _binds_any(one):
                self._any.append(one)
            for name in {*_concerned(one)} - {""}:
                self._of_name.setdefault(name, []).append(one)
        self.options = Options(self.nodes, typed)
        self.fields = OwnFields(self.nodes, typed)

    def kinds(self, name: str) -> dict[str, str]:
        """Return the names by which a class is called here → the script's own subclass, or ""."""
        found = {name: ""}
        found |= {one: "" for one, whole in self.imports.items() if whole.endswith(f".{name}")}
        for own, node in self.classes.items():
            if any(named(base) in found for base in node.bases):
                found[own] = own
        return found

    def calls(self, names: Collection[str]) -> list[ast.Call]:
        return [one for one in self.nodes if isinstance(one, ast.Call) and named(one.func) in names]

    def imported(self, name: str) -> str:
        """Return module and name of an import; "" if the name has another value, too."""
        others = (one for one, *_ in self.bindings(name) if not isinstance(one, ast.alias))
        return "" if any(others) else self.imports.get(name, "")

    def is_used(self, call: ast.Call) -> bool:
        """Whether what a call returns may be used: not if its only name is never read."""
        built = [one for one in self.nodes if isinstance(one, BUILT) and one.value is call]
        names = [plain_name(to) for one in built for to in targets(one)]
        read = {
            one.id
            for one in self.nodes
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)
        }
        return not names or "" in names or bool({*names} & read)

    def resolved(self, node: ast.expr, depth: int = MOST_DEPTH) -> ast.expr:
        """Return what a name, an entry or an option stands for, and what is computed as its value.

        Anything else is returned as it is.
        """
        found = self._bound(node) if isinstance(node, ast.Name) else node
        if isinstance(found, ast.Subscript):
            found = self._entry(found, depth)
        return computed(self._attribute(found), self._look)

    def _look(self, node: ast.Name | ast.Attribute | ast.Subscript) -> ast.expr:
        if isinstance(node, ast.Subscript):
            return self._entry(node, MOST_DEPTH)
        return self._bound(node) if isinstance(node, ast.Name) else self._attribute(node)

    def _attribute(self, node: ast.expr) -> ast.expr:
        """Return the value of an option, or of a name of transformers' such as COSINE."""
        words = path(node).removesuffix(".value").split(".")
        is_own = any(not isinstance(one, ast.alias) for one in self._of_name.get(words[0], ()))
        if words[-2:-1] and words[-2] in ENUMS and not is_own:
            return ast.copy_location(ast.Constant(words[-1].lower()), node)
        return self.fields.value(self.options.value(node))

    def _entry(self, node: ast.Subscript, depth: int) -> ast.expr:
        """Return an entry of a dictionary that is written in the script; else the node itself."""
        if depth == 0:
            return node
        of, key = self.resolved(node.value, depth - 1), constant(node.slice)
        if not isinstance(of, ast.Dict) or not isinstance(key, str):
            return node
        entries = dict(self.entries(of))
        found = self.resolved(entries.get(key, node), depth - 1)
        is_open = "" in entries or isinstance(found, ast.Dict | ast.List)  # may have another name
        return node if is_open else found

    def _bound(self, node: ast.Name) -> ast.expr:
        """Return what a name stands for; the name itself if that is not certain."""
        return self._value(node) or node

    def _value(self, node: ast.Name) -> ast.expr | None:
        """Return the value that certainly reaches the use of a name; None if none does."""
        found = [*self.bindings(node.id)]
        scopes = self.places.scopes(node)
        visible = (one for one in scopes if one is scopes[0] or not isinstance(one, ast.ClassDef))
        of = next((one for one in visible if any(scope is one for *_, scope in found)), None)
        own = [(part, value) for part, value, scope in found if scope is of]
        alone = len(own) == 1
        if len(found) > 1 and self._is_global(node.id):
            return None
        is_ordered = of is scopes[0] and not self.places.is_in_loop(node)
        if is_ordered and not alone:
            own = [one for one in own if _line(one[0]) < node.lineno]
        if not own or (not is_ordered and not alone):
            return None
        if not all(self.places.reaches(part, node) for part, _ in own):
            return None
        value = max(own, key=lambda one: _line(one[0]))[1]
        is_open = isinstance(value, ast.List | ast.Dict) or (
            isinstance(value, ast.Call) and named(value.func) in ("dict", "list")
        )
        return None if self._is_changed(node, is_ordered, is_open) else value

    def _is_global(self, name: str) -> bool:
        kinds = (ast.Global, ast.Nonlocal)
        return any(isinstance(one, kinds) for one in self._of_name.get(name, ()))

    def _is_changed(self, node: ast.Name, is_ordered: bool, is_open: bool) -> bool:
        """Whether what a name stands for may be another one by its own method, or an entry."""
        own = self.places.scopes(node)[0]
        return any(
            (_changes(one, node.id) or (is_open and _hands_on(one, node.id)))
            and not (
                is_ordered
                and self.places.scopes(one)[0] is own
                and getattr(one, "lineno", 0) > node.lineno
            )
            for one in self._of_name.get(node.id, ())
        )

    def bindings(self, name: str) -> Iterator[tuple[ast.AST, ast.expr | None, ast.AST | None]]:
        """Yield what gives a name a value, the value, and the function or class that it is in.

        The value is None for what is not written as an expression.
        """
        plain: set[ast.AST] = set()
        if name in self._of_name:
            yield from ((one, None, self.places.scopes(one)[0]) for one in self._any)
        for one in self._of_name.get(name, ()):
            scope = self.places.scopes(one)[0]
            if isinstance(one, BUILT):
                for to in targets(one):
                    if plain_name(to) == name:
                        plain.add(to)
                        if one.value is not None:
                            yield one, one.value, scope
            elif isinstance(one, ast.arg) and one.arg == name:
                yield one, None, self._owners.get(one)
            elif one not in plain and _names(one) == name:
                yield one, None, scope

    def arguments(self, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
        """Yield the named arguments, and of each `**NAME` what its dictionary has.

        The name is "" for one whose dictionary is not written in the script.
        """
        for one in call.keywords:
            yield from [(one.arg, one.value)] if one.arg else self.entries(one.value)

    def entries(self, node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
        """Yield what a dictionary has: key and value; the key is "" for a part not written."""
        found = self.resolved(node)
        if isinstance(found, ast.Dict):
            made: list[tuple[str, ast.expr]] = []
            for key, value in zip(found.keys, found.values, strict=True):
                if key is None:
                    made += self.entries(value)
                elif isinstance(key, ast.Constant) and isinstance(key.value, str):
                    made.append((key.value, value))
                else:
                    made.append(("", node))
            unknown = [place for place, (key, _) in enumerate(made) if not key]
            yield from made[unknown[-1] if unknown else 0 :]  # it may change all before it
        elif isinstance(found, ast.Call) and named(found.func) == "dict":
            for one in found.args:
                yield from self.entries(one)
            yield from self.arguments(found)
        else:
            yield "", node


def _inner(tree: ast.Module) -> frozenset[str]:
    """Return the names of functions that stand in another one, or below `if __name__ == …`."""
    outer: set[str] = set()
    left: list[ast.AST] = [*tree.body]
    while left:
        one = left.pop()
        if isinstance(one, FUNCTIONS):
            outer.add(one.name)
        elif not (isinstance(one, ast.If) and "__name__" in ast.unparse(one.test)):
            left += [child for child in ast.iter_child_nodes(one) if isinstance(child, BLOCKS)]
    every = {one.name for one in ast.walk(tree) if isinstance(one, FUNCTIONS)}
    return frozenset(every - outer)


def _binds_any(one: ast.AST) -> bool:
    """Whether a part of the syntax may give a value to any name: `exec`, or `import *`."""
    if isinstance(one, ast.ImportFrom):
        root = (one.module or "").split(".")[0]
        return one.names[0].name == "*" and (root not in LIBRARIES or one.level > 0)
    return isinstance(one, ast.Call) and plain_name(one.func) == "exec"


def _concerned(one: ast.AST) -> Iterator[str]:
    """Yield the names whose value a part of the syntax may give, or change."""
    yield _names(one)
    if isinstance(one, BUILT):
        yield from map(plain_name, targets(one))
        yield plain_name(one.value) if one.value else ""
    elif isinstance(one, ast.arg):
        yield one.arg
    elif isinstance(one, ast.Call):
        yield from map(plain_name, one.args)
        yield plain_name(one.func.value) if isinstance(one.func, ast.Attribute) else ""
    elif isinstance(one, ast.Subscript):
        of: ast.expr = one
        while isinstance(of, ast.Subscript):
            of = of.value
        yield plain_name(of)
    elif isinstance(one, ast.Global | ast.Nonlocal):
        yield from one.names


def _names(one: ast.AST) -> str:
    """Return the name to which a part of the syntax gives a value that is not written; or ""."""
    if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load):
        return one.id
    if isinstance(one, ast.alias):
        return one.asname or one.name
    is_named = isinstance(one, (*FUNCTIONS, ast.ClassDef, ast.ExceptHandler, ast.MatchAs))
    return (one.name or "") if is_named else ""  # type: ignore[attr-defined]


def _line(node: ast.AST) -> int:
    return int(getattr(node, "end_lineno", 0) or 0)


def _changes(one: ast.AST, name: str) -> bool:
    """Whether a part of the syntax changes what a name stands for."""
    if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute):
        return one.func.attr in CHANGES and plain_name(one.func.value) == name
    if isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store | ast.Del):
        of: ast.expr = one.value
        while isinstance(of, ast.Subscript):
            of = of.value
        return plain_name(of) == name
    return False


def _hands_on(one: ast.AST, name: str) -> bool:
    """Whether a list or a dictionary has another name, too, or a function that may change it."""
    if isinstance(one, BUILT):
        return one.value is not None and plain_name(one.value) == name
    is_call = isinstance(one, ast.Call) and named(one.func) not in ONLY_READ
    return is_call and name in map(plain_name, one.args)  # type: ignore[attr-defined]


def targets(one: ast.Assign | ast.AnnAssign | ast.NamedExpr) -> list[ast.expr]:
    return one.targets if isinstance(one, ast.Assign) else [one.target]


def named(node: ast.AST) -> str:
    """Return the last name of `a.b.c`; "" of another expression."""
    return str(getattr(node, "id", getattr(node, "attr", "")))


def plain_name(node: ast.AST) -> str:
    """Return a name that stands alone; "" of another expression."""
    return node.id if isinstance(node, ast.Name) else ""


def path(node: ast.AST) -> str:
    """Return `a.b.c` of names and attributes; "" of another expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    return ".".join([node.id, *parts]) if isinstance(node, ast.Name) else ""


def constant(node: ast.expr) -> object:
    """Return a number, a text, a switch, or a list of them; None of another expression."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    scalars = value if isinstance(value, list | tuple) else [value]
    return value if all(isinstance(one, str | int | float) for one in scalars) else None


def is_empty(node: ast.expr) -> bool:
    return isinstance(node, ast.List | ast.Tuple) and not node.elts


def is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def shown(node: ast.expr) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"
