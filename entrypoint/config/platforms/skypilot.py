"""SkyPilot: a node of a managed job or cluster."""

from __future__ import annotations

from collections.abc import Mapping

from entrypoint.config.parsers import host
from entrypoint.config.platforms.facts import GPU_COUNT, NODE_COUNT, RANK, Facts, Source, gather


def first_line(addresses: str) -> str:
    return host(addresses.split()[0])


SOURCES = (
    Source("rank", "SKYPILOT_NODE_RANK", RANK),
    Source("nodes", "SKYPILOT_NUM_NODES", NODE_COUNT),
    Source("head_address", "SKYPILOT_NODE_IPS", first_line),
    Source("gpus_per_node", "SKYPILOT_NUM_GPUS_PER_NODE", GPU_COUNT),
)


def node(environ: Mapping[str, str]) -> Facts | None:
    return gather("skypilot", environ, SOURCES) if environ.get("SKYPILOT_NODE_RANK") else None
