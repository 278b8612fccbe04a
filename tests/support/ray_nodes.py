"""Several real Ray nodes on this machine, with GPUs that they only claim to have."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import remove_placement_group

from tests.support.fork_server.forking_python import forked_workers
from tests.support.ray_workers import actor_of
from tests.support.where import Spot, Where
from trainer.cluster import placement
from trainer.cluster.ray_worker_group import RayLauncher
from trainer.config import layout
from trainer.config.config import Config

Node = dict[str, Any]


@contextmanager
def cluster_of(*nodes: Node) -> Iterator[str]:
    """The address of a cluster that this process is a driver of; the first node is the head."""
    with cluster_at(*nodes) as cluster:
        yield cluster.address


@contextmanager
def short_directory() -> Iterator[Path]:
    """For Ray, whose socket names must be short: pytest's own directories are too deep."""
    directory = Path(tempfile.mkdtemp(prefix="ray-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def cluster_at(*nodes: Node) -> Iterator[Cluster]:
    """A cluster that this process is a driver of; it forks its workers."""
    head, *workers = nodes
    Path("/tmp/ray").mkdir(exist_ok=True)  # Ray writes the address there, whatever temp_dir says
    cluster = Cluster(shutdown_at_exit=False)
    with short_directory() as directory:
        try:
            with forked_workers():
                cluster.add_node(**head, temp_dir=str(directory), include_dashboard=False)
                for worker in workers:
                    cluster.add_node(**worker)
            ray.init(address=cluster.address, log_to_driver=False)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


def workers_of(actor: str) -> list[psutil.Process]:
    """Ray's workers below this process, of actors whose names begin so."""
    below = psutil.Process().children(recursive=True)
    return [process for process in below if actor_of(process).startswith(actor)]


def land(config: Config) -> dict[str, list[tuple[str, Spot]]]:
    """Role → the node's name and the spot of each of its processes, all started at once."""
    wanted = layout.of(config)
    placed = placement.reserve(wanted)
    launcher = RayLauncher(placed, 60.0)
    groups = {
        group.role: launcher.launch(
            group.role, "tests.support.where:Where", len(pool.slots_of(group.role))
        )
        for pool in placed.assignment.layout.pools
        for group in pool.groups
    }
    try:
        return {
            role: [
                (placed.names[one.result().node], one.result())
                for one in group.call_each(Where.spot)
            ]
            for role, group in groups.items()
        }
    finally:
        remove_placement_group(placed.group)
