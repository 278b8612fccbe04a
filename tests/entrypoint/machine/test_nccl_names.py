"""NCCL's lists of names, as its `parseStringList` and `matchIfList` read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from entrypoint.machine import infiniband, interfaces, nccl_names


@pytest.mark.parametrize(
    ("pattern", "chosen", "unfit"),
    [
        ("^=mlx5_0,^=mlx5_1", ["b", "c"], ["^=mlx5_1"]),
        ("=mlx5_0,=mlx5_1", ["a"], ["=mlx5_1"]),
        ("^mlx5_9", ["a", "b", "c"], ["mlx5_9"]),
        ("=mlx5_0, mlx5_1", ["a"], [" mlx5_1"]),
        ("mlx5_0:,", ["a"], []),
        (":1", ["a", "b", "c"], []),
        ("mlx5", ["a", "b", "c"], []),
        ("=mlx5_1", ["b"], []),
        ("mlx5_1,mlx4", ["b", "c"], ["mlx4"]),
        ("^mlx5_0", ["b", "c"], []),
        ("^=mlx5_1,mlx5_10", ["a"], []),
        ("=mlx5_0:2", [], ["mlx5_0:2"]),
        ("mlx5_0:1", ["a"], []),
    ],
)
def test_ports_are_chosen_as_nccl_chooses_them(
    pattern: str, chosen: list[str], unfit: list[str]
) -> None:
    letters = {"mlx5_0": "a", "mlx5_1": "b", "mlx5_10": "c"}
    ports = [infiniband.Port(device, 1, Path()) for device in letters]
    found = infiniband.selected(pattern, ports)
    assert [letters[one.device] for one in found] == chosen
    there = [(one.device, one.number) for one in ports]
    assert nccl_names.parsed(pattern).without(there) == unfit


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("eth", ["eth0", "eth1"]),
        ("=eth0", ["eth0"]),
        ("=eth0,ib0", ["eth0", "ib0"]),
        ("^docker", ["eth0", "eth1", "ib0"]),
        ("^=eth0", ["eth1", "ib0", "docker0"]),
    ],
)
def test_interfaces_are_chosen_as_nccl_chooses_them(pattern: str, names: list[str]) -> None:
    every = ["eth0", "eth1", "ib0", "docker0"]
    assert [name for name in every if interfaces.matcher(pattern)(name)] == names
