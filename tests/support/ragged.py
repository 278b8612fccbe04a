"""Sequences of padded rows, their parts for ranks, and what ranks return as padded rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.algorithms import division
from trainer.algorithms.division import Part, Plan
from trainer.cluster.worker_group import WorkerGroup, each
from trainer.types import (
    ALONE,
    BoolArray,
    Experience,
    FloatArray,
    IntArray,
    Metrics,
    Rank,
    Sequences,
)


def sequences_of(
    tokens: NDArray[Any],
    lengths: Sequence[int] | IntArray,
    action_mask: BoolArray,
    rollout_log_probs: FloatArray | None = None,
    images: Any = None,
) -> Sequences:
    """Return the rows [B, T] without their padding; `rollout_log_probs` are [N]."""
    lengths = np.asarray(lengths)
    inside = np.arange(tokens.shape[1]) < lengths[:, None]
    return Sequences(
        tokens[inside].astype(np.int32),
        lengths,
        action_mask[inside],
        rollout_log_probs,
        images=images,
    )


def mask_of(sequences: Sequences) -> BoolArray:
    """Return [B, T] true at actions."""
    return padded(sequences.action_mask, sequences).astype(np.bool_)


def padded(array: NDArray[Any], sequences: Sequences) -> NDArray[Any]:
    """Return [B, T] of an array [M] or [N] of the sequences; zero elsewhere."""
    inside = np.arange(int(sequences.lengths.max())) < sequences.lengths[:, None]
    whole = np.zeros(inside.shape, dtype=array.dtype)
    if len(array) != len(sequences.tokens):
        of_tokens = np.zeros(len(sequences.tokens), dtype=array.dtype)
        of_tokens[sequences.action_mask] = array
        array = of_tokens
    whole[inside] = array
    return whole


def plan_of(sequences: Sequences, updates: tuple[IntArray, ...] = (), ranks: int = 1) -> Plan:
    return division.plan(sequences.lengths, sequences.actions, updates, [ranks])


def part_of(sequences: Sequences, rank: Rank = ALONE, updates: tuple[IntArray, ...] = ()) -> Part:
    plan = plan_of(sequences, updates, rank.world)
    return division.parts(plan, rank.world, sequences.rows)[rank.index]


def scores(model: Any, sequences: Sequences) -> FloatArray:
    """Return [B, T] what a policy, a reference or a critic computes alone; zero elsewhere."""
    compute = getattr(model, "log_probs", None) or model.values
    found = compute(part_of(sequences))
    return padded(np.concatenate(found) if isinstance(found, list) else found, sequences)


def together(of_ranks: Sequence[FloatArray], sequences: Sequences) -> FloatArray:
    """Return [N] of all samples from what each rank returned of its part of them."""
    plan, count = plan_of(sequences, ranks=len(of_ranks)), len(of_ranks)
    rows = np.concatenate([part.rows for part in division.parts(plan, count, sequences.rows)])
    actions = sequences.actions[rows]
    by_row = np.split(np.concatenate(of_ranks), np.cumsum(actions)[:-1])
    return np.concatenate([by_row[place] for place in np.argsort(rows)])


def learn(actor: Any, of: Experience, step: int) -> Metrics:
    """Let a policy or a critic, or one rank of it, learn from its part of the experience."""
    train, sequences = actor._engine._settings.train, of.sequences
    updates = division.mini_batches(len(sequences), train, step)
    part = part_of(sequences, actor._rank.data, updates)
    metrics: Metrics = actor.learn(part, of.rows(part.rows), step)
    return metrics


def learn_together(group: WorkerGroup[Any], of: Experience, step: int) -> list[Metrics]:
    """Let all ranks of a group learn from the experience in one optimizer step."""
    from trainer.workers.learner import LearnerActor  # imports torch

    updates, count = (np.arange(len(of.sequences)),), len(group)
    parts = [part_of(of.sequences, Rank(index, count), updates) for index in range(count)]
    own = [of.rows(part.rows) for part in parts]
    return group.call_ranks(LearnerActor.learn, each(parts), each(own), step).result()
