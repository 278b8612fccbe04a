"""SkyPilot: a node of a managed job or cluster.

Source: docs.skypilot.co, "Distributed multi-node jobs" and "Using environment variables".
"""

from __future__ import annotations

from entrypoint.config.parsers import host, start_id
from entrypoint.config.platforms.facts import GPU_COUNT, NODE_COUNT, RANK, Platform, Source


def first_line(addresses: str) -> str:
    return host(addresses.split()[0])


SKYPILOT = Platform(
    name="skypilot",
    marks=("SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", "SKYPILOT_NODE_IPS"),
    sources=(
        Source("rank", "SKYPILOT_NODE_RANK", RANK),
        Source("nodes", "SKYPILOT_NUM_NODES", NODE_COUNT),
        Source("head_address", "SKYPILOT_NODE_IPS", first_line),
        Source("gpus_per_node", "SKYPILOT_NUM_GPUS_PER_NODE", GPU_COUNT),
        Source("start_id", "SKYPILOT_TASK_ID", start_id),  # stays when a managed job is recovered
    ),
    again="sky jobs launch FILE, or sky launch --cluster CLUSTER FILE",
    undecided="pass SKYPILOT_NODE_RANK to the node, or set RAY_WORKER",
)
