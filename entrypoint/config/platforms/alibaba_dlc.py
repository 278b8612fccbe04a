"""Alibaba PAI DLC: a node of a PyTorch training job, where RANK and WORLD_SIZE count nodes.

Source: alibabacloud.com/help/en/pai/general-environment-variables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from entrypoint.config.parsers import host
from entrypoint.config.platforms.facts import (
    GPU_COUNT,
    NODE_COUNT,
    RANK,
    Facts,
    Platform,
    Source,
    first_given,
)

MASTER = re.compile(r"dlc[0-9a-z]+-master-0(\..+)?")
"""The master's name; no variable has DLC's name in it."""

ALIBABA_DLC = Platform(
    name="alibaba-dlc",
    marks=("MASTER_ADDR",),
    sources=(
        Source("rank", "RANK", RANK),
        Source("nodes", "WORLD_SIZE", NODE_COUNT),
        Source("head_address", "MASTER_ADDR", host),
        Source("gpus_per_node", "NPROC_PER_NODE", GPU_COUNT),
    ),
    undecided="pass RANK to the node, or set RAY_WORKER",
)


def node(environ: Mapping[str, str]) -> Facts | None:
    """Under torchrun (LOCAL_RANK) RANK and WORLD_SIZE count processes, also on DLC."""
    if first_given(environ, ("LOCAL_RANK",)) or not MASTER.fullmatch(
        environ.get("MASTER_ADDR", "").strip()
    ):
        return None
    return ALIBABA_DLC.read(environ)
