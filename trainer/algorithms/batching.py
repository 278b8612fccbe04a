"""Which samples share a micro-batch, and how their tokens are laid out.

Pure and torch-free. A length is the number of tokens of a whole sample: prompt and completion.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.types import FloatArray, IntArray, Metrics, Sequences, TokenArray

PEAK = "_memory_gb"
"""Suffix of metrics that `combine_metrics` combines by their maximum over the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchLimits:
    """Limits of one micro-batch: a number of samples, or a budget of tokens if one is given."""

    samples: int
    tokens: int | None = None
    """Maximum tokens of a micro-batch; a single longer sample makes a micro-batch of its own."""
    packed: bool = False
    """Count tokens without padding, because no padding passes through the model."""
    padded_inside: bool = True
    """Attention pads packed samples to the longest one of their micro-batch."""
    apart: int | None = None
    """Samples with more tokens than this share no micro-batch with shorter ones: see
    `trainer.config.architecture.long_factors_from`."""


def micro_batches(lengths: IntArray, limits: MicroBatchLimits) -> list[IntArray]:
    """Return every index of `lengths` once, grouped into micro-batches; none of no lengths."""
    if not len(lengths):
        return []
    if limits.apart is None:
        return _within_limits(lengths, limits)
    longer = lengths > limits.apart
    kinds = [rows for rows in (np.flatnonzero(~longer), np.flatnonzero(longer)) if len(rows)]
    return [rows[index] for rows in kinds for index in _within_limits(lengths[rows], limits)]


def combine_metrics(of_ranks: Sequence[Mapping[str, float]]) -> Metrics:
    """Add up the ranks' metrics; of a memory peak take the maximum."""
    whole: Metrics = {}
    for metrics in of_ranks:
        for name, value in metrics.items():
            if name.endswith(PEAK):
                whole[name] = max(whole.get(name, value), value)
            else:
                whole[name] = whole[name] + value if name in whole else value
    return whole


def peak_metrics(role: str, held: Mapping[str, int]) -> Metrics:
    """Return the peak bytes of each phase as metrics (in GB) of a process of `role`."""
    return {f"{role}_{phase}{PEAK}": taken / 1e9 for phase, taken in held.items()}


def _within_limits(lengths: IntArray, limits: MicroBatchLimits) -> list[IntArray]:
    if limits.tokens is None:
        return by_count(lengths, limits.samples)
    if limits.packed:
        fill = within_budget if limits.padded_inside else fullest
        return fill(lengths, limits.tokens)
    return side_by_side(lengths, limits.tokens)


def by_count(lengths: IntArray, size: int) -> list[IntArray]:
    """Return groups of `size` samples of similar length: there is little padding."""
    order = np.argsort(lengths, kind="stable")
    return [order[start : start + size] for start in range(0, len(order), size)]


def side_by_side(lengths: IntArray, budget: int) -> list[IntArray]:
    """Return groups of similar length whose rectangle (samples x longest) is within `budget`."""
    groups: list[list[int]] = []
    for index in np.argsort(lengths, kind="stable"):
        # The newest sample is the longest: it sets the width of all.
        if not groups or (len(groups[-1]) + 1) * lengths[index] > budget:
            groups.append([])
        groups[-1].append(int(index))
    return [np.array(group) for group in groups]


def within_budget(lengths: IntArray, budget: int) -> list[IntArray]:
    """Return groups of similar length whose tokens together are within `budget`.

    Every group but the last has less room left than the length of its next sample. Similar lengths
    keep padding small in attention that pads.
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


ATTENTION = 2e-5
"""Cost of attention to a token, of which a sample has as many as tokens, in the cost of a token in
the rest of a model: layers x hidden size / parameters, 1.3e-5 for Qwen2.5-7B, 4.4e-5 for 0.5B."""


def fullest(lengths: IntArray, budget: int) -> list[IntArray]:
    """Return few groups whose tokens together are within `budget`, the cheapest first.

    Best fit, longest first, finds their number (Johnson 1974). Then each sample goes to the group
    of the least cost so far that has room (Graham 1969); best fit's groups stay if that fails. So
    ranks that wait for one another compute groups of similar cost at the same time.
    """
    taken, cost = np.minimum(lengths, budget), lengths + ATTENTION * lengths**2
    group = _best_fit(taken, budget)
    even = _cheapest_fit(taken, budget, cost, int(group.max()) + 1)
    group = group if even is None else even
    spent = np.bincount(group, weights=cost)
    return [np.flatnonzero(group == index) for index in np.argsort(spent, kind="stable")]


def _best_fit(lengths: IntArray, budget: int) -> IntArray:
    """Return the group of each sample: the one with the least room that is enough, or a new one."""
    group, room, used = np.zeros(len(lengths), dtype=np.int64), np.full(len(lengths), budget), 0
    for index in np.argsort(-lengths, kind="stable"):
        left = room[:used] - lengths[index]
        fits = np.flatnonzero(left >= 0)
        group[index] = fits[left[fits].argmin()] if len(fits) else used
        room[group[index]] -= lengths[index]
        used += not len(fits)
    return group


def _cheapest_fit(lengths: IntArray, budget: int, cost: FloatArray, groups: int) -> IntArray | None:
    """Return the group of each sample: the cheapest with room; None if one finds no room."""
    group, room, spent = (
        np.zeros(len(lengths), dtype=np.int64),
        np.full(groups, budget),
        np.zeros(groups),
    )
    for index in np.argsort(-lengths, kind="stable"):
        fits = np.flatnonzero(room >= lengths[index])
        if not len(fits):
            return None
        group[index] = fits[spent[fits].argmin()]
        room[group[index]] -= lengths[index]
        spent[group[index]] += cost[index]
    return group


def balanced(lengths: IntArray, parts: int) -> list[IntArray]:
    """Return `parts` groups of nearly equal sums: they differ by at most the longest sample.

    Longest first (Graham 1969, LPT): each sample goes to the group that is the emptiest so far,
    of equal groups to the first.
    """
    groups: list[list[int]] = [[] for _ in range(parts)]
    emptiest = [(0, part) for part in range(parts)]
    for index in np.argsort(-lengths, kind="stable").tolist():
        total, part = emptiest[0]
        groups[part].append(index)
        heapq.heapreplace(emptiest, (total + int(lengths[index]), part))
    return [np.array(sorted(members), dtype=np.int64) for members in groups]


@dataclass(frozen=True, slots=True)
class Pack:
    """Samples end to end, each without its last token, which nothing is predicted from."""

    tokens: TokenArray
    """[M]"""
    positions: IntArray
    """[M] position of each token in its own sample."""
    lengths: IntArray
    """[B] number of tokens of each sample in the pack."""
    before_action: IntArray
    """[N] index of the token before each action token; actions in order."""


def pack(sequences: Sequences) -> Pack:
    """Return the sequences end to end."""
    lengths, ends = sequences.lengths - 1, np.cumsum(sequences.lengths)
    positions = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    acting = np.delete(sequences.action_mask, ends - sequences.lengths)
    return Pack(np.delete(sequences.tokens, ends - 1), positions, lengths, np.flatnonzero(acting))


def grid(lengths: Sequence[int] | IntArray) -> tuple[IntArray, IntArray]:
    """Map sequences end to end (M tokens) to rows (B of the longest's width), and back.

    Returns [B * width] the token at each place (0 after a row's end), and [M] the place of each
    token.
    """
    lengths = np.asarray(lengths)
    inside = np.arange(lengths.max()) < lengths[:, None]
    tokens = np.zeros(inside.size, dtype=np.int64)
    places = np.flatnonzero(inside)
    tokens[places] = np.arange(len(places))
    return tokens, places
