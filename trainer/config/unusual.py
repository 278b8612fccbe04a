"""Warnings for values that are allowed and far outside of what trainings use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usual:
    """A value outside of `least` to `most` is likely a typing error."""

    least: float
    most: float
    said: str
    """What is usual, in words."""


LEARNING_RATE = Usual(1e-10, 1e-2, "1e-7 to 1e-5, and up to 1e-3 with LoRA or a tiny model")
USUAL: Mapping[str, Usual] = {
    "actor_learning_rate": LEARNING_RATE,
    "critic_learning_rate": LEARNING_RATE,
    "learning_rate": LEARNING_RATE,
}


def warnings(values: Mapping[str, float], given: Set[str]) -> Iterator[str]:
    """Yield a sentence for each given value that is unusual. `values`: by flag."""
    for name, usual in USUAL.items():
        value = values.get(name)
        if name in given and value is not None and not usual.least <= value <= usual.most:
            yield f"--{name} {value:g} is unusual. Usual is {usual.said}"
