"""What ranks that share samples have of heads and scores, apart from their collectives."""

from __future__ import annotations

import pytest

from trainer.models.sequence_parallel import copies
from trainer.types import Rank


@pytest.mark.parametrize(
    ("heads", "key_heads", "ranks", "times"),
    [(32, 8, 4, 1), (32, 8, 8, 1), (32, 8, 16, 2), (28, 4, 7, 7), (16, 16, 8, 1), (12, 2, 4, 2)],
)
def test_keys_are_copied_as_often_as_ranks_need_and_no_oftener(
    heads: int, key_heads: int, ranks: int, times: int
) -> None:
    assert copies(heads, key_heads, ranks) == times
    assert heads // key_heads % times == 0  # each head of queries keeps its keys


def test_consecutive_ranks_have_the_same_samples_and_one_speaks_for_them() -> None:
    ranks = [Rank(index, 6, sharing=3) for index in range(6)]
    assert [rank.data for rank in ranks] == [Rank(0, 2)] * 3 + [Rank(1, 2)] * 3
    assert [rank.speaks for rank in ranks] == [True, False, False] * 2
