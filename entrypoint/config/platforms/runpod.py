"""RunPod: a single pod, which knows only itself, and a node of an Instant Cluster."""

from __future__ import annotations

from collections.abc import Mapping

from entrypoint.config.parsers import host, host_label, node_name
from entrypoint.config.platforms.facts import GPU_COUNT, NODE_COUNT, RANK, Facts, Source, gather


def pod_host(pod_id: str) -> str:
    """The name of a pod on RunPod's global network."""
    return f"{host_label(pod_id)}.runpod.internal"


POD = (
    Source("node_name", "RUNPOD_POD_ID", node_name),
    Source("gpus_per_node", "RUNPOD_GPU_COUNT", GPU_COUNT),
)
ON_THE_GLOBAL_NETWORK = Source("node_host", "RUNPOD_POD_ID", pod_host)

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


def _in_a_cluster(environ: Mapping[str, str]) -> bool:
    of_runpod = environ.get("PRIMARY_ADDR") or environ.get("RUNPOD_POD_ID")
    return bool(of_runpod and environ.get("NODE_RANK"))


def instant_cluster(environ: Mapping[str, str]) -> Facts | None:
    if not _in_a_cluster(environ):
        return None
    return gather("runpod-instant-cluster", environ, INSTANT_CLUSTER)


def pod(environ: Mapping[str, str]) -> Facts | None:
    if not environ.get("RUNPOD_POD_ID"):
        return None
    alone = () if _in_a_cluster(environ) else (ON_THE_GLOBAL_NETWORK,)
    return gather("runpod", environ, [*POD, *alone])
