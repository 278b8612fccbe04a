"""Groups of 1, 2 and 4 ranks on a Ray of their own, which hold one model after another."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import ray

from tests.support.fork_server.forking_python import forked_workers
from tests.support.ranks import Workbench
from trainer.cluster import placement
from trainer.cluster.ray_worker_group import RayLauncher
from trainer.cluster.worker_group import WorkerGroup
from trainer.config import layout
from trainer.config.layout import Layout, ResourcePool, Role

Benches = dict[int, WorkerGroup[Workbench]]
"""By the number of their ranks."""
RANKS = {Role.POLICY: 1, Role.CRITIC: 2, Role.REFERENCE: 4}
"""The name that a bench has in Ray → the number of its ranks; each takes any role's part."""
PATIENCE = 180.0
"""Seconds that ranks wait for each other, also while they start.

A rank that does not answer for a third of it counts as stopped. With 60 s here, a rank that was
silent for 20 s at its first call was stopped, and all tests after it failed.
"""


def started() -> Iterator[Benches]:
    # Ray's socket names must be short: pytest's own directories are too deep.
    directory = Path(tempfile.mkdtemp(prefix="ray-"))
    before = dict(os.environ)
    os.environ.pop("RAY_ADDRESS", None)
    os.environ |= {"RAY_TMPDIR": str(directory), "OMP_NUM_THREADS": "1"}
    groups = [
        layout.RoleProcesses(role=role, nodes=1, per_node=count) for role, count in RANKS.items()
    ]
    wanted = Layout(tuple(ResourcePool(groups=(group,)) for group in groups))
    with forked_workers():
        placement.join(wanted)
    launcher = RayLauncher(placement.reserve(wanted), timeout=PATIENCE)
    yield {
        one.slots: launcher.launch_ranks(one.role, "tests.support.ranks:Workbench", one.slots)
        for one in groups
    }
    ray.shutdown()
    os.environ.clear()
    os.environ.update(before)
    shutil.rmtree(directory, ignore_errors=True)
