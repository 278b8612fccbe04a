"""What "the same" means: to 1e-6, relative to a number above 1 and absolute below it."""

from __future__ import annotations

from typing import Any

import numpy as np

TOLERANCE = 1e-6


def same(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


def differs(ours: Any, theirs: Any) -> bool:
    return not np.allclose(ours, theirs, rtol=1e-3, atol=1e-3)
