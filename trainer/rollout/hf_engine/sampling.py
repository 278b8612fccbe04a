"""Draws one token for each row of a batch, and the random numbers for it.

The random numbers are counter-based: draw t of a completion is a function of its seed and t. So a
completion does not depend on the rest of the batch, its order, or the number of engines.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.config.options.rollout import SamplingSettings


def draw(
    logits: Tensor, uniforms: Tensor, sampling: SamplingSettings, greedy: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Tokens [B] for logits [B, V] and numbers in [0, 1) [B], and their log-probabilities [B].

    The number picks the token by the inverse of the cumulative distribution: one number a token,
    whatever the vocabulary. Log-probabilities are those under the logits divided by the
    temperature, *before* the nucleus cuts its tail: the distribution whose gradient the trainer
    follows. Temperature 0 takes the likeliest token; the log-probability is then that at 1.
    `greedy` [B]: rows that take the likeliest token at any temperature.
    """
    cold = sampling.temperature == 0
    log_probs = (logits.float() / (1.0 if cold else sampling.temperature)).log_softmax(-1)
    tokens = log_probs.argmax(-1) if cold else _pick(log_probs.exp(), uniforms, sampling.top_p)
    if greedy is not None:
        tokens = log_probs.argmax(-1).where(greedy, tokens)
    return tokens, log_probs.gather(-1, tokens[:, None]).squeeze(-1)


def _pick(probabilities: Tensor, uniforms: Tensor, top_p: float) -> Tensor:
    if top_p == 1:
        return _invert(probabilities, uniforms)
    ordered, tokens = probabilities.sort(dim=-1, descending=True, stable=True)
    rank = _invert(nucleus(ordered, top_p), uniforms)
    return tokens.gather(-1, rank[:, None]).squeeze(-1)


def nucleus(ordered: Tensor, top_p: float) -> Tensor:
    """Falling probabilities [B, V] → zero after the first that together reach `top_p`.

    Holtzman et al. 2020, equation 2.
    """
    before = ordered.cumsum(-1) - ordered
    return torch.where(before < top_p, ordered, 0.0)


def _invert(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """The first index whose cumulative share exceeds the uniform number."""
    # In float32 the sums over a large vocabulary would lose its unlikely tokens.
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    threshold = uniforms[:, None] * cumulative[:, -1:]
    # Rounding may put the threshold on the total itself: then the last token with any mass.
    last = (cumulative < cumulative[:, -1:]).sum(-1)
    return torch.searchsorted(cumulative, threshold, right=True).squeeze(-1).minimum(last)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """[B] numbers in [0, 1), one for each pair of seed and position.

    SplitMix64 (Steele, Lea and Flood 2014, figure 17): the mix of seed + (position + 1)·γ. Seeds
    are hashed already (`seeds.derive`), so that streams of neighbouring rows do not meet.
    """
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is the algorithm
        state = seeds + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    drawn: NDArray[np.float64] = (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return drawn
