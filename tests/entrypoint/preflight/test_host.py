"""The machine's checks, each against real limits, files and processes."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from entrypoint.config.read import read_settings
from entrypoint.config.role import Head
from entrypoint.machine import inventory, limits
from entrypoint.machine.gpus import discover
from entrypoint.machine.limits import GIB, MIB
from entrypoint.machine.view import Machine
from entrypoint.preflight import gpu_health, host, software
from entrypoint.preflight.check import Context
from entrypoint.preflight.verdict import Verdict
from tests.support import machines

HEAD = Head(1, 1, "a test")

PROBE = """
import json, sys
{before}
from entrypoint.machine import inventory
from entrypoint.preflight import host
from entrypoint.machine import inventory
from entrypoint.preflight.check import Context
from entrypoint.config.role import Head
from entrypoint.config.read import read_settings
finding = host.{name}(Context(Head(1, 1, "a test"), read_settings({{}})))
print(json.dumps([finding.verdict, finding.evidence, finding.remedy]))
"""


def probed(name: str, before: str) -> tuple[str, str, str]:
    """What a probe finds in a process of its own, after `before`."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(name=name, before=before)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    verdict, evidence, remedy = json.loads(done.stdout)
    return verdict, evidence, remedy


def context(environ: dict[str, str] | None = None, /, **paths: Any) -> Context:
    return Context(HEAD, read_settings(environ or {}), Machine(**paths))


@pytest.mark.parametrize(
    ("name", "limit", "number", "verdict"),
    [
        ("nofile", "RLIMIT_NOFILE", 2048, "fail"),
        ("nproc", "RLIMIT_NPROC", 8192, "warn"),
        ("nproc", "RLIMIT_NPROC", 900, "fail"),
    ],
)
def test_limits_of_files_and_processes_are_judged(
    name: str, limit: str, number: int, verdict: str
) -> None:
    told, evidence, remedy = probed(
        name, f"import resource; resource.setrlimit(resource.{limit}, ({number}, {number}))"
    )
    assert told == verdict
    assert str(number) in evidence
    assert "--ulimit" in remedy


@pytest.mark.parametrize(("gpus", "verdict"), [(8, Verdict.WARN), (0, Verdict.PASS)])
def test_only_a_node_with_gpus_needs_tens_of_thousands_of_files(
    gpus: int, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20000, 20000))
    monkeypatch.setattr(Context, "why_no_gpu", "" if gpus else "this machine has no GPU")
    found = host.nofile(context())
    assert (found.verdict, found.evidence) == (verdict, "open files: 20000")


def test_enough_files_and_processes_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1_048_576))
    assert host.nofile(context()).verdict is Verdict.PASS  # a node raises the first to the second
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert host.nproc(context(proc=Path(os.devnull))).verdict is Verdict.PASS


@pytest.mark.parametrize(("pids", "verdict"), [("max", "pass"), ("2048", "warn"), ("512", "fail")])
def test_the_cgroups_limit_of_processes_counts_too(
    pids: str, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (65536, 65536))
    paths = unified(tmp_path, {"pids.max": pids})
    assert host.nproc(context(**paths)).verdict == verdict


def unified(root: Path, files: dict[str, str], path: str = "/") -> dict[str, Path]:
    """A cgroup of version 2 with `files`, and the /proc that names it."""
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "self" / "cgroup").write_text(f"0::{path}\n")
    cgroup = root / "cgroup"
    (cgroup / path.strip("/")).mkdir(parents=True)
    for name, text in files.items():
        (cgroup / name).write_text(f"{text}\n")
    return {"proc": root / "proc", "cgroup": cgroup}


def legacy(root: Path, files: dict[str, str], path: str) -> dict[str, Path]:
    """A cgroup of version 1, whose path as often in a container is the host's."""
    (root / "proc" / "self").mkdir(parents=True)
    lines = "".join(
        f"{number}:{controller}:{path}\n"
        for number, controller in enumerate(("memory", "cpu,cpuacct", "pids"), 2)
    )
    (root / "proc" / "self" / "cgroup").write_text(lines)
    for name, text in files.items():
        file = root / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return {"proc": root / "proc", "cgroup": root / "cgroup"}


def test_the_smallest_limit_from_the_own_cgroup_upwards_is_the_memory(tmp_path: Path) -> None:
    files = {"pod/box/memory.max": str(900 * MIB), "pod/memory.max": str(700 * MIB)}
    paths = unified(tmp_path, {}, path="/pod/box")
    for name, text in files.items():
        (paths["cgroup"] / name).write_text(text)
    assert limits.memory_limit(**paths) == 700 * MIB
    (paths["cgroup"] / "pod" / "memory.max").write_text("max")
    assert limits.memory_limit(**paths) == 900 * MIB


def test_limits_of_cgroup_version_1_are_read_though_the_path_is_the_hosts(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": str(800 * MIB),
        "cpu/cpu.cfs_quota_us": "50000",
        "cpu/cpu.cfs_period_us": "100000",
        "pids/pids.max": "4096",
    }
    paths = legacy(tmp_path, files, "/docker/0123abcd")
    assert limits.memory_limit(**paths) == 800 * MIB
    assert limits.cpu_limit(**paths) == 0.5
    assert limits.pids_limit(**paths) == 4096


def test_a_machine_without_limits_has_all_of_its_memory_and_cpus(tmp_path: Path) -> None:
    files = {"memory.max": "max", "cpu.max": "max 100000", "pids.max": "max"}
    paths = unified(tmp_path, files)
    assert limits.memory_limit(**paths) > 0
    assert limits.cpu_limit(**paths) == len(os.sched_getaffinity(0))
    assert limits.pids_limit(**paths) is None


@pytest.mark.parametrize(("size", "verdict"), [(256 * MIB, "fail"), (1 * GIB, "warn")])
def test_a_container_with_little_memory_is_told_so(size: int, verdict: str, tmp_path: Path) -> None:
    finding = host.memory(context(**unified(tmp_path, {"memory.max": str(size)})))
    assert finding.verdict == verdict
    assert "by the container's limit" in finding.evidence
    assert "--memory" in finding.remedy


def test_enough_memory_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "memory_limit", lambda *_: 8 * GIB)
    assert host.memory(context()).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("quota", "offered", "verdict"),
    [
        ("max 100000", None, "pass"),
        ("50000 100000", None, "warn"),
        ("max 100000", "4096", "warn"),
        ("100000 100000", "1", "pass"),
    ],
)
def test_cpus_are_judged_by_the_quota_and_by_what_is_offered(
    quota: str, offered: str | None, verdict: str, tmp_path: Path
) -> None:
    environ = {} if offered is None else {"ROLLCALL_NUM_CPUS": offered}
    paths = unified(tmp_path, {"cpu.max": quota})
    assert host.cpus(context(environ, **paths)).verdict == verdict


@pytest.mark.parametrize(
    ("size", "memory", "gpus", "verdict"),
    [
        (12 * GIB, 24 * GIB, 0, "pass"),
        (64 * MIB, 24 * GIB, 0, "warn"),
        (64 * MIB, 24 * GIB, 8, "fail"),
        (2 * GIB, 24 * GIB, 8, "warn"),
        (16 * MIB, 24 * GIB, 0, "fail"),
    ],
)
def test_shared_memory_is_judged_against_the_memory_and_the_gpus(
    size: int, memory: int, gpus: int, verdict: str
) -> None:
    finding = host.judge_shm(size, memory, gpus)
    assert finding.verdict == verdict
    assert ("--shm-size=7g" in finding.remedy) == (verdict != "pass")


def test_the_size_of_shared_memory_is_the_volumes(tmp_path: Path) -> None:
    paths = unified(tmp_path, {"memory.max": str(1 * GIB)})
    assert host.shm(context(shm=tmp_path, **paths)).verdict in (Verdict.PASS, Verdict.WARN)


def test_a_clock_before_the_installation_is_wrong() -> None:
    assert host.judge_clock(now=0.0, built=1.7e9).verdict is Verdict.FAIL
    assert host.judge_clock(now=1.7e9 - 60, built=1.7e9).verdict is Verdict.PASS
    assert host.clock(context()).verdict is Verdict.PASS


def test_orphans_that_nobody_reaps_are_seen() -> None:
    """A process that inherits orphans and never waits for them, as a shell as process 1 would."""
    subreaper = "import ctypes; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)"
    verdict, evidence, remedy = probed("reaper", subreaper)
    assert verdict == "warn"
    assert "in state Z" in evidence
    assert "--init" in remedy


def test_orphans_that_are_reaped_pass() -> None:
    if Path("/proc/1/comm").read_text().strip() in ("python", "python3", "bash", "sh", "sleep"):
        pytest.skip("process 1 of this container reaps nothing")
    assert host.reaper(context()).verdict is Verdict.PASS


def test_gpus_are_counted_by_their_device_files(tmp_path: Path) -> None:
    assert discover.count(Machine(dev=tmp_path)) == 0
    assert gpu_health.present(context(dev=tmp_path)).verdict is Verdict.SKIP
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert discover.count(Machine(dev=tmp_path)) == 2
    assert gpu_health.present(context(dev=tmp_path)).verdict is Verdict.PASS


def test_amd_gpus_are_counted_by_their_render_nodes(tmp_path: Path) -> None:
    machine = Machine(dev=tmp_path, sys=tmp_path / "sys")
    (tmp_path / "dri").mkdir()
    (tmp_path / "dri" / "renderD128").touch()
    assert discover.count(machine) == 0  # a display, without ROCm's driver
    (tmp_path / "kfd").touch()
    assert discover.count(machine) == 1


def test_versions_and_inventory_are_what_the_check_in_tells() -> None:
    settings = read_settings({"ROLLCALL_IMAGE": "sha256:12", "ROLLCALL_NUM_CPUS": "3"})
    told = inventory.versions(settings)
    assert told["python"] == ".".join(map(str, sys.version_info[:3]))
    assert told["ray"]
    assert told["image"] == "sha256:12"
    assert all(isinstance(one, str) for one in told.values())
    offered = inventory.inventory(settings)
    assert offered["cpus"] == 3
    assert offered["memory_bytes"] > 0
    assert set(offered) == {
        *("cpus", "memory_bytes", "gpus", "gpu_memory_bytes", "mtu", "link_gbits"),
    }
    given = read_settings({"ROLLCALL_GPU_MEMORY": "80 GB"})
    assert inventory.inventory(given)["gpu_memory_bytes"] == 80 * 10**9


def test_amds_gpus_and_libraries_are_told_by_their_files(tmp_path: Path) -> None:
    sys = machines.amd_sys(tmp_path)
    assert inventory.gpu_model(tmp_path, sys) == "AMD Instinct MI300X OAM"
    assert inventory.gpu_model(tmp_path, tmp_path) == ""
    library = tmp_path / "lib" / "librccl.so"
    assert inventory.rccl(tmp_path) == ""
    machines.write(tmp_path / "lib", {"librccl.so.1.0.70200": ""})
    library.symlink_to("librccl.so.1.0.70200")
    assert inventory.rccl(tmp_path) == "1.0.70200"


def test_another_ray_than_the_pinned_one_is_a_warning_and_none_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert software.ray(context()).verdict is Verdict.PASS
    monkeypatch.setattr(software, "installed", lambda _: "2.0.0")
    assert software.ray(context()).verdict is Verdict.WARN
    monkeypatch.setattr(software, "installed", lambda _: "")
    assert software.ray(context()).verdict is Verdict.FAIL


def test_torch_is_needed_by_the_builtin_recipe_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert software.torch(context()).verdict is Verdict.PASS
    monkeypatch.setattr(software, "installed", lambda _: "")
    assert software.torch(context()).verdict is Verdict.FAIL
    assert software.torch(context({"ROLLCALL_RECIPE": "command"})).verdict is Verdict.SKIP
