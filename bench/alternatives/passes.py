"""Passes of an update: 4,096 samples as of models that think, 32,768 tokens a pass.

The alternatives fill one pass after another: `in_order` in the order in which samples come, and
`first_fit` puts each sample into the first pass with room. `similar_lengths` is what the trainer
takes where attention pads packed samples. `fewest` is the bound that no grouping is below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bench.alternatives.row import Row
from tests.support.lengths import long_tailed
from trainer.algorithms import batching
from trainer.types import IntArray

SAMPLES, BUDGET = 4_096, 32_768
Grouping = Callable[[IntArray, int], Sequence[Sequence[int] | IntArray]]


def measured() -> Row:
    lengths = long_tailed(SAMPLES)
    whole = int(lengths.sum())
    groupings: dict[str, Grouping] = {
        "in_order": in_order,
        "first_fit": first_fit,
        "similar_lengths": batching.within_budget,
        "ours": batching.fullest,
    }
    groups = {name: grouping(lengths, BUDGET) for name, grouping in groupings.items()}
    counts = {name: len(found) for name, found in groups.items()}
    return Row(
        unit="passes",
        alternative=counts["similar_lengths"],
        ours=counts["ours"],
        detail={
            "samples": SAMPLES,
            "budget": BUDGET,
            "median_length": int(np.median(lengths)),
            "fewest": -(-whole // BUDGET),
            "passes": counts,
            "fill": {name: round(whole / BUDGET / count, 3) for name, count in counts.items()},
            "costliest_to_mean": {
                name: costliest_to_mean(lengths, found) for name, found in groups.items()
            },
        },
    )


def costliest_to_mean(lengths: IntArray, groups: Sequence[Sequence[int] | IntArray]) -> float:
    """Return how much the costliest pass costs, in the mean of all: ranks wait for it."""
    cost = lengths + batching.ATTENTION * lengths**2
    costs = np.array([cost[list(group)].sum() for group in groups])
    return round(float(costs.max() / costs.mean()), 3)


def in_order(lengths: IntArray, budget: int) -> list[list[int]]:
    """Return groups of neighbours: a sample that does not fit begins the next group."""
    groups, total = [list[int]()], 0
    for index, length in enumerate(lengths.tolist()):
        if total + length > budget and groups[-1]:
            groups.append([])
            total = 0
        groups[-1].append(index)
        total += length
    return groups


def first_fit(lengths: IntArray, budget: int) -> list[list[int]]:
    """Return groups: each sample goes to the first one with room, or begins another."""
    groups, room = list[list[int]](), list[int]()
    for index, length in enumerate(lengths.tolist()):
        place = next((number for number, left in enumerate(room) if left >= length), len(groups))
        if place == len(groups):
            groups.append([])
            room.append(budget)
        groups[place].append(index)
        room[place] -= length
    return groups
