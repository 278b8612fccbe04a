"""Slurm: a task that `srun` started, one on each node."""

from __future__ import annotations

import re
from collections.abc import Mapping

from entrypoint.parsers import host, node_name
from entrypoint.platforms.facts import GPU_COUNT, NODE_COUNT, RANK, Facts, Source, gather


def first_host(node_list: str) -> str:
    """The first name of a compressed list: `gnode10` of `gnode[10,20-25],big1`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", node_list)
    return host(re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0] if first else ""))


SOURCES = (
    Source("rank", "SLURM_NODEID", RANK),
    Source("nodes", "SLURM_JOB_NUM_NODES", NODE_COUNT),
    Source("nodes", "SLURM_NNODES", NODE_COUNT),
    Source("head_address", "SLURM_JOB_NODELIST", first_host),
    Source("gpus_per_node", "SLURM_GPUS_ON_NODE", GPU_COUNT),
    Source("node_name", "SLURMD_NODENAME", node_name),
)


def task(environ: Mapping[str, str]) -> Facts | None:
    return gather("slurm", environ, SOURCES) if environ.get("SLURM_NODEID") else None
