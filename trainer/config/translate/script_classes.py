"""The defaults of a script's own class of GRPOConfig, also in a file next to the script."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainer.config.translate.python_source import Source, named, plain_name
from trainer.config.translate.script_flow import FUNCTIONS

PACKAGES = ("trl", "transformers", "unsloth", "peft", "datasets")
AFTER = "__post_init__"


@dataclass(frozen=True)
class Own:
    """A class of the user's, and the source that has it."""

    source: Source
    node: ast.ClassDef


def found(source: Source, name: str, depth: int = 8) -> list[Own] | None:
    """Return a class with its own bases, from the class on; None if a part is not here.

    A class of TRL's packages has none.
    """
    if depth == 0:
        return None
    if node := source.classes.get(name):
        chain = [Own(source, node)]
        for base in node.bases:
            of = found(source, plain_name(base), depth - 1) if plain_name(base) else []
            if of is None:
                return None
            chain += of
        return chain
    whole = source.imports.get(name, "")
    if not whole or whole.split(".")[0] in PACKAGES:
        return []
    module, _, own = whole.rpartition(".")
    file = _file(source.file, module)
    return found(Source(file), own, depth - 1) if file else None


def _file(script: str, module: str) -> str:
    """Return the file of a module beside the script, or beside its package; "" if none is here."""
    parts = module.lstrip(".").split(".")
    here = Path(script).resolve().parent
    for directory in (here, here.parent):
        for file in (Path(*parts).with_suffix(".py"), Path(*parts, "__init__.py")):
            if (directory / file).is_file():
                return str(directory / file)
    return ""


def fields(own: Own) -> Iterator[tuple[str, ast.expr | None, int]]:
    """Yield a class's fields: name, default and line. The default is None if it cannot be read."""
    is_dataclass = any("dataclass" in ast.dump(one) for one in own.node.decorator_list)
    for one in own.node.body:
        if isinstance(one, ast.AnnAssign) and one.value is not None:
            name = plain_name(one.target)
            yield name, _default(own.source, one.value) if is_dataclass else None, one.lineno
        elif isinstance(one, ast.Assign):
            for to in one.targets:
                yield plain_name(to), None, one.lineno
        elif not isinstance(one, (ast.AnnAssign, ast.Expr, ast.Pass, *FUNCTIONS)):
            yield "", None, one.lineno


def _default(source: Source, node: ast.expr) -> ast.expr | None:
    if not (isinstance(node, ast.Call) and named(node.func) == "field"):
        return source.resolved(node)
    given = {one.arg: one.value for one in node.keywords}
    if "default" in given:
        return source.resolved(given["default"])
    made = given.get("default_factory")
    if isinstance(made, ast.Lambda):
        return source.resolved(made.body)
    empty = {"list": ast.List(elts=[], ctx=ast.Load()), "dict": ast.Dict(keys=[], values=[])}
    return empty.get(plain_name(made)) if made is not None else None


def after(own: Own) -> Iterator[tuple[str, ast.expr | None, int]]:
    """Yield what `__post_init__` sets: attribute, value and line; "" for what may set any."""
    for method in own.node.body:
        if not isinstance(method, FUNCTIONS) or method.name != AFTER:
            continue
        for one in method.body:
            targets = one.targets if isinstance(one, ast.Assign) else []
            if targets and all(_is_own(to) for to in targets) and isinstance(one, ast.Assign):
                for to in targets:
                    yield named(to), own.source.resolved(one.value), one.lineno
            elif not isinstance(one, ast.Pass) and not _is_plain(one):
                inside = [part for part in ast.walk(one) if _is_own(part)]
                stored = [named(part) for part in inside if not isinstance(part.ctx, ast.Load)]  # type: ignore[attr-defined]
                yield from ((name, None, one.lineno) for name in stored or [""])


def _is_own(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and plain_name(node.value) == "self"


def _is_plain(one: ast.stmt) -> bool:
    """Whether a statement is a text, or the call of the base's own method."""
    if not isinstance(one, ast.Expr):
        return False
    return isinstance(one.value, ast.Constant) or f"super().{AFTER}()" == ast.unparse(one.value)
