"""What the ranks of the collective check add up, and which sums of theirs are right."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from trainer import all_reduce

CPU = torch.device("cpu")


def fills(world: int, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What each rank brings."""
    brought: list[float] = []
    monkeypatch.setattr(dist, "all_reduce", lambda values: brought.append(values[0].item()))
    for index in range(world):
        all_reduce._timed(4, SimpleNamespace(index=index, world=world), CPU)
    return brought


def is_right(world: int, brought: Sequence[float], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether rank 0 takes their sum, made as a ring makes it: one after another in float32."""
    total = np.cumsum(np.array(brought, dtype=np.float32), dtype=np.float32)[-1]
    monkeypatch.setattr(dist, "all_reduce", lambda values: values.fill_(float(total)))
    return all_reduce._timed(4, SimpleNamespace(index=0, world=world), CPU) is not None


@pytest.mark.parametrize("world", [2, 7, 8, 1000, 5800, 5801, 8192, 16384])
def test_the_sum_of_as_many_ranks_as_any_cluster_has_is_right(
    world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_right(world, fills(world, monkeypatch), monkeypatch)


@pytest.mark.parametrize("world", [2, 8, 5800])
def test_a_rank_that_is_left_out_or_counted_for_its_neighbour_makes_the_sum_wrong(
    world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought = fills(world, monkeypatch)
    assert not is_right(world, brought[:-1], monkeypatch)
    assert not is_right(world, [*brought[:-1], brought[-2]], monkeypatch)
