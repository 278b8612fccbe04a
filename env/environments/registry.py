"""The environments that have a name for `--environment`. Checking a name imports none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pkgutil import resolve_name
from typing import Any

from env.types import IN_PYTHON

ENVIRONMENTS: dict[str, str | Callable[..., Any]] = {
    "search": "env.environments.search:with_retriever",
    "single-turn": "env.episodes.environment:SingleTurn",
}
"""Name → what makes the environment, as MODULE:NAME: its module may import for seconds."""


def registered(name: str) -> Callable[..., Any] | None:
    """Return what makes the environment of this name; None if there is none of this name."""
    made = ENVIRONMENTS.get(name)
    found: Callable[..., Any] | None = resolve_name(made) if isinstance(made, str) else made
    return found


@contextmanager
def given_in_python(factory: Callable[..., Any]) -> Iterator[str]:
    """Give a class or a factory of this process the name IN_PYTHON, in the block."""
    ENVIRONMENTS[IN_PYTHON] = factory
    try:
        yield IN_PYTHON
    finally:
        del ENVIRONMENTS[IN_PYTHON]
