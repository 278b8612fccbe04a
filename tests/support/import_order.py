"""A rank that knows what its process had imported before the rank's own module."""

from __future__ import annotations

import sys

from trainer.types import Rank

BEFORE = frozenset(sys.modules)


class ImportOrder:
    """A rank of nothing but its process group."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank

    def came_before(self, module: str) -> bool:
        """Return whether the process had imported `module` before it imported this one."""
        return module in BEFORE
