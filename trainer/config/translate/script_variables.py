"""The variables that a script sets in its own environment, as far as TRL's run depends on them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from trainer.config.translate.python_source import Source, constant, named, path, shown
from trainer.config.translate.script_findings import Finding, Kind, give
from trainer.config.translate.trl import TRL, VARIABLES


def of_trackers(source: Source, end: ast.AST | None) -> Iterator[Finding]:
    """Take the variables that name a tracker's project. `end`: the call of the trainer."""
    for name, places in environment(source).items():
        node, given = places[0]
        value = constant(source.resolved(given))
        if name not in VARIABLES:
            continue
        if isinstance(value, str) and len(places) == 1 and source.places.is_certain(node, end):
            yield give(name, value)
        else:
            said = f"line {getattr(node, 'lineno', 0)}: {name}={shown(given)} is not taken over"
            remedy = f"give --{TRL.of(name)[0].ours}"
            yield Finding(Kind.UNREAD, name, f"{source.file}: {said}: {remedy}")


def environment(
    source: Source, *, by_default: bool = True
) -> dict[str, list[tuple[ast.AST, ast.expr]]]:
    """Return the variables that a script sets in its own environment → where, and the value.

    `by_default`: also those that it sets only if they are not set.
    """
    found: dict[str, list[tuple[ast.AST, ast.expr]]] = {}
    for one in source.nodes:
        entries: list[tuple[str, ast.expr]] = []
        if isinstance(one, ast.Assign):
            places = (to for to in one.targets if isinstance(to, ast.Subscript))
            of = [to for to in places if named(to.value) == "environ"]
            entries = [(str(constant(to.slice)), one.value) for to in of]
        elif isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute):
            if path(one.func) == "wandb.init":
                given = dict(source.arguments(one))
                entries = [("WANDB_PROJECT", given["project"])] if "project" in given else []
            elif named(one.func.value) == "environ" and one.func.attr == "update":
                entries = [*source.arguments(one)]
                entries += [part for node in one.args for part in source.entries(node)]
            elif named(one.func.value) == "environ" and one.func.attr == "setdefault":
                known = one.args[:1] if by_default else []
                entries = [(str(constant(node)), one.args[-1]) for node in known]
        for name, value in entries:
            found.setdefault(name, []).append((one, value))
    return {name: places for name, places in found.items() if name not in ("", "None")}
