"""How often, and what "the same" means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import numpy as np

EXAMPLES = 40
TOLERANCE = 1e-6


def given(*strategies: Any, **named: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """hypothesis.given with fewer examples: a batch has rows of every kind in it."""

    drawing: Any = hypothesis.given(*strategies, **named)  # its types forbid one call with both

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        drawn: Callable[..., None] = drawing(test)
        return hypothesis.settings(max_examples=EXAMPLES)(drawn)

    return decorate


def same(ours: Any, theirs: Any) -> None:
    """To 1e-6, relative to a number above 1 and absolute below it."""
    np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


def differs(ours: Any, theirs: Any) -> bool:
    return not np.allclose(ours, theirs, rtol=1e-3, atol=1e-3)
