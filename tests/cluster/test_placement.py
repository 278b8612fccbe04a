"""Real Ray nodes with GPUs that they only claim to have: every process is where the plan says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from tests.support.ray_nodes import cluster_of, land
from tests.support.tiny_run import Tiny, to_argv
from trainer.cluster import placement
from trainer.cluster.placement import LayoutError
from trainer.config import layout
from trainer.config.parse import parse

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def gpus() -> Iterator[str]:
    with cluster_of(
        {"num_cpus": 2, "num_gpus": 2, "node_name": "small"},
        {"num_cpus": 2, "num_gpus": 4, "node_name": "large"},
        {"num_cpus": 2, "num_gpus": 4, "node_name": "old", "resources": {"v100": 4}},
    ) as address:
        yield address


def test_each_group_has_whole_gpus_on_its_node(gpus: str, tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(
        run_dir,
        actor_num_gpus_per_node=4,
        ref_num_gpus_per_node=3,
        ref_resources='{"v100": 1}',
        vllm_num_engines=1,
    )
    found = land(config)
    nodes = {role: {node for node, _ in spots} for role, spots in found.items()}
    assert nodes == {
        "reference": {"old"},
        "policy": {"large"},
        "critic": {"small"},
        "engine": {"small"},
    }
    for spots in found.values():
        assert all(len(spot.gpus) == 1 for _, spot in spots)
    assert {spot.gpus for _, spot in found["policy"]} == {(0,), (1,), (2,), (3,)}
    assert found["critic"][0][1].gpus != found["engine"][0][1].gpus


def test_colocated_ranks_share_a_gpu_and_engines_find_their_bundles(
    gpus: str, tiny: Tiny, run_dir: Path
) -> None:
    config = tiny.config(
        run_dir,
        actor_num_nodes=2,
        actor_num_gpus_per_node=3,
        colocate_all_models=True,
        critic_num_nodes=0,
        vllm_num_engines=2,
        vllm_tensor_parallel_size=3,
    )
    found = land(config)
    spots = {role: [(node, spot.gpus) for node, spot in found[role]] for role in found}
    assert spots["policy"] == spots["critic"] == spots["reference"]
    assert len(set(spots["policy"])) == 6
    assert [node for node, _ in spots["policy"]] == ["large"] * 3 + ["old"] * 3
    engines = found["engine"]
    assert [node for node, _ in engines] == ["large", "old"]
    assert [spot.environment["VLLM_RAY_BUNDLE_INDICES"] for _, spot in engines] == [
        "0,1,2",
        "3,4,5",
    ]
    assert all(spot.environment["VLLM_RAY_PER_WORKER_GPUS"] == "0.25" for _, spot in engines)


def test_a_layout_that_cannot_be_placed_is_refused_with_every_shortfall(
    gpus: str, tiny: Tiny, run_dir: Path
) -> None:
    flags = {"critic_num_gpus_per_node": 8, "actor_num_nodes": 3, "actor_num_gpus_per_node": 4}
    with pytest.raises(LayoutError) as caught:
        placement.reserve(layout.of(tiny.config(run_dir, **flags)))
    said = str(caught.value)
    assert "critic wants 8 GPUs on 1 node; 3 nodes offer 2, 4, 4" in said
    assert "policy wants 4 GPUs on each of 3 nodes; 3 nodes offer 2, 4, 4" in said
    argv = to_argv(tiny.needed(run_dir) | flags)
    parse(argv)
    done = subprocess.run(
        [sys.executable, "-m", "trainer", *argv],
        env=os.environ | {"RAY_ADDRESS": gpus},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == ExitCode.USAGE, done.stderr
    assert "critic wants 8 GPUs on 1 node; 3 nodes offer 2, 4, 4" in done.stderr
    assert "Traceback" not in done.stderr
