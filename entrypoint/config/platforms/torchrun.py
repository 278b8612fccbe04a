"""The variables without a prefix that torchrun and similar launchers set.

RANK and WORLD_SIZE are not read: launchers count processes, nodes or GPUs in them.
Source: docs.pytorch.org, "torchrun (Elastic Launch)", environment variables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from entrypoint.config.parsers import host
from entrypoint.config.platforms.facts import (
    NODE_COUNT,
    RANK,
    Facts,
    Platform,
    Source,
    first_given,
    first_process,
    one_process,
)

LOOPBACK = re.compile(r"localhost|127(\.[0-9]+){3}|\[?::1\]?")

TORCHRUN = Platform(
    name="torchrun",
    marks=("NODE_RANK", "GROUP_RANK", "RANK", "NNODES", "NUM_NODES", "WORLD_SIZE", "MASTER_ADDR"),
    sources=(
        Source("rank", "NODE_RANK", RANK),
        Source("rank", "GROUP_RANK", RANK),
        Source("processes", "LOCAL_WORLD_SIZE", one_process),
        Source("processes", "LOCAL_RANK", first_process),
        Source("nodes", "NNODES", NODE_COUNT),
        Source("nodes", "NUM_NODES", NODE_COUNT),
        Source("head_address", "MASTER_ADDR", host),
    ),
    undecided="set NODE_RANK to the node's number (RANK may count processes), or set RAY_WORKER",
    remedies={"processes": "start one process on each node: torchrun --nproc_per_node=1"},
)


def node(environ: Mapping[str, str]) -> Facts | None:
    """WORLD_SIZE=1 is one node, whatever the launcher counts; so is a master on this machine."""
    ranked = first_given(environ, ("NODE_RANK", "GROUP_RANK"))
    if first_given(environ, TORCHRUN.marks) == "MASTER_ADDR" and LOOPBACK.fullmatch(
        environ["MASTER_ADDR"].strip()
    ):
        return None
    if environ.get("WORLD_SIZE", "").strip() == "1" and not ranked:
        return None
    return TORCHRUN.read(environ)
