"""The variables that torchrun and its likes have in common, with no platform's prefix.

RANK and WORLD_SIZE count processes in one place, nodes in another and GPUs in a third: neither is
read.
"""

from __future__ import annotations

from collections.abc import Mapping

from entrypoint.config.parsers import host
from entrypoint.config.platforms.facts import NODE_COUNT, RANK, Facts, Source, gather

SOURCES = (
    Source("rank", "NODE_RANK", RANK),
    Source("rank", "GROUP_RANK", RANK),
    Source("nodes", "NNODES", NODE_COUNT),
    Source("nodes", "NUM_NODES", NODE_COUNT),
    Source("head_address", "MASTER_ADDR", host),
)


def node(environ: Mapping[str, str]) -> Facts | None:
    ranked = environ.get("NODE_RANK") or environ.get("GROUP_RANK")
    if not environ.get("MASTER_ADDR") or not ranked:
        return None
    return gather("torchrun", environ, SOURCES)
