"""Weights from one container to another, against what iperf3 sends between the two.

The repository is mounted into both, so that no image is built for it. iperf3 is this machine's own,
in the containers' network.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.podman import IMAGE, Container, missing, podman

RAY_PORT = 6379
SECONDS = 4


def lacking() -> str | None:
    """What this machine has not that the measurement needs; None: nothing."""
    if reason := missing():
        return reason
    wanted = [name for name in ("iperf3", "nsenter") if shutil.which(name) is None]
    return (
        f"no {' and no '.join(wanted)} here: apt-get install iperf3 util-linux" if wanted else None
    )


def measured(model: Path, versions: int) -> dict[str, Any]:
    """GB a second of both, in turns, and their ratio."""
    with two(model) as (policy, engine):
        before = iperf(policy, engine)
        row = transfer(policy, versions)
        after = iperf(policy, engine)
    link = (before + after) / 2
    return {
        **row,
        "iperf3_gb_per_second": [round(before, 2), round(after, 2)],
        "to_iperf3": round(row["gb_per_second"] / link, 3),
    }


@contextmanager
def two(model: Path) -> Iterator[tuple[Container, Container]]:
    """A container that is Ray's head, with the policy's resource, and one for the engine."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    repository = Path(__file__).parents[2]
    common = [
        f"--network={name}",
        "--shm-size=512m",
        "--pids-limit=-1",
        "--entrypoint=bash",
        "--env=OMP_NUM_THREADS=1",
        "--env=PYTHONPATH=/repository",
        f"--volume={repository}:/repository:ro",
        f"--volume={model}:/model:ro",
    ]
    started: list[Container] = []
    podman("network", "create", name)
    try:
        for role, start in (
            ("policy", f"--head --port={RAY_PORT}"),
            ("engine", f"--address={name}-policy:{RAY_PORT}"),
        ):
            offered = f"ray start {start} --num-cpus=1 --resources='{{\"{role}\": 1}}' --block"
            # The head's name resolves once it runs; Ray's own start fails where it does not listen.
            loop = f"cd /repository; until {offered} --disable-usage-stats; do sleep 1; done"
            words = (*common, f"--hostname={role}", IMAGE, "-c", loop)
            started.append(Container.start(f"{name}-{role}", *words))
        yield started[0], started[1]
    finally:
        for container in started:
            container.remove()
        podman("network", "rm", "--force", name, check=False)


def transfer(policy: Container, versions: int) -> dict[str, Any]:
    """`bench.weights` in the head's container, once both nodes have come."""
    command = ["python", "-m", "bench.weights", "--engine", "hf", "/model", "--apart"]
    deadline = time.monotonic() + 60
    while policy.execute("ray", "status").stdout.count("1 node_") < 2:
        if time.monotonic() > deadline:
            raise SystemExit(f"the containers form no cluster:\n{policy.said[-2000:]}")
        time.sleep(1)
    done = policy.execute("env", "RAY_ADDRESS=auto", *command, "--versions", str(versions))
    if done.returncode:
        raise SystemExit(f"between containers it ended with {done.returncode}:\n{done.stderr}")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def iperf(sender: Container, receiver: Container) -> float:
    """GB a second of one TCP stream."""
    where = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    address = podman("inspect", f"--format={where}", receiver.id).stdout.strip()
    server = subprocess.Popen([*inside(receiver), "-s", "-1"], stdout=subprocess.DEVNULL)
    try:
        time.sleep(1)
        client = [*inside(sender), "-c", address, "-t", str(SECONDS), "--json"]
        said = json.loads(subprocess.run(client, capture_output=True, text=True).stdout)
        if "error" in said:
            raise SystemExit(f"iperf3: {said['error']}")
    finally:
        server.terminate()
        server.wait()
    return float(said["end"]["sum_received"]["bits_per_second"]) / 8e9


def inside(container: Container) -> list[str]:
    pid = podman("inspect", "--format={{.State.Pid}}", container.id).stdout.strip()
    return ["nsenter", f"--net=/proc/{pid}/ns/net", "iperf3"]
