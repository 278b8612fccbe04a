"""Weights from GPU to GPU through vLLM's own ends: real processes, real NCCL, real CUDA IPC."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch

from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel
from tests.support.mixtures import MIXTURES, write_mixture
from tests.support.ragged import learn_together, part_of, together
from tests.support.ranks import experience
from tests.support.ranks import settings as learner
from tests.support.tiny_run import Tiny
from tests.support.vllm import SAMPLING, mean, requests, worst
from tests.support.vllm import settings as engine_settings
from trainer.algorithms.division import Part
from trainer.algorithms.objectives import PolicyObjective
from trainer.cluster import memory_estimate, placement
from trainer.cluster.ray_worker_group import RayLauncher
from trainer.cluster.restarts import Patience
from trainer.cluster.worker_group import WorkerGroup, each
from trainer.config import layout
from trainer.config.layout import Layout, ResourcePool
from trainer.config.options.parallelism import Sharding
from trainer.rollout.engine_pool import EnginePool
from trainer.rollout.vllm_engine import VLLMEngine
from trainer.types import FloatArray, Rank
from trainer.weight_sync import shared_memory, update
from trainer.workers.policy import PolicyActor
from trainer.workers.protocols import Policy

GPUS = torch.cuda.device_count()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not GPUS, reason="no GPU is here"),
]
two = pytest.mark.skipif(GPUS < 2, reason=f"NCCL wants 2 GPUs, here is {GPUS}")
TOLERANCE = 0.1
"""Nats, of one token's log-probability in bf16."""
SHARE = 0.3
"""Of a GPU's memory, for an engine."""


class SmallParts(PolicyActor):
    """Several parts of a small model."""

    def __init__(self, *args: Any) -> None:
        memory_estimate.GPU_BUCKET_BYTES, shared_memory.BUCKET_BYTES = 1 << 20, 1 << 18
        super().__init__(*args)

    def held(self) -> int:
        """Bytes of its GPU's memory."""
        return torch.cuda.memory_allocated()


class Known(VLLMEngine):
    def __init__(self, *args: Any) -> None:
        shared_memory.BUCKET_BYTES = 1 << 18
        super().__init__(*args)

    def pid(self) -> int:
        return os.getpid()

    def free(self) -> float:
        """The share of the GPU's memory that is free."""
        left, whole = torch.cuda.mem_get_info()
        return left / whole


@pytest.fixture(scope="module")
def model(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    path = tmp_path_factory.mktemp("gpu") / "model"
    write_model(TinyModel(hidden_size=512, layers=4, heads=8, max_length=256), "0123456789+=", path)
    return replace(tiny, model=path)


@contextmanager
def started(
    model: Tiny, backend: str, *, policy: int, engines: int, stage: int = 0, **own: Any
) -> Iterator[tuple[WorkerGroup[Any], WorkerGroup[Known]]]:
    """A policy of so many ranks and so many engines, apart or on the same GPUs.

    `own`: settings of the engines.
    """
    groups = [
        layout.RoleProcesses(role=layout.Role.POLICY, nodes=1, per_node=policy),
        layout.RoleProcesses(role=layout.Role.ENGINE, nodes=engines, per_node=1),
    ]
    pools = [tuple(groups)] if backend == "ipc" else [(group,) for group in groups]
    wanted = Layout(tuple(ResourcePool(groups=pool) for pool in pools))
    of_each = replace(
        engine_settings(model, sync_backend=backend, gpu_memory_utilization=SHARE, **own),
        mixed_precision=True,
    )
    made = learner(model.model, Sharding(zero_stage=stage), mixed_precision=True)
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as directory:
        ray.init(address="local", include_dashboard=False, _temp_dir=directory)
        try:
            launcher = RayLauncher(placement.reserve(wanted), timeout=120.0)
            yield (
                launcher.launch_ranks(
                    "policy", f"{__name__}:SmallParts", policy, made, PolicyObjective()
                ),
                launcher.launch("engine", f"{__name__}:Known", engines, of_each),
            )
        finally:
            ray.shutdown()


def follow(
    policy: WorkerGroup[Policy], pool: EnginePool, backend: str, versions: int, first: int = 1
) -> None:
    """Train and publish: every engine writes what the policy would, with its own numbers."""
    for version in range(first, first + versions):
        learn_together(policy, experience(version), version)
        update.update_weights(policy, pool, version, backend=backend)
        shares = [requests(1, 2)] * len(pool)
        for written in pool.generate(shares, SAMPLING):
            assert {completion.version for completion in written} == {version}
            assert worst(Asked(policy), written) < TOLERANCE


class Asked:
    """A group that is asked like one policy."""

    def __init__(self, group: WorkerGroup[Policy]) -> None:
        self._group = group

    def log_probs(self, part: Part) -> FloatArray:
        sequences, count = part.sequences, len(self._group)
        parts = [part_of(sequences, Rank(index, count)) for index in range(count)]
        of_ranks = self._group.call_ranks(Policy.log_probs, each(parts)).result()
        return together([np.concatenate(one) for one in of_ranks], sequences)


@pytest.mark.parametrize("count", [1, 2])
def test_engines_read_the_policy_s_memory_on_the_gpu_that_they_share(
    model: Tiny, count: int
) -> None:
    with started(model, "ipc", policy=1, engines=count) as (policy, engines):
        pool = EnginePool(engines)
        follow(policy, pool, "ipc", versions=1)
        before = policy.call_ranks(SmallParts.held).result()
        follow(policy, pool, "ipc", versions=2, first=2)
        assert policy.call_ranks(SmallParts.held).result() == before


@pytest.mark.parametrize("kind", MIXTURES)
def test_a_mixture_of_experts_answers_with_each_new_version(
    model: Tiny, tmp_path: Path, kind: str
) -> None:
    """Rounded logits of a router choose other experts, so the mean is compared."""
    made = replace(model, model=write_mixture(kind, tmp_path / "model"))
    with started(made, "ipc", policy=1, engines=1) as (policy, engines):
        pool = EnginePool(engines)
        for version in (1, 2):
            learn_together(policy, experience(version), version)
            update.update_weights(policy, pool, version, backend="ipc")
            (written,) = pool.generate([requests(1, 2)], SAMPLING)
            assert {completion.version for completion in written} == {version}
            assert mean(Asked(policy), written) < TOLERANCE


@two
def test_a_policy_lends_nothing_for_good_on_a_gpu_without_an_engine(model: Tiny) -> None:
    with started(model, "ipc", policy=2, engines=1) as (policy, engines):
        pool = EnginePool(engines)
        follow(policy, pool, "ipc", versions=1)
        before = policy.call_ranks(SmallParts.held).result()
        follow(policy, pool, "ipc", versions=2, first=2)
        assert policy.call_ranks(SmallParts.held).result() == before


@pytest.mark.parametrize("eager", [True, False])
def test_an_engine_that_sleeps_frees_its_share_and_wakes_with_the_newest_weights(
    model: Tiny, eager: bool
) -> None:
    own = {"enable_sleep": True, "enforce_eager": eager}
    with started(model, "ipc", policy=1, engines=1, **own) as (policy, engines):
        pool = EnginePool(engines)
        pool.wait_started()
        for version in (1, 2):
            learn_together(policy, experience(version), version)
            update.update_weights(policy, pool, version, wake=True, backend="ipc")
            update.wake_cache(pool)
            (written,) = pool.generate([requests(1, 2)], SAMPLING)
            assert {completion.version for completion in written} == {version}
            assert worst(Asked(policy), written) < TOLERANCE
            awake = engines.send(0, Known.free).result()
            update.sleep(pool)
            assert engines.send(0, Known.free).result() > awake + SHARE / 2


@two
@pytest.mark.parametrize("stage", [2, 3])
def test_sharded_weights_are_read_on_the_gpu_of_each_rank(model: Tiny, stage: int) -> None:
    with started(model, "ipc", policy=2, engines=2, stage=stage) as (policy, engines):
        follow(policy, EnginePool(engines), "ipc", versions=2)


@two
def test_engines_on_other_gpus_get_a_broadcast(model: Tiny) -> None:
    with started(model, "nccl", policy=1, engines=GPUS - 1) as (policy, engines):
        follow(policy, EnginePool(engines), "nccl", versions=3)


@two
def test_an_engine_that_stops_is_replaced_and_the_group_formed_anew(model: Tiny) -> None:
    with started(model, "nccl", policy=1, engines=1) as (policy, engines):
        told: list[str] = []
        pool = EnginePool(
            engines, tell=lambda kind, *_, **__: told.append(kind), patience=Patience(part=20)
        )
        follow(policy, pool, "nccl", versions=1)
        os.kill(engines.send(0, Known.pid).result(), signal.SIGSTOP)
        begun = time.monotonic()
        update.update_weights(policy, pool, 2, backend="nccl")
        assert time.monotonic() - begun < 300
        assert told == ["engine-replaced"]
