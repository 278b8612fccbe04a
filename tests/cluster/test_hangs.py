"""Ranks that wait for one of them in a collective: it is named, with where it is instead."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import ray

from tests.support.ray_nodes import short_directory
from tests.support.repository import ROOT
from trainer.cluster import placement
from trainer.cluster.ray_worker_group import RayLauncher
from trainer.cluster.worker_group import WorkerGroup
from trainer.config import layout
from trainer.config.layout import Layout, ResourcePool
from trainer.types import BehindRankError, BeyondRepairError, Rank, SilentRankError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

RANKS = 3
TIMEOUT = 30.0
HURRIED = 18.0
"""Seconds until a collective of ranks that have met fails; told of they are by ten seconds."""
BEFORE = 4
"""Collectives in which all ranks meet before one of them does something else."""


class Member:
    """A rank of nothing but its process group."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank

    def meet(self, times: int) -> int:
        import torch
        from torch import distributed

        for _ in range(times):
            distributed.all_reduce(torch.ones(4))
        return os.getpid()

    def hurry(self, seconds: float) -> None:
        from torch.distributed import distributed_c10d

        distributed_c10d._set_pg_timeout(timedelta(seconds=seconds))

    def sleeps_before(self, rank: int, seconds: float) -> None:
        if self._rank.index == rank:
            time.sleep(seconds)
        self.meet(1)

    def enters_another(self, rank: int) -> None:
        import torch
        from torch import distributed

        own = torch.ones(4)
        if self._rank.index != rank:
            distributed.all_reduce(own)
        distributed.all_gather([torch.ones(4) for _ in range(self._rank.world)], own)

    def stops(self, rank: int) -> None:
        if self._rank.index == rank:
            os.kill(os.getpid(), signal.SIGSTOP)
        self.meet(1)


Told = list[tuple[str, str, dict[str, Any]]]


@pytest.fixture(scope="module")
def told() -> Told:
    return []


@pytest.fixture(scope="module")
def group(told: Told) -> Iterator[WorkerGroup[Member]]:
    ranks = layout.RoleProcesses(role=layout.Role.POLICY, nodes=1, per_node=RANKS)
    wanted = Layout((ResourcePool(groups=(ranks,)),))

    def tell(kind: str, sentence: str, **details: Any) -> None:
        told.append((kind, sentence, details))

    with pytest.MonkeyPatch.context() as patch, short_directory() as root:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("RAY_TMPDIR", str(root))
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("ROLLCALL_NODE_NAME", "worker-1")
        placement.join(wanted)
        launcher = RayLauncher(placement.reserve(wanted), timeout=TIMEOUT, tell=tell)
        yield launcher.launch_ranks("policy", f"{__name__}:Member", RANKS)
        ray.shutdown()


@pytest.fixture(scope="module")
def met() -> list[WorkerGroup[Member]]:
    """Who has met before."""
    return []


@pytest.fixture
def meeting(
    group: WorkerGroup[Member], met: list[WorkerGroup[Member]], told: Told
) -> WorkerGroup[Member]:
    """The ranks, new, after some collectives."""
    if met:
        group.restart(range(RANKS))
    met.append(group)
    assert group.wait_started(300)
    group.call_ranks(Member.meet, BEFORE).result()
    told.clear()
    return group


@pytest.mark.faults
def test_the_rank_that_sleeps_before_a_collective_is_told_early_and_ends_the_call(
    meeting: WorkerGroup[Member], told: Told
) -> None:
    meeting.call_ranks(Member.hurry, HURRIED).result()
    with pytest.raises(BehindRankError) as caught:
        meeting.call_ranks(Member.sleeps_before, 2, 600.0).result()
    awaited = f"all-reduce {BEFORE + 1}"
    named = (
        rf"policy-2 \(node worker-1 at \S+, process \d+\) has not entered {awaited}"
        rf" \(it is at test_hangs.py:\d+ in sleeps_before\); 2 others wait in {awaited} since "
    )
    assert re.match(named, str(caught.value))
    assert caught.value.role == "policy"
    (kind, sentence, details), *_ = told
    assert kind == "rank-behind"
    assert re.match(named, sentence)
    found = {key: details[key] for key in ("role", "ranks", "collective", "number")}
    assert found == {
        "role": "policy",
        "ranks": [2],
        "collective": "all-reduce",
        "number": BEFORE + 1,
    }
    assert TIMEOUT / 6 <= details["seconds"] < TIMEOUT


@pytest.mark.faults
def test_a_rank_that_is_late_but_comes_ends_nothing(
    meeting: WorkerGroup[Member], told: Told
) -> None:
    meeting.call_ranks(Member.sleeps_before, 0, TIMEOUT / 2).result()
    assert [(kind, details["ranks"]) for kind, _, details in told] == [("rank-behind", [0])]


def test_the_rank_that_entered_another_collective_is_named_with_both(
    meeting: WorkerGroup[Member], told: Told
) -> None:
    meeting.call_ranks(Member.hurry, HURRIED).result()
    with pytest.raises(BeyondRepairError) as caught:
        meeting.call_ranks(Member.enters_another, 1).result()
    number = BEFORE + 1
    named = (
        rf"policy-1 \(node .*\) has entered all-gather {number} in place of "
        rf"all-reduce of \[\[4\]\] {number} \(it is at test_hangs.py:\d+ in enters_another\)"
    )
    assert re.match(named, str(caught.value))
    assert told
    assert re.match(named, told[0][1])


@pytest.mark.faults
def test_a_rank_that_is_stopped_is_named_with_what_the_others_wait_in(
    meeting: WorkerGroup[Member],
) -> None:
    waited = (
        rf"rank policy-2 \(node worker-1 .* is stopped; 2 others wait in all-reduce {BEFORE + 1}"
    )
    with pytest.raises(SilentRankError, match=waited):
        meeting.call_ranks(Member.stops, 2).result()
