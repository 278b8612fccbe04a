"""Which flags a script of the installed TRL has: read from its sources, which are not imported.

A script names the dataclasses whose fields are its flags. Their bases are TRL's or transformers'.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

TYPES = "dataclass_types"
CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
OWN = frozenset({"config", "help"})
"""Flags of TRL's parser itself."""


def unknown(package: Path, script: str, arguments: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each flag that the script lacks; none if its flags cannot be read.

    As argparse does, a beginning that only one flag has stands for that flag. A flag has either
    underscores or hyphens.
    """
    if (known := flags_of(package, script)) is None:
        return
    spelt = {f"--{one}": one for name in known for one in (name, name.replace("_", "-"))}
    for word in arguments:
        typed, equals, value = word.partition("=")
        if typed == "--config" and equals:
            yield f"{word}: TRL reads its file's name from the next word: give --config {value}"
        if not typed.startswith("--") or typed in spelt:
            continue
        begun = {name.replace("-", "_") for one, name in spelt.items() if one.startswith(typed)}
        if len(begun) == 1:
            continue
        name = typed.removeprefix("--").replace("-", "_")
        near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.75)
        hint = f": did you mean --{near[0]}?" if near else ": leave it out"
        yield f"{typed} is no flag of the installed TRL's script {script}{hint}"


@cache
def flags_of(package: Path, script: str) -> frozenset[str] | None:
    """Return the names of a script's flags; None if a class of them cannot be found."""
    file = package / "scripts" / f"{script}.py"
    named = [
        name.id
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == TYPES
        if isinstance(node.value, ast.Tuple)
        for name in node.value.elts
        if isinstance(name, ast.Name)
    ]
    fields: set[str] = set()
    while named:
        found = _class_in(package, named.pop())
        if found is None or not all(isinstance(base, ast.Name) for base in found.bases):
            return None
        named += [base.id for base in found.bases if isinstance(base, ast.Name)]
        fields |= set(_flags_in(found))
    return frozenset(fields | OWN) if fields else None


def _class_in(package: Path, name: str) -> ast.ClassDef | None:
    if (file := _files(package).get(name)) is None:
        return None
    tree = ast.parse(file.read_text()).body
    return next(node for node in tree if isinstance(node, ast.ClassDef) and node.name == name)


@cache
def _files(package: Path) -> dict[str, Path]:
    """Return each class of TRL, and of transformers' arguments, with its file."""
    arguments = package.parent / "transformers" / "training_args.py"
    files = sorted(package.rglob("*.py"), key=lambda file: "experimental" not in file.parts)
    files += [arguments] if arguments.is_file() else []  # the last one of a name counts
    return {name: file for file in files for name in CLASS.findall(file.read_text())}


def _flags_in(of: ast.ClassDef) -> Iterator[str]:
    """Yield the fields, and `no_NAME` of a switch that is on by default."""
    for node in of.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
            if "bool" in ast.unparse(node.annotation) and _is_on(node.value):
                yield f"no_{node.target.id}"


def _is_on(default: ast.expr | None) -> bool:
    if isinstance(default, ast.Call):  # of dataclasses.field
        default = next((one.value for one in default.keywords if one.arg == "default"), None)
    return isinstance(default, ast.Constant) and default.value is True
