"""Dynamic sampling (DAPO, Yu et al. 2025, section 3.2): prompts that teach nothing are replaced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainer.types import Sample

ROUNDS = 10
"""So often a step's missing prompts are drawn anew before the run gives up."""


def with_signal(
    samples: Sequence[Sample], size: int, bounds: tuple[float, float]
) -> list[list[Sample]]:
    """The groups of `size` neighbours whose known scores have a mean inside `bounds`, exclusive."""
    groups = [list(samples[start : start + size]) for start in range(0, len(samples), size)]
    low, high = bounds
    return [group for group in groups if low < _mean_score(group) < high]


def _mean_score(group: Sequence[Sample]) -> float:
    """NaN, which lies in no range, where no score is known."""
    known = [sample.score.accuracy for sample in group if sample.score.ok]
    return float(np.mean(known)) if known else float("nan")
