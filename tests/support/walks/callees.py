"""What a function of the product calls whenever it runs, as far as its text alone says so."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from tests.support.repository import ROOT

MAYBE = (
    *(ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ExceptHandler),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
"""What is inside of these may not run."""


@cache
def bodies(file: str) -> dict[str, ast.AST]:
    """Return the dotted names of a file's functions and classes → their code."""
    found: dict[str, ast.AST] = {}
    open_nodes: list[tuple[str, ast.AST]] = [("", ast.parse((ROOT / file).read_text()))]
    while open_nodes:
        within, node = open_nodes.pop()
        for child in ast.iter_child_nodes(node):
            name = within
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{within}.{child.name}".lstrip(".")
                found[name] = child
            open_nodes.append((name, child))
    return found


def called(function: str) -> Iterator[str]:
    """Yield FILE:FUNCTION of what FILE:FUNCTION calls in other files, whenever it runs."""
    file, _, name = function.partition(":")
    imported, fields = imports(file), classes_of_fields(file, name.rpartition(".")[0])
    body = bodies(file)[name]
    assert isinstance(body, ast.FunctionDef | ast.AsyncFunctionDef)
    for call in (call for statement in body.body for call in always(statement)):
        match call.func:
            case ast.Name(id=one):
                owner, names = one, [one]
            case ast.Attribute(value=ast.Name(id=one), attr=attribute):
                owner, names = one, [attribute, f"{one}.{attribute}"]
            case ast.Attribute(
                value=ast.Attribute(value=ast.Name(id="self"), attr=field), attr=attribute
            ):
                owner = fields.get(field, "")
                names = [f"{owner}.{attribute}"]
            case _:
                continue
        if found := imported.get(owner):
            yield from (f"{found}:{one}" for one in names if is_function(found, one))


def always(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of a statement that are made whenever it runs."""
    inner: list[ast.AST] = list(ast.iter_child_nodes(node))
    match node:
        case ast.If(test=first) | ast.While(test=first) | ast.IfExp(test=first):
            inner = [first]
        case ast.For(iter=first) | ast.Match(subject=first) | ast.BoolOp(values=[first, *_]):
            inner = [first]
        case ast.Call():
            yield node
    if not isinstance(node, MAYBE):
        for one in inner:
            yield from always(one)


def imports(file: str) -> dict[str, str]:
    """Return the names that a file imports from the product → the files that they are of."""
    found = {}
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            base = node.module.replace(".", "/")
            for one in node.names:
                places = (f"{base}/{one.name}.py", f"{base}.py")
                if here := [place for place in places if (ROOT / place).is_file()]:
                    found[one.asname or one.name] = here[0]
    return found


def classes_of_fields(file: str, owner: str) -> dict[str, str]:
    """Return the fields of a class → the names of their classes, where the text says them."""
    found = {}
    for node in ast.walk(bodies(file).get(owner, ast.Module([], []))):
        match node:
            case ast.AnnAssign(target=ast.Name(id=field), annotation=ast.Name(id=name)):
                found[field] = name
            case ast.Assign(
                targets=[ast.Attribute(attr=field)], value=ast.Call(func=ast.Name(id=name))
            ):
                found[field] = name
    return found


def is_function(file: str, name: str) -> bool:
    """Return whether it is one with a body: a protocol's have none."""
    node = bodies(file).get(name)
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    owner = bodies(file).get(name.rpartition(".")[0])
    bases = owner.bases if isinstance(owner, ast.ClassDef) else []
    return not any(isinstance(base, ast.Name) and base.id == "Protocol" for base in bases)
