"""Finds a function of a user's file whose value is used, and that returns none."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def found(file: Path, line: int) -> tuple[str, int] | None:
    """Return name and line of the first such function; None if there is none.

    It is what is defined at `line`, or what that reaches in the file. A file that cannot be read,
    or is no Python, has none.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    functions = {one.name: one for one in ast.walk(tree) if isinstance(one, FUNCTIONS)}
    reached: list[ast.AST] = [
        one
        for one in ast.walk(tree)
        if isinstance(one, (*FUNCTIONS, ast.ClassDef))
        and line in (one.lineno, *(each.lineno for each in one.decorator_list))
    ]
    used: set[str] = set()
    for one in reached:  # which grows
        names = {each.id for each in ast.walk(one) if isinstance(each, ast.Name)} & set(functions)
        reached += [functions[name] for name in sorted(names) if functions[name] not in reached]
        used |= set(_used(one))
    return next(
        (
            (one.name, one.lineno)
            for one in reached
            if isinstance(one, FUNCTIONS)
            and one.name in used
            and not (one.decorator_list or any(_gives_value(each) for each in _own(one)))
        ),
        None,
    )


def _used(tree: ast.AST) -> Iterator[str]:
    """Yield the names of functions whose value something takes: no call is a whole statement."""
    statements = {
        id(one.value.value if isinstance(one.value, ast.Await) else one.value)
        for one in ast.walk(tree)
        if isinstance(one, ast.Expr)
    }
    for one in ast.walk(tree):
        if (
            isinstance(one, ast.Call)
            and isinstance(one.func, ast.Name)
            and id(one) not in statements
        ):
            yield one.func.id


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """Yield what a function has, without what the functions in it have."""
    for one in ast.iter_child_nodes(function):
        yield one
        if not isinstance(one, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            yield from _own(one)


def _gives_value(one: ast.AST) -> bool:
    """Return whether a node gives a value, or says that there is none on purpose."""
    is_return = isinstance(one, ast.Return) and one.value is not None
    return is_return or isinstance(one, ast.Yield | ast.YieldFrom | ast.Raise)
