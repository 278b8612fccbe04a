"""The memory of a node's GPUs, by which the head chooses the layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.options import ConfigError
from entrypoint.config.read import read_settings
from entrypoint.machine.inventory import gpu_memory
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


@pytest.mark.parametrize("text", ["eighty", "80", "0GB", "-1GB", "80TBs"])
def test_what_is_no_size_of_memory_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="ROLLCALL_GPU_MEMORY"):
        read_settings({"ROLLCALL_GPU_MEMORY": text})
