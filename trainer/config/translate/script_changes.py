"""What a script changes in a config of TRL's, or in its trainer, once they are made."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from trainer.config.translate.python_source import (
    Source,
    constant,
    is_none,
    named,
    path,
    targets,
)
from trainer.config.translate.script_flow import FUNCTIONS

HARMLESS = (
    *("to_dict", "to_json_string", "to_sanitized_dict", "get_process_log_level"),
    *("main_process_first", "get_warmup_steps"),
)
"""Methods of a config that change nothing."""
READERS = (
    *("print", "str", "repr", "vars", "asdict", "getattr", "hasattr", "isinstance", "type", "id"),
    *("pprint", "info", "debug", "warning", "log", "copy", "deepcopy", "get_peft_config"),
)
"""Functions that only read a config."""


NO_CONFIGS = ("model", "tokenizer", "processor", "generation_config", "np", "os", "torch")
"""Parts of names of objects that are no config of the trainer."""


CODE = ("trl", "transformers", "peft", "unsloth", "accelerate")
"""Packages of which a script may set parts anew."""


@dataclass(frozen=True)
class Change:
    """One statement that changes an attribute, or may change any of them."""

    node: ast.AST
    key: str
    """The attribute; "" if it is not written."""
    value: ast.expr | None
    """None if it is not written as an expression."""

    @property
    def line(self) -> int:
        return int(getattr(self.node, "lineno", 0))


def text(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:60]


def aliases(source: Source, names: set[str]) -> set[str]:
    """Return these names, and those by which the same objects are called elsewhere."""
    found = names - {""}
    functions = {one.name: one for one in source.nodes if isinstance(one, FUNCTIONS)}
    while True:
        more: set[str] = set()
        for one in source.nodes:
            if isinstance(one, ast.Assign) and path(one.value) in found:
                more |= {path(to) for to in one.targets}
            elif isinstance(one, ast.Call) and path(one.func) in functions:
                takes = functions[path(one.func)].args
                places = [*takes.posonlyargs, *takes.args]
                given = [*zip(places, one.args, strict=False)]
                more |= {to.arg for to, part in given if path(part) in found}
                more |= {path(part) for to, part in given if to.arg in found}
                more |= {key.arg or "" for key in one.keywords if path(key.value) in found}
        if more <= found | {""}:
            return found
        found |= more - {""}


def of_config(source: Source, names: set[str], makers: set[str]) -> list[Change]:
    """Return the changes of the objects of these names. `makers`: what may take them unchanged."""
    found: list[Change] = []
    for one in source.nodes:
        if isinstance(one, ast.Call):
            found += _of_call(source, one, names, makers)
        elif isinstance(one, ast.Assign | ast.AnnAssign) and one.value is not None:
            for to in targets(one):
                if isinstance(to, ast.Attribute) and path(to.value) in names:
                    found.append(Change(one, to.attr, one.value))
                elif _is_variable(to, names):
                    found.append(Change(one, _key(source, to), one.value))
        elif _is_variable(one, names) and not isinstance(one.ctx, ast.Load):
            found.append(Change(one, _key(source, one), None))
        elif isinstance(one, ast.Attribute) and path(one.value) in names:
            if not isinstance(one.ctx, ast.Load):
                found.append(Change(one, one.attr, None))
            elif one.attr == "__dict__":
                found.append(Change(one, "", None))
    plain = {id(to) for one in source.nodes if isinstance(one, ast.Assign) for to in one.targets}
    plain |= {id(one.target) for one in source.nodes if isinstance(one, ast.AnnAssign)}
    found = [one for one in found if id(one.node) not in plain]
    return sorted(found, key=lambda one: one.line)


def _is_variable(node: ast.AST, names: set[str]) -> TypeGuard[ast.Subscript]:
    """Whether an expression is `vars(config)[NAME]`."""
    if not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Call)):
        return False
    return named(node.value.func) == "vars" and any(path(one) in names for one in node.value.args)


def _key(source: Source, node: ast.Subscript) -> str:
    key = constant(source.resolved(node.slice))
    return key if isinstance(key, str) else ""


def _of_call(source: Source, call: ast.Call, names: set[str], makers: set[str]) -> Iterator[Change]:
    name = named(call.func)
    of = call.func.value if isinstance(call.func, ast.Attribute) else None
    if of is not None and path(of) in names:
        if name not in HARMLESS:
            yield Change(call, "", None)
        return
    if name == "update" and isinstance(of, ast.Call) and named(of.func) == "vars":
        if any(path(one) in names for one in of.args):
            yield Change(call, "", None)
        return
    if not any(path(one) in names for one in _given(call)):
        return
    if name == "setattr" and len(call.args) == 3:
        key = constant(source.resolved(call.args[1]))
        is_known = isinstance(key, str)
        yield Change(call, str(key) if is_known else "", call.args[2] if is_known else None)
    elif name == "replace":
        yield from (Change(call, key.arg or "", None) for key in call.keywords)
    elif name not in makers and name not in READERS and name not in source.functions:
        yield Change(call, "", None)


def _assigned(source: Source) -> Iterator[tuple[ast.expr, ast.expr, str]]:
    """Yield what sets or deletes an attribute, with its object and the attribute's name."""
    for one in source.nodes:
        if isinstance(one, ast.Attribute) and not isinstance(one.ctx, ast.Load):
            yield one, one.value, one.attr
        elif isinstance(one, ast.Call) and named(one.func) == "setattr" and len(one.args) == 3:
            yield one, one.args[0], str(constant(source.resolved(one.args[1])) or "")


def elsewhere(source: Source, known: set[str]) -> list[Change]:
    """Return changes of TRL's arguments in objects that are none of those known.

    Those of a model or a tokeniser, and an object's own, are no changes of a config.
    """
    found: list[Change] = []
    for one, of, key in _assigned(source):
        parts = {*path(of).split(".")}
        if path(of) not in known and path(of) != "self" and not parts & {*NO_CONFIGS}:
            found.append(Change(one, key, None))
    return found


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(one.value for one in call.keywords)]


def of_trainer(source: Source, names: set[str]) -> list[Change]:
    """Return the changes of a trainer, and of its `args`."""
    found: list[Change] = []
    for one, of, key in _assigned(source):
        if isinstance(of, ast.Attribute) and of.attr == "args":
            of = of.value
        if path(of) in names:
            found.append(Change(one, key, None))
    return sorted(found, key=lambda one: one.line)


def of_packages(source: Source) -> Iterator[Change]:
    """Yield what a script sets in code of packages, as in `GRPOTrainer.compute_loss = own`."""
    whole = {**source.imports, **source.modules}
    roots = {name for name, of in whole.items() if of.split(".")[0] in CODE}
    for one, of, key in _assigned(source):
        if path(of).split(".")[0] in roots:
            yield Change(one, key, None)


def replaced(source: Source, kinds: Mapping[str, str]) -> Iterator[tuple[ast.AST, ast.expr | None]]:
    """Yield what else is called by the names of a class, and its value. `kinds`: as Source's."""
    for name, own in kinds.items():
        for part, value, _ in source.bindings(name):
            is_own = isinstance(part, ast.ClassDef) and own == part.name
            is_other = isinstance(part, ast.alias | ast.ImportFrom | ast.Call) or is_own
            if not is_other and not (value is not None and is_none(value)):
                yield part, value
