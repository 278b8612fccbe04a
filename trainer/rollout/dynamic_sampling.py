"""Dynamic sampling (DAPO, Yu et al. 2025, section 3.2): replaces prompts that teach nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.rollout import rewards
from trainer.types import Sample, TrainingError

MOST_FILTERED = 10
"""Times a step's prompts: with so many prompts without a signal, the run fails."""


@dataclass(frozen=True, slots=True)
class Filtered:
    samples: list[Sample]
    pass_rate: float
    """Share of the drawn prompts that are kept, 0 to 1."""


def collect(
    draw: Callable[[int], list[Sample]], prompts: int, size: int, bounds: tuple[float, float]
) -> Filtered:
    """Return the samples of `prompts` prompts with a signal. `draw(n)` samples the next n prompts.

    A draw may have no score at all, for example if a single prompt is missing and its label is
    broken. Raises TrainingError if MOST_FILTERED times `prompts` have no signal.
    """
    kept: list[list[Sample]] = []
    drawn: list[Sample] = []
    while len(drawn) // size - len(kept) < MOST_FILTERED * prompts:
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
    """Return the groups of `size` neighbours whose mean score is inside `bounds`, exclusive.

    A group with a single known score has no signal: there is nothing to compare the score with.
    """
    groups = [list(samples[start : start + size]) for start in range(0, len(samples), size)]
    low, high = bounds
    return [group for group in groups if low < _mean_score(group) < high]


def _mean_score(group: Sequence[Sample]) -> float:
    """Return NaN, which is in no range, if fewer than two scores are known."""
    known = [sample.score.accuracy for sample in group if sample.score.ok]
    return float(np.mean(known)) if len(known) > 1 else float("nan")
