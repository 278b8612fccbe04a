"""The slices of a micro-batch: all tokens and all actions are in them, each once."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.small_models import batch
from trainer.algorithms.batching import pack
from trainer.algorithms.slices import slice_of


@pytest.mark.parametrize("end_to_end", [True, False])
@pytest.mark.parametrize("ranks", [2, 3, 4, 16])
def test_slices_put_side_by_side_are_the_samples(ranks: int, end_to_end: bool) -> None:
    packed = pack(batch([9, 3, 6, 2], seed=1))
    found = [slice_of(packed, place, ranks, end_to_end=end_to_end) for place in range(ranks)]
    assert len({part.tokens.shape for part in found}) == 1
    inside, tokens, positions = (
        np.concatenate([getattr(part, name) for part in found], axis=1)
        for name in ("inside", "tokens", "positions")
    )
    np.testing.assert_array_equal(tokens[inside], packed.tokens)
    np.testing.assert_array_equal(positions[inside], packed.positions)
    assert not tokens[~inside].any()
    assert found[0].lengths.sum() == (tokens.size if end_to_end else len(packed.tokens))
    assert found[0].lengths.min() > 0


@pytest.mark.parametrize("end_to_end", [True, False])
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_each_action_is_one_rank_s_and_has_the_token_before_it(
    ranks: int, end_to_end: bool
) -> None:
    packed = pack(batch([9, 3, 6, 2], seed=1))
    before = packed.tokens[packed.before_action]
    seen = np.zeros(len(before), dtype=np.int64)
    for place in range(ranks):
        part = slice_of(packed, place, ranks, end_to_end=end_to_end)
        assert len(part.own)  # a rank without actions has one all the same
        own = part.own[part.own >= 0]
        seen[own] += 1
        chosen = part.tokens.ravel()[part.before_action][part.own >= 0]
        np.testing.assert_array_equal(chosen, before[own])
    assert seen.tolist() == [1] * len(seen)
