"""What `ray job submit` gives a job by its runtime environment, and what stands for it here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from contract.files import yaml_text
from contract.redaction import redact
from trainer.config.translate.rows import UNSET

PACKAGES = ("pip", "uv", "conda")
NEEDLESS = ("env_vars", "excludes", "config")
NONE = "Rollcall's trainer takes no runtime environment (docs/submit.md)"


def of_ray(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the variables, and sentences on the rest; of other commands nothing."""
    if "submit" not in words:
        return (), ()
    given = _environment(words)
    variables = given.get("env_vars")
    names = map(str, variables) if isinstance(variables, Mapping) else ()
    return tuple(names), tuple(one.replace(UNSET, "$") for one in _sentences(given))


def _environment(words: Sequence[str]) -> dict[str, Any]:
    """Return the runtime environment of the command: of a file, of JSON, and --working-dir."""
    parts = [part for word in words for part in word.split("=", int(word.startswith("--")))]
    found: dict[str, Any] = {}
    for name, value in pairwise(parts):
        read: Any = None
        if name == "--runtime-env-json":
            with suppress(ValueError):
                read = json.loads(value)
        elif name == "--runtime-env":
            with suppress(OSError, UnicodeDecodeError, yaml_text.NotYamlError):
                read = yaml_text.parsed(Path(value).read_text())
        elif name == "--working-dir":
            read = {"working_dir": value}
        found |= read if isinstance(read, dict) else {}
    return found


def _sentences(given: Mapping[str, Any]) -> Iterator[str]:
    for key, value in given.items():
        if key in NEEDLESS or not value:
            continue
        shown = redact(_shown(value))
        if key in PACKAGES:
            yield f"{key}: {shown} must be in the image: {NONE}. A recipe has ROLLCALL_RUNTIME_ENV"
        elif key == "working_dir":
            yield (
                f"working_dir={shown}: it is not copied to the nodes. Files that the flags name "
                f"must have the same paths on every node: {NONE}"
            )
        elif key == "py_modules":
            yield f"{key}: {shown} must be in the image, or in PYTHONPATH of each node: {NONE}"
        else:
            yield f"{key}={shown}: it has no effect here: {NONE}"


def _shown(value: Any) -> str:
    """Return packages or paths as a list; of a dictionary, what it has as packages."""
    if isinstance(value, Mapping):
        inner = value.get("packages") or value.get("dependencies")
        return _shown(inner) if inner else json.dumps(value)
    if isinstance(value, list):
        return ", ".join(one if isinstance(one, str) else _shown(one) for one in value)
    return str(value)
