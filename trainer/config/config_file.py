"""A YAML or TOML file of flags → flags as they were given.

Sections follow the dotted spelling (`actor: {adam: {lr: 1e-6}}`); flat names stand at the top. A
key without a value, or with null, leaves its flag alone.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer.config.schema import Fault, MissingFile
from trainer.config.spellings import Given, unknown

SUFFIXES = {".yaml", ".yml", ".toml"}


def given_in(path: Path, known: Mapping[str, object]) -> tuple[list[Given], list[Fault]]:
    """What the file says for the `known` spellings, and what is wrong with it."""
    if path.suffix not in SUFFIXES:
        return [], [_fault(path, "is neither YAML nor TOML", "Name it .yaml, .yml or .toml")]
    try:
        content = _load(path)
    except OSError as error:
        problem, remedy = f"cannot be read: {error.strerror}", "Give a file that this machine sees"
        return [], [MissingFile("--config", str(path), problem, remedy)]
    except ValueError as error:
        return [], [_fault(path, f"is broken: {' '.join(str(error).split())}", "Correct it")]
    if not isinstance(content, dict):
        return [], [_fault(path, "holds no keys", "Write one `flag: value` a line")]
    givens, faults = [], []
    for key, value in _flat(content):
        if key not in known:
            faults.append(unknown(key, known, str(path)))
        elif isinstance(value, dict):
            faults.append(Fault(f"{path}: {key}", "", "is no section", f"Give a value to {key}"))
        elif value is not None:
            givens.append(Given(key, _texts(value), str(path)))
    return givens, faults


def _fault(path: Path, problem: str, remedy: str) -> Fault:
    return Fault("--config", str(path), problem, remedy)


def _load(path: Path) -> Any:
    """The file's content. Raises OSError, or ValueError where it is broken."""
    text = path.read_text()
    if path.suffix == ".toml":
        return tomllib.loads(text)
    import yaml  # not before a file is given: --help answers at once

    try:
        if twice := _key_twice(yaml.compose(text)):
            raise ValueError(f"the key {twice} is there twice")
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _key_twice(node: Any) -> str | None:
    """The first key that a section of the YAML document has twice: YAML would take the last."""
    if getattr(node, "id", "") != "mapping":
        return None
    keys = [key.value for key, _ in node.value]
    below = (_key_twice(value) for _, value in node.value)
    return next((key for key in keys if keys.count(key) > 1), None) or next(
        filter(None, below), None
    )


def _flat(section: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Nested sections as dotted keys with their values."""
    for key, value in section.items():
        name = f"{above}{key}"
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _texts(value: Any) -> tuple[str, ...]:
    """A value as the command line would have it: YAML reads 1e-6 as a text, 2 as a number."""
    return tuple(str(part) for part in value) if isinstance(value, list) else (str(value),)
