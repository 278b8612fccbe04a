"""A job's runtime environment in Ray's own words: working directory, packages, variables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from contract.files import yaml_text
from contract.options import ParseError, did_you_mean

FIELDS = (
    *("working_dir", "excludes", "env_vars", "pip", "uv", "conda"),
    *("py_modules", "py_executable", "config"),
)
"""Ray's names of what a job may ask for. Ray itself ignores a name that it does not know."""
OURS = re.compile(r"ROLLCALL_.*|RAY_(AUTH|ADDRESS|JOB).*")
"""Variables of a job that Rollcall and Ray set."""
REMOTE = re.compile(r"[a-z0-9]+://.+")
PACKAGE = re.compile(r"_ray_pkg_[0-9a-f]{64}\.zip")
"""Ray's name of an archive: a hash of its content."""
NEEDS_INSTALL = ("pip", "uv", "conda", "working_dir", "py_modules", "py_executable")
"""Fields that may bring programs which the image does not have."""


def parsed(text: str, directory: Path = Path()) -> dict[str, Any]:
    """Parse JSON or YAML, with the files of requirements that it names read. Raises ParseError.

    `directory`: where its relative paths begin.
    """
    remedy = 'give an object in JSON or YAML, such as {"pip": ["einops"]}'
    try:
        row = yaml_text.parsed(text)
    except yaml_text.NotYamlError as error:
        raise ParseError(str(error), remedy) from None
    if not isinstance(row, dict):
        raise ParseError("is not an object of fields", remedy)
    row = with_files(row, directory)
    if found := list(faults(row)):
        raise ParseError("is wrong", "; ".join(found))
    return row


def with_files(row: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return the environment with the packages of the files that it names. Raises ParseError.

    `directory`: where relative paths of these files begin.
    """
    read = dict(row)
    for name in ("pip", "uv", "conda"):
        if isinstance(file := row.get(name), str) and file.endswith((".txt", ".yaml", ".yml")):
            read[name] = _content(name, directory / file)
    return read


def _content(name: str, path: Path) -> Any:
    """Return the packages that a file names, as Ray takes them. Raises ParseError."""
    try:
        text = path.read_text()
        return text.splitlines() if path.suffix == ".txt" else yaml_text.parsed(text)
    except (OSError, ValueError) as error:
        is_read = isinstance(error, yaml_text.NotYamlError)
        reason = f"it {error}" if is_read else getattr(error, "strerror", None) or "it is not text"
        problem = f"has {name}: {path}, which cannot be read ({reason})"
        raise ParseError(problem, "name a file of requirements, or give a list") from None


def faults(row: Mapping[str, Any]) -> Iterator[str]:
    """Pure: yield a sentence for each fault of a runtime environment."""
    for name in row:
        if name not in FIELDS:
            remedy = did_you_mean(str(name), FIELDS, f"the fields are {', '.join(FIELDS)}")
            yield f"the runtime environment has no field {name}: {remedy}"
    if not all(isinstance(key, str) for key in _keys(row)):
        yield "the runtime environment has a key that is no text: put it in quotes"
    variables = row.get("env_vars", {})
    if not isinstance(variables, Mapping) or not all(_are_texts(variables.items())):
        yield 'env_vars is not an object of texts: give {"NAME": "VALUE"}, numbers in quotes'
    else:
        for name in filter(OURS.fullmatch, variables):
            yield f"env_vars sets {name}, which Rollcall sets for each job: leave it out"
    excludes = row.get("excludes", [])
    if not isinstance(excludes, list) or not all(isinstance(word, str) for word in excludes):
        yield 'excludes is not a list of patterns: give ["/data/", "*.bin"]'
    for name in ("pip", "uv"):
        if not isinstance(row.get(name, []), list | dict):
            yield f'{name} is neither a list nor an object: give ["einops", "datasets==5.2.0"]'
    if row.get("pip") and row.get("uv"):
        yield "the runtime environment has pip and uv: give one of the two"
    yield from _code_faults(row)


def _keys(value: Any) -> Iterator[Any]:
    """Yield the keys of an object, and of all objects in it."""
    if isinstance(value, Mapping):
        yield from value
    inner = value.values() if isinstance(value, Mapping) else value
    if isinstance(inner, Iterable) and not isinstance(inner, str | bytes):
        for one in inner:
            yield from _keys(one)


def _are_texts(items: Any) -> Iterator[bool]:
    return (isinstance(name, str) and isinstance(value, str) for name, value in items)


def _code_faults(row: Mapping[str, Any]) -> Iterator[str]:
    directory, modules = row.get("working_dir"), row.get("py_modules", [])
    if directory is not None and not isinstance(directory, str):
        yield "working_dir is not text: give a directory, or a URI of an archive"
    if not isinstance(modules, list) or not all(_is_remote(module) for module in modules):
        yield (
            "py_modules has something else than URIs of archives: put modules of your own into "
            "working_dir, which is on the search path"
        )


def _is_remote(value: object) -> bool:
    return isinstance(value, str) and REMOTE.fullmatch(value) is not None
