"""The slices of a micro-batch whose samples several ranks share: pure and torch-free.

The slices are equal, so there may be tokens of no sample at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.algorithms.batching import Pack
from trainer.types import BoolArray, IntArray, TokenArray


@dataclass(frozen=True, slots=True)
class Slice:
    """One rank's columns of R rows: each row is a sample, or the only row has all samples."""

    tokens: IntArray
    """[R, t]"""
    positions: IntArray
    """[R, t] position of each token in its own sample."""
    inside: BoolArray
    """[R, t] whether the token is one of a sample."""
    before_action: IntArray
    """[n] index in [R · t] of the token before each of the rank's actions.

    A rank without an action has one index all the same: others wait for what it computes."""
    own: IntArray
    """[n] which of all N actions they are; -1: none."""
    lengths: IntArray
    """Tokens of each sample of all ranks, end to end; those of no sample are one more."""


def slice_of(packed: Pack, place: int, ranks: int, *, end_to_end: bool) -> Slice:
    """Return the slice of the rank at `place` of those that share the samples.

    `end_to_end`: all samples are one row; else each has a row, padded on the right.
    """
    rows = 1 if end_to_end else len(packed.lengths)
    used = len(packed.tokens) if end_to_end else int(packed.lengths.max())
    width = -(-used // ranks) * ranks
    at = np.arange(len(packed.tokens))
    if not end_to_end:
        at = np.repeat(np.arange(rows) * width, packed.lengths) + packed.positions
    share = slice(place * width // ranks, (place + 1) * width // ranks)

    def own(values: IntArray | TokenArray, where: IntArray) -> IntArray:
        whole = np.zeros(rows * width, dtype=np.int64)
        whole[where] = values
        return whole.reshape(rows, width)[:, share]

    count = len(packed.before_action)
    numbers = own(np.arange(1, 1 + count), at[packed.before_action]).ravel()
    before_action = np.flatnonzero(numbers)
    if not len(before_action):
        before_action = np.zeros(1, dtype=np.int64)
    rest = [width - used] if end_to_end and width > used else []
    return Slice(
        tokens=own(packed.tokens, at),
        positions=own(packed.positions, at),
        inside=own(np.ones_like(at), at).astype(np.bool_),
        before_action=before_action,
        own=numbers[before_action] - 1,
        lengths=np.append(packed.lengths, np.array(rest, dtype=np.int64)),
    )
