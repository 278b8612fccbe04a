"""Every check with a machine that passes it and one that gets its worst verdict.

A check without an entry in CASES fails here: so does none come in untested.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from entrypoint.config.read import read_settings
from entrypoint.config.role import Head, Worker
from entrypoint.machine import inventory, limits
from entrypoint.machine.limits import GIB, MIB
from entrypoint.machine.view import Machine
from entrypoint.preflight import each_gpu, gpu_burn, host, network, ports, software, storage
from entrypoint.preflight.check import Check, Context
from entrypoint.preflight.run import CHECKS
from entrypoint.preflight.verdict import Verdict, worst
from entrypoint.processes import process
from tests.support import machines

HEAD, WORKER = Head(1, 1, "a test"), Worker("abc.runpod.internal", "a test")
Build = Callable[[Path, pytest.MonkeyPatch], Context]


def context(environ: dict[str, str] | None = None, **given: Any) -> Context:
    role = given.pop("role", HEAD)
    given.setdefault("amdsmi", lambda: None)
    return Context(role, read_settings(environ or {}), Machine(**given))


def nvidia(state: str = "h100-good", **changes: Any) -> Build:
    """A machine with eight GPUs in a recorded state."""
    return lambda root, _: context(
        dev=machines.nvidia_dev(root), nvml=lambda: machines.nvml(state, **changes)
    )


def fabric_of(environ: dict[str, str] | None = None, **given: Any) -> Build:
    return lambda root, _: context(environ, sys=machines.fabric(root, **given))


def nics(*names: str, environ: dict[str, str] | None = None) -> Build:
    """A worker whose address is on the first interface, `eth0`'s being the internet's."""

    def build(root: Path, patch: pytest.MonkeyPatch) -> Context:
        known = {name: [f"10.{number}.0.5"] for number, name in enumerate(names)}
        given = {"ROLLCALL_NODE_ADDRESS": "10.0.0.5"} | (environ or {})
        sys = machines.network(root, *names)
        return context(given, role=WORKER, sys=sys, addresses=lambda: known)

    return build


def patched(target: Any, name: str, value: Any, **given: Any) -> Build:
    def build(root: Path, patch: pytest.MonkeyPatch) -> Context:
        patch.setattr(target, name, value)
        return context(given.pop("environ", None), **given)

    return build


def limited(limit: int, **given: Any) -> Build:
    """A process whose limits are all `limit`."""
    return patched(resource, "getrlimit", lambda _: (limit, limit), **given)


IN_USE = OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def with_port(number: int | None) -> Build:
    """A node whose Ray port is `number`, or a free one."""

    def build(root: Path, patch: pytest.MonkeyPatch) -> Context:
        taken = {number} if number else set()
        patch.setattr(ports, "why_not", lambda port, *_: IN_USE if port in taken else None)
        return context({"ROLLCALL_RAY_PORT": str(number or 6379)})

    return build


def in_run_dir(name: str) -> Build:
    return lambda root, _: context({"ROLLCALL_RUN_DIR": str(root / name)})


def stored_at(url: str) -> Build:
    """A head with that store, in which ROOT is a directory."""

    def build(root: Path, _: pytest.MonkeyPatch) -> Context:
        storage = {"ROLLCALL_STORAGE": url.replace("ROOT", str(root)), "EXPECTED_WORKERS": "0"}
        return context(storage)

    return build


def at_rate(rate: float) -> Build:
    return patched(storage, "written", lambda _: rate)


def memory_of(size: int) -> Build:
    return patched(limits, "memory_limit", lambda *_: size)


def with_rdma(limit: int) -> Build:
    def build(root: Path, patch: pytest.MonkeyPatch) -> Context:
        patch.setattr(resource, "getrlimit", lambda _: (limit, limit))
        return context(sys=machines.fabric(root), dev=machines.nvidia_dev(root))

    return build


def with_verbs(devices: int) -> Build:
    """A container that was given the files of so many of the four InfiniBand devices."""
    return lambda root, _: context(sys=machines.fabric(root), dev=machines.rdma_dev(root, devices))


def named(*found: str) -> Build:
    """A network in which only these names are known."""
    return patched(network, "looked_up", lambda name: "127.0.0.1" if name in found else None)


def burning(*rows: dict[str, Any]) -> Build:
    """What the burn's process prints; the real one runs in test_preflight_burn."""

    def build(root: Path, patch: pytest.MonkeyPatch) -> Context:
        told = [gpu_burn.judge(index, row) for index, row in enumerate(rows)]
        patch.setattr(gpu_burn, "run", lambda *_: worst(told))
        return context(dev=machines.nvidia_dev(root, len(rows)))

    return build


def burned(tflops: float, copy: float, correct: bool = True) -> dict[str, Any]:
    name = "NVIDIA H100 80GB HBM3"
    return {"model": name, "tflops": tflops, "copy_gbs": copy, "correct": correct}


def moving_errors(root: Path, patch: pytest.MonkeyPatch) -> Context:
    sys = machines.fabric(root)
    counter = sys / "class/infiniband/mlx5_3/ports/1/counters/link_downed"
    patch.setattr(time, "sleep", lambda _: counter.write_text("2\n"))
    return context(sys=sys)


def still_errors(root: Path, patch: pytest.MonkeyPatch) -> Context:
    patch.setattr(time, "sleep", lambda _: None)
    return context(sys=machines.fabric(root))


def kernel_log(*lines: str) -> Build:
    def build(root: Path, _: pytest.MonkeyPatch) -> Context:
        dev = machines.nvidia_dev(root)
        (dev / "kmsg").write_text("".join(f"6,1,{n},-;{line}\n" for n, line in enumerate(lines)))
        return context(dev=dev)

    return build


def closed_devices(root: Path, patch: pytest.MonkeyPatch) -> Context:
    dev = machines.nvidia_dev(root)
    (dev / "nvidia-uvm").unlink()
    return context(dev=dev)


def seeing(value: str) -> Build:
    return lambda root, _: context({"CUDA_VISIBLE_DEVICES": value}, dev=machines.nvidia_dev(root))


def gpus_with_fabric(root: Path, module: bool) -> Context:
    sys = machines.fabric(root)
    if module:
        machines.write(sys, {"module/nvidia_peermem/refcnt": 0})
    environ = {} if module else {"NCCL_DMABUF_ENABLE": "0"}
    return context(environ, sys=sys, dev=machines.nvidia_dev(root))


def orphan(state: tuple[str, str] | None) -> Build:
    def build(root: Path, patch: pytest.MonkeyPatch) -> Context:
        patch.setattr(host, "_state", lambda *_: state)
        patch.setattr(host, "REAP_SECONDS", 0.1)
        return context()

    return build


def one_port(**changes: str | int) -> Build:
    return fabric_of(mlx5_3=changes)


@dataclass(frozen=True, slots=True)
class Case:
    passes: Build
    worst: Build
    verdict: str = "fail"
    """Of the worst: checks that stop no node only warn."""


ALL = resource.RLIM_INFINITY
CASES = {
    "host.shm": Case(memory_of(64 * MIB), memory_of(1 << 50), "warn"),
    "host.nofile": Case(limited(ALL), limited(1000)),
    "host.nproc": Case(limited(ALL, proc=Path(os.devnull)), limited(100)),
    "host.memlock": Case(with_rdma(ALL), with_rdma(64 * 1024)),
    "host.memory": Case(memory_of(8 * GIB), memory_of(100 * MIB)),
    "host.cpus": Case(
        patched(limits, "cpu_limit", lambda *_: 2.0),
        patched(limits, "cpu_limit", lambda *_: 0.5),
        "warn",
    ),
    "host.clock": Case(patched(time, "time", lambda: 4e9), patched(time, "time", lambda: 0.0)),
    "host.reaper": Case(orphan(None), orphan(("Z", "1")), "warn"),
    "host.run_dir": Case(in_run_dir(""), in_run_dir("missing")),
    "host.run_dir_speed": Case(at_rate(1e9), at_rate(5e6), "warn"),
    "host.store": Case(stored_at("file://ROOT/store"), stored_at("gs://bucket")),
    "host.temp_dir": Case(
        lambda *_: context({"ROLLCALL_RAY_TEMP_DIR": "/tmp"}),
        lambda root, _: context({"ROLLCALL_RAY_TEMP_DIR": "/proc/ray"}),
    ),
    "host.private": Case(
        lambda root, _: context({"ROLLCALL_RAY_TEMP_DIR": f"/tmp/{root.name}"}),
        lambda *_: context({"ROLLCALL_RAY_TEMP_DIR": "/tmp"}),
    ),
    "host.ports": Case(with_port(None), with_port(6380)),
    "host.stale_ray": Case(
        patched(process, "other_owner", lambda *_: None),
        patched(process, "other_owner", lambda *_: 4242),
    ),
    "host.names": Case(named("localhost", socket.gethostname()), named()),
    "fabric.interface": Case(
        nics("ens1", "eth0", environ={"NCCL_SOCKET_IFNAME": "ens"}),
        nics("ens1", "eth0", environ={"NCCL_SOCKET_IFNAME": "ib0"}),
    ),
    "fabric.runpod": Case(
        lambda *_: context(role=Worker("10.0.0.2", "a test")),
        lambda *_: context(role=WORKER),
        "warn",
    ),
    "versions.ray": Case(lambda *_: context(), patched(software, "installed", lambda _: "")),
    "versions.torch": Case(
        patched(software, "installed", lambda _: "2.13.0"),
        patched(software, "installed", lambda _: ""),
    ),
    "gpu.present": Case(nvidia(), lambda root, _: context(dev=root), "skip"),
    "gpu.count": Case(nvidia(), nvidia("h100-bad")),
    "gpu.recovery": Case(nvidia(), nvidia(nvmlDeviceGetFieldValues={"230": 2})),
    "gpu.ecc": Case(nvidia(), nvidia(nvmlDeviceGetTotalEccErrors={"1": 1, "0": 0})),
    "gpu.remapped_rows": Case(nvidia(), nvidia(nvmlDeviceGetRemappedRows=[0, 1, 0, 1])),
    "gpu.slowdown": Case(nvidia(), nvidia(nvmlDeviceGetCurrentClocksEventReasons=0x80)),
    "gpu.temperature": Case(nvidia(), nvidia(nvmlDeviceGetTemperature=95)),
    "gpu.pcie": Case(nvidia(), nvidia(nvmlDeviceGetCurrPcieLinkWidth=8)),
    "gpu.links": Case(nvidia(), nvidia(nvmlDeviceGetNvLinkState=[1] * 17 + [0])),
    "gpu.partition": Case(nvidia(), nvidia(nvmlDeviceGetMigMode=[1, 1]), "warn"),
    "gpu.memory": Case(
        nvidia(), nvidia(nvmlDeviceGetMemoryInfo={"used": 40 * GIB, "total": 80 * GIB})
    ),
    "gpu.driver": Case(
        nvidia(),
        lambda root, patch: (
            patch.setattr(inventory, "cuda", lambda: "14.0.1"),
            nvidia()(root, patch),
        )[1],
    ),
    "gpu.devices": Case(nvidia(), closed_devices),
    "gpu.visible": Case(seeing("0,1,2,3,4,5,6,7"), seeing("8")),
    "gpu.xid": Case(
        kernel_log("NVRM: Xid (PCI:0000:1b:00): 31, pid=7, name=python"),
        kernel_log("NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."),
    ),
    "gpu.burn": Case(burning(burned(680, 2900)), burning(burned(680, 2900), burned(120, 2900))),
    "fabric.ports": Case(fabric_of(), one_port(**machines.DOWN)),
    "fabric.rate": Case(fabric_of(), one_port(rate="200 Gb/sec (4X HDR)")),
    "fabric.gid": Case(
        fabric_of({"NCCL_IB_GID_INDEX": "3"}, roce=True),
        fabric_of({"NCCL_IB_GID_INDEX": "2"}, roce=True),
    ),
    "fabric.hca": Case(
        fabric_of({"NCCL_IB_HCA": "mlx5"}), fabric_of({"NCCL_IB_HCA": "=mlx4_0,mlx4_1"})
    ),
    "fabric.mtu": Case(
        fabric_of(roce=True), fabric_of({"NCCL_IB_HCA": "mlx5"}, roce=True, mtus=(9000, 1500))
    ),
    "fabric.gpudirect": Case(
        lambda root, _: gpus_with_fabric(root, True),
        lambda root, _: gpus_with_fabric(root, False),
        "warn",
    ),
    "fabric.errors": Case(still_errors, moving_errors),
    "fabric.verbs": Case(with_verbs(4), with_verbs(3), "warn"),
    "fabric.disabled": Case(fabric_of(), fabric_of({"NCCL_IB_DISABLE": "1"}), "warn"),
}
EVERY = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)


@EVERY
def test_a_machine_without_the_fault_passes(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check.timeout <= 90
    result = check.run(CASES[check.name].passes(tmp_path, monkeypatch))
    assert result.verdict is Verdict.PASS, result
    assert result.evidence


@EVERY
def test_a_machine_with_the_fault_is_told_with_evidence_and_remedy(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[check.name]
    result = check.run(case.worst(tmp_path, monkeypatch))
    assert result.verdict == case.verdict, result
    assert result.evidence
    assert "could not tell" not in result.evidence
    assert result.remedy or result.verdict is Verdict.SKIP


def test_there_is_no_case_for_a_check_that_is_gone() -> None:
    assert set(CASES) == {check.name for check in CHECKS}


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize(
    "check",
    [one for one in CHECKS if one.timeout == each_gpu.NVML_TIMEOUT and one.name.startswith("gpu.")],
    ids=lambda check: check.name,
)
def test_a_driver_that_does_not_answer_fails_each_check_that_asks_it(
    check: Check, hang: threading.Event, tmp_path: Path
) -> None:
    class Hanging(machines.RecordedNvml):
        def nvmlInit(self) -> None:  # noqa: N802
            hang.wait()

    library: Any = Hanging({})
    where = context(dev=machines.nvidia_dev(tmp_path), nvml=lambda: library)
    (where.machine.dev / "kmsg").touch()
    result = replace(check, timeout=0.05).run(where)
    assert result.verdict is Verdict.FAIL
    assert "no answer within" in result.evidence


def test_a_port_of_the_fabric_that_does_not_answer_fails_its_check(tmp_path: Path) -> None:
    sys = machines.fabric(tmp_path)
    state = sys / "class/infiniband/mlx5_0/ports/1/state"
    state.unlink()
    os.mkfifo(state)
    (check,) = (one for one in CHECKS if one.name == "fabric.ports")
    try:
        result = replace(check, timeout=0.1).run(context(sys=sys))
    finally:
        os.close(os.open(state, os.O_RDWR | os.O_NONBLOCK))
    assert result.verdict is Verdict.FAIL
