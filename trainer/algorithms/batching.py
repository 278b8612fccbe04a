"""Which samples share a pass through a model, and where their tokens lie in it.

Pure and torch-free. Lengths are tokens of whole samples, prompt and completion.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainer.types import IntArray, Sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How a batch is cut into passes: by samples, or by tokens where a budget is given."""

    samples: int
    tokens: int | None = None
    """A pass has no more tokens than this, unless one sample alone does."""
    packed: bool = False
    """Tokens are counted without padding, as none passes through the model."""
    apart: int | None = None
    """Samples of more tokens than this share no pass with the others, as in rotary.py."""


def passes(lengths: IntArray, cut: Cut) -> list[IntArray]:
    """Every index of `lengths` once, in groups that pass through the model together."""
    if cut.apart is None:
        return _passes(lengths, cut)
    longer = lengths > cut.apart
    kinds = [rows for rows in (np.flatnonzero(~longer), np.flatnonzero(longer)) if len(rows)]
    return [rows[index] for rows in kinds for index in _passes(lengths[rows], cut)]


def _passes(lengths: IntArray, cut: Cut) -> list[IntArray]:
    if cut.tokens is None:
        return by_count(lengths, cut.samples)
    return within_budget(lengths, cut.tokens) if cut.packed else side_by_side(lengths, cut.tokens)


def by_count(lengths: IntArray, size: int) -> list[IntArray]:
    """Groups of `size`, each of neighbours in length: next to no padding."""
    order = np.argsort(lengths, kind="stable")
    return [order[start : start + size] for start in range(0, len(order), size)]


def side_by_side(lengths: IntArray, budget: int) -> list[IntArray]:
    """Groups of neighbours in length whose rectangle (samples x longest) is within `budget`."""
    groups: list[list[int]] = []
    for index in np.argsort(lengths, kind="stable"):
        # The newest is the longest: it sets the width of all.
        if not groups or (len(groups[-1]) + 1) * lengths[index] > budget:
            groups.append([])
        groups[-1].append(int(index))
    return [np.array(group) for group in groups]


def within_budget(lengths: IntArray, budget: int) -> list[IntArray]:
    """Groups of neighbours in length whose tokens together are within `budget`.

    Every group but the last lacks less than its next sample's length. Alike in length, so that
    attention, which lays samples side by side where it has no kernel for this, has little to pad.
    """
    groups: list[list[int]] = []
    total = 0
    for index in np.argsort(lengths, kind="stable"):
        if not groups or total + lengths[index] > budget:
            groups.append([])
            total = 0
        groups[-1].append(int(index))
        total += int(lengths[index])
    return [np.array(group) for group in groups]


def balanced(lengths: IntArray, parts: int) -> list[IntArray]:
    """`parts` groups of nearly equal sums, for as many workers; they differ by no more than the
    longest sample.

    The largest differencing method (Karmarkar and Karp 1982) for several parts: the two
    partitions that are furthest from even are merged, the fullest group of one with the emptiest
    of the other, until one partition is left. A merge is never less even than both were.
    """
    if not len(lengths):
        return [np.empty(0, dtype=np.int64) for _ in range(parts)]
    heap = [_Partition.of(index, int(length), parts) for index, length in enumerate(lengths)]
    heapq.heapify(heap)
    while len(heap) > 1:
        widest = heapq.heappop(heap)
        heapq.heapreplace(heap, widest.merged(heap[0]))
    return [np.array(sorted(members), dtype=np.int64) for _, members in heap[0].groups]


@dataclass(frozen=True, slots=True)
class _Partition:
    groups: list[tuple[int, list[int]]]
    """Sum and members, the fullest first."""
    first: int
    """The least of all members."""

    @classmethod
    def of(cls, index: int, length: int, parts: int) -> _Partition:
        return cls([(length, [index])] + [(0, []) for _ in range(parts - 1)], index)

    def __lt__(self, other: _Partition) -> bool:
        """The least even first; ties by the first member, so that the order is one."""
        return (-self._spread, self.first) < (-other._spread, other.first)

    @property
    def _spread(self) -> int:
        return self.groups[0][0] - self.groups[-1][0]

    def merged(self, other: _Partition) -> _Partition:
        pairs = zip(self.groups, reversed(other.groups), strict=True)
        groups = [(total + more, members + added) for (total, members), (more, added) in pairs]
        first = min(self.first, other.first)
        return _Partition(sorted(groups, key=lambda group: -group[0]), first)


@dataclass(frozen=True, slots=True)
class Pack:
    """Samples end to end, each without its last token: nobody asks what comes after that."""

    tokens: IntArray
    """[M]"""
    positions: IntArray
    """[M] place of each token in its own sample."""
    lengths: IntArray
    """[B] tokens of each sample here."""
    before_action: IntArray
    """[N] where the model sees what each action was chosen after; actions in order."""


def pack(sequences: Sequences) -> Pack:
    lengths = sequences.lengths - 1
    inside = np.arange(sequences.tokens.shape[1] - 1) < lengths[:, None]
    positions = np.broadcast_to(np.arange(inside.shape[1]), inside.shape)[inside]
    tokens = sequences.tokens[:, :-1][inside]
    return Pack(tokens, positions, lengths, np.flatnonzero(sequences.actions[:, 1:][inside]))


def grid(lengths: Sequence[int] | IntArray) -> tuple[IntArray, IntArray]:
    """Between sequences end to end (M tokens) and side by side (B rows of the longest's width).

    Returns [B * width] the token of each place (0 where the row has ended) and [M] the place of
    each token.
    """
    lengths = np.asarray(lengths)
    inside = np.arange(lengths.max()) < lengths[:, None]
    tokens = np.zeros(inside.size, dtype=np.int64)
    places = np.flatnonzero(inside)
    tokens[places] = np.arange(len(places))
    return tokens, places
