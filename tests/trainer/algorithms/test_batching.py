"""Micro-batches and the ranks' shares have every sample exactly once, within the budget, evenly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.lengths import long_tailed
from tests.support.ragged import sequences_of
from trainer.algorithms import batching
from trainer.algorithms.batching import MicroBatchLimits

LENGTHS = st.lists(st.integers(1, 100), min_size=1, max_size=60).map(np.array)


@given(
    lengths=LENGTHS,
    samples=st.integers(1, 70),
    tokens=st.none() | st.integers(1, 400),
    packed=st.booleans(),
    inside=st.booleans(),
)
def test_every_sample_is_in_exactly_one_pass(
    lengths: np.ndarray, samples: int, tokens: int | None, packed: bool, inside: bool
) -> None:
    limits = MicroBatchLimits(samples=samples, tokens=tokens, packed=packed, padded_inside=inside)
    passes = batching.micro_batches(lengths, limits)
    assert sorted(np.concatenate(passes)) == list(range(len(lengths)))
    assert all(len(rows) for rows in passes)


@given(lengths=LENGTHS, budget=st.integers(1, 400))
def test_no_pass_exceeds_the_budget_unless_one_sample_does(
    lengths: np.ndarray, budget: int
) -> None:
    for rows in [*batching.within_budget(lengths, budget), *batching.fullest(lengths, budget)]:
        assert lengths[rows].sum() <= budget or len(rows) == 1
    for rows in batching.side_by_side(lengths, budget):
        assert lengths[rows].max() * len(rows) <= budget or len(rows) == 1


@given(lengths=LENGTHS, parts=st.integers(1, 9))
def test_balanced_parts_differ_by_no_more_than_the_longest_sample(
    lengths: np.ndarray, parts: int
) -> None:
    sums = [lengths[rows].sum() for rows in batching.balanced(lengths, parts)]
    assert len(sums) == parts
    assert max(sums) - min(sums) <= lengths.max()


def test_balancing_is_better_than_handing_out_in_turn() -> None:
    """Graham's method: of 8, 7, 6, 5, 4 in two parts, 4 comes last, to one of 13 and 13."""
    lengths = np.array([4, 5, 6, 7, 8])
    sums = sorted(int(lengths[rows].sum()) for rows in batching.balanced(lengths, 2))
    assert sums == [13, 17]
    many = np.random.default_rng(0).integers(10, 500, 256)
    even = [many[rows].sum() for rows in batching.balanced(many, 8)]
    assert max(even) - min(even) < many.min()


def test_a_budget_is_nearly_filled_by_every_pass_but_the_last() -> None:
    lengths = np.random.default_rng(1).integers(10, 500, 256)
    passes = batching.within_budget(lengths, 4096)
    assert all(lengths[rows].sum() > 4096 - 500 for rows in passes[:-1])


@pytest.mark.parametrize("lengths", [[3, 1, 4], [2, 2, 2]])
def test_the_grid_leads_there_and_back(lengths: list[int]) -> None:
    tokens, places = batching.grid(lengths)
    assert tokens[places].tolist() == list(range(sum(lengths)))
    width = max(lengths)
    assert places.tolist() == [row * width + at for row, n in enumerate(lengths) for at in range(n)]


def test_a_pack_holds_each_sample_without_its_last_token() -> None:
    tokens = np.array([[5, 6, 7, 8], [9, 4, 0, 0]])
    action_mask = np.array([[0, 0, 1, 1], [0, 1, 0, 0]], dtype=bool)
    packed = batching.pack(sequences_of(tokens, [4, 2], action_mask))
    assert packed.tokens.tolist() == [5, 6, 7, 9]
    assert packed.positions.tolist() == [0, 1, 2, 0]
    assert packed.lengths.tolist() == [3, 1]
    assert packed.tokens[packed.before_action].tolist() == [6, 7, 9]


def test_metrics_of_ranks_add_up_but_for_memory_and_what_one_of_them_says_for_all() -> None:
    first = {"policy_loss": 0.25, "lr": 1e-3, "policy_memory_gb": 1.0}
    second = {"policy_loss": 0.5, "policy_memory_gb": 2.0}
    merged = batching.combine_metrics([first, second])
    assert merged == {"policy_loss": 0.75, "lr": 1e-3, "policy_memory_gb": 2.0}


def test_passes_that_attention_does_not_pad_are_fuller_than_those_of_similar_lengths() -> None:
    lengths = long_tailed(512)
    limits = MicroBatchLimits(samples=1, tokens=32_768, packed=True)
    similar = batching.micro_batches(lengths, limits)
    full = batching.micro_batches(lengths, replace(limits, padded_inside=False))
    assert len(full) == -(-int(lengths.sum()) // 32_768)
    assert len(full) < 0.9 * len(similar)


def test_full_passes_cost_about_the_same_and_the_cheapest_is_first() -> None:
    short = np.random.default_rng(0).integers(100, 500, 256)
    for lengths, budget, most in ((short, 4_096, 1.02), (long_tailed(512), 65_536, 1.1)):
        costs = [
            (lengths[rows] + batching.ATTENTION * lengths[rows] ** 2).sum()
            for rows in batching.fullest(lengths, budget)
        ]
        assert costs == sorted(costs)
        assert max(costs) < most * np.mean(costs)


def test_a_sample_beyond_the_budget_has_a_full_pass_of_its_own() -> None:
    passes = batching.fullest(np.array([10, 500, 20, 60]), 100)
    assert sorted(sorted(rows.tolist()) for rows in passes) == [[0, 2, 3], [1]]
