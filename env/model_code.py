"""The Python files that a model brings along, which transformers runs with `trust_remote_code`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FLAG = "--trust_remote_code"
NEEDED = "trust_remote_code=True"
"""Text of transformers' error for a model that it cannot load without the model's own code."""
IMPORTED = re.compile(r"^\s*(?:from\s+\.(\w+)\s+import\b|import\s+\.(\w+)\s*$)", re.MULTILINE)
"""What transformers takes for an import of a file beside."""
MORE_THAN_TENSORS = "the weights hold more than tensors, which is not read"
GENERATE = Path("custom_generate", "generate.py")
WITHOUT = frozenset({"tokenizer.json", "vocab.json"})
"""Large files in which transformers looks for no code."""


def code_of(directory: Path) -> list[str]:
    """Return the files of code that a model's JSON files ask to run, in order; empty if none.

    Each is a path in `directory`, or a file of another repository. Files that do not exist are
    named too. Raises OSError if the disk fails.
    """
    found: dict[str, None] = {}
    for name in _classes(directory):
        repository, _, rest = name.rpartition("--")  # [repository--]module.Class
        module = rest.partition(".")[0]
        if repository:
            found[f"{module}.py of {repository} on the hub"] = None
        else:
            found |= dict.fromkeys(map(str, _with_imports(directory, module)))
    if (directory / GENERATE).is_file():
        found[str(directory / GENERATE)] = None
    return list(found)


def add_flag(option: Callable[..., Any]) -> None:
    """Declare the flag of a server or of a command. `option`: argparse's add_argument."""
    dashed = FLAG.replace("_", "-")
    option(dashed, FLAG, action="store_true", help="run Python files that the model brings along")


def refusal(files: list[str]) -> str:
    """Return why a model with these files of code is not loaded, and how it would be."""
    return (
        f"it needs code of its own, which is not run: {', '.join(files)}. Read these files; if you "
        f"trust them, give {FLAG}"
    )


def _classes(directory: Path) -> Iterator[str]:
    """Yield the names of classes in each auto_map."""
    for path in sorted(directory.glob("*.json")):
        if path.name in WITHOUT or path.name.endswith(".index.json"):
            continue
        try:
            yield from list(_auto_maps(json.loads(path.read_bytes())))
        except (ValueError, RecursionError, FileNotFoundError):  # whoever loads it says so
            continue


def _auto_maps(content: Any) -> Iterator[str]:
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _texts(value) if key == "auto_map" else _auto_maps(value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def _with_imports(directory: Path, module: str) -> list[Path]:
    """Return a module's file, and those that it imports, as transformers follows them."""
    found: list[Path] = []
    waiting = [module]
    while waiting:
        path = directory / f"{waiting.pop()}.py"
        if path in found:
            continue
        found.append(path)
        try:
            text = path.read_text(errors="replace")
        except (OSError, ValueError):  # ValueError: a null byte, or half of a pair of surrogates
            continue
        waiting += [one or other for one, other in IMPORTED.findall(text)]
    return found
