"""AMD's three variables: Ray's and torch's own functions read what this project writes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ray._private.accelerators import (
    AMDGPUAcceleratorManager,
    NvidiaGPUAcceleratorManager,
)

from entrypoint.config.read import read_settings
from entrypoint.config.role import Head
from entrypoint.machine.gpus import discover
from entrypoint.machine.view import Machine
from entrypoint.node import ray_node
from entrypoint.preflight import gpu_burn, gpu_driver
from entrypoint.preflight.check import Context
from entrypoint.preflight.verdict import Finding, Verdict
from tests.support import machines

HEAD = Head(1, 1, "a test")
GPUS = 4
VALUES = st.permutations(range(GPUS)).flatmap(
    lambda order: st.integers(0, GPUS).map(lambda size: ",".join(map(str, order[:size])))
)
ENVIRONS = st.dictionaries(st.sampled_from(discover.AMD_VARIABLES), VALUES)
MANAGERS = pytest.mark.parametrize(
    "ray", [AMDGPUAcceleratorManager, NvidiaGPUAcceleratorManager], ids=["detects", "does not"]
)
"""Ray takes NVIDIA's when it does not notice that the GPUs are AMD's."""


@pytest.fixture(scope="module")
def node() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory() as root:
        yield Machine(
            dev=machines.amd_dev(Path(root), GPUS), sys=machines.amd_sys(Path(root), GPUS)
        )


@contextmanager
def process_with(environ: Mapping[str, str]) -> Iterator[None]:
    """Of torch's build for ROCm."""
    with (
        mock.patch.dict(os.environ, environ, clear=True),
        mock.patch.object(torch.version, "hip", "7.0"),
    ):
        yield


def of_torch() -> list[str]:
    return [str(name) for name in torch.cuda._parse_visible_devices()][:GPUS]


@MANAGERS
@given(environ=ENVIRONS)
def test_ray_and_torch_see_the_nodes_gpus_before_and_after_ray_has_chosen(
    node: Machine, ray: type[AMDGPUAcceleratorManager], environ: dict[str, str]
) -> None:
    if gpu_driver.judge_visible(environ, GPUS, is_amd=True).verdict is Verdict.FAIL:
        return
    settings = read_settings(environ)
    names = discover.of_node(settings, node)
    with process_with(ray_node.environment(settings, "a token", node)):
        assert of_torch() == names
        ids = ray.get_current_process_visible_accelerator_ids()
        shown = names or ["-1"]
        assert ids == (shown if environ else None)
        for name in names:
            ray.set_current_process_visible_accelerator_ids([name])
            assert of_torch() == [name]
            assert ray.get_current_process_visible_accelerator_ids() == [name]


@MANAGERS
@given(environ=ENVIRONS)
def test_the_driver_sees_every_gpu_of_the_node_though_ray_hides_them(
    node: Machine, ray: type[AMDGPUAcceleratorManager], environ: dict[str, str]
) -> None:
    if gpu_driver.judge_visible(environ, GPUS, is_amd=True).verdict is Verdict.FAIL:
        return
    settings = read_settings(environ)
    with process_with(ray_node.environment(settings, "a token", node)):
        ray.set_current_process_visible_accelerator_ids([])
        os.environ.update(discover.of_driver(settings, node))
        assert of_torch() == discover.of_node(settings, node)
        assert ray.get_current_process_visible_accelerator_ids() is not None


def test_nvidias_environment_stays_as_it_is(tmp_path: Path) -> None:
    environ = {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}
    settings, node = read_settings(environ), Machine(dev=machines.nvidia_dev(tmp_path))
    assert discover.environment(settings, node) == environ
    assert discover.of_driver(settings, node) == {}


def test_the_burn_is_shown_the_gpus_that_ray_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"ROCR_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "2,3"}
    where = Machine(
        dev=machines.amd_dev(tmp_path, GPUS),
        sys=machines.amd_sys(tmp_path, GPUS),
        amdsmi=lambda: None,
    )
    context = Context(HEAD, read_settings(environ), where)
    code = "import os; print([v for k, v in os.environ.items() if 'VISIBLE_DEVICES' in k])"
    told: Finding = gpu_burn.run(["python3", "-c", code], context)
    assert told.evidence.endswith(": ['2,3']")
