"""RunPod: a single pod, which knows only itself, and a node of an Instant Cluster.

Source: docs.runpod.io, the environment variables of "Pods" and of "Instant Clusters".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from entrypoint.config.parsers import host, host_label, node_name
from entrypoint.config.platforms.facts import (
    GPU_COUNT,
    NODE_COUNT,
    RANK,
    Facts,
    Platform,
    Source,
    first_given,
    gather,
)


def pod_host(pod_id: str) -> str:
    """The name of a pod on RunPod's global network."""
    return f"{host_label(pod_id)}.runpod.internal"


POD = (
    Source("node_name", "RUNPOD_POD_ID", node_name),
    Source("gpus_per_node", "RUNPOD_GPU_COUNT", GPU_COUNT),
)
AGAIN = "runpodctl stop pod $RUNPOD_POD_ID && runpodctl start pod $RUNPOD_POD_ID"
ON_THE_GLOBAL_NETWORK = Source("node_host", "RUNPOD_POD_ID", pod_host)

# WORLD_SIZE is the number of GPUs here: it is not read. NODE_ADDR lies in the cluster's own
# network (ens1 and up); the pod's default interface only reaches the internet.
INSTANT_CLUSTER = Platform(
    name="runpod-instant-cluster",
    marks=("PRIMARY_ADDR", "NODE_RANK"),
    sources=(
        Source("node_name", "RUNPOD_POD_ID", node_name),
        Source("rank", "NODE_RANK", RANK),
        Source("nodes", "NUM_NODES", NODE_COUNT),
        Source("gpus_per_node", "NUM_TRAINERS", GPU_COUNT),
        Source("node_address", "NODE_ADDR", host),
        Source("head_address", "PRIMARY_ADDR", host),
        Source("head_address", "MASTER_ADDR", host),
    ),
    again=AGAIN,
    undecided="set NODE_RANK to the node's number, or set RAY_WORKER",
)


def _in_a_cluster(environ: Mapping[str, str]) -> bool:
    """NODE_RANK alone is anybody's; PRIMARY_ADDR, or a pod's id beside it, is RunPod's."""
    of_runpod = first_given(environ, ("PRIMARY_ADDR", "RUNPOD_POD_ID"))
    return of_runpod is not None and first_given(environ, INSTANT_CLUSTER.marks) is not None


def instant_cluster(environ: Mapping[str, str]) -> Facts | None:
    return INSTANT_CLUSTER.read(environ) if _in_a_cluster(environ) else None


def pod(environ: Mapping[str, str]) -> Facts | None:
    """A pod outside an Instant Cluster may be the head: the user says which pod is a worker."""
    if not first_given(environ, ("RUNPOD_POD_ID",)):
        return None
    alone = () if _in_a_cluster(environ) else (ON_THE_GLOBAL_NETWORK,)
    return replace(gather("runpod", environ, [*POD, *alone]), again=AGAIN)
