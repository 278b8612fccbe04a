"""What arithmetic on constants gives, as in `64 // 2`: it is computed here, and nothing runs."""

from __future__ import annotations

import ast
import operator
import posixpath
from collections.abc import Callable
from typing import Any

Look = Callable[[ast.Name | ast.Attribute | ast.Subscript], ast.expr]
"""What a name, its attribute, or its entry stands for; itself if that is not clear."""
MOST_DEPTH = 20
"""Expressions and names inside each other, which may name themselves."""
MOST_EXPONENT = 64
MOST_BASE = 1_000_000
OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
TYPES: dict[str, Callable[[Any], int | float]] = {"int": int, "float": float}


def computed(node: ast.expr, look: Look) -> ast.expr:
    """Return arithmetic on constants as its value, also in a list; another node as it is."""
    if isinstance(node, ast.List | ast.Tuple):
        made = [computed(one, look) for one in node.elts]
        whole = type(node)(elts=made, ctx=ast.Load())
        return ast.copy_location(whole, node)
    if not isinstance(node, ast.BinOp | ast.UnaryOp | ast.Call | ast.JoinedStr):
        return node
    value = _value(node, look, MOST_DEPTH)
    return node if value is None else ast.copy_location(ast.Constant(value), node)


def _value(node: ast.expr, look: Look, depth: int) -> int | float | str | None:
    """Return the value of an expression; None if it is not of constants alone."""
    if depth == 0:
        return None
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        found = look(node)
        return None if found is node else _value(found, look, depth - 1)
    if isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            return None
        return value
    try:
        return _made(node, look, depth)
    except (ArithmeticError, TypeError, ValueError):
        return None


def _made(node: ast.expr, look: Look, depth: int) -> int | float | str | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand, look, depth - 1)
        if isinstance(value, int | float):
            return -value if isinstance(node.op, ast.USub) else value
    elif isinstance(node, ast.BinOp) and (compute := OPERATORS.get(type(node.op))):
        left, right = (_value(one, look, depth - 1) for one in (node.left, node.right))
        return _joined(node.op, compute, left, right)
    elif isinstance(node, ast.JoinedStr):
        return _text(node, look, depth)
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "os.path.join":
        parts = [_value(one, look, depth - 1) for one in node.args]
        return posixpath.join(*parts)  # type: ignore[arg-type]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1:
        convert = TYPES.get(node.func.id)
        value = _value(node.args[0], look, depth - 1)
        if convert and value is not None and not node.keywords:
            return convert(value)
    return None


def _text(node: ast.JoinedStr, look: Look, depth: int) -> str | None:
    """Return an f-string of plain values; None of one that is formatted, or not known."""
    made = ""
    for one in node.values:
        if isinstance(one, ast.FormattedValue):
            if one.conversion != -1 or one.format_spec:
                return None
            one = one.value
        value = _value(one, look, depth - 1)
        if value is None:
            return None
        made += str(value)
    return made


def _joined(
    kind: ast.operator,
    compute: Callable[[Any, Any], Any],
    left: int | float | str | None,
    right: int | float | str | None,
) -> int | float | str | None:
    if isinstance(left, str) and isinstance(right, str):
        return left + right if isinstance(kind, ast.Add) else None
    if not (isinstance(left, int | float) and isinstance(right, int | float)):
        return None
    if isinstance(kind, ast.Pow) and (abs(right) > MOST_EXPONENT or abs(left) > MOST_BASE):
        return None
    made = compute(left, right)
    return made if isinstance(made, int | float) else None
