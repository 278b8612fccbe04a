"""One comparison: a number by an alternative, and the same number by the product."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.result import report


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Both numbers, of which the smaller one is the better one."""

    unit: str
    alternative: float
    ours: float
    detail: Mapping[str, Any] = field(default_factory=dict)
    lacking: str = ""
    """What this machine has not, without which the numbers say nothing."""

    def printed(self, name: str) -> bool:
        """Print the row for people, then as JSON. Return whether ours is not the larger number."""
        print(f"{name}: {self.alternative:.4g} → {self.ours:.4g} {self.unit}", flush=True)
        return report(
            name,
            self.ours,
            unit=self.unit,
            target=self.alternative,
            better="lower",
            detail={"load": round(os.getloadavg()[0], 1), "cores": os.cpu_count(), **self.detail},
            lacking=self.lacking,
        )
