"""Prints what a program's own argparse parser makes of a command line, as JSON.

    python -I parser_probe.py PROGRAM.py --flag value …

It runs in the Python that will run the program, and needs the standard library alone: it imports
nothing else, and executes the program up to where the flags are read. It exits 3 if the program
cannot be understood so.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

NOT_UNDERSTOOD = 3


class _FoundError(Exception):
    """The program has made its parser, and reads its flags."""


class _RefusedError(Exception):
    """The parser refuses the flags."""


def main(program: Path, argv: Sequence[str]) -> int:
    parser = _parser_of(program)
    if parser is None:
        return NOT_UNDERSTOOD
    print(json.dumps(_verdict(parser, argv)))
    return 0


def _parser_of(program: Path) -> argparse.ArgumentParser | None:
    """Return the parser with all its flags; None if the program does not come so far."""
    tree = ast.parse(program.read_text())
    found: list[argparse.ArgumentParser] = []

    def remember(parser: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        found.append(parser)
        raise _FoundError

    own = argparse.ArgumentParser.parse_args
    argparse.ArgumentParser.parse_args = remember  # type: ignore[assignment, method-assign]
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(program)}
    try:
        for node in tree.body:
            if _is_main(node):
                _execute(node, names)
            elif isinstance(node, ast.FunctionDef | ast.Assign) or _is_of_the_library(node):
                with suppress(Exception):  # it needs what is not imported
                    _execute(node, names)
    except Exception:
        return found[0] if found else None
    finally:
        argparse.ArgumentParser.parse_args = own  # type: ignore[method-assign]
    return None


def _execute(node: ast.stmt, names: dict[str, Any]) -> None:
    exec(compile(ast.Module([node], []), "program", "exec"), names)


def _is_main(node: ast.stmt) -> bool:
    """Return whether it is `if __name__ == "__main__":`."""
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _is_of_the_library(node: ast.stmt) -> bool:
    """Return whether it imports from the standard library."""
    if isinstance(node, ast.ImportFrom):
        modules = [node.module or "."]
    elif isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    else:
        return False
    return all(module.partition(".")[0] in sys.stdlib_module_names for module in modules)


def _verdict(parser: argparse.ArgumentParser, argv: Sequence[str]) -> dict[str, Any]:
    def refuse(message: str) -> NoReturn:
        raise _RefusedError(message)

    parser.error = refuse  # type: ignore[method-assign]
    rest: list[str] = []
    error = ""
    try:
        rest = parser.parse_known_args(list(argv))[1]
    except _RefusedError as refused:
        error = str(refused)
    return {"options": [*parser._option_string_actions], "unknown": rest, "error": error}


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
