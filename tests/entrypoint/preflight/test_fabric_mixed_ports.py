"""Machines with ports that are not for training: storage's, management's, one without a cable."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from entrypoint.config.read import read_settings
from entrypoint.config.role import Head
from entrypoint.machine.view import Machine
from entrypoint.preflight.check import Context, Result
from entrypoint.preflight.run import CHECKS
from entrypoint.preflight.verdict import Verdict
from tests.support import machines

HEAD = Head(1, 1, "a test")
ROCE = {**machines.ROCE_GIDS}
STORAGE = ROCE | {"rate": "100 Gb/sec (4X EDR)"}
MANAGEMENT = ROCE | {"rate": "25 Gb/sec (1X EDR)"}
FOUR = {"NCCL_IB_HCA": "=mlx5_0,mlx5_1,mlx5_2,mlx5_3"}


def asked(name: str, root: Path, environ: dict[str, str], sys: Path) -> Result:
    (check,) = (one for one in CHECKS if one.name == name)
    return check.run(Context(HEAD, read_settings(environ), Machine(sys=sys, dev=root / "dev")))


def infiniband_and_ethernet(root: Path, **changes: Any) -> Path:
    """Four ports of 400 Gbit/s InfiniBand, one of storage and one of management."""
    return machines.fabric(root, devices=6, **({"mlx5_4": STORAGE, "mlx5_5": MANAGEMENT} | changes))


def with_mtus(sys: Path, *mtus: int) -> Path:
    """The last devices' network interfaces have these."""
    for number, mtu in enumerate(mtus, 6 - len(mtus)):
        device = sys / "class" / "infiniband" / f"mlx5_{number}"
        machines.write(device, {f"device/net/eth{number}/mtu": mtu})
    return sys


def test_ethernet_ports_of_two_rates_are_a_warning_beside_infiniband(tmp_path: Path) -> None:
    sys = infiniband_and_ethernet(tmp_path)
    assert asked("fabric.rate", tmp_path, {}, sys).verdict is Verdict.WARN
    assert asked("fabric.rate", tmp_path, FOUR, sys).verdict is Verdict.PASS


def test_a_slow_port_of_infiniband_fails_beside_ethernet(tmp_path: Path) -> None:
    slow = {"mlx5_3": {"rate": "200 Gb/sec (4X HDR)"}}
    result = asked("fabric.rate", tmp_path, {}, infiniband_and_ethernet(tmp_path, **slow))
    assert result.verdict is Verdict.FAIL
    assert "mlx5_3:1 runs at 200" in result.evidence


def test_mtus_of_ports_that_nobody_named_are_a_warning(tmp_path: Path) -> None:
    sys = with_mtus(infiniband_and_ethernet(tmp_path), 9000, 1500)
    result = asked("fabric.mtu", tmp_path, {}, sys)
    assert result.verdict is Verdict.WARN
    assert "NCCL_IB_HCA" in result.remedy


@pytest.mark.parametrize(
    ("environ", "verdict"),
    [
        ({}, "warn"),
        ({"NCCL_IB_HCA": "mlx5"}, "fail"),
        ({"NCCL_IB_HCA": "^mlx5_5"}, "pass"),
        ({"NCCL_IB_HCA": "=mlx5_0,mlx5_1"}, "pass"),
    ],
)
def test_a_management_port_with_a_small_mtu_fails_only_where_it_is_named(
    environ: dict[str, str], verdict: str, tmp_path: Path
) -> None:
    """Five ports of 200 Gbit/s at 9000 bytes and one of 25 Gbit/s at 1500."""
    sys = machines.fabric(tmp_path, devices=6, roce=True, mlx5_5=MANAGEMENT)
    assert asked("fabric.mtu", tmp_path, environ, with_mtus(sys, 1500)).verdict == verdict


@pytest.mark.parametrize(
    ("environ", "verdict"),
    [
        ({}, "fail"),
        (FOUR, "warn"),
        ({"NCCL_IB_HCA": "^mlx5_4"}, "warn"),
        ({"NCCL_IB_HCA": "^mlx5_3"}, "fail"),
        ({"NCCL_IB_HCA": "=mlx5_0,mlx5_4"}, "fail"),
    ],
)
def test_a_port_without_a_cable_fails_unless_the_user_left_it_out(
    environ: dict[str, str], verdict: str, tmp_path: Path
) -> None:
    sys = machines.fabric(tmp_path, devices=5, mlx5_4=machines.DOWN)
    assert asked("fabric.ports", tmp_path, environ, sys).verdict == verdict


@pytest.mark.parametrize(
    ("gpus", "environ", "verdict"),
    [
        (8, {}, "fail"),
        (0, {}, "skip"),
        (8, {"NCCL_IB_DISABLE": "1"}, "skip"),
        (8, {"ROLLCALL_NUM_GPUS": "0"}, "skip"),
    ],
)
def test_memory_is_locked_for_gpus_that_send_by_rdma_alone(
    gpus: int,
    environ: dict[str, str],
    verdict: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64 * 1024, 64 * 1024))
    sys = machines.fabric(tmp_path, roce=True)
    machines.nvidia_dev(tmp_path, gpus)
    assert asked("host.memlock", tmp_path, environ, sys).verdict == verdict


@pytest.mark.parametrize(
    ("given", "environ", "verdict"),
    [
        (4, {}, "pass"),
        (0, {}, "warn"),
        (3, FOUR, "fail"),
        (3, {"NCCL_IB_HCA": "=mlx5_0,mlx5_1"}, "pass"),
        (0, {"NCCL_IB_DISABLE": "1"}, "skip"),
        (0, {"ROLLCALL_NUM_GPUS": "0"}, "skip"),
    ],
)
def test_a_container_needs_the_files_of_the_ports_that_nccl_uses(
    given: int, environ: dict[str, str], verdict: str, tmp_path: Path
) -> None:
    sys = machines.fabric(tmp_path)
    machines.rdma_dev(tmp_path, given)
    assert asked("fabric.verbs", tmp_path, environ, sys).verdict == verdict
