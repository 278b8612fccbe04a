"""The memory of a node's GPUs, by which the head chooses the layout, and their ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.options import ConfigError
from entrypoint.config.read import read_settings
from entrypoint.machine.inventory import gpu_ids, gpu_memory
from entrypoint.machine.view import Machine
from tests.support import machines

GIB = 2**30


@pytest.mark.parametrize(
    ("state", "gibibytes"), [("h100-good", 79.6), ("a100-good", 80), ("h100-bad", 79.6)]
)
def test_the_driver_says_the_memory_of_the_smallest_gpu(
    tmp_path: Path, state: str, gibibytes: float
) -> None:
    machine = Machine(dev=machines.nvidia_dev(tmp_path), nvml=lambda: machines.nvml(state))
    found = gpu_memory(read_settings({}), machine)
    assert found / GIB == pytest.approx(gibibytes, rel=0.02)
    assert gpu_memory(read_settings({"ROLLCALL_GPU_MEMORY": "72 GB"}), machine) == 72 * 10**9


def test_without_gpus_or_their_library_it_is_unknown(tmp_path: Path) -> None:
    assert gpu_memory(read_settings({}), Machine(dev=tmp_path)) == 0
    machine = Machine(dev=machines.nvidia_dev(tmp_path), nvml=lambda: None)
    assert gpu_memory(read_settings({}), machine) == 0


MIG = "MIG-5f1a8c9e-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    ("visible", "ids"),
    [("1,0", (machines.uuid(0), machines.uuid(1))), (machines.uuid(5), (machines.uuid(5),))],
)
def test_a_node_has_the_ids_of_the_gpus_that_it_uses(
    tmp_path: Path, visible: str, ids: tuple[str, ...]
) -> None:
    machine = Machine(dev=machines.nvidia_dev(tmp_path), nvml=lambda: machines.nvml("h100-good"))
    assert gpu_ids(read_settings({"CUDA_VISIBLE_DEVICES": visible}), machine) == ids


def test_a_part_of_a_gpu_has_an_id_of_its_own(tmp_path: Path) -> None:
    machine = Machine(dev=machines.nvidia_dev(tmp_path), nvml=lambda: machines.nvml("h100-good"))
    (part,) = gpu_ids(read_settings({"CUDA_VISIBLE_DEVICES": MIG}), machine)
    assert part not in gpu_ids(read_settings({"CUDA_VISIBLE_DEVICES": "3"}), machine)


@pytest.mark.parametrize(("mode", "ids"), [("SPX", ("9f1b2a3c4d5e6f70",)), ("CPX", ())])
def test_amds_driver_tells_the_id_of_a_whole_gpu(
    tmp_path: Path, mode: str, ids: tuple[str, ...]
) -> None:
    told = {"unique_id": "9f1b2a3c4d5e6f70", "current_compute_partition": mode}
    sys = machines.amd_sys(tmp_path, 1, **told)
    machine = Machine(dev=machines.amd_dev(tmp_path, 1), sys=sys, amdsmi=lambda: None)
    assert gpu_ids(read_settings({}), machine) == ids
    library = machines.RecordedAmdSmi(
        amdsmi_get_gpu_device_uuid="9f1b2a3c4d5e6f70", amdsmi_get_gpu_compute_partition=mode
    )
    asked = Machine(dev=machine.dev, sys=sys, amdsmi=lambda: library)
    assert gpu_ids(read_settings({"HIP_VISIBLE_DEVICES": "0"}), asked) == ids


@pytest.mark.parametrize("text", ["eighty", "80", "0GB", "-1GB", "80TBs"])
def test_what_is_no_size_of_memory_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="ROLLCALL_GPU_MEMORY"):
        read_settings({"ROLLCALL_GPU_MEMORY": text})
