"""Each sample of a step is on one rank of each model, and the ranks have equal work."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ragged import sequences_of
from trainer.algorithms import batching, division
from trainer.algorithms.batching import MicroBatchLimits
from trainer.algorithms.division import Part, Plan
from trainer.types import FloatArray, IntArray, Sequences

WORLDS = st.integers(1, 5)


@st.composite
def batches(draw: st.DrawFn) -> Sequences:
    lengths = np.array(draw(st.lists(st.integers(2, 30), min_size=1, max_size=40)))
    acts = np.array(draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths))))
    place = np.arange(int(lengths.max()))
    action_mask = (place >= 1) & (place < lengths[:, None]) & acts[:, None]
    tokens = np.arange(action_mask.size).reshape(action_mask.shape)
    return sequences_of(tokens, lengths, action_mask)


def planned(batch: Sequences, worlds: Sequence[int], steps: int = 1, epochs: int = 1) -> Plan:
    updates: list[IntArray] = []
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(batch))
        updates += np.array_split(order, steps)
    return division.plan(batch.lengths, batch.actions, tuple(updates), worlds)


def parts(plan: Plan, world: int, batch: Sequences) -> list[Part]:
    return division.parts(plan, world, batch.rows)


@given(batch=batches(), world=WORLDS, samples=st.integers(1, 9), steps=st.integers(1, 3))
def test_every_sample_that_acts_passes_once_on_the_rank_that_has_it(
    batch: Sequences, world: int, samples: int, steps: int
) -> None:
    plan = planned(batch, [world], steps)
    for rows in plan.updates:
        passes = [
            division.micro_batches(part, rows, MicroBatchLimits(samples=samples))
            for part in parts(plan, world, batch)
        ]
        most = max(map(len, passes))
        passes = [division.extended(of_rank, most) for of_rank in passes]
        assert {len(of_rank) for of_rank in passes} == {most}
        own = [
            part.rows[one.rows]
            for part, of_rank in zip(parts(plan, world, batch), passes, strict=True)
            for one in of_rank
        ]
        seen = np.concatenate([*own, np.zeros(0, dtype=np.int64)]).tolist()
        assert sorted(seen) == sorted(row for row in rows.tolist() if batch.actions[row])


def test_a_rank_divides_its_own_samples_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 ranks that divide the samples of all would each do 64 times the work."""
    divided: list[int] = []
    divide = batching.micro_batches

    def counted(lengths: IntArray, limits: MicroBatchLimits) -> list[IntArray]:
        divided.append(len(lengths))
        return divide(lengths, limits)

    monkeypatch.setattr(batching, "micro_batches", counted)
    lengths = np.random.default_rng(0).integers(2, 50, 32)
    mask = np.arange(50) < lengths[:, None]
    batch = sequences_of(np.zeros(mask.shape, dtype=np.int64), lengths, mask)
    for part in parts(planned(batch, [4]), 4, batch):
        division.micro_batches(part, np.arange(32), MicroBatchLimits(samples=2))
    assert sum(divided) == 32


@given(batch=batches(), worlds=st.lists(WORLDS, min_size=1, max_size=3), epochs=st.integers(1, 3))
def test_what_a_rank_of_one_model_computes_of_a_chunk_is_in_order_for_every_other_model(
    batch: Sequences, worlds: list[int], epochs: int
) -> None:
    plan = planned(batch, worlds, 1, epochs)
    of_actions = np.random.default_rng(0).normal(size=int(batch.actions.sum())).astype(np.float32)
    ends = np.cumsum(batch.actions)
    for giver in worlds:
        chunks: dict[int, FloatArray] = {}
        for part in parts(plan, giver, batch):
            own = [of_actions[ends[row] - batch.actions[row] : ends[row]] for row in part.rows]
            cut = part.by_chunk(np.concatenate([*own, np.zeros(0, dtype=np.float32)]))
            chunks |= dict(zip(range(part.index, plan.chunks, giver), cut, strict=True))
        for taker in worlds:
            for part in parts(plan, taker, batch):
                took = np.concatenate(
                    [chunks[chunk] for chunk in range(part.index, plan.chunks, taker)]
                )
                own = [of_actions[ends[row] - batch.actions[row] : ends[row]] for row in part.rows]
                assert took.tolist() == np.concatenate([*own, np.zeros(0)]).tolist()
                for place, row in enumerate(part.rows):
                    assert part.sequences.rows(np.array([place])).tokens.tolist() == (
                        batch.rows(np.array([row])).tokens.tolist()
                    )


@given(batch=batches(), world=WORLDS, steps=st.integers(1, 3))
def test_the_ranks_of_an_update_differ_by_no_more_than_its_longest_sample(
    batch: Sequences, world: int, steps: int
) -> None:
    plan = planned(batch, [world], steps)
    for rows in plan.updates:
        sums = np.bincount(plan.chunk[rows], weights=batch.lengths[rows], minlength=world)
        assert sums.max() - sums.min() <= batch.lengths[rows].max(initial=0)


@pytest.mark.parametrize(("worlds", "epochs"), [([8], 1), ([8], 3), ([8, 6, 1], 1), ([8, 4], 2)])
def test_updates_of_every_epoch_are_even_on_the_ranks_of_every_model(
    worlds: list[int], epochs: int
) -> None:
    """Also the passes over all samples, which updates of one rank's longest would make uneven."""
    lengths = np.random.default_rng(0).integers(200, 4000, 1024)
    order = [np.random.default_rng(epoch).permutation(1024) for epoch in range(epochs)]
    updates = tuple(rows for one in order for rows in np.split(one, 8))
    plan = division.plan(lengths, lengths, updates, worlds)
    for world in worlds:
        for rows in (*updates, np.arange(1024)):
            rank = plan.chunk[rows] % world
            sums = np.bincount(rank, weights=lengths[rows], minlength=world)
            assert sums.max() < sums.mean() * (1.1 if len(rows) < 1024 else 1.02)


def test_mini_batches_are_those_of_one_rank_whatever_the_ranks() -> None:
    """Which samples share an optimizer step is the mathematics of the run."""
    lengths = np.random.default_rng(0).integers(2, 50, 24)
    updates = tuple(np.split(np.random.default_rng(1).permutation(24), 3))
    for worlds in ([1], [4], [2, 3]):
        plan = division.plan(lengths, lengths, updates, worlds)
        assert [rows.tolist() for rows in plan.updates] == [rows.tolist() for rows in updates]


@given(batch=batches(), world=WORLDS)
def test_a_rank_without_samples_computes_the_shortest_one_that_acts(
    batch: Sequences, world: int
) -> None:
    acting = batch.lengths[batch.actions > 0].tolist()
    for part in parts(planned(batch, [world]), world, batch):
        spare = [] if part.spare is None else part.spare.lengths.tolist()
        assert spare == ([min(acting)] if acting and world > 1 else [])
