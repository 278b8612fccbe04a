"""An engine that stops in the middle of a run: real processes, a real signal."""

from __future__ import annotations

import os
import pickle
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import torch

from tests.support.engines import settings
from tests.support.fork_server.forking_python import forked_workers
from tests.support.learners import settings as learner
from tests.support.ray_nodes import short_directory
from tests.support.tiny_run import Tiny
from trainer.algorithms.objectives import PolicyObjective
from trainer.cluster import placement
from trainer.cluster.memory_estimate import LENT_BUCKETS
from trainer.cluster.ray_worker_group import RayLauncher
from trainer.cluster.restarts import Patience
from trainer.cluster.shared_memory import Entry, Segment, attach, node
from trainer.config import layout
from trainer.config.layout import Layout, ResourcePool
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout.engine_pool import EnginePool
from trainer.rollout.hf_engine.engine import HFEngine
from trainer.types import LostWorkerError, Rank, Request, TrainingError
from trainer.weight_sync import update
from trainer.weight_sync.messages import BucketSpec, GroupRank, IpcHandle, Member

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


class Known(HFEngine):
    def pid(self) -> int:
        return os.getpid()


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayLauncher]:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    roles = {layout.Role.POLICY: 1, layout.Role.ENGINE: 2}
    groups = [
        layout.RoleProcesses(role=role, nodes=count, per_node=1) for role, count in roles.items()
    ]
    wanted = Layout(tuple(ResourcePool(groups=(group,)) for group in groups))
    with short_directory() as directory:
        monkeypatch.setenv("RAY_TMPDIR", str(directory))
        with forked_workers():
            placement.join(wanted)
        yield RayLauncher(placement.reserve(wanted), timeout=60.0)
        ray.shutdown()


@pytest.mark.faults
def test_an_engine_that_stops_before_weights_come_is_killed_and_replaced(
    launcher: RayLauncher, tiny: Tiny
) -> None:
    actor = "trainer.workers.policy:PolicyActor"
    policy = launcher.launch_ranks("policy", actor, 1, learner(tiny), PolicyObjective())
    group = launcher.launch("engine", f"{__name__}:Known", 2, settings(tiny))
    update.update_weights(policy, EnginePool(group), 1)  # a start may take longer than 5 s
    told: list[str] = []
    pool = EnginePool(
        group, tell=lambda kind, *_, **__: told.append(kind), patience=Patience(start=120, part=5)
    )
    shares = [[Request("1+1=", (0,))], [Request("2+2=", (1,))]]
    pids = [group.send(engine, Known.pid).result() for engine in (0, 1)]
    os.kill(pids[1], signal.SIGSTOP)
    begun = time.monotonic()
    update.update_weights(policy, pool, 2)
    assert time.monotonic() - begun < 20
    while not told:
        time.sleep(1)
        update.update_weights(policy, pool, 2)
    assert told == ["engine-replaced"]
    assert pool.present == [0, 1]
    new = group.send(1, Known.pid).result()
    assert new != pids[1]
    assert not psutil.pid_exists(pids[1])
    assert versions(pool, shares) == [2, 2]


class Comer:
    """An engine that comes to the group of its weights; the first to come stops on its way."""

    def __init__(self, stopped: Path) -> None:
        from vllm.distributed.utils import StatelessProcessGroup

        self._group = StatelessProcessGroup
        self._stopped = stopped

    def member(self) -> Member:
        return Member(str(os.getpid()), 1)

    def join(self, rank: GroupRank) -> None:
        with suppress(FileExistsError):
            with self._stopped.open("x") as file:
                file.write(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
        self._group.create(host=rank.host, port=rank.port, rank=rank.first, world_size=rank.world)


BUCKETS, BUCKET = 12, 1 << 20


class Lender:
    """A policy whose GPU is shared memory; its own process dies as it fills bucket `dies_at`."""

    def __init__(self, dies_at: int, rank: Rank) -> None:
        self._dies_at = dies_at
        self._segment = Segment(LENT_BUCKETS * BUCKET)

    def node(self) -> str:
        return node()

    def gpu(self) -> str:
        return "GPU-0"

    def announce(self) -> list[BucketSpec]:
        return [(Entry(str(n), "uint8", (BUCKET,), 0),) for n in range(BUCKETS)]

    def lend(self, bucket: BucketSpec) -> IpcHandle:
        number = int(bucket[0].name)
        if number == self._dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        at = number % LENT_BUCKETS * BUCKET
        self._segment.buffer[at : at + BUCKET] = bytes([number]) * BUCKET
        return IpcHandle(bucket, "GPU-0", pickle.dumps((self._segment.address, at)))

    def withdraw(self) -> None:
        pass


class Borrower:
    """An engine that reads slowly. The first to come to bucket 5 dies if it may."""

    def __init__(self, died: Path | None) -> None:
        self._died = died
        self._read: list[int] = []

    def gpus(self) -> list[str]:
        return ["GPU-0"]

    def begin(self) -> None:
        self._read.clear()

    def borrow(self, *lent: IpcHandle) -> None:
        address, at = pickle.loads(lent[0].handle)
        time.sleep(0.05)
        if len(self._read) == 5 and self._died:
            with suppress(FileExistsError), self._died.open("x"):
                os.kill(os.getpid(), signal.SIGKILL)
        (value,) = set(attach(address)[at : at + BUCKET])  # of one bucket, and not of two
        self._read.append(value)

    def commit(self, version: int) -> None:
        pass

    def read(self) -> list[int]:
        return self._read


def borrowing(launcher: RayLauncher, died: Path | None, dies_at: int = -1) -> tuple[Any, Any]:
    policy = launcher.launch_ranks("policy", f"{__name__}:Lender", 1, dies_at)
    return policy, launcher.launch("engine", f"{__name__}:Borrower", 2, died)


def test_an_engine_that_dies_while_it_borrows_is_replaced_and_the_other_one_gets_every_bucket(
    launcher: RayLauncher, tmp_path: Path
) -> None:
    policy, group = borrowing(launcher, tmp_path / "died")
    told: list[str] = []
    pool = EnginePool(group, tell=lambda kind, *_, **__: told.append(kind))
    update.update_weights(policy, pool, 1, backend="ipc")
    (left,) = pool.present
    assert group.send(left, Borrower.read).result() == list(range(BUCKETS))
    while not told:
        time.sleep(1)
        update.update_weights(policy, pool, 2, backend="ipc")
    assert told == ["engine-replaced"]
    for engine in (0, 1):
        assert group.send(engine, Borrower.read).result() == list(range(BUCKETS))


@pytest.mark.faults
def test_a_policy_that_dies_while_it_lends_is_what_is_lost_and_not_the_engines_that_borrow(
    launcher: RayLauncher,
) -> None:
    policy, group = borrowing(launcher, None, dies_at=5)
    pool = EnginePool(group)
    with pytest.raises(LostWorkerError, match=r"^policy-0 is lost") as loss:
        update.update_weights(policy, pool, 1, backend="ipc")
    assert loss.value.role == layout.Role.POLICY
    assert pool.present == [0, 1]


@pytest.mark.faults
@pytest.mark.skipif(torch.cuda.is_available(), reason="an NCCL may be here")
def test_an_engine_that_does_not_come_to_the_weights_group_is_named_and_the_others_meet(
    launcher: RayLauncher, tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As far as they get without a GPU: to NCCL."""
    actor = "trainer.workers.policy:PolicyActor"
    policy = launcher.launch_ranks("policy", actor, 1, learner(tiny), PolicyObjective())
    group = launcher.launch("engine", f"{__name__}:Comer", 2, tmp_path / "stopped")
    for engine in (0, 1):
        assert group.has_started(engine, 150)
    pool = EnginePool(group, patience=Patience(start=150, part=10))
    with pytest.raises(TrainingError, match="weights cannot go by NCCL"):
        update.update_weights(policy, pool, 1, backend="nccl")
    lost = re.findall(r"engine-(\d) is lost \((.*), port \d+\)", capsys.readouterr().out)
    (number, how), *others = lost
    assert not others
    assert how.startswith("it did not answer within 10 s: joining the weights' group at ")
    assert pool.present == [1 - int(number)]
    with suppress(ProcessLookupError):  # Ray would, in five seconds that it does not have
        os.kill(int((tmp_path / "stopped").read_text()), signal.SIGKILL)


def versions(pool: EnginePool, shares: list[list[Request]]) -> list[int]:
    parts = pool.generate(shares, SamplingSettings(max_new_tokens=3))
    return [one.version for part in parts for one in part]
