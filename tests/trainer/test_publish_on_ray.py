"""An engine that stops in the middle of a run: real processes, a real signal."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import ray

from tests.trainer.harness import Tiny
from tests.trainer.test_engine import settings
from tests.trainer.test_learning import settings as learner
from trainer import layout, placement, publish
from trainer.actors.base import PolicyObjective
from trainer.actors.ray_group import RayLauncher
from trainer.engines.base import Request
from trainer.engines.hf import HFEngine
from trainer.layout import Layout, Pool
from trainer.publish import Patience
from trainer.types import Sampling, TrainingError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


class Known(HFEngine):
    def pid(self) -> int:
        return os.getpid()


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayLauncher]:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    roles = {"policy": 1, "engine": 2}
    groups = [layout.Group(role=role, nodes=count, per_node=1) for role, count in roles.items()]
    wanted = Layout(tuple(Pool(groups=(group,)) for group in groups))
    with tempfile.TemporaryDirectory(prefix="ray-") as directory:
        monkeypatch.setenv("RAY_TMPDIR", directory)
        placement.join(wanted)
        yield RayLauncher(placement.reserve(wanted), timeout=60.0)
        ray.shutdown()


def test_an_engine_that_stops_is_named_within_the_bound(launcher: RayLauncher, tiny: Tiny) -> None:
    actor = "trainer.actors.policy:PolicyActor"
    policy = launcher.launch_ranks("policy", actor, 1, learner(tiny), PolicyObjective())
    engines = launcher.launch("engine", f"{__name__}:Known", 2, settings(tiny))
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
