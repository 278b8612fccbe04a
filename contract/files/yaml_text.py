"""Parses YAML, and so JSON, that people and other programs write, whatever it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

LARGEST = 1_000_000
"""Values of a text, each counted as often as an alias repeats it."""

T = TypeVar("T")


class NotYamlError(ValueError):
    """The text is no YAML; the message says why, after "it": such as "is not YAML in line 3"."""


def parsed(text: str) -> Any:
    """Return the value. Raises NotYamlError.

    Also for values that no program could use: nested too deeply, repeated by aliases without end,
    dates that do not exist, and lone surrogates, which cannot be printed.
    """
    composed(text)
    return _guarded(lambda yaml: yaml.safe_load(text))


def composed(text: str) -> Any:
    """Return the tree of YAML's nodes; None of an empty text. Raises NotYamlError as `parsed`."""
    return _guarded(lambda yaml: _checked(yaml.compose(text, yaml.SafeLoader)))


def _guarded(act: Callable[[Any], T]) -> T:
    import yaml  # only if there is a text: --help answers at once

    try:
        return act(yaml)
    except NotYamlError:
        raise
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise NotYamlError("is not YAML" + (f" in line {mark.line + 1}" if mark else "")) from None
    except RecursionError:
        raise NotYamlError("is nested too deeply") from None
    except ValueError as error:  # a date or a number that cannot be
        why = ascii(str(error).partition("\n")[0])[1:-1]
        raise NotYamlError(f"has a value that cannot be: {why}") from None


def _checked(tree: Any) -> Any:
    if tree is not None and _count(tree, {}) > LARGEST:
        raise NotYamlError("has aliases that repeat too much")
    return tree


def _count(node: Any, known: dict[int, int]) -> int:
    """Return the number of values below a node, whose aliases point to a node that is `known`."""
    if id(node) in known:
        if not known[id(node)]:
            raise NotYamlError("has an alias inside of what it names")
        return known[id(node)]
    known[id(node)] = 0
    if isinstance(node.value, str):
        _check_printable(node)
        found = 1
    else:
        parts = (part if isinstance(part, tuple) else (part,) for part in node.value)
        found = 1 + sum(_count(one, known) for part in parts for one in part)
    known[id(node)] = found
    return found


def _check_printable(node: Any) -> None:
    try:
        node.value.encode()
    except UnicodeEncodeError:
        line = node.start_mark.line + 1
        raise NotYamlError(f"has an incomplete Unicode character in line {line}") from None


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `below` with the keys of `above`, which count more, at every depth."""
    made = dict(below)
    for key, value in above.items():
        under = made.get(key)
        if isinstance(value, Mapping) and isinstance(under, Mapping):
            made[key] = merged(under, value)
        else:
            made[key] = value
    return made
