"""Random ragged batches, as rollouts make them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

Array = NDArray[np.float64]

SCALES = (0.0, 0.01, 0.3, 3.0, 30.0)
WIDE = (-4.0, -1.0, -0.1, 0.0, 0.1, 1.0, 4.0)
"""Log-ratios inside and outside of every bound that a test sets: e⁴ is 55."""


@dataclass(frozen=True)
class Batch:
    """Arrays are [B, T] where nothing else is said, float64, and zero where no action is."""

    group_size: int
    action_mask: NDArray[np.bool_]
    """At least one in every row; prompts, observations between turns and padding are none."""
    log_probs: Array
    old: Array
    rollout: Array
    reference: Array
    entropy: Array
    advantages: Array
    values: Array
    old_values: Array
    returns: Array
    rewards: Array
    """[B]; equal within some groups"""

    @property
    def lengths(self) -> NDArray[np.int64]:
        counts: NDArray[np.int64] = self.action_mask.sum(axis=1)
        return counts

    @property
    def gains(self) -> Array:
        """[B] one advantage for each row."""
        first = self.action_mask.argmax(axis=1)
        gains: Array = self.advantages[np.arange(len(first)), first]
        return gains


@st.composite
def batches(draw: st.DrawFn, *, gaps: bool = True, spread: float = 30.0) -> Batch:
    """Up to 3 prompts with up to 4 completions of up to 9 tokens.

    Without `gaps` the actions of a row are neighbours. `spread` is the largest scale of the
    difference between two policies' log-probabilities; it differs from row to row, for a batch of
    each kind would leave too much to chance.
    """
    prompts, size = draw(st.integers(1, 3)), draw(st.integers(2, 4))
    width = draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (prompts * size, width)
    action_mask = _actions(rng, shape, gaps=gaps and draw(st.booleans()))

    scale = rng.choice([s for s in SCALES if s <= spread], (len(action_mask), 1))

    def normal(scale: Array | float = 1.0) -> Array:
        return np.where(action_mask, rng.normal(0, scale, shape), 0)

    old = np.where(action_mask, -rng.exponential(2, shape), 0)
    old_values = normal()
    return Batch(
        group_size=size,
        action_mask=action_mask,
        log_probs=-np.abs(old + normal(scale)),
        old=old,
        rollout=-np.abs(old + normal(scale)),
        reference=-np.abs(old + normal(scale)),
        entropy=np.abs(normal()),
        advantages=normal() * rng.integers(0, 2, (len(action_mask), 1)),
        values=old_values + normal(scale),
        old_values=old_values,
        returns=normal(2.0),
        rewards=_rewards(rng, prompts, size),
    )


@st.composite
def wide_batches(draw: st.DrawFn) -> Batch:
    """Batches in which every bound on a ratio binds, from above and from below.

    The first action of the first row has a ratio of e⁴ to the old policy, and of the second row one
    of e⁻⁴; the old policy has the same to the engine. Both have a negative advantage.
    """
    batch = draw(batches())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    action_mask, shape = batch.action_mask, batch.action_mask.shape
    to_old, to_engine = rng.choice(WIDE, shape), rng.choice(WIDE, shape)
    gains = rng.choice([-1.0, 1.0], shape) * rng.uniform(0.1, 2, shape)
    for row, log_ratio in ((0, max(WIDE)), (1, min(WIDE))):
        at = row, int(action_mask[row].argmax())
        to_old[at] = to_engine[at] = log_ratio
        gains[at] = -abs(gains[at])
    old = rng.uniform(-14, -10, shape)

    def chosen(array: Array) -> Array:
        return np.where(action_mask, array, 0)

    return replace(
        batch,
        old=chosen(old),
        log_probs=chosen(old + to_old),
        rollout=chosen(old - to_engine),
        advantages=chosen(gains),
    )


def _actions(rng: np.random.Generator, shape: tuple[int, int], *, gaps: bool) -> NDArray[np.bool_]:
    rows, width = shape
    first = rng.integers(0, width, (rows, 1)) * rng.integers(0, 2, (rows, 1))
    last = rng.integers(first, width)
    place = np.arange(width)
    action_mask = (place >= first) & (place <= last)
    if gaps:
        action_mask &= (rng.random(shape) < 0.6) | (place == last)
    return action_mask


def _rewards(rng: np.random.Generator, prompts: int, size: int) -> Array:
    """Right or wrong for one prompt, any number for another; some beyond the clip of ±10."""
    groups = [rng.integers(0, 2, size), rng.normal(0, 1, size), rng.normal(0, 20, size)]
    rewards = np.stack([groups[kind] for kind in rng.integers(0, 3, prompts)])
    return (rewards * rng.integers(0, 2, (prompts, 1))).reshape(-1).astype(np.float64)
