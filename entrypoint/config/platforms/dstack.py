"""dstack: a node of a task with `nodes` above one."""

from __future__ import annotations

from collections.abc import Mapping

from entrypoint.config.parsers import host
from entrypoint.config.platforms.facts import GPU_COUNT, NODE_COUNT, RANK, Facts, Source, gather

SOURCES = (
    Source("rank", "DSTACK_NODE_RANK", RANK),
    Source("nodes", "DSTACK_NODES_NUM", NODE_COUNT),
    Source("head_address", "DSTACK_MASTER_NODE_IP", host),
    Source("gpus_per_node", "DSTACK_GPUS_PER_NODE", GPU_COUNT),
)


def node(environ: Mapping[str, str]) -> Facts | None:
    return gather("dstack", environ, SOURCES) if environ.get("DSTACK_NODE_RANK") else None
