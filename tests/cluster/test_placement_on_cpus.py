"""The same layouts on real Ray nodes without GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ray_nodes import cluster_of, land
from tests.support.tiny_run import Tiny

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
