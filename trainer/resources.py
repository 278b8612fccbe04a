"""Custom Ray resources, as `--ref_resources '{"v100": 1}'` gives them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Resources:
    """Amounts by name. Raises ValueError for a text that is no such object."""

    text: str = "{}"
    DESCRIBED: ClassVar[str] = 'a JSON object such as {"v100": 1}, of positive numbers, no GPU, CPU'

    def __post_init__(self) -> None:
        for name, amount in self.amounts.items():
            counted = isinstance(amount, int | float) and not isinstance(amount, bool)
            if not counted or amount <= 0 or name in ("", "GPU", "CPU", "memory"):
                raise ValueError(name)

    @property
    def amounts(self) -> dict[str, float]:
        read = json.loads(self.text)
        if not isinstance(read, dict):
            raise ValueError(self.text)
        return read

    def __str__(self) -> str:
        return self.text
