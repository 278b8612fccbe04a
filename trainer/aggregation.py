"""What each token counts in the loss of one optimiser step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainer.types import BoolArray


def token_weights(actions: BoolArray, mode: str, longest: int) -> NDArray[np.float64]:
    """[B, T] weights of the action tokens of a whole optimiser step; zero elsewhere.

    token: 1 / action tokens (DAPO, Yu et al. 2025, equation 8). sequence: 1 / (sequences x the
    sequence's own tokens), the mean of sequences' means (GRPO, Shao et al. 2024, equation 3).
    constant: 1 / (sequences x `longest`), with no length in it (Dr. GRPO, Liu et al. 2025,
    section 3.2). Sequences without any action token do not count.

    Raises ValueError for another mode.
    """
    lengths = actions.sum(axis=1)
    sequences = max(1, int((lengths > 0).sum()))
    if mode == "token":
        weight = np.full(len(actions), 1 / max(1, int(lengths.sum())))
    elif mode == "sequence":
        weight = 1 / (sequences * np.maximum(lengths, 1))
    elif mode == "constant":
        weight = np.full(len(actions), 1 / (sequences * longest))
    else:
        raise ValueError(f"unknown aggregation {mode!r}")
    return np.where(actions, weight[:, None], 0)
