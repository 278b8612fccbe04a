"""Each sample is some rank's, exactly once, and all ranks make as many passes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainer.algorithms import batching
from trainer.algorithms.batching import MicroBatchLimits
from trainer.types import Rank, Sequences

WORLDS = st.integers(1, 5)


@st.composite
def batches(draw: st.DrawFn) -> Sequences:
    lengths = np.array(draw(st.lists(st.integers(2, 30), min_size=1, max_size=40)))
    acts = np.array(draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths))))
    place = np.arange(int(lengths.max()))
    actions = (place >= 1) & (place < lengths[:, None]) & acts[:, None]
    return Sequences(np.zeros(actions.shape, dtype=np.int64), lengths, actions)


@given(batch=batches(), world=WORLDS, samples=st.integers(1, 9), data=st.data())
def test_every_sample_that_acts_passes_once_on_one_rank(
    batch: Sequences, world: int, samples: int, data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, len(batch)))
    rows = np.random.default_rng(0).permutation(len(batch))[:size]
    of_ranks = [
        batching.rank_micro_batches(
            batch, rows, MicroBatchLimits(samples=samples), Rank(index, world)
        )
        for index in range(world)
    ]
    assert len({len(passes) for passes in of_ranks}) == 1
    counted = [one.rows for passes in of_ranks for one in passes if not one.idle]
    seen = np.concatenate([*counted, np.empty(0, dtype=np.int64)])
    assert len(set(seen)) == len(seen)
    acting = {row for row in rows if batch.actions[row].any()}
    assert acting <= set(seen) <= set(rows)
    for passes in of_ranks:
        assert all(batch.actions[one.rows].any() for one in passes)


@given(batch=batches(), world=WORLDS)
def test_what_ranks_say_of_their_shares_is_put_together_in_order(
    batch: Sequences, world: int
) -> None:
    said = np.random.default_rng(0).normal(size=batch.tokens.shape).astype(np.float32)
    parts = [said[rows] for rows in batching.split_by_rank(batch.lengths, world)]
    assert (batching.gather(parts, batch.lengths) == said).all()


def test_metrics_of_ranks_add_up_but_for_memory_and_what_one_of_them_says_for_all() -> None:
    first = {"policy_loss": 0.25, "lr": 1e-3, "policy_memory_gb": 1.0}
    second = {"policy_loss": 0.5, "policy_memory_gb": 2.0}
    merged = batching.combine_metrics([first, second])
    assert merged == {"policy_loss": 0.75, "lr": 1e-3, "policy_memory_gb": 2.0}
