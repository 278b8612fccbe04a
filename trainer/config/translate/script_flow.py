"""What certainly runs of a Python script: decided branches, and where a statement stands."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator

from trainer.config.translate.python_arithmetic import MOST_DEPTH

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (*FUNCTIONS, ast.Lambda, ast.ClassDef)
LOOPS = (
    *(ast.For, ast.AsyncFor, ast.While),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
OPEN: dict[type[ast.AST], tuple[str, ...]] = {
    ast.If: ("body", "orelse"),
    ast.IfExp: ("body", "orelse"),
    **dict.fromkeys((ast.For, ast.AsyncFor, ast.While), ("body", "orelse")),
    **dict.fromkeys((ast.ListComp, ast.SetComp, ast.GeneratorExp), ("elt",)),
    ast.DictComp: ("key", "value"),
    **dict.fromkeys((ast.Try, ast.TryStar), ("body", "handlers", "orelse")),
    ast.match_case: ("body",),
    **dict.fromkeys(SCOPES, ("body",)),
}
"""Parts of the syntax → their fields that run not at all, once, or often."""
Block = tuple[ast.AST, str]
Look = Callable[[ast.expr], ast.expr]
COMPARISONS: dict[type[ast.cmpop], Callable[[object, object], object]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.eq,
    ast.IsNot: operator.ne,
    ast.Lt: operator.lt,  # type: ignore[dict-item]
    ast.LtE: operator.le,  # type: ignore[dict-item]
    ast.Gt: operator.gt,  # type: ignore[dict-item]
    ast.GtE: operator.ge,  # type: ignore[dict-item]
}


def truth(node: ast.expr, look: Look, depth: int = MOST_DEPTH) -> bool | None:
    """Return what a condition gives; None if only a run tells. `look`: what a name stands for."""
    if depth == 0:
        return None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = truth(node.operand, look, depth - 1)
        return None if inner is None else not inner
    if isinstance(node, ast.BoolOp):
        ends = isinstance(node.op, ast.Or)
        parts = [truth(one, look, depth - 1) for one in node.values]
        if ends in parts:
            return ends  # of what stands before it, nothing changes the result
        return None if None in parts else not ends
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        compare = COMPARISONS.get(type(node.ops[0]))
        left, right = (_known(one, look) for one in (node.left, node.comparators[0]))
        if compare is None or left is None or right is None:
            return None
        try:
            return bool(compare(left.value, right.value))
        except TypeError:
            return None
    found = _known(node, look)
    return None if found is None else bool(found.value)


def _known(node: ast.expr, look: Look) -> ast.Constant | None:
    if isinstance(node, ast.Name) and node.id == "__name__":
        return ast.Constant("__main__")
    found = look(node)
    return found if isinstance(found, ast.Constant) else None


def decide(tree: ast.Module, look: Look) -> None:
    """Put the branch that is taken in the place of each condition that is decided."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                kept = [*_taken(value, look)]
                setattr(node, name, kept)
                todo += [one for one in kept if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST):
                (kept_one,) = _taken([value], look)
                setattr(node, name, kept_one)
                todo.append(kept_one)


def _taken(nodes: list[ast.AST], look: Look) -> Iterator[ast.AST]:
    left = nodes[::-1]
    while left:
        node = left.pop()
        is_open = isinstance(node, ast.If | ast.IfExp)
        taken = truth(node.test, look) if isinstance(node, ast.If | ast.IfExp) else None
        if not is_open or taken is None:
            yield node
        elif isinstance(node, ast.IfExp):
            left.append(node.body if taken else node.orelse)
        elif isinstance(node, ast.If):
            left += (node.body if taken else node.orelse)[::-1]


class Places:
    """Where each part of a script stands: the blocks around it, from the outermost."""

    def __init__(self, tree: ast.Module) -> None:
        self.blocks: dict[ast.AST, tuple[Block, ...]] = {tree: ()}
        self._sites: dict[str, list[ast.Call]] = {}
        self._loads: dict[str, int] = {}
        todo: list[ast.AST] = [tree]
        while todo:
            node = todo.pop()
            for name, value in ast.iter_fields(node):
                inside = self.blocks[node]
                if name in _open_fields(node):
                    inside = (*inside, (node, name))
                for one in value if isinstance(value, list) else [value]:
                    if isinstance(one, ast.AST):
                        self.blocks[one] = inside
                        todo.append(one)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                self._sites.setdefault(node.func.id, []).append(node)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._loads[node.id] = self._loads.get(node.id, 0) + 1

    def scopes(self, node: ast.AST) -> list[ast.AST | None]:
        """Return the functions and classes around a part, from the innermost; last the module."""
        around = [one for one, _ in self.blocks.get(node, ()) if isinstance(one, SCOPES)]
        return [*around[::-1], None]

    def is_in_loop(self, node: ast.AST) -> bool:
        """Whether a part may run more than once in its function."""
        for one, _ in reversed(self.blocks.get(node, ())):
            if isinstance(one, SCOPES):
                return False
            if isinstance(one, LOOPS):
                return True
        return False

    def reaches(self, node: ast.AST, use: ast.AST) -> bool:
        """Whether a part has certainly run where another one does, if it stands before it."""
        own, other = self.blocks.get(node, ()), self.blocks.get(use, ())
        return other[: len(own)] == own

    def course(self, node: ast.AST) -> tuple[tuple[Block, ...], tuple[int, ...]]:
        """Return the open blocks around a part, and its lines, through calls of its function."""
        blocks: list[Block] = []
        lines = [getattr(node, "lineno", 0)]
        seen: set[ast.AST] = set()
        here = [*self.blocks.get(node, ())]
        while here:
            block = here.pop()
            function = block[0]
            if not isinstance(function, FUNCTIONS):
                blocks.insert(0, block)
                continue
            calls = self._sites.get(function.name, [])
            if function in seen or len(calls) != 1 or self._loads.get(function.name) != 1:
                blocks.insert(0, block)
                lines.insert(0, function.lineno)
                continue
            seen.add(function)
            lines.insert(0, calls[0].lineno)
            here = [*self.blocks[calls[0]]]
        return tuple(blocks), tuple(lines)

    def is_certain(self, node: ast.AST, end: ast.AST | None) -> bool:
        """Whether a part has run for certain where `end` does, or in any run of the script."""
        blocks, lines = self.course(node)
        if end is None:
            return not blocks
        others, last = self.course(end)
        return others[: len(blocks)] == blocks and lines < last

    def is_open(self, node: ast.AST, end: ast.AST) -> bool:
        """Whether a condition, a loop or a try decides if a part runs before `end` does."""
        own, others = (
            [block for block in self.course(one)[0] if not isinstance(block[0], SCOPES)]
            for one in (node, end)
        )
        return others[: len(own)] != own

    def repeats(self, node: ast.AST) -> bool:
        """Whether a part may run more than once."""
        return any(
            isinstance(one, LOOPS)
            or (isinstance(one, FUNCTIONS) and len(self._sites.get(one.name, [])) > 1)
            for one, _ in self.course(node)[0]
        )

    def condition(self, node: ast.AST) -> str:
        """Return what decides whether a part runs, in words."""
        for one, name in reversed(self.course(node)[0]):
            if isinstance(one, ast.If):
                said = "if" if name == "body" else "unless"
                return f"only {said} {' '.join(ast.unparse(one.test).split())[:60]}"
            if isinstance(one, LOOPS):
                return "in a loop"
            if isinstance(one, FUNCTIONS):
                return f"in {one.name}(), which may not run, or run otherwise"
        return "which may not run, or run too late"


def _open_fields(node: ast.AST) -> tuple[str, ...]:
    if isinstance(node, ast.With | ast.AsyncWith):
        return ("body",) if any("suppress" in ast.dump(one) for one in node.items) else ()
    if isinstance(node, ast.Try | ast.TryStar) and not node.handlers:
        return ()
    return OPEN.get(type(node), ())
