"""What the ranks of the collective check add up, which sums of theirs are right, and which of them
have not started."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
import torch
import torch.distributed as dist

from trainer.cluster.diagnostics import allreduce, allreduce_rank

CPU = torch.device("cpu")


def fills(world: int, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What each rank brings."""
    brought: list[float] = []
    monkeypatch.setattr(dist, "all_reduce", lambda values: brought.append(values[0].item()))
    for index in range(world):
        allreduce_rank._timed(4, SimpleNamespace(index=index, world=world), CPU)
    return brought


def is_right(world: int, brought: Sequence[float], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether rank 0 takes their sum, made as a ring makes it: one after another in float32."""
    total = np.cumsum(np.array(brought, dtype=np.float32), dtype=np.float32)[-1]
    monkeypatch.setattr(dist, "all_reduce", lambda values: values.fill_(float(total)))
    return allreduce_rank._timed(4, SimpleNamespace(index=0, world=world), CPU) is not None


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


class Ranks:
    """One rank on each node: `up`, `died`, or `pending`; it stands for its own answer as well."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **states: str) -> None:
        self.states = states
        self.waited = 0.0
        self.killed: list[str] = []
        for name in ("wait", "get", "kill"):
            monkeypatch.setattr(ray, name, getattr(self, name))
        monkeypatch.setattr(allreduce.Crowd, "warm_up", lambda crowd, names, timeout: None)
        monkeypatch.setattr(allreduce.Crowd, "all", lambda crowd, names: 5.0)

    def examined(self) -> dict[str, Any]:
        answers = {name: [name] for name in self.states}
        crowd = allreduce.Crowd(60.0, _ranks=dict(answers), _started=answers)
        return allreduce.examine(crowd, list(self.states), 0.0)

    def wait(
        self, refs: Sequence[str], *, num_returns: int, timeout: float
    ) -> tuple[list[str], list[str]]:
        pending = [ref for ref in refs if self.states[ref] == "pending"]
        self.waited += timeout if pending else 0.0
        return [ref for ref in refs if ref not in pending], pending

    def get(self, refs: Sequence[str], timeout: float) -> list[None]:
        if any(self.states[ref] == "died" for ref in refs):
            raise ray.exceptions.ActorDiedError
        if any(self.states[ref] == "pending" for ref in refs):
            raise ray.exceptions.GetTimeoutError
        return [None for _ in refs]

    def kill(self, rank: str) -> None:
        self.killed.append(rank)


def test_a_rank_that_has_died_is_started_anew_and_not_called_unstarted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = Ranks(monkeypatch, a="up", b="died")
    row = ranks.examined()
    assert (row["verdict"], row["faults"]) == ("pass", [])
    assert ranks.killed == ["b"]


def test_only_a_node_whose_process_is_still_to_come_has_started_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = Ranks(monkeypatch, a="up", b="died", c="pending")
    row = ranks.examined()
    assert [fault["nodes"] for fault in row["faults"]] == [("c",)]
    assert row["faults"][0]["sentence"] == "Ray on c has started no process within 180 s"
    assert row["faults"][0]["unstarted"]
    assert ranks.waited == allreduce.WARM_UP_SECONDS
