"""The same layouts on real Ray nodes without GPUs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray._private import node, services

from tests.support.ray_nodes import cluster_of, land, short_directory
from tests.support.tiny_run import Tiny
from trainer.cluster import placement
from trainer.config.layout import Layout

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def test_without_gpus_the_same_layout_has_shares_of_cpus(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(
        run_dir,
        actor_num_nodes=2,
        actor_num_gpus_per_node=2,
        colocate_actor_ref=True,
        critic_resources='{"big": 1}',
        vllm_num_engines=2,
    )
    one, two = ({"num_cpus": 2, "node_name": "one"}, {"num_cpus": 2, "node_name": "two"})
    with cluster_of(one, two | {"resources": {"big": 1}}):
        found = land(config)
    assert [node for node, _ in found["policy"]] == ["one", "one", "two", "two"]
    assert [node for node, _ in found["reference"]] == ["one", "one", "two", "two"]
    assert [node for node, _ in found["critic"]] == ["two"]
    assert {spot.cpus for _, spot in found["policy"]} == {0.25}
    assert {spot.cpus for _, spot in found["critic"]} == {0.5}
    assert all(spot.gpus == () for spots in found.values() for _, spot in spots)


class HurriedClock:
    """Python's `time`, whose clock is 31 s later at each look."""

    def __init__(self) -> None:
        self._looks = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        self._looks += 1
        return time.monotonic() + 31 * self._looks


@pytest.mark.faults
def test_a_ray_whose_daemon_is_late_is_started_again_and_nothing_of_it_stays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = services.get_node
    answers = iter([RuntimeError("not yet")])

    def late(*given: Any, **more: Any) -> Any:
        if error := next(answers, None):
            raise error
        return known(*given, **more)

    monkeypatch.setattr(services, "get_node", late)
    monkeypatch.setattr(node, "time", HurriedClock())
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with short_directory() as directory:
        monkeypatch.setenv("RAY_TMPDIR", str(directory))
        try:
            assert not placement.join(Layout(()))
            assert ray.get(ray.remote(lambda: 7).remote()) == 7
            named = [one.name() for one in psutil.Process().children(recursive=True)]
            assert [named.count(name) for name in ("gcs_server", "raylet")] == [1, 1]
        finally:
            ray.shutdown()
    assert "starting it again (The current node timed out" in capsys.readouterr().err
