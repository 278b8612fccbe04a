"""Dynamic sampling (DAPO, Yu et al. 2025, section 3.2): prompts that teach nothing are replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.rollout import rewards
from trainer.types import Sample, TrainingError

ROUNDS = 10
"""So often a step's missing prompts are drawn anew before the run gives up."""


@dataclass(frozen=True, slots=True)
class Filtered:
    samples: list[Sample]
    pass_rate: float
    """Share of the prompts drawn that are kept."""


def collect(
    draw: Callable[[int], list[Sample]], prompts: int, size: int, bounds: tuple[float, float]
) -> Filtered:
    """The samples of `prompts` prompts with a signal; `draw(n)` gives those of the next n prompts.

    One draw may well bring no score at all: a single missing prompt whose label is broken.

    Raises TrainingError where ROUNDS draws do not bring so many.
    """
    kept: list[list[Sample]] = []
    drawn: list[Sample] = []
    for _ in range(ROUNDS):
        samples = draw(prompts - len(kept))
        kept += with_signal(samples, size, bounds)
        drawn += samples
        if len(kept) == prompts:
            passed = [sample for group in kept for sample in group]
            return Filtered(passed, len(passed) / len(drawn))
    rewards.require_one(drawn)
    raise hopeless(len(drawn) // size, len(kept), prompts, bounds)


def hopeless(drawn: int, kept: int, needed: int, bounds: tuple[float, float]) -> TrainingError:
    low, high = bounds
    return TrainingError(
        f"--dynamic_filtering: of {drawn} prompts only {kept} have a mean score between "
        f"{low:g} and {high:g}, and a step needs {needed}. The prompts are too easy or too hard "
        "for this policy, or --dynamic_filtering_reward_range does not fit the scores"
    )


def with_signal(
    samples: Sequence[Sample], size: int, bounds: tuple[float, float]
) -> list[list[Sample]]:
    """The groups of `size` neighbours whose known scores have a mean inside `bounds`, exclusive.

    One known score alone is no signal: there is nothing beside it to compare with.
    """
    groups = [list(samples[start : start + size]) for start in range(0, len(samples), size)]
    low, high = bounds
    return [group for group in groups if low < _mean_score(group) < high]


def _mean_score(group: Sequence[Sample]) -> float:
    """NaN, which lies in no range, where fewer than two scores are known."""
    known = [sample.score.accuracy for sample in group if sample.score.ok]
    return float(np.mean(known)) if len(known) > 1 else float("nan")
