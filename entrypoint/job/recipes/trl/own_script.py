"""Pure: what a script of the user's own does with transformers' Trainer, read from its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import Enum
from functools import lru_cache

FRAMEWORKS = frozenset({"transformers", "trl"})
PARSERS = frozenset({"HfArgumentParser", "TrlParser"})
STARTS_RANKS = frozenset({"notebook_launcher", "debug_launcher", "spawn", "Popen"})
"""Calls by which a script starts its own processes."""
OTHER_MACHINES = frozenset({"ray", "submitit", "modal", "sagemaker"})
"""Packages by which a script starts its training elsewhere: it runs once itself."""


class Arguments(Enum):
    """Where the arguments of a script's Trainer come from."""

    NO_TRAINER = "it trains with no Trainer, as far as its own file says"
    OF_FLAGS = "from the command line: it takes --output_dir and --resume_from_checkpoint"
    OF_CODE = "from its code"


@lru_cache(maxsize=16)  # the page asks for the recipes of all jobs
def arguments_of(source: str) -> Arguments:
    """Return where a script's Trainer has its arguments from; NO_TRAINER if it is no Python.

    A Trainer is a class `…Trainer` that the script imports from transformers or TRL, or its own
    subclass of one, of which it calls `train`.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return Arguments.NO_TRAINER
    imported = set(_imported(tree))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    called = {_last(call.func) for call in calls}
    trains = "train" in called and any(name.endswith("Trainer") for name in imported)
    if not trains or called & STARTS_RANKS or OTHER_MACHINES.intersection(_modules(tree)):
        return Arguments.NO_TRAINER
    parsed = {
        name
        for call in calls
        if _last(call.func) in PARSERS
        for word in (*call.args, *(one.value for one in call.keywords))
        for name in _names(word, tree)
    }
    if any(_is_arguments(name, imported, tree) for name in parsed):
        return Arguments.OF_FLAGS
    return Arguments.OF_CODE


def _imported(tree: ast.Module) -> Iterator[str]:
    """Yield the names from the two frameworks: of `from trl import A`, and of `trl.A`."""
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and _top(node.module or "") in FRAMEWORKS:
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.Import):
            modules |= {
                alias.asname or _top(alias.name)
                for alias in node.names
                if _top(alias.name) in FRAMEWORKS
            }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _last_of_first(node.value) in modules:
            yield node.attr


def _modules(tree: ast.Module) -> Iterator[str]:
    """Yield the packages that the file imports anywhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield _top(node.module or "")
        if isinstance(node, ast.Import):
            yield from (_top(alias.name) for alias in node.names)


def _is_arguments(name: str, imported: set[str], tree: ast.Module) -> bool:
    """Return whether a class is of a Trainer's arguments, or a subclass in the same file."""
    if name in imported:
        return name.endswith(("TrainingArguments", "Config")) and name != "ModelConfig"
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            bases = (_last(base) for base in node.bases)
            return any(base != name and _is_arguments(base, imported, tree) for base in bases)
    return False


def _names(word: ast.expr, tree: ast.Module) -> Iterator[str]:
    """Yield the names of an argument, and those of the tuple that a variable has."""
    found = {_last(node) for node in ast.walk(word) if isinstance(node, ast.Name | ast.Attribute)}
    yield from found
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and found & {_last(one) for one in node.targets}:
            yield from (_last(one) for one in ast.walk(node.value) if isinstance(one, ast.expr))


def _last(node: ast.AST) -> str:
    """Return the last name of `a.b.c`; "" of another expression."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _last_of_first(node: ast.AST) -> str:
    """Return the first name of `a.b.c`."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return _last(node)


def _top(module: str) -> str:
    return module.partition(".")[0]
