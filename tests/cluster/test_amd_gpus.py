"""Real Ray on recorded machines with AMD's GPUs: what its actors see, and what torch and vLLM read.

Ray counts AMD's GPUs through a library of ROCm. If it cannot, it takes them for NVIDIA's.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
import torch

from tests.support.amd_node import machine
from tests.support.machines import RecordedAmdSmi
from tests.support.node_cluster import HEAD, Cluster

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.faults,
    pytest.mark.timeout(400),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc"),
]

JOB = Path(__file__).with_name("gpu_job.py")


@dataclass(frozen=True)
class Node:
    ray_detects: bool
    environ: Mapping[str, str]
    gpus: list[int]


NODES = {
    "head": Node(True, {"ROCR_VISIBLE_DEVICES": "1,3"}, [1, 3]),
    "worker-1": Node(False, {"HIP_VISIBLE_DEVICES": "6,5", "CUDA_VISIBLE_DEVICES": "6,5"}, [6, 5]),
    "worker-2": Node(True, {"ROLLCALL_NUM_GPUS": "2"}, [0, 1]),
}


class AmdCluster(Cluster):
    def __init__(self, root: Path) -> None:
        job = (sys.executable, str(JOB))
        off = {"ROLLCALL_PREFLIGHT": "off"}  # it would use the GPUs
        super().__init__(root, len(NODES) - 1, job, **off)
        self._machines = [
            {**machine(root / name, ray_detects=node.ray_detects), **node.environ}
            for name, node in NODES.items()
        ]

    def environment(self, number: int) -> dict[str, str]:
        return {**super().environment(number), **self._machines[number]}

    def command(self, number: int) -> tuple[str, ...]:
        words = ["--", *self._job] if number == HEAD else []
        return (sys.executable, "-P", "-m", "tests.support.amd_node", "up", *words)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[dict[str, str]]]]:
    """Node → the variables that each actor sees; and the driver's."""
    cluster = AmdCluster(tmp_path_factory.mktemp("amd"))
    try:
        cluster.start(*range(len(NODES)))
        codes = cluster.exit_codes(within=300)
        assert codes == dict.fromkeys(range(len(NODES)), 0), cluster.consoles()
        yield json.loads((cluster.run.root / "seen.json").read_text())
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def vllm_on_rocm() -> Iterator[ModuleType]:
    """vLLM's module of ROCm, which asks amdsmi for the GPU's architecture as it is imported."""
    with pytest.MonkeyPatch.context() as patch:  # vLLM stays: it cannot be imported twice
        patch.setitem(sys.modules, "amdsmi", RecordedAmdSmi())
        patch.setenv("VLLM_TARGET_DEVICE", "cpu")  # not both kinds at once
        yield importlib.import_module("vllm.platforms.rocm")


def used(variables: Mapping[str, str], vllm_on_rocm: ModuleType) -> list[int]:
    """The GPUs that torch's build for ROCm uses in a process with these variables.

    vLLM makes HIP's and CUDA's variable the same as it is imported, and raises ValueError if they
    differ.
    """
    with (
        mock.patch.dict(os.environ, variables, clear=True),
        mock.patch.object(torch.version, "hip", "7.0"),
    ):
        before = torch.cuda._parse_visible_devices()
        vllm_on_rocm._sync_hip_cuda_env_vars()
        assert torch.cuda._parse_visible_devices() == before
        both = {os.environ[name] for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")}
    assert both == {",".join(map(str, before))}
    return [int(gpu) for gpu in before]


@pytest.mark.parametrize("name", NODES)
def test_each_actor_uses_one_gpu_of_its_node_and_no_other_has_it(
    name: str, seen: dict[str, list[dict[str, str]]], vllm_on_rocm: ModuleType
) -> None:
    gpus = [used(variables, vllm_on_rocm) for variables in seen[name]]
    assert sorted(gpus) == sorted([gpu] for gpu in NODES[name].gpus)
    assert not any("ROCR_VISIBLE_DEVICES" in variables for variables in seen[name])


def test_the_driver_uses_every_gpu_of_the_head(
    seen: dict[str, list[dict[str, str]]], vllm_on_rocm: ModuleType
) -> None:
    (variables,) = seen["driver"]
    assert used(variables, vllm_on_rocm) == NODES["head"].gpus


def test_ray_takes_gpus_that_it_does_not_detect_for_nvidias(
    seen: dict[str, list[dict[str, str]]],
) -> None:
    """Otherwise this machine shows only one of the two cases."""
    assert all(set(variables) == {"HIP_VISIBLE_DEVICES"} for variables in seen["worker-2"])
    assert all(set(variables) == {"CUDA_VISIBLE_DEVICES"} for variables in seen["worker-1"])
