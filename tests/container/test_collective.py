"""Four containers whose job loses its collective twice, the second time with one on a slow line.

The slow line is a real one: what leaves that container is limited by `tc`.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.container.cluster import Cluster
from tests.support.podman import Container, podman

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(480),
    pytest.mark.skipif(not (shutil.which("tc") and shutil.which("nsenter")), reason="no tc here"),
]
SLOW = "tbf rate 80mbit burst 64kb latency 400ms"
"""10 MB/s: less than a tenth of what two containers reach on two busy cores."""
JOB = """
import os, pathlib, sys, time
run, attempt = pathlib.Path(os.environ["ROLLCALL_RUN_DIR"]), os.environ["ROLLCALL_ATTEMPT"]
while attempt == "2" and not (run / "slowed").exists():
    time.sleep(0.1)
if attempt < "3":
    print("RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.3]:5")
    sys.exit(1)
"""


def slow_down(node: Container) -> None:
    pid = podman("inspect", "--format={{.State.Pid}}", node.id).stdout.strip()
    command = f"nsenter --target {pid} --net tc qdisc add dev eth0 root {SLOW}"
    subprocess.run(command.split(), check=True)


def test_of_four_nodes_the_one_that_is_slowed_is_named_and_left_out_and_none_before(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, tmp_path) as cluster:
        workers = {f"worker-{number}": cluster.worker(number) for number in (1, 2, 3)}
        cluster.head(
            *("python", "-c", JOB),
            workers=3,
            ROLLCALL_MIN_WORKERS="2",
            ROLLCALL_RECIPE="command",
            ROLLCALL_REPLACE_TIMEOUT="3s",
        )
        cluster.watch.event("attempt", within=200, after=1)
        slow_down(workers["worker-2"])
        (cluster.run.root / "slowed").touch()
        cluster.watch.event("outcome", within=180)
        codes = cluster.exit_codes(within=60)
        alike, slowed, left = cluster.watch.events("collective")
    assert alike["sentence"].startswith("all-reduce over 4 nodes: ")
    assert (alike["details"]["verdict"], alike["details"]["nodes"]) == ("pass", [])
    assert (slowed["details"]["verdict"], slowed["details"]["nodes"]) == ("fail", ["worker-2"])
    assert "worker-2 is at fault: " in slowed["sentence"]
    assert left["sentence"].startswith("all-reduce over 3 nodes: ")
    assert codes == {"head": 0, "worker-1": 0, "worker-2": 76, "worker-3": 0}
