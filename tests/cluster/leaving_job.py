"""A job that leaves processes on every node: a daemon, and a child of a Ray worker.

It fails in its first attempt, and ends well in its second one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from contract.progress import Progress
from contract.run_dir import RunFiles

DAEMON = "(setsid sleep 301 > /dev/null 2>&1 &) &"


class Member:
    """Lives on one node."""

    def leave(self) -> None:
        subprocess.Popen(["/bin/sh", "-c", DAEMON])
        subprocess.Popen(["sleep", "302"], start_new_session=True)


def main() -> int:
    run, attempt = Path(os.environ["ROLLCALL_RUN_DIR"]), int(os.environ["ROLLCALL_ATTEMPT"])
    ray.init(address="auto", log_to_driver=False)
    nodes = sum(node["Alive"] for node in ray.nodes())
    group = placement_group([{"CPU": 0.1}] * nodes, strategy="STRICT_SPREAD")
    ray.get(group.ready())
    strategy = PlacementGroupSchedulingStrategy(placement_group=group)
    remote = ray.remote(Member).options(num_cpus=0.1, scheduling_strategy=strategy)
    ray.get([remote.remote().leave.remote() for _ in range(nodes)])
    progress = Progress(step=attempt, total_steps=2, samples=attempt, attempt=attempt)
    progress.write(RunFiles(run).progress)
    return 0 if attempt == 2 else 3


if __name__ == "__main__":
    sys.exit(main())
