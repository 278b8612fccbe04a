"""Faults planted in real containers: each is found, and named; healthy ones give no alarm."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.container.clock import WrongClock
from tests.container.cluster import HEAD_POD_ID, Cluster
from tests.support.podman import IMAGE, Container, podman, run_once

pytestmark = [pytest.mark.container, pytest.mark.timeout(400)]

ENOUGH = ("--shm-size=8g", "--pids-limit=-1")
"""What a node on a machine of 24 GiB is to be given."""
OF_THIS_MACHINE = {"host.nofile"}
"""What a container cannot be given more of than its host has."""
TOKEN = "correct-horse-battery"


def examined(
    *options: str, image: str = IMAGE, arguments: tuple[str, ...] = ("doctor", "--json")
) -> tuple[dict[str, dict[str, Any]], int]:
    """Check to its result, and the exit code."""
    done = run_once(*ENOUGH, *options, image, *arguments)
    rows = json.loads(done.stdout)["checks"]
    return {row["name"]: row for row in rows}, done.returncode


def alarms(results: dict[str, dict[str, Any]]) -> set[str]:
    bad = {name for name, row in results.items() if row["verdict"] in ("warn", "fail")}
    return bad - OF_THIS_MACHINE


@pytest.mark.parametrize(
    ("options", "check", "says"),
    [
        (["--shm-size=16m"], "host.shm", "/dev/shm has 16 MiB"),
        (["--ulimit=nofile=1000:1000", "--ulimit=nproc=16384"], "host.nofile", "open files: 1000"),
        (["--ulimit=nproc=900:900", "--ulimit=nofile=16384"], "host.nproc", "threads: 900"),
        (["--pids-limit=300"], "host.nproc", "300 in this cgroup"),
        (["--memory=300m"], "host.memory", "300 MiB of memory by the container's limit"),
        (["--read-only"], "host.run_dir", "Read-only file system"),
        (
            ["--mount=type=tmpfs,destination=/checkpoints,tmpfs-size=64m"],
            "host.run_dir",
            "/checkpoints: ",  # of 64 MiB, less what the check of its speed writes meanwhile
        ),
        (["--mount=type=tmpfs,destination=/tmp,tmpfs-size=64m"], "host.temp_dir", "/tmp: 6"),
        (
            ["--env=NCCL_SOCKET_IFNAME=ib0"],
            "fabric.interface",
            "NCCL_SOCKET_IFNAME=ib0 names no interface of this node, which has eth0",
        ),
        (["--env=NCCL_IB_HCA=mlx5"], "fabric.hca", "this node has none"),
        (["--env=ROLLCALL_NUM_GPUS=8"], "gpu.count", "ROLLCALL_NUM_GPUS asks for 8"),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value else None,
)
def test_a_planted_fault_is_found_by_name(options: list[str], check: str, says: str) -> None:
    results, code = examined(*options)
    assert results[check]["verdict"] == "fail", results[check]
    assert says in results[check]["evidence"]
    assert results[check]["remedy"]
    assert code == 76


def test_a_port_that_another_program_has_is_found_with_that_program() -> None:
    listens = "(: </dev/tcp/127.0.0.1/6379) 2>/dev/null"
    script = f"python -m http.server 6379 >/dev/null 2>&1 & until {listens}; do sleep 0.1; done"
    results, code = examined(arguments=("bash", "-c", f"{script}; exec rollcall doctor --json"))
    assert "6379: Address already in use, by python" in results["host.ports"]["evidence"]
    assert code == 76


def test_a_first_process_that_reaps_nobody_is_found() -> None:
    entrypoint = '--entrypoint=["python", "-m", "entrypoint"]'
    results, _ = examined(entrypoint)
    assert results["host.reaper"]["verdict"] == "warn"
    assert "--init" in results["host.reaper"]["remedy"]


@pytest.fixture
def dead_end() -> Iterator[str]:
    """A network of which this is the only node."""
    name = f"rollcall-{uuid.uuid4().hex[:8]}"
    podman("network", "create", "--internal", name)
    yield name
    podman("network", "rm", "--force", name, check=False)


def test_an_interface_that_leads_nowhere_is_found_beside_the_one_that_leads_to_the_head(
    dead_end: str,
) -> None:
    results, _ = examined(
        *("--network=podman:interface_name=eth0", f"--network={dead_end}:interface_name=eth1"),
        "--env=NCCL_SOCKET_IFNAME=eth1",
        *("--env=RAY_WORKER=1", "--env=ROLLCALL_HEAD_ADDRESS=10.88.0.1"),
    )
    result = results["fabric.interface"]
    assert result["verdict"] == "warn"
    assert "names eth1, and the way to the head is eth0" in result["evidence"]
    assert "set NCCL_SOCKET_IFNAME=eth0" in result["remedy"]


@pytest.mark.parametrize("starts", [5, pytest.param(20, marks=pytest.mark.faults)])
def test_healthy_starts_give_no_alarm(starts: int) -> None:
    loop = f"for n in $(seq {starts}); do rollcall doctor --json | tr -d '\\n'; echo; done"
    done = run_once(*ENOUGH, IMAGE, "bash", "-c", loop, within=300)
    reports = [json.loads(line)["checks"] for line in done.stdout.splitlines()]
    assert len(reports) == starts
    for rows in reports:
        assert alarms({row["name"]: row for row in rows}) == set(), rows


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A head that waits for one worker."""
    root = tmp_path_factory.mktemp("cluster")
    with Cluster(root, root) as cluster:
        cluster.head(*("sleep", "600"), workers=1, ROLLCALL_RECIPE="command", ROLLCALL_TOKEN=TOKEN)
        cluster.watch.event("start", within=90)
        yield cluster


def worker(cluster: Cluster, name: str, *options: str, words: tuple[str, ...] = ()) -> Container:
    """A worker as `cluster` has them, with other `options`."""
    cluster.nodes[name] = Container.start(
        f"{cluster.name}-{name}",
        *(f"--hostname={name}", f"--network={cluster.name}", "--pids-limit=-1"),
        *("--shm-size=512m", "--env=RAY_WORKER=1", f"--env=HEAD_POD_ID={HEAD_POD_ID}"),
        *(f"--env=ROLLCALL_TOKEN={TOKEN}", *options, IMAGE, *words),
    )
    return cluster.nodes[name]


def refusal(cluster: Cluster, name: str) -> str:
    """What the journal says of a refused node."""
    told = cluster.watch.events("refused")
    return " ".join(event["sentence"] for event in told if f"refused {name} " in event["sentence"])


@pytest.mark.faults
def test_a_worker_on_other_storage_is_refused_on_both_sides(
    waiting: Cluster, tmp_path: Path
) -> None:
    tmp_path.chmod(0o1777)
    node = worker(waiting, "elsewhere", f"--volume={tmp_path}:/checkpoints")
    assert node.exit_code(within=150) == 76
    assert "mount one shared storage at ROLLCALL_RUN_DIR" in node.said
    assert "mount one shared storage at ROLLCALL_RUN_DIR" in refusal(waiting, "elsewhere")


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc here")
def test_a_worker_whose_clock_is_wrong_is_refused_on_both_sides(
    waiting: Cluster, tmp_path: Path
) -> None:
    clock = WrongClock.made_in(tmp_path, seconds=-7_200)
    tmp_path.chmod(0o755)
    node = worker(
        waiting,
        "late",
        f"--volume={waiting.run.root}:/checkpoints",
        f"--volume={tmp_path}:/clock:ro",
        *(f"--env={name}={value}" for name, value in clock.variables("/clock").items()),
    )
    assert node.exit_code(within=150) == 76
    said = refusal(waiting, "late")
    assert re.search(r"(2 h 0|1 h 59) min behind the head's: set both \(NTP\)", said)


SMALL_MTU = """
import fcntl, os, socket, struct
with socket.socket() as one:
    fcntl.ioctl(one, 0x8922, struct.pack("16si", b"eth0", 1200))
os.execvp("python", ["python", "-m", "entrypoint"])
"""


def test_another_mtu_and_another_variable_are_told_with_the_node_that_has_them(
    waiting: Cluster,
) -> None:
    worker(
        waiting,
        "narrow",
        f"--volume={waiting.run.root}:/checkpoints",
        *("--cap-add=NET_ADMIN", "--env=NCCL_DEBUG=WARN"),
        words=("python", "-c", SMALL_MTU),
    )
    waiting.watch.event("difference", within=150, after=1)
    variable, mtu = (event["sentence"] for event in waiting.watch.events("difference"))
    assert variable == "nodes.environment: narrow: NCCL_DEBUG is WARN, on 1 of 2 nodes not there"
    assert mtu.startswith("nodes.mtu: narrow: the MTU is 1200, on 1 of 2 nodes 1")
