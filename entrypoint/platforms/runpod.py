"""RunPod: a single pod, which knows only itself, and a node of an Instant Cluster."""

from __future__ import annotations

from collections.abc import Mapping

from entrypoint.parsers import host, node_name
from entrypoint.platforms.facts import GPU_COUNT, NODE_COUNT, RANK, Facts, Source, gather

POD = (
    Source("node_name", "RUNPOD_POD_ID", node_name),
    Source("gpus_per_node", "RUNPOD_GPU_COUNT", GPU_COUNT),
)

# WORLD_SIZE is the number of GPUs here: it is not read. NODE_ADDR lies in the cluster's own
# network (ens1 and up); the pod's default interface only reaches the internet.
INSTANT_CLUSTER = (
    Source("node_name", "RUNPOD_POD_ID", node_name),
    Source("rank", "NODE_RANK", RANK),
    Source("nodes", "NUM_NODES", NODE_COUNT),
    Source("gpus_per_node", "NUM_TRAINERS", GPU_COUNT),
    Source("node_address", "NODE_ADDR", host),
    Source("head_address", "PRIMARY_ADDR", host),
    Source("head_address", "MASTER_ADDR", host),
)


def instant_cluster(environ: Mapping[str, str]) -> Facts | None:
    of_runpod = environ.get("PRIMARY_ADDR") or environ.get("RUNPOD_POD_ID")
    if not of_runpod or not environ.get("NODE_RANK"):
        return None
    return gather("runpod-instant-cluster", environ, INSTANT_CLUSTER)


def pod(environ: Mapping[str, str]) -> Facts | None:
    return gather("runpod", environ, POD) if environ.get("RUNPOD_POD_ID") else None
