"""Which samples each rank of a model takes, and how what the ranks return is put together.

Pure and torch-free. Every rank holds the whole batch and finds its own share by these functions,
so that no rank needs to ask another for lengths, weights or denominators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.algorithms import batching
from trainer.algorithms.batching import Cut
from trainer.types import BoolArray, FloatArray, IntArray, Metrics, Rank, Sequences

PEAK = "_memory_gb"
"""How metrics end of which the fullest rank's counts."""


def peaks(role: str, held: Mapping[str, int]) -> Metrics:
    """Bytes of each phase as metrics of a process of `role`."""
    return {f"{role}_{phase}{PEAK}": taken / 1e9 for phase, taken in held.items()}


@dataclass(frozen=True, slots=True)
class Pass:
    """Samples that go through a model together."""

    rows: IntArray
    idle: bool = False
    """Made because other ranks have one more, and sharded weights are gathered by all together;
    what comes of it counts nothing."""


def of_ranks(lengths: IntArray, world: int) -> list[IntArray]:
    """For each rank, the samples that it takes, in order: nearly as many tokens as any other's."""
    return [np.arange(len(lengths))] if world == 1 else batching.balanced(lengths, world)


def passes(sequences: Sequences, rows: IntArray, cut: Cut, rank: Rank) -> list[Pass]:
    """This rank's passes over `rows`, as many as every other rank makes.

    Samples without an action are left out: they change nothing.
    """
    lengths = sequences.lengths[rows]
    acts: BoolArray = np.any(sequences.actions[rows], axis=1)
    of_all = []
    for share in of_ranks(lengths, rank.world):
        cut_here = [share[index] for index in batching.passes(lengths[share], cut)]
        of_all.append([rows[index] for index in cut_here if acts[index].any()])
    mine = [Pass(index) for index in of_all[rank.index]]
    missing = max(map(len, of_all)) - len(mine)
    if not missing:
        return mine
    acting = rows[acts]
    shortest = acting[np.argmin(lengths[acts], keepdims=True)]
    return mine + [Pass(shortest, idle=True)] * missing


def merged(parts: Sequence[FloatArray], lengths: IntArray) -> FloatArray:
    """[B, T] of the whole batch from what each rank says about its share."""
    if len(parts) == 1:
        return parts[0]
    whole = np.zeros((len(lengths), parts[0].shape[1]), dtype=np.float32)
    for rows, part in zip(of_ranks(lengths, len(parts)), parts, strict=True):
        whole[rows] = part
    return whole


def merged_metrics(of_each: Sequence[Mapping[str, float]]) -> Metrics:
    """Metrics of all ranks: shares of one mean add up; of memory the fullest rank's counts."""
    whole: Metrics = {}
    for metrics in of_each:
        for name, value in metrics.items():
            if name.endswith(PEAK):
                whole[name] = max(whole.get(name, value), value)
            else:
                whole[name] = whole[name] + value if name in whole else value
    return whole
