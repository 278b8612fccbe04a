"""Which flags a script of the installed TRL has: read from its sources, which are not imported.

A script names the dataclasses whose fields are its flags. Their bases are TRL's or transformers'.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from contract.options import MISTYPED, nearest

TYPES = "dataclass_types"
TRANSFORMERS = "transformers"
MOST_IMPORTS = 10
"""From one file to the next, until the class itself."""
MOST_MEANT = 3
"""Flags with the same beginning that a message names."""
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
        near = nearest(name, sorted(known), cutoff=MISTYPED)
        meant = [near] if near else sorted(begun, key=_by_use)[:MOST_MEANT]
        named = " or ".join(f"--{one}" for one in meant)
        hint = f"did you mean {named}?" if meant else "leave it out"
        yield f"{typed} is not a flag of the installed TRL's script {script}: {hint}"


def _by_use(name: str) -> tuple[bool, str]:
    """Return the place of a flag among those that begin alike: what names a thing is first."""
    return "name" not in name.split("_"), name


@cache
def flags_of(package: Path, script: str) -> frozenset[str] | None:
    """Return the names of a script's flags; None if a class of them cannot be found."""
    file = package / "scripts" / f"{script}.py"
    named = [
        (file, name.id)
        for node in ast.walk(_tree(file))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == TYPES
        if isinstance(node.value, ast.Tuple)
        for name in node.value.elts
        if isinstance(name, ast.Name)
    ]
    fields: set[str] = set()
    while named:
        place, found = _class_in(*named.pop(), package)
        if found is None or not all(isinstance(base, ast.Name) for base in found.bases):
            return None
        named += [(place, base.id) for base in found.bases if isinstance(base, ast.Name)]
        fields |= set(_flags_in(found))
    return frozenset(fields | OWN) if fields else None


def _class_in(file: Path, name: str, package: Path) -> tuple[Path, ast.ClassDef | None]:
    """Return the class that a name means in a file, and its own file: imports are followed.

    TRL has several classes of one name, so that the name alone does not say which.
    """
    for _ in range(MOST_IMPORTS):
        tree = _tree(file)
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return file, node
        imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
        froms = ((node, alias) for node in imports for alias in node.names)
        found = next(((n, a.name) for n, a in froms if (a.asname or a.name) == name), None)
        place = found and _module(file, found[0], package)
        if found is None or place is None:
            break
        file, name = place, found[1]
    return file, None


def _module(file: Path, node: ast.ImportFrom, package: Path) -> Path | None:
    """Return the file that an import of this file names; None if it is of another package."""
    names = node.module.split(".") if node.module else []
    if node.level:
        directory = file.parents[node.level - 1]
    elif names[0] in (package.name, TRANSFORMERS):
        directory = package.parent
    else:
        return None
    if names == [TRANSFORMERS]:
        names.append("training_args")  # of 1,000 modules, the one with their arguments
    place = directory.joinpath(*names)
    files = (place.with_suffix(".py"), place / "__init__.py")
    return next((one for one in files if one.is_file()), None)


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


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
