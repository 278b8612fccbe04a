"""dstack: a node of a task with `nodes` above one.

Source: dstack.ai/docs/concepts/tasks, "Distributed tasks", system environment variables.
"""

from __future__ import annotations

from entrypoint.config.parsers import host
from entrypoint.config.platforms.facts import GPU_COUNT, NODE_COUNT, RANK, Platform, Source

DSTACK = Platform(
    name="dstack",
    marks=(
        "DSTACK_NODE_RANK",
        "DSTACK_NODES_NUM",
        "DSTACK_MASTER_NODE_IP",
        "DSTACK_NODES_IPS",
    ),
    sources=(
        Source("rank", "DSTACK_NODE_RANK", RANK),
        Source("nodes", "DSTACK_NODES_NUM", NODE_COUNT),
        Source("head_address", "DSTACK_MASTER_NODE_IP", host),
        Source("gpus_per_node", "DSTACK_GPUS_PER_NODE", GPU_COUNT),
    ),
    again="dstack apply -f FILE",
    undecided="pass DSTACK_NODE_RANK to the node, or set RAY_WORKER",
)
