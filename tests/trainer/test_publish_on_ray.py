"""An engine that stops in the middle of a run: real processes, a real signal."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from tests.trainer.harness import Tiny
from tests.trainer.test_engine import settings
from tests.trainer.test_learning import settings as learner
from trainer import publish
from trainer.actors.base import PolicyObjective
from trainer.actors.ray_group import RayGroup, _Host
from trainer.engines.base import Request
from trainer.engines.hf import HFEngine
from trainer.publish import Patience
from trainer.types import Sampling, TrainingError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]
ROOT = Path(__file__).parents[2]


class Known(HFEngine):
    def pid(self) -> int:
        return os.getpid()


@pytest.fixture
def _cluster() -> Iterator[None]:
    environment = {"env_vars": {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}}
    ray.init(address="local", num_cpus=3, include_dashboard=False, runtime_env=environment)
    yield
    ray.shutdown()


def group(role: str, worker: str, count: int, *args: Any) -> RayGroup[Any]:
    host = ray.remote(_Host).options(num_cpus=0)
    return RayGroup([host.remote(f"{role}-{number}", worker, args) for number in range(count)])


@pytest.mark.usefixtures("_cluster")
def test_an_engine_that_stops_is_named_within_the_bound(tiny: Tiny) -> None:
    actor = "trainer.actors.policy:PolicyActor"
    policy = group("policy", actor, 1, learner(tiny), PolicyObjective())
    engines = group("engine", f"{__name__}:Known", 2, settings(tiny))
    publish.weights(policy, engines, 1)
    requests = [Request("1+1=", (0,))]
    written = [
        engines.send(i, HFEngine.generate, requests, Sampling(max_new_tokens=3)) for i in (0, 1)
    ]
    assert [part.result()[0].version for part in written] == [1, 1]
    pid = engines.send(1, Known.pid).result()
    os.kill(pid, signal.SIGSTOP)
    begun = time.monotonic()
    try:
        with pytest.raises(TrainingError, match=r"^engine-1 did not answer within 2 s"):
            publish.weights(policy, engines, 2, patience=replace(Patience(), start=2, part=2))
        assert time.monotonic() - begun < 10
    finally:
        os.kill(pid, signal.SIGKILL)
