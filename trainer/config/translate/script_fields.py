"""What fields of a script's own dataclasses stand for, which transformers' parser fills.

Each has what is typed behind the script, or the class's default. Nothing runs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from contract.options import FALSE, TRUE
from trainer.config.translate.script_options import called, changed, typed_value

PARSERS = ("HfArgumentParser", "TrlParser")
"""What gives a config by the flags of the command."""
FILLS = ("parse_args_into_dataclasses", "parse_args_and_config")
HARMLESS = ("return_remaining_strings", "look_for_args_file", "fail_with_unknown_args")
"""Arguments of these methods that change no value of a field."""
SETS = ("set_defaults", "set_defaults_with_config")
Fields = Mapping[str, ast.AnnAssign]
OPTIONAL = re.compile(r"(?:typing\.)?Optional\[(.+)\]|(.+?) *\| *None")
LISTS = re.compile(r"(?:typing\.)?[Ll]ist\[(?:str|int|float)\]")


class OwnFields:
    """The fields by the names that hold the objects that are filled."""

    def __init__(self, nodes: Sequence[ast.AST], typed: Mapping[str, tuple[str, ...]]) -> None:
        self.of = _held(nodes)
        """Name of an object → its fields."""
        self.used: set[str] = set()
        """Fields whose value was asked for."""
        self._typed = {name.replace("-", "_"): texts for name, texts in typed.items()}

    def named(self, flag: str, fields: Collection[str]) -> str:
        """Return the field that a flag sets; "" if it is none of these."""
        name = flag.replace("-", "_")
        return next((one for one in (name, name.removeprefix("no_")) if one in fields), "")

    def value(self, node: ast.expr) -> ast.expr:
        """Return the value of `own.NAME`; the node itself if it is no field, or not known."""
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
            return node
        field = self.of.get(node.value.id, {}).get(node.attr)
        if field is None:
            return node
        value = _value(field, self._typed.get(node.attr), self._typed.get(f"no_{node.attr}"))
        if value is None:
            return node
        self.used.add(node.attr)
        return value


def _held(nodes: Sequence[ast.AST]) -> dict[str, Fields]:
    calls = [one for one in nodes if isinstance(one, ast.Call)]
    if any(called(call) in SETS for call in calls):
        return {}
    classes = {one.name: one for one in nodes if isinstance(one, ast.ClassDef)}
    found: dict[str, Fields] = {}
    fills: list[ast.AST] = []
    for one in nodes:
        if isinstance(one, ast.Assign) and len(one.targets) == 1:
            for name, filled in _filled(nodes, one.targets[0], one.value):
                fills.append(one)
                found[name] = {} if name in found else _fields(classes, filled)
    functions = {one.name: one.args.args for one in nodes if isinstance(one, ast.FunctionDef)}
    for call in calls:
        for parameter, given in zip(functions.get(called(call), ()), call.args, strict=False):
            if isinstance(given, ast.Name) and given.id in found:
                same = found.get(parameter.arg, found[given.id]) == found[given.id]
                found[parameter.arg] = found[given.id] if same else {}
    aliases = [one for one in nodes if isinstance(one, ast.Assign) and _id(one.value) in found]
    for one in aliases:
        found |= {_id(to): found[_id(one.value)] for to in one.targets}
    others = [one for one in nodes if one not in (*fills, *aliases)]
    sets = {*changed(others, {name for name, fields in found.items() if fields})}
    return {
        name: {key: one for key, one in fields.items() if not {key, None} & sets}
        for name, fields in found.items()
    }


def _id(node: ast.AST) -> str:
    return str(getattr(node, "id", ""))


def _filled(
    nodes: Sequence[ast.AST], target: ast.expr, value: ast.expr
) -> Iterator[tuple[str, str]]:
    """Yield the names that are given what a parser fills, and the class of each."""
    place = None
    if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
        place, value = value.slice.value, value.value
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)):
        return
    if value.func.attr not in FILLS or value.args or {k.arg for k in value.keywords} - {*HARMLESS}:
        return
    names = _classes_of(nodes, value.func.value)
    if isinstance(target, ast.Tuple | ast.List) and place is None:
        parts = [_id(one) for one in target.elts]
        yield from ((part, of) for part, of in zip(parts, names, strict=False) if part)
    elif isinstance(target, ast.Name) and isinstance(place, int) and place < len(names):
        yield target.id, names[place]


def _classes_of(nodes: Sequence[ast.AST], parser: ast.expr) -> list[str]:
    """Return the names of the classes that a parser fills, in their order."""
    if isinstance(parser, ast.Name):
        made = [
            one.value
            for one in nodes
            if isinstance(one, ast.Assign) and parser.id in {_id(to) for to in one.targets}
        ]
        parser = made[0] if len(made) == 1 else parser
    if not (isinstance(parser, ast.Call) and called(parser) in PARSERS):
        return []
    named = [one.value for one in parser.keywords if one.arg == "dataclass_types"]
    for first in [*parser.args, *named][:1]:
        parts = first.elts if isinstance(first, ast.Tuple | ast.List) else [first]
        return [_id(one) for one in parts]
    return []


def _fields(classes: Mapping[str, ast.ClassDef], name: str, depth: int = 8) -> Fields:
    """Return a class's fields with those of its bases; none if the class may set them itself."""
    own = classes.get(name)
    if own is None or depth == 0:
        return {}
    found: dict[str, ast.AnnAssign] = {}
    for base in reversed(own.bases):
        found |= _fields(classes, _id(base), depth - 1)
    for one in own.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            found[one.target.id] = one
        elif isinstance(one, ast.FunctionDef) and one.name in ("__post_init__", "__init__"):
            return {}
    return found


def _value(
    field: ast.AnnAssign, typed: tuple[str, ...] | None, off: tuple[str, ...] | None
) -> ast.expr | None:
    """Return a field's value as an expression; None if it must be given, or is not known."""
    kind = ast.unparse(field.annotation).strip("'\"")
    if found := OPTIONAL.fullmatch(kind):
        kind = found[1] or found[2]
    if kind == "bool" and off == ():
        return ast.Constant(False)
    if typed is None:
        return _default(field.value)
    if LISTS.fullmatch(kind):
        of = kind.partition("[")[2].removesuffix("]")
        return ast.List(elts=[typed_value(text, of) for text in typed], ctx=ast.Load())
    if kind == "bool":
        text = typed[0].lower() if typed else TRUE[0]
        is_known = text in (*TRUE, *FALSE) and len(typed) < 2
        return ast.Constant(text in TRUE) if is_known else None
    is_one = kind in ("int", "float", "str") and len(typed) == 1
    return typed_value(typed[0], kind) if is_one else None


def _default(node: ast.expr | None) -> ast.expr | None:
    if not (isinstance(node, ast.Call) and called(node) == "field"):
        return node
    given = {one.arg: one.value for one in node.keywords}
    made = given.get("default_factory")
    return given.get("default", made.body if isinstance(made, ast.Lambda) else None)
