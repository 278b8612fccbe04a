"""Slurm: a task that `srun` started, one on each node."""

from __future__ import annotations

import re
from collections.abc import Mapping

from entrypoint.config.parsers import host, node_name
from entrypoint.config.platforms.facts import GPU_COUNT, NODE_COUNT, RANK, Facts, Source, gather


def first_host(node_list: str) -> str:
    """The first name of a compressed list: `gnode10` of `gnode[10,20-25],big1`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", node_list)
    return host(re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0] if first else ""))


NODE = (
    Source("rank", "SLURM_NODEID", RANK),
    Source("gpus_per_node", "SLURM_GPUS_ON_NODE", GPU_COUNT),
    Source("node_name", "SLURMD_NODENAME", node_name),
)
STEP = (
    Source("nodes", "SLURM_STEP_NUM_NODES", NODE_COUNT),
    Source("head_address", "SLURM_STEP_NODELIST", first_host),
)
JOB = (
    Source("nodes", "SLURM_JOB_NUM_NODES", NODE_COUNT),
    Source("nodes", "SLURM_NNODES", NODE_COUNT),
    Source("head_address", "SLURM_JOB_NODELIST", first_host),
)


def task(environ: Mapping[str, str]) -> Facts | None:
    """The rank counts the step's nodes, which may be some of the job's: so what the step says of
    them is not compared with what the job says, but takes its place."""
    if not environ.get("SLURM_NODEID"):
        return None
    step = [source for source in STEP if environ.get(source.variable, "").strip()]
    told = {source.fact for source in step}
    job = [source for source in JOB if source.fact not in told]
    return gather("slurm", environ, [*NODE, *step, *job])
