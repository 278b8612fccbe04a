"""The variables without a prefix that torchrun and similar launchers set.

RANK and WORLD_SIZE are not read: launchers count processes, nodes or GPUs in them.
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
